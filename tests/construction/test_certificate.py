"""The product bound: never beaten by the transformer, met exactly by the worst errors allowed."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from krrviz import Construction, Problem, build, predict
from krrviz.construction.certificate import product_bound

each_product = pytest.mark.parametrize("product", ["plain", "balanced"])


def points(rng: np.random.Generator, kind: str, n: int, d: int) -> np.ndarray:
    """n inputs: uniform on [−1, 1]ᵈ, in two tight clumps, or with every row twice."""
    X = rng.uniform(-1, 1, (n, d))
    if kind == "clumped":
        return X[rng.integers(2, size=n) % n] + 1e-3 * rng.standard_normal((n, d))
    return X[np.arange(n) // 2] if kind == "duplicates" else X


def problem_of(seed: int, kind: str, n: int, d: int, bandwidth: float, ridge: float) -> Problem:
    """A prompt with labels of mean square 1, and four queries, one of them on the data."""
    rng = np.random.default_rng(seed)
    X, y = points(rng, kind, n, d), rng.standard_normal(n)
    queries = np.vstack([rng.uniform(-1, 1, (3, d)), X[:1]])
    X, y, queries = map(torch.from_numpy, (X, y / np.sqrt(np.mean(y**2)), queries))
    return Problem(X, y, queries, torch.tensor(n), bandwidth, ridge)


def construction(problem: Problem, **chosen: Any) -> Construction:
    """Weights whose bounds cover the problem."""
    sizes = {
        "d": problem.X.shape[-1],
        "n_max": problem.n_max,
        "bandwidth": problem.bandwidth,
        "ridge": problem.ridge,
        "steps": 16,
        "segments": 16,
        "input_bound": 3.0,
        "label_bound": 5.0,
    }
    return Construction(**sizes | chosen)


def system(c: Construction, problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """D⁻¹A, D⁻¹y, k_* and η, from their definitions."""
    X, y, queries = (t.numpy() for t in (problem.X, problem.y, problem.x_query))

    def kernel(a: np.ndarray) -> np.ndarray:
        return np.exp(-np.square(a[:, None] - X).sum(-1) / (2 * c.bandwidth**2))

    K = kernel(X)
    degree = K.sum(1)
    A = (K + c.ridge * np.eye(len(y))) / degree[:, None]
    return A, y / degree, kernel(queries), 2 / (c.ridge / c.n_max + 1 + c.ridge)


def gap_and_bound(c: Construction, problem: Problem) -> tuple[np.ndarray, np.ndarray, bool]:
    """|transformer − Richardson| at each step and query, and what is certified.

    And whether α stayed in the range of its product, without which nothing is certified.
    """
    trajectory = predict(build(c), problem)
    A, b, k, step = system(c, problem)
    alphas = [np.zeros_like(b)]
    for _ in range(c.steps):
        alphas.append(alphas[-1] + step * (b - A @ alphas[-1]))
    gap = np.abs(trajectory.predictions.double().numpy() - np.stack(alphas) @ k.T)
    bound = product_bound(c, problem, torch.from_numpy(np.stack(alphas))).numpy()
    return gap, bound, float(trajectory.states.abs().max()) <= c.r_alpha


problems = st.builds(
    problem_of,
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["uniform", "clumped", "duplicates"]),
    n=st.integers(1, 24),
    d=st.integers(1, 4),
    bandwidth=st.floats(0.1, 3),
    ridge=st.floats(-3, 1).map(lambda power: 10**power),
)


@given(
    problems,
    st.sampled_from(["plain", "balanced"]),
    st.sampled_from(["paper", "fused"]),
    st.sampled_from([1, 16, 128, 1024]),
    st.sampled_from(["calibrated", 1e3]),
    st.sampled_from([torch.float64, torch.float32]),
)
@settings(max_examples=30)
def test_the_gap_is_within_the_bound(
    problem: Problem,
    product: str,
    layout: str,
    segments: int,
    alpha_range: float | str,
    dtype: torch.dtype,
) -> None:
    c = construction(
        problem,
        product=product,
        layout=layout,
        segments=segments,
        alpha_range=alpha_range,
        dtype=dtype,
    )
    gap, bound, in_range = gap_and_bound(c, problem)
    assume(in_range)
    assert (gap <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("distance", [0.5, 1.2, 1.5, 3.7, 3.8, 4.5])
def test_the_bound_holds_however_far_the_query(distance: float, dtype: torch.dtype) -> None:
    # Its kernel values pass through the smallest numbers there are: exp(−½(distance/σ)²).
    problem = Problem(
        X=torch.tensor([[0.0], [0.1]], dtype=torch.float64),
        y=torch.tensor([1.0, 0.5], dtype=torch.float64),
        x_query=torch.tensor([[distance]], dtype=torch.float64),
        count=torch.tensor(2),
        bandwidth=0.1,
        ridge=0.1,
    )
    gap, bound, in_range = gap_and_bound(
        construction(problem, dtype=dtype, input_bound=5.0), problem
    )
    assert in_range
    assert (gap <= bound).all()


def test_the_bound_allows_for_rounding() -> None:
    # So many hinges that in float32 they err by less than the arithmetic does.
    problem = problem_of(0, "uniform", 24, 2, 0.5, 0.1)
    fine, finest = (
        gap_and_bound(construction(problem, segments=8192, alpha_range=10.0, dtype=dtype), problem)
        for dtype in (torch.float32, torch.float64)
    )
    assert fine[0].max() > finest[1].max()
    assert (fine[0] <= fine[1]).all()


@each_product
def test_the_bound_is_not_absurd(product: str) -> None:
    ratios = []
    for seed in range(11):
        problem = problem_of(seed, "uniform", 24, 2, 0.5, 0.1)
        gap, bound, _ = gap_and_bound(construction(problem, product=product), problem)
        ratios.append(bound.max() / gap.max())
    assert np.median(ratios) <= 1e3


def adversary(c: Construction, problem: Problem, query: int, error: float) -> float:
    """How far Richardson's answer moves if each update errs by ±``error``, all signs at worst."""
    A, _, k, step = system(c, problem)
    weights = [k[query]]  # (Mᵀ)^τ k_*: what an error τ updates before the end does to the answer
    for _ in range(c.steps - 1):
        weights.append(weights[-1] - step * A.T @ weights[-1])
    moved = np.zeros(len(A))
    for weight in reversed(weights):
        moved = moved - step * A @ moved + error * np.sign(weight)
    return float(k[query] @ moved)


