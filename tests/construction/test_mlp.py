"""MLPs against the arithmetic they stand for, and their fast evaluation against themselves."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from krrviz import Construction, build
from krrviz.construction.transformer import MLP, Hinges
from krrviz.construction.weights import linear, product

LAYOUTS, PRODUCTS = ("paper", "fused"), ("plain", "balanced")
DTYPES, HALF = (torch.float64, torch.float32), (torch.bfloat16, torch.float16)  # balanced only
each_product = pytest.mark.parametrize("kind", PRODUCTS)
each_range = pytest.mark.parametrize("r", [0.3, 4.0, 80.0, 1e4])


def construction(
    kind: str = "balanced",
    segments: int = 16,
    layout: str = "paper",
    dtype: torch.dtype = torch.float64,
) -> Construction:
    return Construction(
        d=2,
        n_max=64,
        bandwidth=0.5,
        ridge=0.1,
        steps=2,
        segments=segments,
        layout=layout,
        product=kind,
        dtype=dtype,
    )


def multiply(c: Construction, r: float, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """u·v as the product's hinges see it."""
    slots = c.slots
    stream = torch.zeros(len(u), len(slots), dtype=torch.float64)
    stream[:, slots.index["u"]] = torch.from_numpy(u)
    stream[:, slots.index["alpha"]] = torch.from_numpy(v)
    layer = product(c, "u", "alpha", r, slots.row(p=1.0)).layer(torch.float64)
    return layer(stream)[:, slots.index["p"]].numpy()


def bound(kind: str, r: float, segments: int) -> float:
    """(1 + R)²/16m² plain, R/4m² balanced."""
    return (1 + r) ** 2 / (16 * segments**2) if kind == "plain" else r / (4 * segments**2)


# -- products -----------------------------------------------------------------------------------


@each_range
@each_product
def test_a_square_lies_above_by_at_most_a_quarter_knot_squared(kind: str, r: float) -> None:
    # With v = g²u the difference of the two squares is 0: what is left is (2gu)²/4.
    m, g = 16, np.sqrt(r) if kind == "balanced" else 1.0
    h = (g + r / g) / m
    u = np.linspace(-1, 1, 2001) * min(1, r / g**2)
    error = 4 * multiply(construction(kind, m), r, u, g**2 * u) - (2 * g * u) ** 2
    rounding = 1e-14 * (g + r / g) ** 2
    assert error.min() >= -rounding
    assert error.max() <= h**2 / 4 + rounding
    reached = min(2 * g * u.max(), h / 2)  # the chord is farthest off half-way to its knot
    assert error.max() >= 0.98 * reached * (h - reached)


def worst_error(kind: str, r: float, segments: int, products: int = 2000) -> float:
    """The largest error over many random products."""
    rng = np.random.default_rng(0)
    u, v = rng.uniform(-1, 1, products), rng.uniform(-r, r, products)
    return float(np.abs(multiply(construction(kind, segments), r, u, v) - u * v).max())


@pytest.mark.parametrize("segments", [1, 32])
@each_range
@each_product
def test_no_product_errs_by_more_than_the_bound(kind: str, r: float, segments: int) -> None:
    assert worst_error(kind, r, segments) <= bound(kind, r, segments) * (1 + 1e-9)


@each_product
def test_thousands_of_hinges_still_meet_the_bound(kind: str) -> None:
    # Slopes rounded to float32 would be off by more than this.
    assert worst_error(kind, 23.7, 8192, 200) <= bound(kind, 23.7, 8192) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("kind", "r"), [(k, r) for k in PRODUCTS for r in (0.3, 4.0, 80.0)] + [("balanced", 1e4)]
)
def test_the_bound_is_attained(kind: str, r: float) -> None:
    assert worst_error(kind, r, 32) >= 0.9 * bound(kind, r, 32)


def test_plain_products_with_knots_wider_than_four_err_by_less() -> None:
    # |u + v| and |u − v| differ by at most 2, so their chords' errors by at most 2(h − 2).
    h = (1 + 1e4) / 32
    assert worst_error("plain", 1e4, 32) == pytest.approx((h - 2) / 2, rel=0.02)
    assert (h - 2) / 2 < 0.1 * bound("plain", 1e4, 32)


@each_range
@each_product
def test_the_certified_product_error_is_the_bound(kind: str, r: float) -> None:
    found = construction(kind, 32).product_error(r)
    assert found == pytest.approx(bound(kind, r, 32), rel=1e-12)


@each_product
def test_product_error_falls_as_the_square_of_the_width(kind: str) -> None:
    widths = [32, 128, 512]
    errors = [worst_error(kind, 80.0, m) for m in widths]
    slope = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert slope == pytest.approx(-2, abs=0.05)


