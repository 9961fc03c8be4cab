"""Rows held out: answers in the data's own units, held to scikit-learn and to plain NumPy."""

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from krrviz import Settings, heldout, read_csv
from krrviz.frames import held_out_rows
from krrviz.heldout import EXACT, SKLEARN, held_out
from krrviz.suggest import cross_validated_bandwidth, gcv_ridge, median_bandwidth
from krrviz.tables import assets
from krrviz.tasks import sample

DIABETES = assets() / "datasets" / "diabetes.csv"
SMALL = Settings(data="csv", n=40, queries=9, prompts=3, bandwidth=2.0, steps=6)


@pytest.mark.parametrize("scale", ["absolute", "per_sample"])
def test_exact_answers_are_a_direct_solve_in_the_targets_unit(scale: str) -> None:
    table = read_csv(DIABETES)
    settings = SMALL.but(ridge_scale=scale)
    result, problem = held_out(settings, table), sample(settings, table)
    raw = pd.read_csv(DIABETES)
    labels = raw["progression"].to_numpy(float)
    for p in range(3):
        X, y, at = (t[p].numpy() for t in (problem.X, problem.y, problem.x_query))
        r = settings.ridge * (40 if scale == "per_sample" else 1)
        K = np.exp(-(cdist(X, X) ** 2) / 8)
        alpha = np.linalg.solve(K + r * np.eye(40), y)
        answer = np.exp(-(cdist(at, X) ** 2) / 8) @ alpha * labels.std() + labels.mean()
        np.testing.assert_allclose(result.answers[EXACT][p], answer, rtol=1e-9)
        np.testing.assert_allclose(result.answers[SKLEARN][p], answer, rtol=1e-9)
    assert np.isin(result.labels.round(6), labels.round(6)).all()


def test_figures_are_scikit_learns() -> None:
    result = held_out(SMALL, read_csv(DIABETES))
    rows = held_out_rows(result).set_index("method")
    assert [*rows.index] == [*SMALL.methods, EXACT, SKLEARN]
    for method, answer in result.answers.items():
        told = rows.loc[method]
        pair = result.labels.ravel(), answer.ravel()
        assert told["rmse"] == pytest.approx(root_mean_squared_error(*pair))
        assert told["mae"] == pytest.approx(mean_absolute_error(*pair))
        assert told["r2"] == pytest.approx(r2_score(*pair))
        assert told["to_exact"] == pytest.approx(np.abs(answer - result.answers[EXACT]).max())


def test_without_scikit_learn_its_line_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldout, "find_spec", lambda name: None)
    assert SKLEARN not in held_out(SMALL, read_csv(DIABETES)).answers


def test_what_is_suggested_predicts_better_than_what_is_far_off() -> None:
    table = read_csv(assets() / "datasets" / "motorcycle.csv")
    wide = Settings(
        data="csv", n=100, queries=33, prompts=8, bandwidth=30.0, methods=("transformer",)
    )
    found = cross_validated_bandwidth(table.X, table.y, 0.1)
    ridge = gcv_ridge(table.X, table.y, found.bandwidth)
    median = median_bandwidth(table.X)

    def rmse(settings: Settings) -> float:
        rows = held_out_rows(held_out(settings, table))
        return float(rows.loc[rows.method == EXACT, "rmse"].iloc[0])

    chosen = wide.but(bandwidth=found.bandwidth, ridge=ridge.ridge)
    assert rmse(chosen) < rmse(wide.but(bandwidth=median.bandwidth)) < rmse(wide)
