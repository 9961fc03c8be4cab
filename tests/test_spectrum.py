"""Spectrum against NumPy's eigenvalues, known problems, and recurrences in one number."""

import math
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from krrviz import Problem
from krrviz.spectrum import (
    POLICIES,
    Interval,
    Operator,
    Sink,
    certified,
    eigenvalues,
    largest_residual,
    policy_interval,
    query_sink,
    residual_norm,
    slowest,
    true_interval,
)

OPERATORS: tuple[Operator, ...] = get_args(Operator)
SCALES = ("absolute", "per_sample")


def spectrum(
    x: np.ndarray,
    operator: str,
    ridge: float,
    ridge_scale: str,
    bandwidth: float = 0.5,
    sink: Sink = 0.0,
) -> np.ndarray:
    """Eigenvalues of K + rI, or of (D + sI)⁻¹(K + rI) as it stands, ascending."""
    K = rbf_kernel(x, x, 1 / (2 * bandwidth**2))
    r = ridge * (len(x) if ridge_scale == "per_sample" else 1)
    A, P = K + r * np.eye(len(x)), K.sum(1) + (r if sink == "ridge" else float(sink))
    values = np.linalg.eigvals(A / P[:, None] if operator == "preconditioned" else A)
    assert np.abs(values.imag).max() <= 1e-7 * np.abs(values).max()
    return np.sort(values.real)


def extremes(
    x: np.ndarray,
    operator: str,
    ridge: float,
    ridge_scale: str,
    bandwidth: float = 0.5,
    sink: Sink = 0.0,
) -> tuple[float, float]:
    """The smallest and the largest of them."""
    values = spectrum(x, operator, ridge, ridge_scale, bandwidth, sink)
    return float(values[0]), float(values[-1])


def problem_at(x: np.ndarray, ridge: float, ridge_scale: str, bandwidth: float = 0.5) -> Problem:
    X = torch.from_numpy(x)
    count = torch.full(X.shape[:-2], X.shape[-2])
    return Problem(X, X[..., 0], X[..., :1, :], count, bandwidth, ridge, ridge_scale)


@st.composite
def places(draw: st.DrawFn) -> np.ndarray:
    """1 to 24 points on a line or in the plane: crowds, loners and exact repeats."""
    n, d = draw(st.integers(1, 24)), draw(st.integers(1, 2))
    centre = st.lists(st.floats(-3, 3), min_size=d, max_size=d)
    centres = np.array(draw(st.lists(centre, min_size=1, max_size=n)))
    which = draw(st.lists(st.integers(0, len(centres) - 1), min_size=n, max_size=n))
    offset = draw(st.lists(st.sampled_from([0, 0, 1e-9, 1e-3, 0.1]), min_size=n, max_size=n))
    return centres[which] + np.array(offset)[:, None]


sinks = st.sampled_from([0.0, "ridge"]) | st.floats(-4, 8).map(lambda power: 10**power)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("ridge_scale", SCALES)
@given(places(), st.floats(-4, 1), st.floats(-1, 1), st.integers(0, 40), sinks)
def test_no_eigenvalue_lies_outside_the_certified_interval(
    operator: Operator,
    ridge_scale: str,
    x: np.ndarray,
    log_ridge: float,
    log_bandwidth: float,
    room: int,
    sink: Sink,
) -> None:
    ridge = 10**log_ridge
    low, high = extremes(x, operator, ridge, ridge_scale, 10**log_bandwidth, sink)
    sure = certified(operator, len(x) + room, ridge, ridge_scale, sink)
    rounding = 1e-13 * high * len(x)
    assert float(sure.low) - rounding <= low
    assert high <= float(sure.high) + rounding
    if operator == "preconditioned" and sink == "ridge":
        r = ridge * (len(x) if ridge_scale == "per_sample" else 1)
        assert r / (len(x) + r) - rounding <= low
        assert high <= 1 + rounding


