"""Forward: one prompt's way through the transformer, sub-block by sub-block, beside the solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from krrviz.construction.slots import Slots
from krrviz.construction.transformer import MLP, Attention, Block, Pattern, Transformer
from krrviz.construction.weights import Construction, build
from krrviz.machine import check, on_device
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.solvers import richardson
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
    alpha : the α channel of every token after every update, kept or not
    one number is read by channel name: ``value(moment, token, "alpha")``
    solver : preconditioned Richardson with the transformer's own step, in float64
    """

    construction: Construction
    model: Transformer
    problem: Problem
    moments: tuple[Moment, ...]
    stream: Float[Tensor, "moments tokens channels"]
    entering: Mapping[int, Float[Tensor, "tokens channels"]]
    alpha: Float[Tensor, "times tokens"]
    solver: Trajectory

    @property
    def slots(self) -> Slots:
        return self.model.slots

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The tokens' names, in the stream's order."""
        context = [f"context {i + 1}" for i in range(self.problem.n_max)]
        queries = [f"query {i + 1}" for i in range(self.problem.x_query.shape[-2])]
        return ("sink", *context, *queries)

    def value(self, moment: int, token: int, channel: str) -> float:
        return float(self.stream[moment, token, self.slots.index[channel]])

    def solver_alpha(self, moment: int, token: int) -> float:
        """The solver's α at the moment's step; 0 off the context, where it has none."""
        if not 1 <= token <= self.problem.n_max:
            return 0.0
        return float(self.solver.states[self.moments[moment].step, token - 1])

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
    batch = sample(one, table)
    problem = batch.pick((torch.tensor(0),))
    solver = record(
        "richardson",
        partial(
            richardson, operator="preconditioned", step=torch.tensor(c.step, dtype=torch.float64)
        ),
        problem,
        c.steps,
    )

    def work(device: torch.device) -> Walk:
        model = broken(build(c).to(device), fault)
        return Walk(c, model.cpu(), problem, *_follow(model, problem), solver)

    return on_device(settings, work)[0]


def kept_blocks(model: Transformer, tokens: int) -> list[int]:
    """The blocks whose streams a walk keeps: read-in, read-out, and updates as they fit."""
    per, last = model.updates.step, len(model.blocks) - 1
    steps = len(model.updates) - 1
    room = min(KEPT_MOMENTS, KEPT_VALUES // (tokens * len(model.slots)))
    fit = max(2, (room - 5) // (2 * per))
    if steps <= fit:
        chosen = range(steps)
    else:
        chosen = sorted({round(k * (steps - 1) / (fit - 1)) for k in range(fit)})
    updates = [1 + u * per + part for u in chosen for part in range(per)]
    return [0, *updates, last]


@torch.no_grad()
def _follow(
    model: Transformer, problem: Problem
) -> tuple[tuple[Moment, ...], Tensor, dict[int, Tensor], Tensor]:
    """The moments, the stream after each and before each kept block, and α after each update."""
    h = model.embed(problem)
    kept = {*kept_blocks(model, h.shape[-2])}
    per, last = model.updates.step, len(model.blocks) - 1
    known: dict[Attention, Pattern] = {}
    moments, streams = [Moment(0, "prompt", 0, "prompt")], [h.cpu()]
    entering: dict[int, Tensor] = {}
    alphas: list[Tensor] = []
    for index, block in enumerate(model.blocks):
        where = place(model, index)
        if index in kept:
            entering[index] = h.cpu()
        # h ← h + attention(h); where the pattern cannot have changed it is not computed again
        attention = block.attention
        if not attention.idle:
            if attention not in known:
                pattern = attention.pattern(h)
                if model.constant(attention):
                    known[attention] = pattern
            else:
                pattern = known[attention]
            h = h + attention(h, pattern)
        if index in kept:
            step = min(max(0, index - 1) // per, len(model.updates) - 1)
            moments.append(Moment(index, "attention", step, where))
            streams.append(h.cpu())
        # h ← h + MLP(h)
        h = h + block.mlp(h)
        if index in kept:
            step = len(model.updates) - 1 if index == last else index // per
            moments.append(Moment(index, "mlp", step, where))
            streams.append(h.cpu())
        if index in model.updates:
            alphas.append(h[:, model.slots.index["alpha"]].cpu())
    return tuple(moments), torch.stack(streams), entering, torch.stack(alphas)


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


@dataclass(frozen=True, eq=False)
class Squares:
    """The square that a product's hinges make, beside the true one, where it is used.

    s, made : the dense MLP's 4·(product) at operands (s, 0); knots are multiples of ``spacing``,
    up to ``reach``
    """

    factors: tuple[str, str]
    s: Float[Tensor, " points"]
    made: Float[Tensor, " points"]
    spacing: float
    reach: float
    balance: float

    def operands(self, u: float, v: float) -> tuple[float, float]:
        """s₊ = gu + v/g and s₋ = gu − v/g."""
        g = self.balance
        return g * u + v / g, g * u - v / g


def product_of(walk: Walk, block: int) -> tuple[str, str, float, str, float] | None:
    """The product a block's MLP makes: its factors, v's range, channel and coefficient."""
    c, where = walk.construction, place(walk.model, block)
    if block == 0:
        return "u", "y", c.label_bound, "b", 1.0
    if block == len(walk.model.blocks) - 1 or where.endswith("second half"):
        return None
    if c.layout == "paper":
        return "u", "alpha", c.r_alpha, "p", 1.0
    return "u", "alpha", c.r_alpha, "alpha", -c.step * c.ridge


def product_block(walk: Walk, block: int) -> int:
    """The block whose product belongs to ``block``: itself, or the nearest before it."""
    while product_of(walk, block) is None:
        block -= 1
    return block


@torch.no_grad()
def squares(walk: Walk, block: int, furthest: float) -> Squares:
    """The hinge functions of a block's product over [−furthest, furthest], by its dense MLP.

    On a context token with u = s/2g and v = gs/2 the operands are s₊ = s and s₋ = 0, so what the
    MLP writes is a quarter of its square of s, times the product's coefficient.
    """
    made = product_of(walk, block)
    assert made is not None, f"block {block} makes no product"
    u, v, r, channel, coefficient = made
    c, at = walk.construction, walk.slots.index
    g = c.balance(r)
    reach = g + r / g
    spacing = reach / c.segments
    wide = min(reach, max(1.3 * furthest, 3 * spacing))
    knots = torch.arange(1, min(c.segments, 200) + 1, dtype=torch.float64) * spacing
    knots = knots[knots <= wide]
    s = torch.cat([torch.linspace(-wide, wide, 161, dtype=torch.float64), knots, -knots])
    s = s.unique()
    h = torch.zeros(len(s), len(walk.slots), dtype=c.dtype)
    h[:, at["one"]] = 1
    h[:, at[u]], h[:, at[v]] = (s / (2 * g)).to(h), (s * g / 2).to(h)
    written = walk.model.blocks[block].mlp(h)[:, at[channel]].double()
    return Squares((u, v), s, 4 * written / coefficient, spacing, reach, g)


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


def _kernel_row(walk: Walk, token: int) -> tuple[Tensor, float]:
    """K between a token and the context, and its sum D; the sink stands at x = 0."""
    problem = walk.problem
    places = torch.cat([torch.zeros_like(problem.X[:1]), problem.X, problem.x_query])
    squared = (problem.X - places[token]).square().sum(-1)
    row = (-squared / (2 * problem.bandwidth**2)).exp()
    return row, float(row.sum())


def _attention(walk: Walk, moment: int, token: int) -> Equation:
    here, at = walk.moments[moment], walk.slots.index
    i = "i" if 1 <= token <= walk.problem.n_max else "*"
    row, degree = _kernel_row(walk, token)
    context = slice(1, 1 + walk.problem.n_max)
    if here.block == 0:
        found = walk.value(moment, token, "u")
        if i == "*":
            return Equation(
                (rf"u_{i} = 0 \quad\text{{(masked: no weight on the sink)}}",), 0, found
            )
        return Equation(
            (
                rf"u_{i} = \frac{{1}}{{\delta}}\cdot\frac{{\delta}}{{D_{i}+\delta}}"
                rf" = \frac{{1}}{{D_{i}}}",
                rf"= \frac{{1}}{{{latex(degree)}}} = {latex(1 / degree)}",
            ),
            1 / degree,
            found,
        )
    alpha = walk.before(moment)[context, at["alpha"]].double()
    if here.block == len(walk.model.blocks) - 1:
        terms, name, channel = row * alpha, f"f_{i}", "f"
        head = rf"\sum_j\frac{{S\,K_{{{i}j}}}}{{D_{i}+S}}\,\alpha_j"
        factors = row
    elif here.place.endswith("second half"):
        return Equation((r"\text{idle: } W_V = 0\text{, so nothing is added}",))
    else:
        # exp and its sum underflow together far from all data; softmax does not
        problem = walk.problem
        places = torch.cat([torch.zeros_like(problem.X[:1]), problem.X, problem.x_query])
        squared = (problem.X - places[token]).square().sum(-1)
        factors = (-squared / (2 * problem.bandwidth**2)).softmax(-1)
        terms, name, channel = factors * alpha, f"z_{i}", "z"
        head = rf"\sum_j\frac{{K_{{{i}j}}}}{{D_{i}}}\,\alpha_j"
    largest = terms.abs().argsort(descending=True, stable=True)[:2].tolist()
    first, second = (
        rf"{latex(float(factors[j]))}\cdot {bracketed(float(alpha[j]))}" for j in largest
    )
    more = r" + \cdots" if len(alpha) > 2 else ""
    expected = float(terms.sum())
    return Equation(
        (f"{name} = {head}", f"= {first}", rf"\quad + {second}{more}", f"= {latex(expected)}"),
        expected,
        walk.value(moment, token, channel),
    )


def _mlp(walk: Walk, moment: int, token: int) -> Equation:
    here, at, c = walk.moments[moment], walk.slots.index, walk.construction
    h = walk.before(moment)[token].double()
    u, y, b, z, p, alpha = (float(h[at[name]]) for name in ["u", "y", "b", "z", "p", "alpha"])
    i = "i" if 1 <= token <= walk.problem.n_max else "*"
    if here.block == len(walk.model.blocks) - 1:
        return Equation((r"\text{all weights are 0: nothing is added}",))
    if here.block == 0 or (c.layout == "paper" and not here.place.endswith("second half")):
        name, factor, v, r = (
            ("b", "y", y, c.label_bound) if here.block == 0 else ("p", r"\alpha", alpha, c.r_alpha)
        )
        return Equation(
            (
                rf"{name}_{i} = u_{i}\,{factor}_{i}",
                rf"= {latex(u)}\cdot {bracketed(v)}",
                f"= {latex(u * v)}",
            ),
            u * v,
            walk.value(moment, token, name),
            c.product_error(r),
        )
    found = walk.value(moment, token, "alpha")
    if h[at["mask"]]:
        return Equation(
            (
                rf"\alpha_{i} \text{{ stays }} {latex(alpha)}\text{{: mask}}_{i} = 1"
                r"\text{ closes the gate}",
            ),
            alpha,
            found,
        )
    ridge_term = p if c.layout == "paper" else u * alpha
    expected = alpha + c.step * (b - z - c.ridge * ridge_term)
    product = f"p_{i}" if c.layout == "paper" else rf"u_{i}\alpha_{i}"
    return Equation(
        (
            rf"\alpha_{i} \leftarrow \alpha_{i} + \eta\,(b_{i} - z_{i} - \lambda\,{product})",
            rf"= {latex(alpha)} + {latex(c.step)}\,\bigl({latex(b)}",
            rf"\quad - {bracketed(z)} - {latex(c.ridge)}\cdot {bracketed(ridge_term)}\bigr)",
            f"= {latex(expected)}",
        ),
        expected,
        found,
        0.0 if c.layout == "paper" else c.step * c.ridge * c.product_error(c.r_alpha),
    )
