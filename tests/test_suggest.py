"""Suggestions against scikit-learn, explicit hat matrices and distances taken one by one."""

import itertools
import math
import statistics
from typing import Any

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from krrviz import suggest
from krrviz.settings import Settings, SettingsError
from krrviz.suggest import cross_validated_bandwidth, gcv_ridge, median_bandwidth
from krrviz.tables import shipped


def data(rows: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A noisy wave over normal inputs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, d))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(rows)


SHAPES = [(3, 1), (7, 2), (60, 1), (83, 3), (40, 50)]


@pytest.mark.parametrize(("rows", "d"), SHAPES)
def test_the_median_is_that_of_all_distances(rows: int, d: int) -> None:
    X, _ = data(rows, d)
    found = median_bandwidth(X)
    distances = [math.dist(a, b) for a, b in itertools.combinations(X.tolist(), 2)]
    assert found.bandwidth == pytest.approx(statistics.median(distances), rel=1e-12)
    assert found.rows == rows
    # The end is the farthest pair, and may miss it by a rounding of the distance.
    for distance, share in zip(found.distance[:-1], found.share[:-1], strict=True):
        assert share == sum(one <= distance for one in distances) / len(distances)
    assert found.share[-1] == 1
    assert found.distance[-1] == pytest.approx(max(distances), rel=1e-12)


def test_the_median_of_a_part_of_many_rows() -> None:
    X, _ = data(5000, 2)
    found = median_bandwidth(X, seed=1)
    assert found.rows == suggest.DISTANCE_ROWS == 1000
    # ‖x − x'‖² is 2χ² of two degrees of freedom: the median distance is √(4 ln 2)
    assert found.bandwidth == pytest.approx(math.sqrt(4 * math.log(2)), rel=0.05)
    assert median_bandwidth(X, seed=1).bandwidth == found.bandwidth
    assert median_bandwidth(X, seed=2).bandwidth != found.bandwidth


def test_duplicates_do_not_make_the_median_zero() -> None:
    X = np.zeros((10, 1))
    X[-2:, 0] = [1.0, 3.0]  # distances: 28 of 0, 8 of 1, 8 of 3, one of 2
    found = median_bandwidth(X)
    assert found.bandwidth == 2
    assert found.share[0] == 28 / 45


@pytest.mark.parametrize("rows", [2, 5, 1200])
def test_equal_inputs_have_no_bandwidth(rows: int) -> None:
    X, y = np.full((rows, 2), 0.1), np.arange(float(rows))
    for refused in (lambda: median_bandwidth(X), lambda: cross_validated_bandwidth(X, y, 0.1)):
        with pytest.raises(SettingsError, match=r"bandwidth: all distances between .* rows are 0"):
            refused()


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize(("rows", "d"), SHAPES)
def test_cross_validation_is_scikit_learns(rows: int, d: int, ridge: Any) -> None:
    X, y = data(rows, d)
    found = cross_validated_bandwidth(X, y, ridge, seed=3)
    median = np.median([math.dist(a, b) for a, b in itertools.combinations(X.tolist(), 2)])
    np.testing.assert_allclose(
        np.log(found.bandwidths), np.linspace(np.log(median / 30), np.log(10 * median), 25)
    )
    search = GridSearchCV(
        KernelRidge(alpha=ridge, kernel="rbf"),
        {"gamma": 1 / (2 * found.bandwidths**2)},
        scoring="neg_mean_squared_error",
        cv=PredefinedSplit(found.fold),
    ).fit(X[found.index], y[found.index])
    folds = min(5, rows)
    scores = np.stack([-search.cv_results_[f"split{k}_test_score"] for k in range(folds)])
    np.testing.assert_allclose(found.mean, scores.mean(0), rtol=1e-9)
    error = [statistics.stdev(column) / math.sqrt(folds) for column in scores.T.tolist()]
    np.testing.assert_allclose(found.standard_error, error, rtol=1e-7, atol=1e-15)
    assert found.bandwidth == pytest.approx((2 * search.best_params_["gamma"]) ** -0.5)
    assert found.at_edge == (search.best_index_ in (0, 24))