def test_balancing_beats_plain_by_its_formula() -> None:
    r = 80.0
    plain, balanced = (construction(kind).product_error(r) for kind in ("plain", "balanced"))
    assert plain / balanced == pytest.approx((1 + r) ** 2 / (4 * r), rel=1e-12)


@each_product
def test_zero_times_zero_is_exactly_zero(kind: str) -> None:
    # Off the context u, y and α are 0, and so must their products be.
    assert not multiply(construction(kind), 80.0, np.zeros(3), np.zeros(3)).any()


# -- gates --------------------------------------------------------------------------------------


def gated(v: np.ndarray, mask: float) -> np.ndarray:
    """v through a gate of 1e4, as a linear unit pair sees it."""
    slots = construction().slots
    stream = torch.zeros(len(v), len(slots), dtype=torch.float64)
    stream[:, slots.index["z"]], stream[:, slots.index["mask"]] = torch.from_numpy(v), mask
    units = linear(slots.row(z=1.0), slots.row(alpha=1.0), slots.row(mask=1e4))
    return units.layer(torch.float64)(stream)[:, slots.index["alpha"]].numpy()


def test_a_gate_passes_context_tokens_exactly() -> None:
    v = np.random.default_rng(2).standard_normal(1000) * 10.0 ** np.arange(-100, 100).repeat(5)
    assert np.array_equal(gated(v, mask=0.0), v)


def test_a_gate_shuts_out_masked_tokens_exactly() -> None:
    v = np.concatenate([np.linspace(-1e4, 1e4, 1001), [1e-300, -1e-300]])
    assert not gated(v, mask=1.0).any()


# -- width --------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [1, 16, 128])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_hidden_width_is_four_hinges_a_segment(layout: str, segments: int) -> None:
    model = build(construction(segments=segments, layout=layout))
    widths = [len(block.mlp.b_1) for block in model.blocks]
    assert 4 * segments <= max(widths) <= 4 * segments + 6


# -- Hinges: the fast evaluation ----------------------------------------------------------------


def assert_same_function(mlp: MLP, stream: Tensor) -> None:
    """Hinges(mlp) and mlp agree to the rounding of their terms, a few units in the last place."""
    dense, fast = mlp(stream), Hinges(mlp)(stream)
    wide = [w.double().abs() for w in (mlp.w_1, mlp.b_1, mlp.w_2)]
    terms = (stream.double().abs() @ wide[0].mT + wide[1]) @ wide[2].mT
    assert ((fast - dense).abs() <= 8 * torch.finfo(stream.dtype).eps * terms).all()


@pytest.mark.parametrize("segments", [1, 5, 64])
@pytest.mark.parametrize(
    ("layout", "kind", "dtype"),
    [
        *itertools.product(LAYOUTS, PRODUCTS, DTYPES),
        *itertools.product(LAYOUTS, PRODUCTS[1:], HALF),
    ],
)
def test_fast_evaluation_is_the_dense_layer(
    layout: str, kind: str, dtype: torch.dtype, segments: int
) -> None:
    c = construction(kind, segments, layout, dtype)
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(3, 20, len(c.slots), generator=generator, dtype=dtype)
    for tokens, reach in zip(stream, (0.0, 1.0, 100.0), strict=True):  # of the range
        tokens[:, c.slots.index["alpha"]] *= reach * c.r_alpha
    for mlp in {block.mlp for block in build(c).blocks}:
        assert_same_function(mlp, stream)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_fast_evaluation_agrees_on_the_knots(kind: str) -> None:
    c = construction(kind, 16)
    r = c.r_alpha
    g = np.sqrt(r) if kind == "balanced" else 1.0  # U = 1: gu and v/g are added
    knots = torch.arange(-20, 21, dtype=torch.float64) * (g + r / g) / 16
    stream = torch.zeros(len(knots), len(c.slots), dtype=torch.float64)
    stream[:, c.slots.index["alpha"]] = g * knots
    assert_same_function(build(c).blocks[1].mlp, stream)


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(0, 40), st.sampled_from(DTYPES + HALF))
@settings(max_examples=60)
def test_fast_evaluation_of_any_layer(seed: int, rows: int, units: int, dtype: torch.dtype) -> None:
    # Units share a few rows, so that some are crowds and some stand alone; biases repeat.
    random = torch.Generator().manual_seed(seed)
    shared = torch.randn(rows, 4, generator=random, dtype=dtype)
    w_1 = shared[torch.randint(rows, (units,), generator=random)]
    b_1 = torch.randint(-3, 4, (units,), generator=random).to(dtype) / 2
    w_2 = torch.randn(4, units, generator=random, dtype=dtype)
    w_2[torch.randint(4, (1,), generator=random)] = 0
    stream = 10 * torch.randn(7, 4, generator=random, dtype=dtype)
    assert_same_function(MLP(w_1, b_1, w_2), stream)
