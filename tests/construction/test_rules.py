"""Every update rule, ridge scale and sink level against its textbook recurrence in NumPy.

Each with its product bound, which is held to the worst that errors of its size can do.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.kernel_ridge import KernelRidge

from krrviz import Construction, Problem, Settings, Transformer, build, predict, run, sample
from krrviz.construction.certificate import product_bound
from krrviz.fan import same_rule
from krrviz.spectrum import Sink
from krrviz.trajectory import record
from krrviz.trust import largest_factor

RULES = ("richardson", "chebyshev", "heavy_ball", "nesterov", "function_space")
SCALES, SINKS = ("absolute", "per_sample"), (0.0, "ridge", 3.0, 1e6)
LAYOUTS, PRODUCTS = ("paper", "fused"), ("plain", "balanced")
SIZES: dict[str, Any] = {"n": 12, "queries": 3, "prompts": 2, "steps": 10, "segments": 32}
SMALL = Settings(data="gp", d=2, **SIZES)
DATA = {
    "uniform": SMALL.but(d=1),
    "clumped": SMALL.but(inputs="clumped", d=3),
    "gaussian": SMALL.but(inputs="gaussian", d=10, bandwidth=3.0),
    **{name: Settings(data=name, **SIZES) for name in ("motorcycle", "co2", "diabetes")},
}
each_rule = pytest.mark.parametrize("update", RULES)
each_scale = pytest.mark.parametrize("ridge_scale", SCALES)
each_sink = pytest.mark.parametrize("sink", SINKS)


@cache
def built(settings: Settings) -> tuple[Construction, Transformer]:
    c = Construction.from_settings(settings)
    return c, build(c)


@dataclass(frozen=True)
class System:
    """A prompt's matrices and its rule's constants, from their definitions.

    ``far`` is the preconditioner on query rows, which function space has; ``ends`` is [μ, L].
    """

    K: np.ndarray
    k: np.ndarray
    y: np.ndarray
    r: float
    P: np.ndarray
    far: np.ndarray
    ends: tuple[float, float]


def interval(n_max: int, ridge: float, ridge_scale: str, sink: Sink) -> tuple[float, float]:
    """Where the eigenvalues of all prompts of 1 to ``n_max`` points can lie: the extremes over n.

    r/(n + s) below, and the larger of (1 + r)/(1 + s) and (n + r)/(n + s) above.
    """
    ends = []
    for n in range(1, n_max + 1):
        r = ridge * (n if ridge_scale == "per_sample" else 1)
        s = r if sink == "ridge" else float(sink)
        ends += [r / (n + s), (1 + r) / (1 + s), (n + r) / (n + s)]
    return min(ends), max(ends)


def system(c: Construction, problem: Problem, place: tuple[int, ...]) -> System:
    """One prompt of a batch, without its unused slots."""
    n = int(problem.count[place])
    X, queries = problem.X[place].numpy()[:n], problem.x_query[place].numpy()

    def kernel(a: np.ndarray) -> np.ndarray:
        return np.exp(-cdist(a, X, "sqeuclidean") / (2 * c.bandwidth**2))

    K, k = kernel(X), kernel(queries)
    r = c.ridge * (n if c.ridge_scale == "per_sample" else 1)
    s = r if c.sink == "ridge" else float(c.sink)
    # Queries far from all data have D_* = 0. They need r, or a level s above every prompt's r.
    largest = c.ridge * (c.n_max if c.ridge_scale == "per_sample" else 1)
    far = k.sum(1) + (s if s >= largest and c.sink != "ridge" else r)
    ends = interval(c.n_max, c.ridge, c.ridge_scale, c.sink)
    return System(K, k, problem.y[place].numpy()[:n], r, K.sum(1) + s, far, ends)


def iterates(
    update: str, p: System, y: np.ndarray, hits: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """State and answer at every step, for labels y (batch, n).

    hits (steps, batch, n + queries) are added to the preconditioned residuals: those of α, or in
    function space those of the values at the context and the queries.
    """
    n, (low, high) = len(p.K), p.ends
    A, joint = p.K + p.r * np.eye(n), np.vstack([p.K, p.k])
    momentum = (math.sqrt(high) - math.sqrt(low)) / (math.sqrt(high) + math.sqrt(low))
    if update == "function_space":
        P, values = np.concatenate([p.P, p.far]), np.zeros((len(y), len(joint)))
        for hit in [*hits, None]:
            yield values[:, :n], values[:, n:]
            if hit is not None:
                pull = (y - values[:, :n]) @ joint.T - p.r * values
                values = values + 2 / (low + high) * (pull / P + hit)
        return
    a = old = np.zeros_like(y)
    omega, ratio = 1.0, (high - low) / (high + low)
    for t, hit in enumerate([*hits, None]):
        yield a, a @ p.k.T
        if hit is None:
            return

        def move(at: np.ndarray, hit: np.ndarray = hit) -> np.ndarray:
            return (y - at @ A) / p.P + hit[:, :n]

        if update == "richardson":
            new = a + 2 / (low + high) * move(a)
        elif update == "heavy_ball":
            step = (2 / (math.sqrt(low) + math.sqrt(high))) ** 2
            new = a + step * move(a) + momentum**2 * (a - old)
        elif update == "nesterov":
            ahead = a + momentum * (a - old)
            new = ahead + move(ahead) / high
        else:  # as Golub and Varga have it
            if t:
                omega = 1 / (1 - ratio**2 / 2) if t == 1 else 1 / (1 - ratio**2 * omega / 4)
            new = old + omega * (a - old + 2 / (low + high) * move(a))
        old, a = a, new


def textbook(c: Construction, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """States and answers of every prompt of a batch; 0 on unused slots."""
    states = np.zeros((c.steps + 1, *problem.y.shape))
    answers = np.zeros((c.steps + 1, *problem.x_query.shape[:-1]))
    for place in np.ndindex(*problem.count.shape):
        p = system(c, problem, place)
        none = np.zeros((c.steps, 1, len(p.K) + len(p.k)))
        for t, (state, answer) in enumerate(iterates(c.update, p, p.y[None], none)):
            states[t, *place, : len(p.K)], answers[t, *place] = state[0], answer[0]
    return states, answers


def assert_is_the_rule(settings: Settings, problem: Problem, *forms: tuple[str, str]) -> None:
    """The transformer answers as the textbook does, within its product bound.

    So does the package's own generator, to rounding.
    """
    c = Construction.from_settings(settings)
    states, answers = textbook(c, problem)
    for layout, kind in forms:
        c, model = built(settings.but(layout=layout, product=kind))
        found = predict(model, problem)
        assert largest_factor(c, problem, found) <= c.r_alpha
        bound = product_bound(c, problem, torch.from_numpy(states)).numpy()
        assert (np.abs(found.predictions.numpy() - answers) <= bound).all()
        assert np.median(bound[-1]) <= np.abs(answers[-1]).max()  # so that it tells
    own = record(settings.update, same_rule(c), problem, c.steps)
    for ours, theirs in ((own.states, states), (own.predictions, answers)):
        scale = np.abs(theirs).max(initial=1.0)
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-11 * scale)


# -- each is its rule ---------------------------------------------------------------------------


@each_sink
@each_scale
@each_rule
def test_every_form_answers_as_its_rule(update: str, ridge_scale: str, sink: Sink) -> None:
    # Prefixes of one to all tokens in one batch, with one set of weights.
    settings = SMALL.but(update=update, ridge_scale=ridge_scale, sink=sink)
    forms = list(product(LAYOUTS, PRODUCTS))
    chosen = forms if sink == "ridge" else forms[::3]
    assert_is_the_rule(settings, sample(settings).prefixes([1, 5, 12]), *chosen)


@pytest.mark.parametrize("name", DATA)
@each_rule
def test_every_rule_is_itself_on_every_data_set(update: str, name: str) -> None:
    for ridge_scale, sink in (("absolute", 0.0), ("per_sample", "ridge")):
        settings = DATA[name].but(update=update, ridge_scale=ridge_scale, sink=sink)
        assert_is_the_rule(settings, sample(settings), ("fused", "balanced"))


@each_sink
@each_scale
@each_rule
def test_the_state_lives_where_it_may(update: str, ridge_scale: str, sink: Sink) -> None:
    problem = sample(SMALL).prefixes([1, 5, 12])
    for layout in LAYOUTS:
        settings = SMALL.but(update=update, ridge_scale=ridge_scale, sink=sink, layout=layout)
        _, model = built(settings.but(steps=3, segments=8))
        stream = run(model, problem).stream
        state = stream[..., model.slots.index[model.slots.state]]
        assert not state[..., 0].any()
        if update != "function_space":
            assert not state[..., 13:].any()
            assert not state[..., 1:13][:, ~problem.used].any()
        assert state[-1, ..., 1:13][problem.used].all()
        after = stream[[1 + index for index in model.updates]]
        for scratch in ("z", "p"):
            assert not after[..., model.slots.index[scratch]].any()


@each_scale
@each_rule
def test_no_step_and_one_step_are_steps_too(update: str, ridge_scale: str) -> None:
    for steps in (0, 1):
        settings = SMALL.but(update=update, ridge_scale=ridge_scale, steps=steps)
        assert_is_the_rule(settings, sample(settings), *zip(LAYOUTS, PRODUCTS, strict=True))


# -- and its rule finds kernel ridge regression -------------------------------------------------

DEPTH = {
    "richardson": 200, "function_space": 200, "chebyshev": 50, "heavy_ball": 60, "nesterov": 100
}  # fmt: skip


@pytest.mark.parametrize(
    ("ridge_scale", "sink"),
    [("absolute", 0.0), ("absolute", "ridge"), ("per_sample", "ridge"), ("per_sample", 3.0)],
)
@each_rule
def test_the_limit_is_scikit_learns(update: str, ridge_scale: str, sink: Sink) -> None:
    settings = SMALL.but(
        n=8, update=update, ridge_scale=ridge_scale, sink=sink, ridge=1.0,
        steps=DEPTH[update],
    )  # fmt: skip
    c, model = built(settings)
    problem = sample(settings).prefixes([3, 8])
    found = predict(model, problem).predictions[-1].numpy()
    bound = product_bound(c, problem)[-1].numpy()
    # κ ≤ 16, and so ρᵀ, and what else is left of the iteration by then, is below 1e-10.
    low, high = interval(c.n_max, c.ridge, ridge_scale, sink)
    assert high / low <= 16.1
    for place in np.ndindex(2, 2):
        n = int(problem.count[place])
        X, y = problem.X[place].numpy()[:n], problem.y[place].numpy()[:n]
        alpha: Any = settings.ridge * (n if ridge_scale == "per_sample" else 1)
        oracle = KernelRidge(kernel="rbf", gamma=1 / (2 * c.bandwidth**2), alpha=alpha)
        expected = oracle.fit(X, y).predict(problem.x_query[place].numpy())
        assert (np.abs(found[place] - expected) <= bound[place] + 1e-9).all()
        assert bound[place].max() <= 0.1


@each_scale
def test_a_large_sink_makes_richardson_gradient_descent(ridge_scale: str) -> None:
    # P → sI, and η/s → 2/(λ + N + λ), or 2/(λ + N(1 + λ)): gradient descent's certified step.
    settings = SMALL.but(steps=32, ridge_scale=ridge_scale, layout="fused", segments=256)
    problem = sample(settings)
    N, ridge = settings.n, settings.ridge
    step = 2 / (ridge + (N + ridge if ridge_scale == "absolute" else N * (1 + ridge)))
    gaps = []
    for sink in (1e2, 1e4, 1e6, 1e8):
        c, model = built(settings.but(sink=sink))
        found = predict(model, problem).predictions.numpy()
        descent = np.zeros_like(found)
        for place in np.ndindex(2):
            p, alpha = system(c, problem, place), np.zeros(N)
            for t in range(settings.steps + 1):
                descent[t, *place] = p.k @ alpha
                alpha = alpha + step * (p.y - p.K @ alpha - p.r * alpha)
        states, answers = textbook(c, problem)
        gaps.append(np.abs(answers - descent).max())
        bound = product_bound(c, problem, torch.from_numpy(states)).numpy()
        assert (np.abs(found - descent) <= bound + gaps[-1]).all()
    assert bound.max() <= 0.1
    assert np.polyfit(np.log([1e2, 1e4, 1e6, 1e8]), np.log(gaps), 1)[0] == pytest.approx(
        -1, abs=0.05
    )
    assert gaps[-1] <= 1e-6


# -- the bound is the worst case ----------------------------------------------------------------


def worst(c: Construction, problem: Problem) -> np.ndarray:
    """Σ_k ‖row of g_T,k‖₁ of every answer, (steps+1, queries), each g from unit impulses."""
    p = system(c, problem, ())
    n, rows = len(p.K), len(p.K) + len(p.k)
    total = []
    for T in range(c.steps + 1):
        # One run for each step and token hit; g_T,k depends on T for Chebyshev.
        hits = np.eye(T * rows).reshape(T, rows, T, rows).transpose(2, 0, 1, 3)
        hits = hits.reshape(T, T * rows, rows) if T else np.zeros((0, 1, rows))
        *_, (_, answer) = iterates(c.update, p, np.zeros((hits.shape[1], n)), hits)
        total.append(np.abs(answer).sum(0))
    return np.stack(total)


@each_sink
@each_scale
@each_rule
def test_the_bound_is_the_worst_that_its_errors_can_do(
    update: str, ridge_scale: str, sink: Sink
) -> None:
    settings = SMALL.but(
        n=7, update=update, ridge_scale=ridge_scale, sink=sink, prompts=1, steps=6, segments=4
    )
    problem = sample(settings)
    X, y = problem.X[0, :5], problem.y[0, :5]
    queries = torch.cat([problem.x_query[0], X[:1], X[:1] + 9.0])  # the last far from all data
    five = torch.tensor(5)
    problem = Problem(X, y, queries, five, settings.bandwidth, settings.ridge, ridge_scale)
    for kind in PRODUCTS:
        c = Construction.from_settings(settings.but(product=kind))
        N, ridge, count = c.n_max, c.ridge, 5 if ridge_scale == "per_sample" else 1
        largest = N if ridge_scale == "per_sample" else 1
        # |u| ≤ U: D ≥ 1 on context, and on queries D_* ≥ 0
        U = largest / (1 + (largest * ridge if sink == "ridge" else float(sink)))
        if update == "function_space":
            small = sink == "ridge" or float(sink) < largest * ridge
            U = max(U, 1 / ridge if small else largest / float(sink))

        r = np.array([c.r_alpha, c.label_bound])
        e_p, e_b = (U * (1 + r) ** 2 / 16 if kind == "plain" else U * r / 4) / settings.segments**2
        e = ridge * e_p
        if update != "function_space":
            e = (e + e_b) / count  # of nα, and so a count-th of it of α
        bound = product_bound(c, problem, torch.zeros(7, 5, dtype=torch.float64)).numpy()
        expected = e * worst(c, problem)
        assert (bound >= expected * (1 - 1e-9)).all()
        assert (bound <= expected * (1 + 1e-3) + 1e-12 * e).all()  # rounding is allowed for
