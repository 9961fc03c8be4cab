"""TransformerKRR against scikit-learn: its checks, its kernel ridge, and the iteration by hand."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import krrviz
from krrviz import SettingsError, TransformerKRR, estimator


def data(rows: int = 40, d: int = 2, queries: int = 25) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows + queries, d))
    return X[:rows], 7 * np.sin(X[:rows, 0]) + 3, X[rows:]


def kernel_ridge(bandwidth: float, ridge: Any) -> KernelRidge:
    return KernelRidge(alpha=ridge, kernel="rbf", gamma=1 / (2 * bandwidth**2))


@parametrize_with_checks(
    [TransformerKRR(), TransformerKRR(update="chebyshev", layout="fused", sink="ridge", steps=12)]
)
def test_scikit_learns_own_checks(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("update", "layout", "sink", "steps"),
    [
        ("richardson", "paper", 0, 150),
        ("richardson", "fused", "ridge", 150),
        ("nesterov", "paper", 0.5, 120),
        ("heavy_ball", "fused", 0, 120),
        ("chebyshev", "paper", "ridge", 60),
        ("function_space", "paper", 0, 300),
    ],
)
def test_with_depth_it_is_kernel_ridge_regression(
    update: str, layout: str, sink: float | str, steps: int
) -> None:
    X, y, queries = data()
    model = TransformerKRR(
        ridge=10, steps=steps, segments=16_384, update=update, layout=layout, sink=sink
    )
    expected = kernel_ridge(1.0, 10).fit(X, y).predict(queries)
    found = model.fit(X, y).predict(queries)
    assert found.shape == (25,)
    assert abs(found - expected).max() <= 1e-6 * abs(expected).max()


@pytest.mark.parametrize("segments", [8, 64, 4096])
@pytest.mark.parametrize(
    ("bandwidth", "ridge", "sink"),
    [(1.0, 0.1, 0.0), (0.4, 2.0, 0.0), (3.0, 0.5, 0.0), (1.0, 0.5, "ridge")],
)
def test_every_step_is_preconditioned_richardson(
    bandwidth: float, ridge: float, sink: float | str, segments: int
) -> None:
    X, y, queries = data()
    n = len(X)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-((a[:, None] - b) ** 2).sum(-1) / (2 * bandwidth**2))

    K, far = kernel(X, X), kernel(queries, X)
    s = ridge if sink else 0.0
    A, degree = K + ridge * np.eye(n), K.sum(1) + s
    # P⁻¹A, P = D + sI, has eigenvalues in [λ/(n + s), (1 + λ)/(1 + s)].
    step = 2 / (ridge / (n + s) + (1 + ridge) / (1 + s))
    # A product u·v by m hinges a side, |u| ≤ U and |v| ≤ R, errs by at most UR/4m² where both were
    # scaled to one range; U = 1/(1 + s). The update takes λ of one with R = √n/λ, and one with the
    # labels, R = 1.
    eps = (np.sqrt(n) + 1) / (1 + s) / (4 * segments**2)
    alpha, reach, bound, scale = np.zeros(n), far, np.zeros(len(queries)), abs(y).max()
    for t in range(13):
        found = TransformerKRR(bandwidth, ridge, t, segments, sink=sink).fit(X, y)
        gap = abs(found.predict(queries) - far @ alpha)
        assert (gap <= scale * (bound + 1e-12)).all()
        alpha = alpha + step * (y - A @ alpha) / degree
        bound = bound + step * eps * abs(reach).sum(1)
        reach = reach - step * (reach / degree) @ A


def test_in_a_pipeline_and_a_grid_search() -> None:
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:120], y[:120]
    names = {"bandwidth": np.array([0.5, 4.0, 30.0]), "steps": np.arange(60, 62)}
    deep = TransformerKRR(ridge=1.0, update="chebyshev", segments=2048)
    grid = {f"transformerkrr__{name}": values for name, values in names.items()}
    search = GridSearchCV(make_pipeline(StandardScaler(), deep), grid, cv=3).fit(X, y)
    gamma = {"kernelridge__gamma": 1 / (2 * names["bandwidth"] ** 2)}
    theirs = GridSearchCV(make_pipeline(StandardScaler(), kernel_ridge(1.0, 1.0)), gamma, cv=3)
    best = theirs.fit(X, y).best_params_["kernelridge__gamma"]
    assert 1 / (2 * search.best_params_["transformerkrr__bandwidth"] ** 2) == pytest.approx(best)
    assert search.best_score_ == pytest.approx(theirs.best_score_, abs=1e-4)


def test_a_clone_is_unfitted_and_gives_the_same() -> None:
    X, y, queries = data()
    model = TransformerKRR(bandwidth=0.7, steps=5, sink="ridge").fit(X, y)
    copy: Any = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "X_fit_")
    assert np.array_equal(copy.fit(X, y).predict(queries), model.predict(queries))
    assert len(cross_val_score(copy, X, y, cv=3)) == 3


def test_queries_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _ = data(rows=12)
    queries = np.random.default_rng(1).uniform(-2, 2, (2051, 2))
    model = TransformerKRR(steps=6).fit(X, y)
    whole, seen = model.predict(queries), []

    def counted(transformer: object, problem: krrviz.Problem) -> krrviz.Trajectory:
        seen.append(len(problem.x_query))
        return krrviz.predict(transformer, problem)  # type: ignore[arg-type]

    monkeypatch.setattr(estimator, "predict", counted)
    np.testing.assert_allclose(model.predict(queries), whole, rtol=1e-12, atol=1e-12)
    assert seen == [1024, 1024, 3]
    monkeypatch.setattr(estimator, "QUERIES", 700)
    np.testing.assert_allclose(model.predict(queries), whole, rtol=1e-12, atol=1e-12)


def test_units_and_origin_of_the_inputs_do_not_matter() -> None:
    X, y, queries = data()
    plain = TransformerKRR(steps=20).fit(X, y).predict(queries)
    far = TransformerKRR(steps=20).fit(X + 1e6, y).predict(queries + 1e6)
    np.testing.assert_allclose(far, plain, rtol=0, atol=1e-8)
    metres = TransformerKRR(bandwidth=1000, steps=20).fit(1000 * X, y).predict(1000 * queries)
    np.testing.assert_allclose(metres, plain, rtol=0, atol=1e-10)


def test_inputs_hundreds_of_bandwidths_apart() -> None:
    X, y, queries = data()
    X, queries = 50 * X, np.concatenate([50 * X + 0.1, 1e4 * queries])
    model = TransformerKRR(0.2, 1.0, 100, 4096, update="chebyshev")
    found = model.fit(X, y).predict(queries)
    expected = kernel_ridge(0.2, 1.0).fit(X, y).predict(queries)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("factor", [0.0, 1e-9, -3.0, 1e12])
def test_answers_are_linear_in_the_labels(factor: float) -> None:
    X, y, queries = data()
    model = TransformerKRR(steps=20)
    expected = factor * model.fit(X, y).predict(queries)
    found = model.fit(X, factor * y).predict(queries)
    # Negative labels meet other hinges: equal up to twice the products' error.
    np.testing.assert_allclose(found, expected, rtol=0, atol=abs(factor) * 1e-2)
    if factor > 0:
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_one_row_and_many_dimensions() -> None:
    one = TransformerKRR(ridge=1.0, steps=30, segments=4096).fit(np.ones((1, 60)), [4.0])
    assert one.predict(np.ones((1, 60))) == pytest.approx([2.0], rel=1e-6)  # y/(1 + λ)
    assert one.predict(np.zeros((2, 60))) == pytest.approx(2 * np.exp([-30] * 2), rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_precisions(dtype: str) -> None:
    X, y, queries = data()
    found = TransformerKRR(ridge=1.0, steps=20, dtype=dtype, device="cpu").fit(X, y)
    expected = TransformerKRR(ridge=1.0, steps=20).fit(X, y).predict(queries)
    answers = found.predict(queries)
    assert answers.dtype == np.float64
    assert abs(answers - expected).max() > 1e-9  # it was that precision's
    assert abs(answers - expected).max() < {"float32": 1e-4, "bfloat16": 0.2}[dtype] * abs(y).max()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bandwidth": 0}, "bandwidth=0 must be 0.001 to 1000"),
        ({"bandwidth": None}, "bandwidth=None must be 0.001 to 1000"),
        ({"ridge": np.float64(-1)}, "ridge=-1.0 must be 1e-12 to 1000000"),
        ({"ridge": "much"}, "ridge=much must be 1e-12 to 1000000"),
        ({"steps": 1.5}, "steps=1.5 must be a whole number 0 to 100000"),
        ({"segments": 0}, "segments=0 must be a whole number 1 to 65536"),
        ({"layout": "wide"}, "layout=wide must be one of paper, fused"),
        ({"product": "exact"}, "product=exact must be one of plain, balanced"),
        ({"update": "adam"}, "update=adam must be one of richardson"),
        ({"sink": "deep"}, "sink=deep must be 0 to 1e+12 or ridge"),
        ({"dtype": "int8"}, "dtype=int8 must be one of float64"),
        ({"device": "tpu"}, "device=tpu must be one of auto"),
        ({"device": "mps"}, "dtype=float64 does not run on device=mps"),
    ],
)
def test_parameters_are_refused_by_name(given: dict, message: str) -> None:
    X, y, _ = data()
    with pytest.raises(SettingsError) as error:
        TransformerKRR(**given).fit(X, y)
    assert str(error.value).startswith(message)


def test_memory_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, queries = data()
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "0.0012")
    model = TransformerKRR().fit(X, y)
    assert model.predict(queries).shape == (25,)
    with pytest.raises(SettingsError, match=r"need about .* GiB but 0\.0 GiB are allowed"):
        model.predict(np.repeat(queries, 20, axis=0))
    with pytest.raises(SettingsError, match=r"n=400.*need about"):
        TransformerKRR().fit(np.repeat(X, 10, axis=0), np.repeat(y, 10))


def python(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def test_scikit_learn_is_loaded_only_when_asked_for() -> None:
    loaded = "import sys, krrviz; from krrviz import *; print('sklearn' in sys.modules)"
    assert python(loaded) == "False\n"
    asked = "import sys, krrviz; krrviz.TransformerKRR; print('sklearn' in sys.modules)"
    assert python(asked) == "True\n"
    assert "TransformerKRR" in dir(krrviz)
    with pytest.raises(AttributeError, match="module 'krrviz' has no attribute 'Transformers'"):
        _ = krrviz.Transformers  # type: ignore[attr-defined]


def test_without_scikit_learn_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import krrviz
try:
    krrviz.TransformerKRR
except ImportError as error:
    print(error)
"""
    assert python(code) == "TransformerKRR needs scikit-learn: pip install 'krrviz[sklearn]'\n"


@pytest.mark.parametrize(("dtype", "far"), [("float64", 1e8), ("float32", 1e3), ("float64", 1e200)])
def test_inputs_too_many_bandwidths_away_are_refused_by_name(dtype: str, far: float) -> None:
    model = TransformerKRR(dtype=dtype).fit([[0.0], [far]], [1.0, 2.0])
    with pytest.raises(ValueError, match=rf"X: a row lies .* bandwidth=1 and dtype={dtype}"):
        model.predict([[0.0]])