def test_folds_are_even_and_seeded() -> None:
    X, y = data(1000, 1)
    found = cross_validated_bandwidth(X, y, 0.1)
    assert len(found.index) == len({*found.index.tolist()}) == suggest.FIT_ROWS == 400
    assert np.bincount(found.fold).tolist() == [80] * 5
    assert np.array_equal(cross_validated_bandwidth(X, y, 0.1).mean, found.mean)
    assert not np.array_equal(cross_validated_bandwidth(X, y, 0.1, seed=1).index, found.index)
    assert sorted(np.bincount(cross_validated_bandwidth(*data(13, 1), 0.1).fold)) == [2, 2, 3, 3, 3]


def test_a_ridge_below_rounding_still_gives_errors() -> None:
    X, y = data(120, 1)
    found = cross_validated_bandwidth(X, y, 1e-12)
    assert np.isfinite(found.mean).all()


def test_a_bandwidth_that_a_person_may_set() -> None:
    X, y = data(30, 1)
    rule = Settings.table()["bandwidth"].rule
    for scale in (1e-5, 1e5):
        for bandwidth in cross_validated_bandwidth(X * scale, y, 0.1).bandwidths:
            rule.check(float(bandwidth))


@pytest.mark.parametrize("bandwidth", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(("rows", "d"), SHAPES)
def test_gcv_is_that_of_the_hat_matrix(rows: int, d: int, bandwidth: float) -> None:
    X, y = data(rows, d)
    found = gcv_ridge(X, y, bandwidth)
    square = ((X[:, None] - X) ** 2).sum(-1)
    K, eye = np.exp(-square / (2 * bandwidth**2)), np.eye(rows)
    np.testing.assert_allclose(np.log10(found.ridges), np.linspace(-8, 2, 51), atol=1e-12)
    for ridge, score in zip(found.ridges, found.score, strict=True):
        if ridge < 1e-6:  # there the hat matrix itself has lost its digits
            continue
        S = np.linalg.solve(K + ridge * eye, K)
        expected = np.mean((y - S @ y) ** 2) / (1 - np.trace(S) / rows) ** 2
        assert score == pytest.approx(expected, rel=1e-6)
    assert found.score.min() == found.score[found.ridges == found.ridge][0]
    assert found.at_edge == (found.ridge in (1e-8, 1e2))


def test_gcv_at_both_ends() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (60, 1))
    smooth = gcv_ridge(X, np.exp(-(X[:, 0] ** 2) / 2), 1.0)  # a kernel function: no noise at all
    assert (smooth.ridge, smooth.at_edge) == (1e-8, True)
    inside = gcv_ridge(*data(200, 1), 0.7)
    assert not inside.at_edge
    assert 1e-3 < inside.ridge < 10


def test_gcv_of_many_rows_looks_at_four_hundred() -> None:
    X, y = data(900, 2)
    found = gcv_ridge(X, y, 1.0, seed=4)
    assert len(found.index) == 400
    part = gcv_ridge(X[found.index], y[found.index], 1.0)
    np.testing.assert_allclose(part.score, found.score, rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_constant_targets(value: float) -> None:
    X, _ = data(20, 2)
    y = np.full(20, value)
    assert np.isfinite(cross_validated_bandwidth(X, y, 0.1).mean).all()
    assert np.isfinite(gcv_ridge(X, y, 1.0).score).all()


def test_repeated_rows() -> None:
    X, y = data(15, 2)
    X, y = np.repeat(X, 4, axis=0), np.repeat(y, 4)
    assert np.isfinite(cross_validated_bandwidth(X, y, 1e-6).mean).all()
    assert np.isfinite(gcv_ridge(X, y, 1.0).score).all()


def test_refusals_name_the_value() -> None:
    X, y = data(10, 1)
    with pytest.raises(SettingsError, match="rows=1 must be at least 2"):
        median_bandwidth(X[:1])
    with pytest.raises(ValueError, match=r"ridge=0\.0 must be a finite number above 0"):
        cross_validated_bandwidth(X, y, 0.0)
    with pytest.raises(ValueError, match=r"bandwidth=-1\.0 must be a finite number above 0"):
        gcv_ridge(X, y, -1.0)
    with pytest.raises(ValueError, match="y holds values that are not finite"):
        gcv_ridge(X, y * np.nan, 1.0)


@pytest.mark.parametrize("name", ["motorcycle", "co2", "diabetes"])
def test_suggestions_for_the_shipped_sets(name: str) -> None:
    table = shipped(name)
    found = cross_validated_bandwidth(table.X, table.y, 0.1)
    assert found.mean.min() < 1  # better than the mean of all labels
    assert found.at_edge == (name == "co2")  # a season is shorter than a thirtieth of the years