@pytest.mark.parametrize("sink", [0.0, "ridge", 0.2, 5.0, 1e6])
def test_a_sinks_interval_is_reached_by_one_place_and_by_lone_places(sink: Sink) -> None:
    n, ridge = 8, 0.3
    for ridge_scale, r in (("absolute", ridge), ("per_sample", n * ridge)):
        s = r if sink == "ridge" else float(sink)
        one, lone = np.zeros((n, 1)), 100.0 * np.arange(n)[:, None]
        ends = certified("preconditioned", n, ridge, ridge_scale, sink)
        # K = 11ᵀ, D = nI: r/(n + s) and (n + r)/(n + s). K = D = I: all are (1 + r)/(1 + s).
        low, high = extremes(one, "preconditioned", ridge, ridge_scale, sink=sink)
        apart = extremes(lone, "preconditioned", ridge, ridge_scale, sink=sink)[1]
        assert (low, high, apart) == pytest.approx(
            (r / (n + s), (n + r) / (n + s), (1 + r) / (1 + s))
        )
        assert float(ends.high) == pytest.approx(max(high, apart))
        # Per sample and with a number for a level, the shortest prompt has the smallest.
        shortest = ridge / (1 + (ridge if sink == "ridge" else s))
        least = low if ridge_scale == "absolute" else shortest
        assert float(ends.low) == pytest.approx(least)


@pytest.mark.parametrize("ridge_scale", SCALES)
def test_the_certified_interval_is_reached_by_one_place_and_by_lone_places(
    ridge_scale: str,
) -> None:
    n, ridge = 8, 0.3
    r = n * ridge if ridge_scale == "per_sample" else ridge
    one, lone = np.zeros((n, 1)), 100.0 * np.arange(n)[:, None]
    ends = {
        (operator, end): float(getattr(certified(operator, n, ridge, ridge_scale), end))
        for operator in OPERATORS
        for end in ("low", "high")
    }
    # K = 11ᵀ, D = nI: eigenvalues r and n + r, and an n-th of them. K = D = I: all are 1 + r.
    assert extremes(one, "plain", ridge, ridge_scale) == pytest.approx((r, n + r))
    assert ends["plain", "high"] == pytest.approx(n + r)
    assert extremes(one, "preconditioned", ridge, ridge_scale)[0] == pytest.approx(r / n)
    assert ends["preconditioned", "low"] == pytest.approx(r / n)
    assert extremes(lone, "preconditioned", ridge, ridge_scale)[1] == pytest.approx(1 + r)
    assert ends["preconditioned", "high"] == pytest.approx(1 + r)
    # r is least for the shortest prompt: one token.
    assert ends["plain", "low"] == ridge


# Three prompts: a crowd, something between, and points apart.
PROMPTS = np.random.default_rng(2).normal(0, np.array([0.05, 0.5, 3])[:, None, None], (3, 10, 2))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("ridge_scale", SCALES)
@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10])
def test_the_true_interval_is_numpys_on_every_prefix(
    operator: Operator, ridge_scale: str, ridge: float
) -> None:
    counts = [1, 2, 5, 10]
    true = true_interval(operator, problem_at(PROMPTS, ridge, ridge_scale).prefixes(counts))
    assert true.low.shape == true.high.shape == (4, 3, 1)
    for i, p in np.ndindex(4, 3):
        low, high = extremes(PROMPTS[p, : counts[i]], operator, ridge, ridge_scale)
        assert float(true.low[i, p]) == pytest.approx(low, rel=1e-12, abs=1e-13 * high)
        assert float(true.high[i, p]) == pytest.approx(high, rel=1e-12)


@pytest.mark.parametrize("sink", [0.0, "ridge", 3.0])
@pytest.mark.parametrize("ridge_scale", SCALES)
def test_all_eigenvalues_are_numpys_and_an_unused_slot_is_no_extreme(
    ridge_scale: str, sink: Sink
) -> None:
    problem = problem_at(PROMPTS, 0.1, ridge_scale).prefixes([4, 10])
    found = eigenvalues("preconditioned", problem, sink).numpy()
    for p, x in enumerate(PROMPTS):
        full = spectrum(x, "preconditioned", 0.1, ridge_scale, sink=sink)
        np.testing.assert_allclose(found[1, p], full, rtol=1e-11)
        short = spectrum(x[:4], "preconditioned", 0.1, ridge_scale, sink=sink)
        assert found[0, p, [0, -1]] == pytest.approx(short[[0, -1]], rel=1e-11)
        # Six unused slots add their mean, six times.
        np.testing.assert_allclose(found[0, p].sum(), short.sum() * 10 / 4, rtol=1e-11)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_smallest_eigenvalue_stays_positive_where_rounding_would_lose_it(
    operator: Operator,
) -> None:
    n, ridge = 24, 1e-18
    true = true_interval(operator, problem_at(np.zeros((n, 1)), ridge, "absolute"))
    assert float(true.low) >= ridge / n * (1 - 1e-12)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_interval_of_one_token_is_one_number(operator: Operator) -> None:
    true = true_interval(operator, problem_at(np.zeros((1, 1)), 0.25, "absolute"))
    assert (float(true.low), float(true.high)) == (1.25, 1.25)