@pytest.mark.parametrize("kind", ["uniform", "clumped", "duplicates"])
@each_product
def test_no_smaller_bound_holds(product: str, kind: str) -> None:
    problem = problem_of(0, kind, 20, 2, 0.5, 0.1)
    c = construction(problem, product=product)
    bound = product_bound(c, problem, predict(build(c), problem).states)
    if product == "plain":
        e_p, e_b = ((1 + r) ** 2 / (16 * c.segments**2) for r in (c.r_alpha, c.label_bound))
    else:
        e_p, e_b = (r / (4 * c.segments**2) for r in (c.r_alpha, c.label_bound))
    error = 2 / (c.ridge / c.n_max + 1 + c.ridge) * (c.ridge * e_p + e_b)
    for query in range(4):
        assert 0.999 <= adversary(c, problem, query, error) / float(bound[-1, query]) <= 1


@each_product
def test_twice_the_hinges_quarter_the_bound(product: str) -> None:
    problem = problem_of(0, "uniform", 20, 2, 0.5, 0.1)
    states = torch.ones(17, 20, dtype=torch.float64)
    coarse, fine = (
        product_bound(construction(problem, product=product, segments=m), problem, states)
        for m in (16, 32)
    )
    ratio = (coarse / fine)[1:]  # the zero state errs by nothing
    torch.testing.assert_close(ratio, torch.full_like(ratio, 4), rtol=1e-6, atol=0)


def test_unused_slots_do_not_loosen_the_bound() -> None:
    problem = problem_of(0, "uniform", 12, 2, 0.5, 0.1)
    X, y = (torch.cat([part, part + 0.1]) for part in (problem.X, problem.y))
    padded = Problem(X, y, problem.x_query, problem.count, problem.bandwidth, problem.ridge)
    c = construction(padded)
    model = build(c)
    short, long = (product_bound(c, p, predict(model, p).states) for p in (problem, padded))
    torch.testing.assert_close(short, long, rtol=1e-9, atol=0)
