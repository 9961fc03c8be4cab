"""Anatomy: attention is D⁻¹K to rounding, at every width of the kernel, token by token."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from krrviz import Settings, anatomy, sample
from krrviz.anatomy import CONTEXT, QUERIES
from krrviz.settings import DATASETS

DATA = [name for name in DATASETS if name != "csv"]
SMALL = Settings(n=24, queries=8, prompts=3, steps=4, segments=16)
SIGMAS = [1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 30.0, 1e3]


def by_hand(settings: Settings) -> np.ndarray:
    """D⁻¹K of the fan's first prompt in the token layout, one pair and one exponential at a time.

    The sink stands at 0. Row by row in the log domain: log K_ij − log Σ_k K_ik.
    """
    problem = sample(settings)
    X = problem.X[0].numpy()
    tokens = [np.zeros(X.shape[1]), *X, *problem.x_query[0].numpy()]
    rows = np.zeros((len(tokens), len(tokens)))
    for i, token in enumerate(tokens):
        logits = [-math.fsum((token - x) ** 2) / (2 * settings.bandwidth**2) for x in X]
        top = max(logits)
        log_total = top + math.log(math.fsum(math.exp(value - top) for value in logits))
        rows[i, 1 : 1 + len(X)] = [math.exp(value - log_total) for value in logits]
    return rows


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("data", DATA)
def test_attention_is_the_kernel_at_every_bandwidth(data: str, sigma: float) -> None:
    settings = SMALL.but_data(data).but(bandwidth=sigma)
    a, expected = anatomy.anatomy(settings), by_hand(settings)
    norms = torch.cat([a.problem.X, a.problem.x_query]).square().sum(-1)
    bound = 1e-16 * (100 + float(norms.max()) / sigma**2)
    assert a.tolerance(1) == pytest.approx(bound)
    np.testing.assert_allclose(a.kernel(1), expected, rtol=0, atol=bound)
    for block in range(1, a.depth - 1):
        attention = a.attention(block)
        if attention is None:
            assert block % 2 == 0  # the second half of an update
        else:
            assert np.abs(attention - expected).max() <= bound


@pytest.mark.parametrize("layout", ["paper", "fused"])
@pytest.mark.parametrize("product", ["plain", "balanced"])
@pytest.mark.parametrize("d", [1, 2, 10])
def test_every_form_and_dimension(layout: str, product: str, d: int) -> None:
    settings = SMALL.but(data="gp", d=d, layout=layout, product=product)
    a = anatomy.anatomy(settings)
    assert a.depth == 2 + (8 if layout == "paper" else 4)
    attention = a.attention(1)
    assert attention is not None
    assert np.abs(attention - by_hand(settings)).max() <= a.tolerance(1)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("data", DATA)
def test_read_in_and_read_out_have_their_sink(data: str, sigma: float) -> None:
    a = anatomy.anatomy(SMALL.but_data(data).but(bandwidth=sigma))
    context = np.array([kind == "context" for kind in a.kinds])
    for block, level in ((0, 1e-15), (a.depth - 1, 1e15)):
        assert a.levels(block).max() == level
        attention = a.attention(block)
        assert attention is not None
        K = np.exp(-a.distance[:, context] / (2 * sigma**2))
        total = K.sum(1) + level
        rows = context if block == 0 else slice(None)
        seen = K[rows] / total[rows, None] * (1 if block == 0 else level)
        assert np.abs(attention[rows][:, context] - seen).max() <= a.tolerance(block)
        np.testing.assert_allclose(
            attention[rows, 0],
            (level / total)[rows],
            rtol=1e-13 * (100 + (a.construction.input_bound / sigma) ** 2),
        )
        assert np.abs(attention - a.kernel(block)).max() <= a.tolerance(block)


def test_single_precision_meets_its_own_tolerance() -> None:
    a = anatomy.anatomy(SMALL.but(dtype="float32"))
    attention = a.attention(1)
    assert attention is not None
    assert 0 < np.abs(attention - a.kernel(1)).max() <= a.tolerance(1)
    assert a.tolerance(1) > 1e-6


def test_the_prompt_is_the_fans_first() -> None:
    a, whole = anatomy.anatomy(SMALL), sample(SMALL)
    assert torch.equal(a.problem.X, whole.X[0])
    assert torch.equal(a.problem.x_query, whole.x_query[0])
    assert a.kinds == ("sink", *["context"] * 24, *["query"] * 8)
    assert a.notices == ()


def test_long_prompts_are_cut_and_that_is_told() -> None:
    settings = Settings(data="gp", n=CONTEXT + 40, queries=QUERIES + 1, prompts=2, steps=1)
    a, whole = anatomy.anatomy(settings), sample(settings)
    assert len(a.kinds) == 1 + CONTEXT + QUERIES
    assert torch.equal(a.problem.X, whole.X[0, :CONTEXT])
    assert a.notices == tuple(
        f"{name}: the first {most} are taken here, as if they were the whole prompt."
        for name, most in ((f"n={CONTEXT + 40}", CONTEXT), (f"queries={QUERIES + 1}", QUERIES))
    )


# -- order ---------------------------------------------------------------------------------------


def in_kinds(a: anatomy.Anatomy) -> list[np.ndarray]:
    """The order, cut where the kind of token changes."""
    n = a.problem.n_max
    return np.split(a.order, [1, 1 + n])


@pytest.mark.parametrize("data", DATA)
def test_an_order_keeps_the_kinds_apart(data: str) -> None:
    a = anatomy.anatomy(SMALL.but_data(data))
    sink, context, queries = in_kinds(a)
    assert sink.tolist() == [0]
    assert sorted(context) == list(range(1, 25))
    assert sorted(queries) == list(range(25, 33))


@pytest.mark.parametrize("data", ["motorcycle", "co2"])
def test_one_input_orders_by_itself(data: str) -> None:
    a = anatomy.anatomy(SMALL.but_data(data))
    for part in in_kinds(a)[1:]:
        assert (np.diff(a.inputs[part, 0]) >= 0).all()


def test_a_seriation_follows_an_arc_that_no_axis_does() -> None:
    rng = np.random.default_rng(3)
    angle = rng.permutation(np.linspace(0, 5, 60))  # most of a circle
    arc = np.stack([np.cos(angle), np.sin(angle), np.zeros(60)], 1)
    logits = -((arc[:, None] - arc) ** 2).sum(-1) / (2 * 0.2**2)
    found = angle[np.argsort(anatomy._ranks(arc, np.arange(60), logits))]
    assert (np.diff(found) > 0).all() or (np.diff(found) < 0).all()


@pytest.mark.parametrize("change", [{"bandwidth": 1e-3}, {"bandwidth": 1e3}, {"n": 2}, {"d": 50}])
def test_an_order_exists_at_the_edges(change: dict[str, Any]) -> None:
    a = anatomy.anatomy(SMALL.but(data="gp", **change))
    assert sorted(a.order) == list(range(len(a.kinds)))
    assert np.isfinite(a.inputs[1:]).all()
    assert np.isfinite(a.log_degree).all()


# -- one row -------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [0, 1, 13, 24, 25, 32])
@pytest.mark.parametrize("data", DATA)
def test_a_row_step_by_step(data: str, token: int) -> None:
    settings = SMALL.but_data(data)
    a = anatomy.anatomy(settings)
    step = a.step(1, token)
    assert step is not None
    context = slice(1, 25)
    x = np.concatenate([np.zeros((1, a.problem.X.shape[1])), a.problem.X, a.problem.x_query])
    sigma = settings.bandwidth
    score = x[context] @ x[token] / sigma**2 - (x[context] ** 2).sum(1) / (2 * sigma**2)
    np.testing.assert_allclose(step.score[context], score, rtol=1e-12, atol=1e-12)
    assert step.cancelled == pytest.approx((x[token] ** 2).sum() / (2 * sigma**2), abs=1e-12)
    distance = ((x[context] - x[token]) ** 2).sum(1)
    np.testing.assert_allclose(
        step.score[context] - step.cancelled, -distance / (2 * sigma**2), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(step.exponential, np.exp(step.score - step.score.max()), rtol=1e-12)
    assert step.total == pytest.approx(step.exponential.sum(), rel=1e-14)
    np.testing.assert_allclose(
        step.attention, by_hand(settings)[token], rtol=0, atol=a.tolerance(1)
    )
    assert a.degree[token] == pytest.approx(np.exp(-distance / (2 * sigma**2)).sum(), rel=1e-12)
    if 1 <= token < 25:  # its own score is the largest, so exponentials are K and their sum D
        assert step.total == pytest.approx(a.degree[token], rel=1e-9)
        assert a.nearest(token) == token


def test_the_sink_and_the_queries_are_masked_keys() -> None:
    a = anatomy.anatomy(SMALL)
    attention = a.attention(1)
    assert attention is not None
    masked = np.array([kind != "context" for kind in a.kinds])
    assert (attention[:, masked] == 0).all()


def test_a_context_token_is_nearest_to_itself_among_equal_ones() -> None:
    a = anatomy.anatomy(Settings(n=64, steps=1, prompts=1))
    off = ~np.eye(64, dtype=bool)
    assert (a.distance[1:65, 1:65][off] == 0).any()  # times of the crash repeat
    assert [a.nearest(token) for token in range(1, 65)] == list(range(1, 65))


def test_an_idle_block_has_no_attention() -> None:
    a = anatomy.anatomy(SMALL)
    assert a.idle(2)
    assert a.attention(2) is None
    assert a.step(2, 1) is None
    assert a.place(2) == "update 1, second half"


@pytest.mark.parametrize("update", ["richardson", "function_space"])
@pytest.mark.parametrize("scale", ["absolute", "per_sample"])
@pytest.mark.parametrize("sink", [0, "ridge", 3.0])
def test_every_block_is_the_kernel_with_its_sink(update: str, scale: str, sink: Any) -> None:
    """K/(D + s) worked out by hand: s = δ or s at read-in, s in updates, S at read-out."""
    s = SMALL.but(update=update, ridge_scale=scale, sink=sink, steps=1)
    a, n = anatomy.anatomy(s), SMALL.n
    inputs = a.problem.X.numpy()
    X = np.concatenate([np.zeros_like(inputs[:1]), inputs, a.problem.x_query.numpy()])
    K = np.exp(-((X[:, None] - X[None, 1 : 1 + n]) ** 2).sum(-1) / (2 * s.bandwidth**2))
    r = s.ridge * (n if scale == "per_sample" else 1)
    own = r if sink == "ridge" else sink
    context = np.isin(np.arange(len(X)), np.arange(1, 1 + n))
    far = max(own, r) if update == "function_space" else own
    expected = {1 if update == "richardson" else 2: np.where(context, own, far)}
    expected[0] = np.where(context, own or 1e-15, 0)
    if update == "function_space":
        expected[1] = np.where(context, 0, far)
    for block, level in expected.items():
        attention = a.attention(block)
        assert attention is not None
        total = K.sum(1) + level
        assert np.abs(attention[:, 1 : 1 + n] - K / total[:, None]).max() <= a.tolerance(block)
        assert np.abs(attention[:, 0] - level / total).max() <= a.tolerance(block)
        assert np.abs(attention - a.kernel(block)).max() <= a.tolerance(block)