@given(st.floats(1e-6, 1), st.floats(1, 1e6))
def test_the_best_step_contracts_as_told_and_no_step_contracts_more(
    low: float, high: float
) -> None:
    interval = Interval(*torch.tensor([low, high], dtype=torch.float64))
    x = np.array([low, high])  # |1 − ηx| is largest at an end

    def worst(step: float) -> float:
        return float(np.abs(1 - step * x).max())

    best, contraction = float(interval.best_step), (high - low) / (high + low)
    assert worst(best) == pytest.approx(contraction, abs=1e-12)
    assert worst(0.99 * best) >= contraction - 1e-12
    assert worst(1.01 * best) >= contraction - 1e-12
    assert float(interval.condition) == pytest.approx(high / low)


# -- update rules in one number -----------------------------------------------------------------

RULES = ("richardson", "chebyshev", "heavy_ball", "nesterov")
INTERVALS = [(1.0, 1.0), (0.5, 0.75), (1 / 11, 1.0), (0.1 / 64, 1.1), (1e-4, 7.0)]
each_rule = pytest.mark.parametrize("rule", RULES)
each_interval = pytest.mark.parametrize("ends", INTERVALS)


def interval_of(ends: tuple[float, float]) -> Interval:
    return Interval(*torch.tensor(ends, dtype=torch.float64))


def iterates(
    rule: str, ends: tuple[float, float], x: np.ndarray, start: float, hits: np.ndarray
) -> Iterator[np.ndarray]:
    """a_t of the textbook iteration for x·a = 0 from a_0 = ``start``, one column for each x.

    The residual at step t has hits[t] added. Chebyshev is the form of Golub and Varga.
    """
    low, high = ends
    root = math.sqrt(high / low)
    momentum = (root - 1) / (root + 1)
    a = old = np.full((hits.shape[1], len(x)), start)
    omega, ratio = 1.0, (high - low) / (high + low)
    for t, hit in enumerate(hits):
        yield a
        hit = hit[:, None]
        if rule == "richardson":
            new = a + 2 / (low + high) * (hit - x * a)
        elif rule == "heavy_ball":
            new = a + (2 / (math.sqrt(low) + math.sqrt(high))) ** 2 * (hit - x * a)
            new = new + momentum**2 * (a - old)
        elif rule == "nesterov":
            ahead = a + momentum * (a - old)
            new = ahead + (hit - x * ahead) / high
        else:
            if t:
                omega = 1 / (1 - ratio**2 / 2) if t == 1 else 1 / (1 - ratio**2 * omega / 4)
            new = old + omega * (a - old + 2 / (low + high) * (hit - x * a))
        old, a = a, new
    yield a


