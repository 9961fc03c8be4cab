"""Spectrum against NumPy's eigenvalues and against problems whose eigenvalues are known."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from krrviz import Problem
from krrviz.spectrum import POLICIES, Interval, Operator, certified, policy_interval, true_interval

OPERATORS: tuple[Operator, ...] = get_args(Operator)
SCALES = ("absolute", "per_sample")


def extremes(
    x: np.ndarray, operator: str, ridge: float, ridge_scale: str, bandwidth: float = 0.5
) -> tuple[float, float]:
    """Smallest and largest eigenvalue of K + rI, or of D⁻¹(K + rI) as it stands."""
    K = rbf_kernel(x, x, 1 / (2 * bandwidth**2))
    A = K + ridge * (len(x) if ridge_scale == "per_sample" else 1) * np.eye(len(x))
    values = np.linalg.eigvals(A / K.sum(1)[:, None] if operator == "preconditioned" else A)
    assert np.abs(values.imag).max() <= 1e-7
    return float(values.real.min()), float(values.real.max())


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


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("ridge_scale", SCALES)
@given(places(), st.floats(-4, 1), st.floats(-1, 1), st.integers(0, 40))
def test_no_eigenvalue_lies_outside_the_certified_interval(
    operator: Operator,
    ridge_scale: str,
    x: np.ndarray,
    log_ridge: float,
    log_bandwidth: float,
    room: int,
) -> None:
    ridge = 10**log_ridge
    low, high = extremes(x, operator, ridge, ridge_scale, 10**log_bandwidth)
    sure = certified(operator, len(x) + room, ridge, ridge_scale)
    rounding = 1e-13 * high * len(x)
    assert float(sure.low) - rounding <= low
    assert high <= float(sure.high) + rounding


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

    best, contraction = float(interval.best_step), float(interval.contraction)
    assert worst(best) == pytest.approx(contraction, abs=1e-12)
    assert worst(0.99 * best) >= contraction - 1e-12
    assert worst(1.01 * best) >= contraction - 1e-12
    assert float(interval.condition) == pytest.approx(high / low)


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
