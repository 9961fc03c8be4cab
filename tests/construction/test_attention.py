"""Attention against the Gaussian kernel from its definition, in SciPy's log domain."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from krrviz import Construction, Problem, Settings, Transformer, build, sample

GP = [
    Settings(data="gp", inputs=inputs, d=d)
    for inputs, d in [("uniform", 1), ("uniform", 2), ("clumped", 3), ("gaussian", 10)]
]
DATA = [
    settings.but(n=40, queries=6, prompts=2, steps=1, segments=4)
    for settings in [*GP, *(Settings(data=name) for name in ("motorcycle", "co2", "diabetes"))]
]
NAMES = [f"{s.data}-{s.inputs}-{s.d}" if s.data == "gp" else s.data for s in DATA]
BANDWIDTHS = (1e-3, 0.1, 0.5, 3.0, 1e3)
EPS = float(torch.finfo(torch.float64).eps)

each_data = pytest.mark.parametrize("settings", DATA, ids=NAMES)


def log_kernel(a: np.ndarray, b: np.ndarray, bandwidth: float) -> np.ndarray:
    """−‖a_i − b_j‖²/2σ², one row at a time."""
    return np.stack([-np.square(row - b).sum(-1) / (2 * bandwidth**2) for row in a])


def averages(a: np.ndarray, b: np.ndarray, bandwidth: float) -> np.ndarray:
    """k(a_i, b_j)/Σ_j k(a_i, b_j): the rows of D⁻¹K, where a = b."""
    logits = log_kernel(a, b, bandwidth)
    return np.exp(logits - logsumexp(logits, axis=1, keepdims=True))


def hand_made(X: np.ndarray, queries: np.ndarray, counts: list[int], bandwidth: float) -> Problem:
    """Prompts that share their points and differ in how many of them are labelled."""
    batch = len(counts)
    return Problem(
        X=torch.from_numpy(X).expand(batch, *X.shape),
        y=torch.linspace(-1, 1, len(X), dtype=torch.float64).expand(batch, -1),
        x_query=torch.from_numpy(queries).expand(batch, *queries.shape),
        count=torch.tensor(counts),
        bandwidth=bandwidth,
        ridge=0.1,
    )


def weights_for(problem: Problem, dtype: torch.dtype = torch.float64) -> Construction:
    """The construction whose bounds are what the problem needs."""
    points = torch.cat([problem.X, problem.x_query], -2)
    return Construction(
        d=problem.X.shape[-1],
        n_max=problem.n_max,
        bandwidth=problem.bandwidth,
        ridge=problem.ridge,
        steps=1,
        segments=4,
        input_bound=float(points.norm(dim=-1).max()),
        dtype=dtype,
    )


def update_pattern(model: Transformer, problem: Problem) -> np.ndarray:
    """The weights of the first update's attention, (batch, tokens, tokens)."""
    return model.blocks[1].attention.pattern(model.embed(problem)).numpy()


# -- claim 1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
@each_data
def test_weights_are_the_normalised_kernel(settings: Settings, bandwidth: float) -> None:
    settings = settings.but(bandwidth=bandwidth)
    problem, c = sample(settings), Construction.from_settings(settings)
    found = update_pattern(build(c), problem)
    for prompt, pattern in enumerate(found):
        X, queries = problem.X[prompt].numpy(), problem.x_query[prompt].numpy()
        expected = np.zeros((len(X) + len(queries), pattern.shape[1]))
        expected[:, 1 : 1 + len(X)] = averages(np.vstack([X, queries]), X, bandwidth)
        tolerance = 1e-16 * (100 + (c.input_bound / bandwidth) ** 2)
        assert np.abs(pattern[1:] - expected).max() <= tolerance


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
@pytest.mark.parametrize("d", [1, 2, 10])
def test_clumps_and_duplicates_keep_the_tolerance(d: int, bandwidth: float) -> None:
    rng = np.random.default_rng(d)
    centres = rng.uniform(-1, 1, (3, d))
    clumps = centres[rng.integers(3, size=20)] + 1e-6 * rng.standard_normal((20, d))
    X = np.vstack([clumps, clumps[:5], centres[:1].repeat(5, 0)])
    problem = hand_made(X, centres, [len(X)], bandwidth)
    c = weights_for(problem)
    found = update_pattern(build(c), problem)[0, 1 : 1 + len(X), 1 : 1 + len(X)]
    tolerance = 1e-16 * (100 + (c.input_bound / bandwidth) ** 2)
    assert np.abs(found - averages(X, X, bandwidth)).max() <= tolerance


