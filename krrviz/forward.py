"""Forward: one prompt's way through the transformer, sub-block by sub-block, beside the solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from krrviz.construction.slots import Slots
from krrviz.construction.transformer import MLP, Attention, Block, Forward, Transformer
from krrviz.construction.weights import Construction, build
from krrviz.fan import same_rule
from krrviz.machine import check
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.surgery import Fault, broken, place
from krrviz.tables import Table
from krrviz.tasks import sample
from krrviz.trajectory import Trajectory, record

# What one walk may keep, in numbers of its stream, and in sub-blocks.
KEPT_VALUES, KEPT_MOMENTS = 1_000_000, 300
# A Jacobian is drawn for this many tokens at most.
JACOBIAN_TOKENS = 64


@dataclass(frozen=True)
class Moment:
    """A place in the stack: after a sub-block, or before the first (part ``prompt``).

    ``step`` is how many updates α has taken by then; ``place`` says what the block is for.
    """

    block: int
    part: str  # prompt, attention or mlp
    step: int
    place: str


@dataclass(frozen=True, eq=False)
class Walk:
    """The first prompt's forward pass, all on the CPU.

    stream : after each moment; entering : the stream that enters each kept block
    state, source : of every token after every update, kept or not: the channel that the rule
    iterates (α, nα for a per-sample ridge, or the fitted values), and the one that attention and
    product take next (Nesterov's ``ahead``, or the same)
    one number is read by channel name: ``value(moment, token, "alpha")``
    solver : the same rule with the transformer's own P and steps, in float64
    """

    construction: Construction
    model: Transformer
    problem: Problem
    moments: tuple[Moment, ...]
    stream: Float[Tensor, "moments tokens channels"]
    entering: Mapping[int, Float[Tensor, "tokens channels"]]
    state: Float[Tensor, "times tokens"]
    source: Float[Tensor, "times tokens"]
    solver: Trajectory

    @property
    def slots(self) -> Slots:
        return self.model.slots

    @property
    def symbol(self) -> str:
        """What the state is called."""
        if self.slots.state == "fitted":
            return "g"
        return "nα" if self.construction.per_sample else "α"

    def value(self, moment: int, token: int, channel: str) -> float:
        return float(self.stream[moment, token, self.slots.index[channel]])

    def solver_states(self, token: int) -> Float[Tensor, " times"] | None:
        """The solver's own state of a token by step, in the channel's units; None without one."""
        n, dual = self.problem.n_max, self.slots.state == "alpha"
        if 1 <= token <= n:
            scale = int(self.problem.count) if dual and self.construction.per_sample else 1
            return self.solver.states[:, token - 1] * scale
        return None if dual or token == 0 else self.solver.predictions[:, token - 1 - n]

    def solver_state(self, moment: int, token: int) -> float:
        """The solver's state at the moment's step; 0 where it has none."""
        states = self.solver_states(token)
        return 0.0 if states is None else float(states[self.moments[moment].step])

    def moment_of(self, block: int) -> int:
        """The last moment of the kept block nearest to ``block``."""
        blocks = [moment.block for moment in self.moments[1:]]
        nearest = min(blocks, key=lambda kept: (abs(kept - block), kept))
        return len(blocks) - blocks[::-1].index(nearest)

    def layer(self, moment: int) -> Attention | MLP:
        """The module that acted at a moment (not at the prompt)."""
        here = self.moments[moment]
        block = self.model.blocks[here.block]
        return block.attention if here.part == "attention" else block.mlp

    def before(self, moment: int) -> Float[Tensor, "tokens channels"]:
        """The stream that a moment's sub-block read."""
        here = self.moments[moment]
        return self.entering[here.block] if here.part == "attention" else self.stream[moment - 1]


def walk(settings: Settings, fault: Fault | None = None, table: Table | None = None) -> Walk:
    """Follow the first prompt of ``settings`` through the dense modules of their transformer.

    A deep or wide stack keeps evenly chosen updates only, the first and the last among them.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    one = settings.but(prompts=1)
    check(one, 1)
    c = Construction.from_settings(settings, table)
    problem = sample(one, table).pick((torch.tensor(0),))
    model = broken(build(c), fault)
    solver = record(c.update, same_rule(c), problem, c.steps)
    return Walk(c, model, problem, *_follow(model, problem), solver)


def kept_blocks(model: Transformer, tokens: int) -> list[int]:
    """The blocks whose streams a walk keeps: read-in, read-out, and updates as they fit."""
    first, per, last = model.updates.start, model.updates.step, len(model.blocks) - 1
    steps = len(model.updates) - 1
    room = min(KEPT_MOMENTS, KEPT_VALUES // (tokens * len(model.slots)))
    fit = max(2, (room - 5) // (2 * per))
    if steps <= fit:
        chosen = range(steps)
    else:
        chosen = sorted({round(k * (steps - 1) / (fit - 1)) for k in range(fit)})
    updates = [first + 1 + u * per + part for u in chosen for part in range(per)]
    return [*range(first + 1), *updates, last]


@torch.no_grad()
def _follow(
    model: Transformer, problem: Problem
) -> tuple[tuple[Moment, ...], Tensor, dict[int, Tensor], Tensor, Tensor]:
    """The moments, the stream after each and before each kept block; state and source by step."""
    forward = Forward(model, problem)
    kept = {*kept_blocks(model, forward.stream.shape[-2])}
    first, per, most = model.updates.start, model.updates.step, len(model.updates) - 1
    slots = model.slots
    source = slots.index["ahead" if "ahead" in slots else slots.state]
    moments, streams = [Moment(0, "prompt", 0, "prompt")], [forward.stream]
    entering: dict[int, Tensor] = {}
    taken: list[Tensor] = []
    for index, block in enumerate(model.blocks):
        entering[index] = forward.stream
        pattern = forward.pattern(block.attention)
        if pattern is not None:
            forward.stream = forward.stream + block.attention(forward.stream, pattern)
        between = forward.stream
        # The dense layer: its weights are what is looked at.
        forward.stream = forward.stream + block.mlp(forward.stream)
        if index in model.updates:
            taken.append(forward.stream[:, [slots.index[slots.state], source]])
        if index not in kept:
            del entering[index]
            continue
        where, done = place(model, index), max(0, index - first)  # blocks of updates begun
        before, after = (min(most, max(0, count) // per) for count in (done - 1, done))
        moments += [Moment(index, "attention", before, where), Moment(index, "mlp", after, where)]
        streams += [between, forward.stream]
    state, source_of = torch.stack(taken).unbind(-1)
    return tuple(moments), torch.stack(streams), entering, state, source_of


# ---------------------------------------------------------------------------------------------
# What a sub-block reads and writes: off its weights


def _named(slots: Slots, used: Tensor) -> tuple[str, ...]:
    return tuple(name for name, yes in zip(slots.names, used.tolist(), strict=True) if yes)


def reads(slots: Slots, layer: Attention | MLP) -> dict[str, tuple[str, ...]]:
    """The channels that a layer reads, by the matrix that reads them: its non-zero columns."""
    if isinstance(layer, MLP):
        return {"W_1": _named(slots, layer.w_1.any(0))}
    return {
        "W_Q": _named(slots, layer.w_q.any(0)),
        "W_K": _named(slots, layer.w_k.any(0)),
        "W_V": _named(slots, layer.w_v.any(0)),
    }


def writes(slots: Slots, layer: Attention | MLP) -> tuple[str, ...]:
    """The channels that a layer writes: the non-zero rows of W_O or W_2, unless it is idle."""
    if isinstance(layer, MLP):
        return _named(slots, layer.w_2.any(1))
    return () if layer.idle else _named(slots, layer.w_o.any(1))


@dataclass(frozen=True, eq=False)
class Matrix:
    """One weight matrix with names on its axes; ``values`` is (rows, columns)."""

    name: str
    values: Float[Tensor, "rows columns"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def matrices(slots: Slots, block: Block) -> list[Matrix]:
    """A block's weights, each with channels as its rows: W_Q, W_K, W_V and W_1 are transposed."""

    def matrix(name: str, values: Tensor, unit: str) -> Matrix:
        columns = tuple(f"{unit} {i + 1}" for i in range(values.shape[1]))
        return Matrix(name, values.cpu(), slots.names, columns)

    a, mlp = block.attention, block.mlp
    return [
        matrix("W_Qᵀ", a.w_q.mT, "head dimension"),
        matrix("W_Kᵀ", a.w_k.mT, "head dimension"),
        matrix("W_Vᵀ", a.w_v.mT, "value"),
        matrix("W_O", a.w_o, "value"),
        matrix("W_1ᵀ", mlp.w_1.mT, "hidden unit"),
        matrix("W_2", mlp.w_2, "hidden unit"),
    ]


# ---------------------------------------------------------------------------------------------
# Jacobians


def jacobian(
    layer: Attention | MLP,
    stream: Float[Tensor, "tokens channels"],
    shown: Int[Tensor, " some"],
) -> Float[Tensor, "some some"]:
    """‖∂(what the layer adds to token i)/∂(token j)‖, Frobenius over channels, by autograd.

    ``shown`` are the tokens of rows and columns; the layer sees all of them. The stream's own
    identity is not in it.
    """
    written = layer.w_2.any(1) if isinstance(layer, MLP) else layer.w_o.any(1)
    count, channels = len(shown), int(written.sum())
    if not channels or (isinstance(layer, Attention) and layer.idle):
        return torch.zeros(count, count, dtype=stream.dtype)
    out, pull = cast(
        "tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]",
        torch.func.vjp(lambda h: added(layer, h, shown)[:, written], stream),
    )
    basis = torch.eye(out.numel(), dtype=out.dtype).view(-1, *out.shape)
    rows = torch.vmap(lambda seed: _length(pull(seed)[0][shown]), chunk_size=16)(basis)
    return _length(rows.view(count, channels, count).mT)


def added(
    layer: Attention | MLP, stream: Float[Tensor, "tokens channels"], shown: Int[Tensor, " some"]
) -> Float[Tensor, "some channels"]:
    """What the layer adds to some tokens; of attention, their rows alone are computed."""
    if isinstance(layer, MLP):
        return layer(stream[shown])
    logits = (stream[shown] @ layer.w_q.mT) @ (stream @ layer.w_k.mT).mT
    return logits.softmax(-1) @ (stream @ layer.w_v.mT) @ layer.w_o.mT


def _length(values: Float[Tensor, "*any entries"]) -> Float[Tensor, "*any"]:
    """Euclidean norms whose squares may be beyond all numbers, as where an iteration diverges."""
    size = values.abs().amax(-1, keepdim=True)
    unit = torch.where(size > 0, size, 1)
    return (values / unit).norm(dim=-1) * unit[..., 0]


def around(pinned: int, tokens: int, context: Int[Tensor, " n"]) -> Int[Tensor, " some"]:
    """The tokens of a Jacobian: all where they fit, else the pinned one's neighbourhood.

    ``context`` are the context tokens in the order in which they are drawn. Where not all fit:
    the sink, the nearest of these, and the first queries.
    """
    n = len(context)
    queries = torch.arange(1 + n, tokens)
    if tokens > JACOBIAN_TOKENS:
        queries = queries[: max(8, JACOBIAN_TOKENS - 1 - n)]
        if pinned > n and pinned not in queries:
            queries = torch.cat([queries[:-1], torch.tensor([pinned])])
        room = JACOBIAN_TOKENS - 1 - len(queries)
        at = (context == pinned).nonzero().flatten().tolist()
        start = min(max(0, (at[0] if at else 0) - room // 2), max(0, n - room))
        context = context[start : start + room]
    return torch.cat([torch.tensor([0]), context, queries])


# ---------------------------------------------------------------------------------------------
# Hinges


class Product(NamedTuple):
    """A product that hinges make: its block, its factors' channels, the range of the second.

    It is written into ``channel``, times ``coefficient``.
    """

    block: int
    u: str
    v: str
    r: float
    channel: str
    coefficient: float


def product_near(walk: Walk, block: int) -> Product | None:
    """The product that a block makes, or the nearest before it; None before the first."""
    c, slots, first = walk.construction, walk.slots, walk.model.updates.start
    update = min((block - first - 1) // walk.model.updates.step, c.steps - 1)
    if block > first and update >= 0:
        at = first + 1 + update * walk.model.updates.step
        source = "ahead" if "ahead" in slots else slots.state
        if c.layout == "paper":
            return Product(at, slots.inverse, source, c.r_alpha, "p", 1.0)
        coefficient = -c.ridge * c.coefficients()[update][1]
        return Product(at, slots.inverse, source, c.r_alpha, slots.state, coefficient)
    return Product(0, slots.inverse, "y", c.label_bound, "b", 1.0) if "b" in slots else None


@torch.no_grad()
def squares(
    walk: Walk, product: Product, furthest: float
) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
    """s, and the square of s that a product's hinges make, over [−furthest, furthest].

    By the dense MLP on a context token with u = s/2g and v = g's/2: the operands gu ± v/g' are s
    and 0, so what it writes is (g'/g)/4 of its square of s, times the product's coefficient.
    """
    c, at = walk.construction, walk.slots.index
    g, over = c.scales(product.r)
    reach = c.reach(product.r)
    spacing = reach / c.segments
    wide = min(reach, max(1.3 * furthest, 3 * spacing))
    knots = torch.arange(1, min(c.segments, 200) + 1, dtype=torch.float64) * spacing
    knots = knots[knots <= wide]
    s = torch.cat([torch.linspace(-wide, wide, 161, dtype=torch.float64), knots, -knots])
    s = s.unique()
    h = torch.zeros(len(s), len(walk.slots), dtype=c.dtype)
    h[:, at["one"]] = 1
    h[:, at[product.u]], h[:, at[product.v]] = (s / (2 * g)).to(h), (s * over / 2).to(h)
    mlp = walk.model.blocks[product.block].mlp
    # What else a fused layer does with v alone is taken off.
    written = mlp(h)[:, at[product.channel]].double()
    h[:, at[product.u]] = 0
    written = written - mlp(h)[:, at[product.channel]].double()
    return s, 4 * written * g / over / product.coefficient


# ---------------------------------------------------------------------------------------------
# The update in formulas, with one token's numbers in it


@dataclass(frozen=True)
class Equation:
    """A sub-block's arithmetic for one token.

    ``latex`` lines; ``expected`` what the formula gives with the numbers in the stream and exact
    kernel values; ``found`` what the stream holds. Both None where nothing is computed.
    ``hinges`` is how far the two may lie apart where hinges make the product, within their range.
    """

    lines: tuple[str, ...]
    expected: float | None = None
    found: float | None = None
    hinges: float = 0.0


def latex(value: float) -> str:
    """A number as LaTeX: four digits, powers of ten spelled out."""
    if not math.isfinite(value):
        return r"\text{overflow}"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    digits, power = f"{value:.3e}".split("e")
    return rf"{digits}\cdot 10^{{{int(power)}}}"


def bracketed(value: float) -> str:
    return rf"\left({latex(value)}\right)" if value < 0 else latex(value)


def equation(walk: Walk, moment: int, token: int) -> Equation:
    """What the sub-block at ``moment`` does to ``token``, with the current numbers."""
    here = walk.moments[moment]
    if here.part == "prompt":
        return Equation((r"\text{the prompt, before the first block}",))
    if here.part == "attention":
        return _attention(walk, moment, token)
    return _mlp(walk, moment, token)


# What a channel is called in a formula.
LATEX = {
    "alpha": r"\alpha",
    "fitted": "g",
    "ahead": "a",
    "change": "c",
    "u": "u",
    "v": "v",
    "y": "y",
}


def _logits(walk: Walk, token: int) -> Tensor:
    """log K between a token and the context; the sink stands at x = 0."""
    problem = walk.problem
    places = torch.cat([torch.zeros_like(problem.X[:1]), problem.X, problem.x_query])
    return -(problem.X - places[token]).square().sum(-1) / (2 * problem.bandwidth**2)


def _is_context(walk: Walk, token: int) -> bool:
    return 1 <= token <= walk.problem.n_max


def _sink(walk: Walk, token: int) -> tuple[float, str]:
    """The sink's level on a token's row in the updates, as a number and in letters."""
    c = walk.construction
    far = c.update == "function_space" and not _is_context(walk, token)
    sink = c.query_sink if far else c.sink
    value = float(walk.problem.level(sink))
    return value, "" if not value else "+r" if isinstance(sink, str) else "+s"


def _attention(walk: Walk, moment: int, token: int) -> Equation:
    here, at, c, slots = walk.moments[moment], walk.slots.index, walk.construction, walk.slots
    context = slice(1, 1 + walk.problem.n_max)
    i = "i" if _is_context(walk, token) else "*"
    logits = _logits(walk, token)
    if walk.layer(moment).idle:
        return Equation((r"\text{idle: } W_V = 0\text{, so nothing is added}",))
    if here.block <= walk.model.updates.start:
        return _inverse(walk, moment, token, float(logits.exp().sum()))
    before = walk.before(moment)[context].double()
    if here.block == len(walk.model.blocks) - 1:
        values, factors, name, channel = before[:, at["alpha"]], logits.exp(), f"f_{i}", "f"
        factors = factors / int(walk.problem.count) if c.per_sample else factors
        front, level = ("S/N", "nS/N") if c.per_sample else ("S", "S")
        v = r"(n\alpha_j)" if c.per_sample else r"\alpha_j"
        head = rf"\sum_j\frac{{{front}\,K_{{{i}j}}}}{{D_{i}+{level}}}\,{v}"
    else:
        source = "ahead" if "ahead" in slots else slots.state
        letter = LATEX[source]
        values = before[:, at[source]]
        if slots.state == "fitted":
            values = before[:, at["y"]] - values
        v = rf"(y_j-{letter}_j)" if slots.state == "fitted" else f"{letter}_j"
        v = r"(n\alpha_j)" if source == "alpha" and c.per_sample else v
        level, plus = _sink(walk, token)
        # exp and its sum underflow together far from all data; softmax does not
        factors = torch.cat([logits, torch.tensor([level], dtype=logits.dtype).log()])
        factors = factors.softmax(-1)[:-1]
        name, channel = f"z_{i}", "z"
        head = rf"\sum_j\frac{{K_{{{i}j}}}}{{D_{i}{plus}}}\,{v}"
    terms = factors * values
    largest = terms.abs().argsort(descending=True, stable=True)[:2].tolist()
    first, second = (
        rf"{latex(float(factors[j]))}\cdot {bracketed(float(values[j]))}" for j in largest
    )
    more = r" + \cdots" if len(values) > 2 else ""
    expected = float(terms.sum())
    return Equation(
        (f"{name} = {head}", f"= {first}", rf"\quad + {second}{more}", f"= {latex(expected)}"),
        expected,
        walk.value(moment, token, channel),
    )


def _inverse(walk: Walk, moment: int, token: int, degree: float) -> Equation:
    """u or v by attention to the sink: on context rows first, then (function space) on others."""
    c, here = walk.construction, walk.moments[moment]
    name = walk.slots.inverse
    i = "i" if _is_context(walk, token) else "*"
    found = walk.value(moment, token, name)
    masked = bool(walk.before(moment)[token, walk.slots.index["mask"]])
    if masked == (here.block == 0):
        was = float(walk.before(moment)[token, walk.slots.index[name]])
        return Equation(
            (rf"{name}_{i} \text{{ stays }} {latex(was)}\text{{: no weight on the sink}}",),
            was,
            found,
        )
    level, plus = _sink(walk, token)
    top = int(walk.problem.count) if c.per_sample else 1
    letter = "n" if c.per_sample else "1"
    exact = top / (degree + level)
    # δ stands where the iteration has no sink
    how = rf"\frac{{{letter}}}{{D_{i}{plus}}}" if plus else rf"\frac{{{letter}}}{{D_{i}+\delta}}"
    nearly = "" if plus else rf" \approx \frac{{{letter}}}{{D_{i}}}"
    return Equation(
        (
            rf"{name}_{i} = {how}{nearly}",
            rf"= \frac{{{top}}}{{{latex(degree + level)}}} = {latex(exact)}",
        ),
        exact,
        found,
    )


def _mlp(walk: Walk, moment: int, token: int) -> Equation:
    here, c, slots = walk.moments[moment], walk.construction, walk.slots
    first, per = walk.model.updates.start, walk.model.updates.step
    h = {name: float(x) for name, x in zip(slots.names, walk.before(moment)[token], strict=True)}
    i = "i" if _is_context(walk, token) else "*"
    if here.block == len(walk.model.blocks) - 1 and slots.state == "fitted":
        return Equation(
            (rf"f_{i} = g_{i} = {latex(h['fitted'])}",), h["fitted"], walk.value(moment, token, "f")
        )
    made = product_near(walk, here.block)
    if made is None or here.block == len(walk.model.blocks) - 1:
        return Equation((r"\text{all weights are 0: nothing is added}",))
    u, v = h[made.u], h[made.v]
    if made.block == here.block and made.coefficient == 1:
        letter = LATEX[made.v]
        return Equation(
            (
                rf"{made.channel}_{i} \approx {made.u}_{i}\,{letter}_{i}",
                rf"= {latex(u)}\cdot {bracketed(v)}",
                f"= {latex(u * v)}",
            ),
            u * v,
            walk.value(moment, token, made.channel),
            c.product_error(made.r),
        )
    state, found = slots.state, walk.value(moment, token, slots.state)
    letter = LATEX[state]
    if h["mask" if state == "alpha" else "sink"]:
        gate = "mask" if state == "alpha" else "sink"
        return Equation(
            (
                rf"{letter}_{i} \text{{ stays }} {latex(h[state])}\text{{: {gate}}}_{i} = 1"
                r"\text{ closes the gate}",
            ),
            h[state],
            found,
        )
    momentum, step = c.coefficients()[(here.block - first - 1) // per]
    ridge_term = h["p"] if c.layout == "paper" else u * v
    product = f"p_{i}" if c.layout == "paper" else rf"{made.u}_{i}\,{LATEX[made.v]}_{i}"
    drive, told = (h["z"], f"z_{i}") if state == "fitted" else (
        h["b"] - h["z"], f"b_{i} - z_{i}"
    )  # fmt: skip
    base, start = h[state], f"{letter}_{i}"
    if "ahead" in slots:
        base, start = h["ahead"], f"a_{i}"
    pushed, carried = 0.0, ""
    if "change" in slots:
        pushed, carried = momentum * h["change"], rf" + \beta\,c_{i}"
    expected = base + pushed + step * (drive - c.ridge * ridge_term)
    inside = bracketed(h["z"]) if state == "fitted" else (
        rf"{latex(h['b'])} - {bracketed(h['z'])}"
    )  # fmt: skip
    lines = [
        rf"{letter}_{i} \leftarrow {start}{carried} + \eta\,({told} - \lambda\,{product})",
        rf"= {latex(base)}"
        + (rf" + {latex(momentum)}\cdot {bracketed(h['change'])}" if carried else ""),
        rf"\quad + {latex(step)}\,\bigl({inside}",
        rf"\quad - {latex(c.ridge)}\cdot {bracketed(ridge_term)}\bigr)",
        f"= {latex(expected)}",
    ]
    return Equation(
        tuple(lines),
        expected,
        found,
        0.0 if c.layout == "paper" else step * c.ridge * c.product_error(c.r_alpha),
    )
