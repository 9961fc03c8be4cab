"""Each score in softmax's place solves its own system, as a few lines of NumPy say."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

from krrviz import Construction, Problem, Settings, SettingsError, build, predict, run, sample
from krrviz.counterparts import (
    SCORES,
    ScoredAttention,
    counterpart,
    counterpart_errors,
    counterpart_rows,
    lowest,
    solves,
)

SMALL = Settings(
    data="gp", n=12, queries=5, prompts=3, steps=12, segments=1024, ridge=0.5, bandwidth=0.7
)
each_score = pytest.mark.parametrize("score", SCORES)
positive = pytest.mark.parametrize("score", [name for name in SCORES if name != "relu"])


def kernel(score: str, a: np.ndarray, b: np.ndarray, sigma: float) -> np.ndarray:
    squared = np.square(a[:, None] - b[None]).sum(-1)
    if score in ("softmax", "kernel"):
        return np.exp(-squared / (2 * sigma**2))
    if score == "laplacian":
        return np.exp(-np.sqrt(squared) / sigma)
    dots = np.einsum("id,jd->ij", a, b) / sigma**2
    return np.maximum(dots, 0) if score == "relu" else dots


def highest(c: Construction, score: str, n: int) -> float:
    """L of A/n, from the largest φ(x, x)."""
    largest = (c.input_bound / c.bandwidth) ** 2 if score in ("linear", "relu") else 1.0
    return largest + c.ridge / n


def prompts_of(problem: Problem) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """X, y and queries of each prompt, cut to its own count."""
    flat = zip(
        problem.X.flatten(0, -3).numpy(),
        problem.y.flatten(0, -2).numpy(),
        problem.x_query.flatten(0, -3).numpy(),
        problem.count.flatten().tolist(),
        strict=True,
    )
    return [(X[:n], y[:n], q) for X, y, q, n in flat]


def awkward(settings: Settings) -> Problem:
    """Prefixes of 1, 2, 7 and all points, the second of which repeats the first."""
    problem = sample(settings)
    X = problem.X.clone()
    X[:, 1] = X[:, 0]
    return replace(problem, X=X).prefixes([1, 2, 7, settings.n])


@pytest.mark.parametrize("sink", [0, 0.3, "ridge"])
@pytest.mark.parametrize("update", ["richardson", "chebyshev", "heavy_ball", "nesterov"])
def test_with_the_gaussian_the_stack_is_the_original(update: str, sink: float | str) -> None:
    c = Construction.from_settings(SMALL.but(update=update, sink=sink))
    problem = awkward(SMALL)
    expected, found = predict(build(c), problem), predict(counterpart(c, "softmax"), problem)
    assert torch.allclose(found.predictions, expected.predictions, rtol=0, atol=1e-12)
    assert torch.allclose(found.states, expected.states, rtol=0, atol=1e-12)


@each_score
@pytest.mark.parametrize("sink", [0, 0.3, "ridge"])
@pytest.mark.parametrize("scale", ["absolute", "per_sample"])
def test_each_step_is_numpys_on_its_own_system(score: str, sink: float | str, scale: str) -> None:
    settings = SMALL.but(sink=sink, ridge_scale=scale, layout="fused")
    c = Construction.from_settings(settings)
    model, problem = counterpart(c, score), awkward(settings)
    found = predict(model, problem).predictions.flatten(1, -2).numpy()
    ends = []
    for n in (1, c.n_max):
        r = c.ridge * (n if scale == "per_sample" else 1)
        s = r if sink == "ridge" else float(sink)
        if score in ("softmax", "laplacian"):  # row sums lie between 1 and n
            ends += [(r / (n + s), (1 + r) / (1 + s)), (r / (n + s), (n + r) / (n + s))]
        else:
            ends += [(r / (n + s), (n * highest(c, score, n) - c.ridge + r) / (n + s))]
    eta = 2 / (min(low for low, _ in ends) + max(high for _, high in ends))
    for p, (X, y, queries) in enumerate(prompts_of(problem)):
        n, K = len(X), kernel(score, X, X, c.bandwidth)
        r = c.ridge * (n if scale == "per_sample" else 1)
        s = r if sink == "ridge" else float(sink)
        P = (K.sum(1) if score in ("softmax", "laplacian") else np.full(n, float(n))) + s
        A, k_query = K + r * np.eye(n), kernel(score, queries, X, c.bandwidth)
        # Products err by UR/4m² each, n-fold for a per-sample ridge: carried through the steps.
        times = c.n_max if scale == "per_sample" else 1
        error = times * (c.ridge * c.r_alpha + c.label_bound) / (4 * c.segments**2)
        alpha, bound = np.zeros(n), np.zeros(n)
        for t in range(c.steps + 1):
            gap = np.abs(found[t, p] - k_query @ alpha)
            assert (gap <= np.abs(k_query) @ bound + 1e-11).all()
            alpha = alpha + eta * (y - A @ alpha) / P
            bound = np.abs(np.eye(n) - eta * A / P[:, None]) @ bound + eta * error


@positive
def test_in_the_limit_it_is_ridge_regression_with_its_own_kernel(score: str) -> None:
    settings = SMALL.but(steps=700, segments=512)
    c, problem = Construction.from_settings(settings), awkward(settings)
    found = predict(counterpart(c, score), problem).predictions[-1].flatten(0, -2).numpy()
    assert np.abs(solves(problem, score).flatten(0, -2).numpy() - found).max() < 1e-2
    for p, (X, y, queries) in enumerate(prompts_of(problem)):
        K, k_query = (kernel(score, a, X, c.bandwidth) for a in (X, queries))
        ridge = KernelRidge(alpha=cast("Any", c.ridge), kernel="precomputed").fit(K, y)
        A = K + c.ridge * np.eye(len(X))
        P = K.sum(1) if score in ("softmax", "laplacian") else np.full(len(X), float(len(X)))
        # At rest Aα = y + Pe, and e is the products' error.
        error = (c.ridge * c.r_alpha + c.label_bound) / (4 * c.segments**2)
        bound = np.abs(np.linalg.solve(A, k_query.T)).T @ P * error
        assert (np.abs(found[p] - ridge.predict(k_query)) <= bound + 1e-9).all()


@each_score
def test_what_it_solves_is_numpys_direct_solve(score: str) -> None:
    problem = awkward(SMALL)
    found = solves(problem, score).flatten(0, -2).numpy()
    least = lowest(problem, score, 0.3).flatten().tolist()
    for p, (X, y, queries) in enumerate(prompts_of(problem)):
        K, k_query = (kernel(score, a, X, problem.bandwidth) for a in (X, queries))
        A = K + problem.ridge * np.eye(len(X))
        assert found[p] == pytest.approx(k_query @ np.linalg.solve(A, y), abs=1e-9)
        P = (K.sum(1) if score in ("softmax", "laplacian") else float(len(X))) + 0.3
        values = np.linalg.eigvals(A / np.broadcast_to(P, len(X))[:, None])
        assert np.abs(np.imag(values)).max() < 1e-9
        assert least[p] == pytest.approx(np.real(values).min(), abs=1e-9)


@each_score
@pytest.mark.parametrize("sink", [0, 0.3, "ridge"])
@pytest.mark.parametrize("scale", ["absolute", "per_sample"])
def test_the_interval_holds_every_eigenvalue(score: str, sink: float | str, scale: str) -> None:
    for bandwidth in (0.2, 3.0):
        settings = SMALL.but(sink=sink, ridge_scale=scale, bandwidth=bandwidth)
        c, problem = Construction.from_settings(settings), awkward(settings)
        head = counterpart(c, score).blocks[0].attention
        assert isinstance(head, ScoredAttention)
        own = head.c.interval
        for X, _, _ in prompts_of(problem):
            n, K = len(X), kernel(score, X, X, bandwidth)
            r = c.ridge * (n if scale == "per_sample" else 1)
            P = K.sum(1) if score in ("softmax", "laplacian") else np.full(n, float(n))
            P = P + (r if sink == "ridge" else float(sink))
            values = np.real(np.linalg.eigvals((K + r * np.eye(n)) / P[:, None]))
            assert values.max() <= float(own.high) * (1 + 1e-12)
            assert score == "relu" or values.min() >= float(own.low) * (1 - 1e-12)


@each_score
def test_patterns_rest_on_the_context_and_the_sink_alone(score: str) -> None:
    settings = SMALL.but(steps=1)
    problem = awkward(settings)
    found = run(counterpart(Construction.from_settings(settings), score), problem)
    read_in, update, read_out = (pattern for pattern in found.attention if pattern is not None)
    unused = torch.cat([~problem.used, torch.ones(*problem.count.shape, 5, dtype=torch.bool)], -1)
    for pattern in (read_in, update, read_out):
        hidden = pattern[..., 1:] * unused[..., None, :]
        assert not hidden.any()
        if SCORES[score].normalised:
            assert torch.allclose(pattern[..., 1:13, :].sum(-1), torch.ones(()).double())
    assert not update[..., 0].any()
    # u is 1/n where the weights are divided by n, whatever the inputs.
    u = found.stream[1][..., 1:13, build(Construction.from_settings(settings)).slots.index["u"]]
    if not SCORES[score].normalised:
        expected = problem.used / problem.count[..., None]
        assert torch.allclose(u, expected.double(), rtol=1e-12)


@each_score
def test_it_runs_as_its_own_dense_modules_say(score: str) -> None:
    settings = SMALL.but(steps=3, segments=64)
    model, problem = counterpart(Construction.from_settings(settings), score), awkward(settings)
    dense, fast = model(model.embed(problem)), run(model, problem).stream[-1]
    assert torch.allclose(dense, fast, rtol=1e-9, atol=1e-9 * float(dense.abs().max()))


@each_score
def test_two_points_are_enough(score: str) -> None:
    own, gaussian = counterpart_errors(SMALL.but(n=2, steps=200), score)
    assert own.shape == gaussian.shape == (201,)
    assert own[0] == 1
    assert own[-1] < 1e-4 or score == "relu"


def test_relu_converges_in_one_dimension_and_diverges_in_two() -> None:
    line = SMALL.but(d=1, steps=400)
    assert lowest(sample(line), "relu").min() > 0
    assert counterpart_errors(line, "relu")[0][-1] < 1e-3
    plane = SMALL.but(n=32, ridge=0.05, steps=400)
    assert lowest(sample(plane), "relu").max() < 0
    for errors in counterpart_errors(plane.but(steps=800), "relu"):
        assert errors[800] > 1.5 * errors[400]


def test_divergence_is_infinite_and_never_nan() -> None:
    # A step for inputs a tenth as long as these are.
    wild = SMALL.but(n=32, ridge=0.05, steps=400, input_bound=0.1)
    for errors in counterpart_errors(wild, "relu"):
        assert not errors.isnan().any()
        assert errors[0] < 2
        assert errors[-1] == torch.inf


@pytest.mark.parametrize("score", ["softmax", "laplacian"])
def test_a_query_far_from_all_data_is_answered_with_nothing(score: str) -> None:
    # Its own row sum is 0 to the last digit.
    settings = SMALL.but(bandwidth=1e-3, input_bound=10.0)
    problem = sample(settings)
    problem = replace(problem, x_query=problem.x_query + 3)
    found = predict(counterpart(Construction.from_settings(settings), score), problem)
    assert found.states.isfinite().all()
    assert not found.predictions.any()


def test_rows_are_the_errors_of_every_score() -> None:
    settings = SMALL.but(steps=4, sink=0.3)
    rows = counterpart_rows(settings)
    assert [(row["score"], row["step"]) for row in rows] == [
        (s, t) for s in SCORES for t in range(5)
    ]
    problem = sample(SMALL)
    for score in SCORES:
        own, gaussian = counterpart_errors(settings, score)
        picked = [row for row in rows if row["score"] == score]
        assert [row["own"] for row in picked] == own.tolist()
        assert [row["gaussian"] for row in picked] == gaussian.tolist()
        assert {row["lowest"] for row in picked} == {float(lowest(problem, score, 0.3).min())}
    # Softmax and the plain kernel solve the Gaussian system itself.
    for row in rows:
        if row["score"] in ("softmax", "kernel"):
            assert row["own"] == pytest.approx(row["gaussian"], rel=1e-9)


def test_errors_are_the_mean_over_prompts_of_the_distance_to_each_system() -> None:
    found = predict(counterpart(Construction.from_settings(SMALL), "linear"), sample(SMALL))
    own, gaussian = counterpart_errors(SMALL, "linear")
    for score, errors in (("linear", own), ("softmax", gaussian)):
        mean = np.zeros(SMALL.steps + 1)
        for p, (X, y, queries) in enumerate(prompts_of(sample(SMALL))):
            K, k_query = (kernel(score, a, X, SMALL.bandwidth) for a in (X, queries))
            exact = k_query @ np.linalg.solve(K + SMALL.ridge * np.eye(len(X)), y)
            gap = np.linalg.norm(found.predictions[:, p].numpy() - exact, axis=1)
            mean += gap / np.linalg.norm(exact) / SMALL.prompts
        assert errors.numpy() == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "score", "field"),
    [
        ({"dtype": "float32"}, "linear", "dtype"),
        ({"update": "function_space"}, "laplacian", "update"),
        ({"alpha_range": "certified", "segments": 60_000}, "relu", "alpha_range"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    changes: dict[str, object], score: str, field: str
) -> None:
    with pytest.raises(SettingsError, match=field) as caught:
        counterpart_errors(SMALL.but(**changes), score)
    assert caught.value.fields[0] == field


def test_a_score_that_is_none_is_named() -> None:
    with pytest.raises(SettingsError, match="score='cosine' must be one of softmax, laplacian"):
        counterpart(Construction.from_settings(SMALL), "cosine")
