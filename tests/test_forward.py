"""The walk through the stack is the transformer's own pass, and its figures can be worked out."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from krrviz import Construction, Settings, build, fan_frame, predict, run, sample
from krrviz.fan import relative_error
from krrviz.forward import (
    JACOBIAN_TOKENS,
    KEPT_MOMENTS,
    Walk,
    added,
    around,
    bracketed,
    equation,
    jacobian,
    kept_blocks,
    latex,
    matrices,
    product_near,
    reads,
    squares,
    walk,
    writes,
)
from krrviz.frames import RULE_METHODS, square_rows, state_rows
from krrviz.surgery import SwitchedOff, Unmasked

SIZES: dict[str, Any] = {"n": 12, "queries": 5, "prompts": 3, "steps": 6, "segments": 16}
SMALL = Settings(data="gp", d=2, **SIZES)
DATA = {
    "uniform": SMALL,
    "clumped": SMALL.but(inputs="clumped", d=3),
    "two": SMALL.but(n=2),
    **{name: Settings(data=name, **SIZES) for name in ("motorcycle", "co2", "diabetes")},
}
each_data = pytest.mark.parametrize("name", DATA)
each_layout = pytest.mark.parametrize("layout", ["paper", "fused"])
each_product = pytest.mark.parametrize("product", ["plain", "balanced"])

walked = cache(walk)


@each_data
@each_layout
@each_product
def test_the_streams_are_those_of_run(name: str, layout: str, product: str) -> None:
    w = walked(DATA[name].but(layout=layout, product=product))
    stream = run(w.model, w.problem).stream
    size = 1e-9 * stream.abs().amax((0, 1)).clamp_min(1)
    for m, moment in enumerate(w.moments):
        if moment.part == "prompt":
            assert torch.equal(w.stream[m], stream[0])
        if moment.part == "attention":
            block = w.model.blocks[moment.block]
            middle = stream[moment.block] + block.attention(stream[moment.block])
            assert ((w.stream[m] - middle).abs() <= size).all()
            assert torch.equal(w.entering[moment.block], w.stream[m - 1])
        if moment.part == "mlp":
            assert ((w.stream[m] - stream[moment.block + 1]).abs() <= size).all()


@each_data
@each_layout
def test_prompt_weights_and_alpha_are_the_fans(name: str, layout: str) -> None:
    settings = DATA[name].but(layout=layout)
    w, batch = walked(settings), sample(settings)
    for field in ("X", "y", "x_query"):
        assert torch.equal(getattr(w.problem, field), getattr(batch, field)[0])
    model = build(Construction.from_settings(settings))
    weights = model.state_dict()
    assert all(torch.equal(weights[k], v) for k, v in w.model.state_dict().items())
    drawn = predict(model, batch)
    assert torch.allclose(w.state[:, 1 : 1 + settings.n], drawn.states[:, 0], rtol=0, atol=1e-9)
    # With one prompt the fan's last column is this prompt's error.
    fan = fan_frame(settings.but(prompts=1, methods=("transformer",)))
    error = relative_error(predict(w.model, w.problem).predictions, w.problem.exact)
    assert error.tolist() == pytest.approx(fan.query(f"n == {settings.n}").error.tolist(), rel=1e-9)


def kernel(a: np.ndarray, b: np.ndarray, bandwidth: float) -> np.ndarray:
    return np.exp(-np.square(a[:, None] - b[None]).sum(-1) / (2 * bandwidth**2))


@each_data
@each_layout
@each_product
def test_the_alpha_channel_is_richardsons(name: str, layout: str, product: str) -> None:
    w = walked(DATA[name].but(layout=layout, product=product))
    c, X, y = w.construction, w.problem.X.numpy(), w.problem.y.numpy()
    K, step = kernel(X, X, c.bandwidth), 2 / (c.ridge / c.n_max + 1 + c.ridge)
    M = np.eye(len(X)) - step * (K + c.ridge * np.eye(len(X))) / K.sum(1)[:, None]
    m = c.segments
    if product == "plain":
        e_p, e_b = ((1 + r) ** 2 / (16 * m**2) for r in (c.r_alpha, c.label_bound))
    else:
        e_p, e_b = (r / (4 * m**2) for r in (c.r_alpha, c.label_bound))
    alpha, reach, power = np.zeros(len(X)), np.zeros(len(X)), np.eye(len(X))
    for t, found in enumerate(w.state[:, 1 : 1 + len(X)].numpy()):
        assert (np.abs(found - alpha) <= step * (c.ridge * e_p + e_b) * reach + 1e-10).all()
        assert w.solver.states[t].numpy() == pytest.approx(alpha, abs=1e-9)
        alpha = alpha + step * (y - K @ alpha - c.ridge * alpha) / K.sum(1)
        reach, power = reach + np.abs(power).sum(1), M @ power
    # and at every moment the stream's α is that of the moment's step
    for index, moment in enumerate(w.moments):
        assert w.value(index, 3 % len(X) + 1, "alpha") == float(
            w.state[moment.step, 3 % len(X) + 1]
        )
        assert w.solver_state(index, 1) == float(w.solver.states[moment.step, 0])
    assert not w.state[:, 0].any()  # the sink's
    assert not w.state[:, 1 + len(X) :].any()  # the queries'


def named(w: Walk) -> dict[str, tuple[dict[str, tuple[str, ...]], tuple[str, ...]]]:
    return {
        f"{moment.place} {moment.part}": (reads(w.slots, w.layer(m)), writes(w.slots, w.layer(m)))
        for m, moment in enumerate(w.moments)
        if moment.part != "prompt"
    }


def test_what_each_sub_block_reads_and_writes() -> None:
    """Worked by hand from the derivations above the weights."""
    paper = named(walked(SMALL))
    matched = {"W_Q": ("x1", "x2", "one"), "W_K": ("x1", "x2", "half_sq_norm", "mask")}
    assert paper["read-in attention"] == (
        {
            "W_Q": ("x1", "x2", "half_sq_norm", "one", "mask"),
            "W_K": ("x1", "x2", "half_sq_norm", "mask", "sink"),
            "W_V": ("sink",),
        },
        ("u",),
    )
    assert paper["read-in mlp"] == ({"W_1": ("y", "u")}, ("b",))
    for update in (1, 6):
        first, second = f"update {update}, first half", f"update {update}, second half"
        assert paper[f"{first} attention"] == ({**matched, "W_V": ("alpha",)}, ("z",))
        assert paper[f"{first} mlp"] == ({"W_1": ("u", "alpha")}, ("p",))
        assert paper[f"{second} attention"] == ({**matched, "W_V": ()}, ())
        assert paper[f"{second} mlp"] == (
            {"W_1": ("mask", "b", "z", "p")},
            ("z", "p", "alpha"),
        )
    assert paper["read-out attention"][0]["W_V"] == ("alpha",)
    assert paper["read-out attention"][1] == ("f",)
    assert paper["read-out mlp"] == ({"W_1": ()}, ())
    fused = named(walked(SMALL.but(layout="fused")))
    assert fused["update 3 attention"] == ({**matched, "W_V": ("alpha",)}, ("z",))
    assert fused["update 3 mlp"] == (
        {"W_1": ("mask", "u", "b", "z", "alpha")},
        ("z", "alpha"),
    )


@each_layout
def test_a_sub_block_changes_only_what_it_writes_and_uses_only_what_it_reads(layout: str) -> None:
    w = walked(SMALL.but(layout=layout))
    for m, moment in enumerate(w.moments):
        if moment.part == "prompt":
            continue
        layer, before = w.layer(m), w.before(m)
        changed = (w.stream[m] != before).any(0)
        assert {w.slots.names[i] for i in changed.nonzero().flatten()} <= {*writes(w.slots, layer)}
        used = {name for names in reads(w.slots, layer).values() for name in names}
        unread = torch.tensor([name not in used for name in w.slots.names])
        noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(m)).double()
        assert torch.equal(layer(before), layer(before + noise * unread))


@each_layout
def test_the_mlp_crosses_no_tokens_and_attention_only_unmasked_ones(layout: str) -> None:
    w = walked(SMALL.but(layout=layout))
    n, tokens = SMALL.n, w.stream.shape[1]
    everyone = torch.arange(tokens)
    for m, moment in enumerate(w.moments):
        if moment.part == "prompt":
            continue
        found = jacobian(w.layer(m), w.before(m), everyone)
        off = ~torch.eye(tokens, dtype=torch.bool)
        if moment.part == "mlp" or moment.place.endswith("second half"):
            assert (found[off] == 0).all()
            continue
        # What is added to token i depends on itself and on the keys that are not masked.
        keys = slice(0, 1 + n) if moment.place.startswith("read") else slice(1, 1 + n)
        reached = torch.zeros(tokens, tokens, dtype=torch.bool)
        reached[:, keys] = True
        assert (found[off & ~reached] == 0).all()
        if moment.place == "update 3":
            assert (found[1 : 1 + n, 1 : 1 + n] > 0).all()


@each_layout
def test_what_is_added_to_some_tokens_is_the_layers_own(layout: str) -> None:
    w = walked(SMALL.but(layout=layout))
    some = torch.tensor([0, 3, 5, SMALL.n + 2])
    for m, moment in enumerate(w.moments):
        if moment.part != "prompt":
            layer, h = w.layer(m), w.before(m)
            assert torch.allclose(added(layer, h, some), layer(h)[some], rtol=1e-12, atol=1e-12)


def test_the_jacobian_is_that_of_finite_differences() -> None:
    w = walked(SMALL)
    for m in (3, 4, 6):
        layer, h = w.layer(m), w.before(m)
        expected = torch.zeros(w.stream.shape[1], w.stream.shape[1]).double()
        for j in range(w.stream.shape[1]):
            for channel in range(len(w.slots)):
                nudge = torch.zeros_like(h)
                nudge[j, channel] = 1e-7
                slope = (layer(h + nudge) - layer(h - nudge)) / 2e-7
                expected[:, j] += slope.square().sum(-1)
        found = jacobian(layer, h, torch.arange(w.stream.shape[1]))
        context = slice(1, 1 + SMALL.n)  # at the kink of relu there is no derivative
        assert torch.allclose(
            found[context, context], expected.sqrt()[context, context], rtol=1e-4, atol=1e-5
        )


def test_a_jacobian_is_finite_where_squares_overflow() -> None:
    w = walked(SMALL)
    layer, h = w.layer(7), w.before(7).clone()  # z = D⁻¹Kα is linear in α
    everyone, at = torch.arange(w.stream.shape[1]), w.slots.index["alpha"]
    h[:, at] *= 1e5
    expected = jacobian(layer, h, everyone)
    h[:, at] *= 1e195
    found = jacobian(layer, h, everyone)
    assert found.isfinite().all()
    far = expected > 1e3  # elsewhere the share that does not grow with α counts
    assert far.any()
    assert torch.allclose(found[far] / 1e195, expected[far], rtol=1e-5)


@pytest.mark.parametrize("n", [2, 12, 62, 63, 64, 200, 512])
@pytest.mark.parametrize("queries", [1, 32, 100])
def test_a_jacobian_is_drawn_for_the_pinned_neighbourhood(n: int, queries: int) -> None:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)) + 1
    tokens = 1 + n + queries
    for pinned in (0, 1, n // 2, n, n + 1, tokens - 1):
        shown = around(pinned, tokens, order).tolist()
        assert len(shown) == min(tokens, JACOBIAN_TOKENS) == len({*shown})
        assert pinned in shown
        assert 0 in shown


@each_data
@each_layout
@each_product
def test_equations_give_what_the_stream_holds(name: str, layout: str, product: str) -> None:
    holds(walked(DATA[name].but(layout=layout, product=product)))


@pytest.mark.parametrize("update", RULE_METHODS)
@pytest.mark.parametrize("scale", ["absolute", "per_sample"])
@pytest.mark.parametrize("sink", [0, "ridge", 2.5])
@each_layout
def test_equations_hold_for_every_rule(update: str, scale: str, sink: Any, layout: str) -> None:
    w = walked(SMALL.but(update=update, ridge_scale=scale, sink=sink, layout=layout, steps=3, n=9))
    holds(w)
    # and the state is the rule's own, within what the hinges may add up to
    bound = 1e-9 + sum(t + 1 for t in range(4)) * 40 * w.construction.product_error(
        w.construction.r_alpha
    )
    for token in (1, 4):
        solver = w.solver_states(token)
        assert solver is not None
        assert (w.state[:, token] - solver).abs().max() <= bound


def holds(w: Walk) -> None:
    for m in range(len(w.moments)):
        for token in (0, 1, w.problem.n_max, w.stream.shape[1] - 1):
            told = equation(w, m, token)
            assert all(told.lines)
            if told.expected is not None and told.found is not None:
                # Where hinges make the product they may miss it; all else is rounding.
                slack = 1e-9 * max(1, abs(told.expected)) + told.hinges
                assert abs(told.found - told.expected) <= slack


def test_formulas_carry_the_streams_numbers() -> None:
    """Written by hand from values read out of the stream."""
    w = walked(SMALL.but(layout="paper"))
    token = 2
    m = w.moment_of(4)  # update 2, second half
    h = {name: w.value(m - 1, token, name) for name in w.slots.names}
    eta = 2 / (0.1 / 12 + 1.1)
    assert equation(w, m, token).lines == (
        r"\alpha_i \leftarrow \alpha_i + \eta\,(b_i - z_i - \lambda\,p_i)",
        f"= {latex(h['alpha'])}",
        rf"\quad + {latex(eta)}\,\bigl({latex(h['b'])} - {bracketed(h['z'])}",
        rf"\quad - 0.1\cdot {bracketed(h['p'])}\bigr)",
        f"= {latex(h['alpha'] + eta * (h['b'] - h['z'] - 0.1 * h['p']))}",
    )
    X = w.problem.X.numpy()
    degree = kernel(X, X, w.problem.bandwidth)[token - 1].sum()
    assert equation(w, 1, token).lines == (
        r"u_i = \frac{1}{D_i+\delta} \approx \frac{1}{D_i}",
        rf"= \frac{{1}}{{{latex(degree)}}} = {latex(1 / degree)}",
    )
    assert equation(w, 1, 14).lines == (r"u_* \text{ stays } 0\text{: no weight on the sink}",)


def test_an_unmasked_query_is_told_with_its_own_row_sum() -> None:
    w = walk(SMALL, Unmasked(0))
    told = equation(w, 1, 13)
    X, query = w.problem.X.numpy(), w.problem.x_query.numpy()[:1]
    alone = 1 / kernel(query, X, w.problem.bandwidth).sum()
    assert told.expected == pytest.approx(alone)
    assert told.found == pytest.approx(1 / (1 / alone + 1))  # itself is a key now


def test_an_equation_does_not_hide_a_fault() -> None:
    w = walk(SMALL, SwitchedOff("mlp", 2))
    told = equation(w, w.moment_of(2), 1)
    assert told.expected is not None
    assert told.found == 0
    assert abs(told.expected) > 1e-6


@each_layout
@each_product
@pytest.mark.parametrize("segments", [1, 16, 1000])
def test_hinges_make_the_chords_of_a_square(layout: str, product: str, segments: int) -> None:
    w = walked(SMALL.but(layout=layout, product=product, segments=segments))
    for block in (0, 1):
        made = product_near(w, block)
        assert made is not None
        s, square = squares(w, made, 1.0)
        r = 4.0 if block == 0 else np.sqrt(12) / 0.1
        reach = 1 + r if product == "plain" else 2 * np.sqrt(r)
        h = reach / segments
        knot = (s / h).floor() * h
        chord = knot**2 + (s - knot) * (2 * knot + h)
        assert torch.allclose(square, chord, rtol=1e-9, atol=1e-9 * reach**2)
        gap = square - s**2
        assert gap.min() >= -1e-9 * reach**2
        assert gap.max() <= h * h / 4 * (1 + 1e-9)


def test_the_marked_operands_make_the_product() -> None:
    w = walked(SMALL.but(segments=64))
    for block, token in ((0, 3), (1, 3), (5, 9)):
        made = product_near(w, block)
        assert made is not None
        marks, _ = square_rows(w, made, token)
        plus, minus = (marks[marks.sign == sign].square.to_numpy() for sign in ("s₊", "s₋"))
        u = w.value(len(w.moments) - 1, token, "u")
        other = np.full(7, w.value(0, token, "y")) if block == 0 else w.state[:, token].numpy()
        bound = w.construction.product_error(max(w.construction.r_alpha, 4.0))
        assert (plus - minus) / 4 == pytest.approx(u * other, abs=bound + 1e-12)


def test_state_rows_hold_both_states() -> None:
    w = walked(SMALL)
    rows = state_rows(w, 4)
    assert rows[rows.method == "transformer"].state.tolist() == w.state[:, 4].tolist()
    assert (
        rows[rows.method == "preconditioned_richardson"].state.tolist()
        == w.solver.states[:, 3].tolist()
    )
    assert {*state_rows(w, 0).method} == {"transformer"}
    w = walked(SMALL.but(update="function_space"))
    rows = state_rows(w, 14)  # the second query iterates too
    assert (
        rows[rows.method == "function_space_richardson"].state.tolist()
        == w.solver.predictions[:, 1].tolist()
    )


def test_matrices_name_their_channels() -> None:
    w = walked(SMALL)
    shown = {m.name: m for m in matrices(w.slots, w.model.blocks[1])}
    assert list(shown) == ["W_Qᵀ", "W_Kᵀ", "W_Vᵀ", "W_O", "W_1ᵀ", "W_2"]
    for matrix in shown.values():
        assert matrix.rows == w.slots.names
        assert matrix.values.shape == (len(matrix.rows), len(matrix.columns))
    written = shown["W_O"].values.any(1).nonzero().flatten().tolist()
    assert [w.slots.names[i] for i in written] == ["z"]


@pytest.mark.parametrize(("steps", "layout"), [(0, "paper"), (1, "fused"), (700, "paper")])
def test_any_depth_can_be_walked(steps: int, layout: str) -> None:
    w = walk(SMALL.but(steps=steps, layout=layout))
    assert len(w.moments) <= KEPT_MOMENTS
    assert w.moments[-1].place == "read-out"
    assert len(w.state) == steps + 1
    assert w.moments[-1].step == steps
    kept = kept_blocks(w.model, w.stream.shape[1])
    assert kept == sorted({*kept})
    for block in range(len(w.model.blocks)):
        m = w.moment_of(block)
        assert w.moments[m].part == "mlp"
        if block in kept:
            assert w.moments[m].block == block
        made = product_near(w, block)
        assert made is not None
        assert made.block <= block
    # A kept place holds what the stack holds there, however much lies between.
    stream = run(w.model, w.problem).stream
    for m, moment in enumerate(w.moments):
        if moment.part == "mlp":
            assert torch.allclose(w.stream[m], stream[moment.block + 1], rtol=1e-7, atol=1e-7)