def polynomials(rule: str, ends: tuple[float, float], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """A grid of [μ, L], its ends first and last, and |p_t| on it for t = 0 … steps."""
    x = np.linspace(*ends, 2001)
    p = np.stack(list(iterates(rule, ends, x, 1.0, np.zeros((steps, 1)))))[:, 0]
    return x, np.abs(p)


@each_interval
@each_rule
def test_no_eigenvalue_is_left_more_of_than_told(rule: str, ends: tuple[float, float]) -> None:
    _, p = polynomials(rule, ends, 200)
    bound = np.array([residual_norm(rule, interval_of(ends), t) for t in range(201)])
    rounding = 1e-13 * math.sqrt(ends[1] / ends[0])
    assert (p.max(1) <= bound * (1 + 1e-9) + rounding).all()
    if rule != "nesterov":  # they are attained, at x = L if not before
        assert p.max(1) == pytest.approx(bound, rel=1e-6, abs=rounding)
    left = np.array([slowest(rule, interval_of(ends), t) for t in range(201)])
    assert p[:, 0] == pytest.approx(left, rel=1e-6, abs=rounding)
    assert (left <= bound * (1 + 1e-12)).all()


@each_interval
@each_rule
def test_the_largest_is_the_largest_so_far(rule: str, ends: tuple[float, float]) -> None:
    interval = interval_of(ends)
    assert largest_residual(rule, interval, 0) == 0
    every = [residual_norm(rule, interval, t) for t in range(1, 501)]
    for steps in (1, 2, 3, 7, 30, 100, 500):
        assert largest_residual(rule, interval, steps) == pytest.approx(max(every[:steps]))


@each_interval
@each_rule
def test_impulses_add_up_to_no_more_than_those_of_the_slowest_mode(
    rule: str, ends: tuple[float, float]
) -> None:
    # g_T,k(x) is what is left at T of a residual of 1 at step k. No |g| is larger than at μ, where
    # none is negative: their sum is what a constant residual leaves, (1 − p_T(μ))/μ.
    x = np.linspace(*ends, 301)
    for steps in (1, 2, 5, 40):
        *_, left = iterates(rule, ends, x, 0.0, np.eye(steps))
        impulses = np.abs(left)  # (k, x)
        largest = (1 - slowest(rule, interval_of(ends), steps)) / ends[0]
        assert (impulses <= impulses[:, :1] * (1 + 1e-9) + 1e-12 / ends[1]).all()
        assert (left[:, 0] >= 0).all()
        assert impulses[:, 0].sum() == pytest.approx(largest, rel=1e-9)


def test_function_space_is_left_what_richardson_is() -> None:
    interval = interval_of((0.1, 1.1))
    for t in (0, 1, 9):
        for figure in (residual_norm, slowest):
            assert figure("function_space", interval, t) == figure("richardson", interval, t)


@pytest.mark.parametrize("sink", [0.0, "ridge", 0.05, 3.0, 1e6])
@pytest.mark.parametrize("ridge_scale", SCALES)
def test_a_query_far_from_all_data_keeps_its_value_from_growing(
    ridge_scale: str, sink: Sink
) -> None:
    # D_* = 0: its value shrinks by 1 − ηr/q an update.
    N, ridge = 16, 0.1
    step = float(certified("preconditioned", N, ridge, ridge_scale, sink).best_step)
    level = query_sink(N, ridge, ridge_scale, sink)
    for n in (1, 2, 16):
        r = ridge * (n if ridge_scale == "per_sample" else 1)
        q = r if level == "ridge" else float(level)
        assert q > 0
        assert abs(1 - step * r / q) < 1


# -- policies -----------------------------------------------------------------------------------


def believed(policy: str, operator: Operator, step_size: float | None = None) -> Interval:
    return policy_interval(policy, operator, problem_at(PROMPTS, 0.1, "absolute"), 40, step_size)


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_policy_believes_what_it_may_know(operator: Operator) -> None:
    sure = (0.1, 40.1) if operator == "plain" else (0.1 / 40, 1.1)
    true = [extremes(x, operator, 0.1, "absolute") for x in PROMPTS]
    wanted = {
        "certified": [sure] * 3,
        "one_over_l": [(sure[0], high) for _, high in true],
        "optimal": true,
        "manual": [(min(sure[0], 4.0), 4.0)] * 3,
    }
    assert set(wanted) == set(POLICIES)
    for policy, ends in wanted.items():
        interval = believed(policy, operator, 0.25)
        for p, (low, high) in enumerate(ends):
            assert float(interval.low.expand(3, 1)[p]) == pytest.approx(low, rel=1e-12)
            assert float(interval.high.expand(3, 1)[p]) == pytest.approx(high, rel=1e-12)


def test_a_large_manual_step_leaves_no_inverted_interval() -> None:
    interval = believed("manual", "plain", 1e3)
    assert float(interval.low) == float(interval.high) == pytest.approx(1e-3)


@pytest.mark.parametrize("step_size", [None, 0.0, -1.0, float("nan")])
def test_a_manual_step_that_is_not_positive_is_refused(step_size: float | None) -> None:
    with pytest.raises(ValueError, match=f"step_size={step_size} must be a finite number above 0"):
        believed("manual", "plain", step_size)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"policy='fastest' must be one of certified, .*manual"):
        believed("fastest", "plain")