def test_queries_on_top_of_the_data_do_not_count_in_the_row_sums() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (8, 2))
    elsewhere, on_top = -X, X.copy()
    first, second = (hand_made(X, queries, [8], 0.5) for queries in (elsewhere, on_top))
    model = build(weights_for(first))
    context = slice(1, 9)
    assert np.array_equal(
        update_pattern(model, first)[:, context], update_pattern(model, second)[:, context]
    )


# -- masks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
def test_masked_keys_weigh_exactly_nothing(bandwidth: float, dtype: torch.dtype) -> None:
    # The worst place: context at one end of the ball, queries at the other, on the masked keys.
    X = np.zeros((6, 3))
    X[:, 0] = 4.0 - 1e-3 * np.arange(6)
    problem = hand_made(X, np.array([[-4.0, 0, 0], [4.0, 0, 0]]), [2, 5], bandwidth)
    found = update_pattern(build(weights_for(problem, dtype)), problem)
    for pattern, count in zip(found, (2, 5), strict=True):
        assert not np.delete(pattern, np.arange(1, 1 + count), axis=1).any()


@each_data
def test_rows_sum_to_one(settings: Settings) -> None:
    model, problem = build(Construction.from_settings(settings)), sample(settings)
    stream = model.embed(problem)
    for block in model.blocks:
        assert (block.attention.pattern(stream).sum(-1) - 1).abs().max() <= 8 * EPS


# -- read-in and read-out -----------------------------------------------------------------------


each_precision = pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)]
)


@each_precision
@each_data
def test_read_in_gives_one_over_the_row_sums(
    settings: Settings, dtype: str, tolerance: float
) -> None:
    model = build(Construction.from_settings(settings.but(dtype=dtype)))
    problem = sample(settings)
    u = model.blocks[0].attention(model.embed(problem))[..., model.slots.index["u"]].numpy()
    for prompt, X in enumerate(problem.X.numpy()):
        degree = np.exp(log_kernel(X, X, settings.bandwidth)).sum(1)
        np.testing.assert_allclose(u[prompt, 1 : 1 + len(X)], 1 / degree, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_read_in_is_exactly_zero_off_the_context(dtype: torch.dtype) -> None:
    X = np.random.default_rng(1).uniform(-1, 1, (6, 2))
    problem = hand_made(X, X[:2], [1, 4], 0.5)
    model = build(weights_for(problem, dtype))
    stream = model.blocks[0](model.embed(problem))
    written = stream[..., [model.slots.index[name] for name in ("u", "b")]]
    for tokens, count in zip(written, (1, 4), strict=True):
        assert (tokens[1 : 1 + count] != 0).all()
        assert not tokens[0].any()
        assert not tokens[1 + count :].any()


@each_precision
@each_data
def test_read_out_gives_the_kernel_sum(settings: Settings, dtype: str, tolerance: float) -> None:
    model = build(Construction.from_settings(settings.but(dtype=dtype)))
    problem, n = sample(settings), settings.n
    stream = model.embed(problem)
    alpha = np.random.default_rng(2).standard_normal((settings.prompts, n))
    stream[..., 1 : 1 + n, model.slots.index["alpha"]] = torch.from_numpy(alpha).to(stream)
    f = model.blocks[-1](stream)[..., 1 + n :, model.slots.index["f"]].numpy()
    for prompt, X in enumerate(problem.X.numpy()):
        k = np.exp(log_kernel(problem.x_query[prompt].numpy(), X, settings.bandwidth))
        scale = (k @ np.abs(alpha[prompt])).max()
        np.testing.assert_allclose(f[prompt], k @ alpha[prompt], rtol=0, atol=tolerance * scale)
