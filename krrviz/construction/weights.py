"""Weights: from parameters (never data) to a transformer that solves (K + λI)α = y.

Our reconstruction of the construction in arXiv 2605.08475, from its abstract and digests; what
is our choice is said so. Every derivation stands above the code that carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice

import torch
from torch import Tensor

from krrviz.construction.slots import Slots
from krrviz.construction.transformer import MLP, Attention, Block, Transformer
from krrviz.machine import DTYPES
from krrviz.settings import Settings, SettingsError, shown
from krrviz.spectrum import (
    Interval,
    Sink,
    certified,
    coefficients,
    largest_residual,
    query_sink,
    slowest,
)
from krrviz.tables import Table
from krrviz.tasks import dimension, input_bound

# Sink levels of read-in (δ) and read-out (S): small and large enough that D + δ = D and
# D/(D + S) = D/S to the last digit but one. Half precision has no such room.
LEVELS = {
    torch.float64: (1e-15, 1e15),
    torch.float32: (1e-9, 1e9),
    torch.bfloat16: (math.exp(-8), math.exp(8)),
    torch.float16: (math.exp(-7), math.exp(10)),
}
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Construction:
    """Everything that determines the weights, and nothing else.

    Parameters
    ----------
    d, n_max : input dimension, and the most context tokens of a prompt
    bandwidth, ridge : σ and λ of the kernel ridge regression solved
    steps, segments : updates T, and hinges per side m of each product
    input_bound : B ≥ ‖x‖ for every token
    label_bound : B_y ≥ |y|
    ridge_scale, layout, product, update, sink : see ``Settings``
    alpha_range : ``calibrated``, ``certified`` or R ≥ |α| itself (|nα| for a per-sample ridge,
        |g| in function space)
    dtype : of the weights

    Raises
    ------
    SettingsError
        A value out of its range, a precision that cannot hold the weights, or a certified range
        where there is none.
    """

    d: int
    n_max: int
    bandwidth: float
    ridge: float
    steps: int
    segments: int = 128
    input_bound: float = 4.0
    label_bound: float = 4.0
    ridge_scale: str = "absolute"
    layout: str = "paper"
    product: str = "balanced"
    update: str = "richardson"
    sink: Sink = 0.0
    alpha_range: float | str = "calibrated"
    dtype: torch.dtype = torch.float64
    slots: Slots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = Settings.table()
        for name in ("ridge_scale", "layout", "product", "update", "sink", "alpha_range"):
            value = getattr(self, name)
            try:
                table[name].rule.check(value)
            except ValueError as error:
                raise SettingsError(f"{name}={shown(value)} {error}", name) from None
        if self.dtype not in LEVELS:
            raise SettingsError(f"dtype={self.dtype} must be one of {', '.join(DTYPES)}", "dtype")
        for name, least in (("d", 1), ("n_max", 1), ("steps", 0), ("segments", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)} must be at least {least}", name)
        for name in ("bandwidth", "ridge", "input_bound", "label_bound"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise SettingsError(f"{name}={value} must be a finite number above 0", name)
        if self.sink and not isinstance(self.sink, str):
            # The read-in multiplies by 1/s.
            least = 1.01 * max(torch.finfo(self.dtype).tiny, 1 / torch.finfo(self.dtype).max)
            if not least <= self.sink <= 1 / least:
                raise SettingsError(
                    f"sink={self.sink:g} must be 0, ridge or {least:.2g} to {1 / least:.2g} in "
                    f"{str(self.dtype).removeprefix('torch.')}",
                    "sink",
                    "dtype",
                )
        object.__setattr__(self, "slots", Slots(self.d, self._channels()))
        if self.alpha_range == "certified":
            self._certified_range()
        if self.dtype in HALF:
            self._check_half()

    @classmethod
    def from_settings(cls, settings: Settings, table: Table | None = None) -> Construction:
        """The construction that ``settings`` describe: parameters and bounds, never the prompts."""
        same = (
            "bandwidth ridge steps segments label_bound ridge_scale layout product update sink "
            "alpha_range"
        )
        return cls(
            d=dimension(settings, table),
            n_max=settings.n,
            input_bound=input_bound(settings, table),
            dtype=DTYPES[settings.dtype],
            **{name: getattr(settings, name) for name in same.split()},
        )

    def _channels(self) -> tuple[str, ...]:
        extra = {"chebyshev": "change", "heavy_ball": "change", "nesterov": "ahead"}
        return (
            *(("count", "log_count", "v") if self.per_sample else ("u",)),
            *(("fitted",) if self.update == "function_space" else ("b", "alpha")),
            *([extra[self.update]] if self.update in extra else []),
        )

    def _check_half(self) -> None:
        """Half precision holds balanced products alone, and float16 nothing beyond 65504."""
        name = str(self.dtype).removeprefix("torch.")
        if self.product == "plain":
            raise SettingsError(
                f"product=plain needs dtype=float64 or float32; {name} holds balanced products",
                "product",
                "dtype",
            )
        most = torch.finfo(self.dtype).max
        for key, value, remedy in (
            ("bandwidth", self.big, "a larger bandwidth or a smaller input_bound"),
            ("alpha_range", self.reach(self.r_alpha) ** 2, "a larger ridge or a smaller range"),
        ):
            if value > most:
                raise SettingsError(
                    f"{key}={getattr(self, key)} makes weights of {value:.2g} but {name} ends at "
                    f"{most:.2g}; {remedy}, or dtype=float32",
                    key,
                    "dtype",
                )

    # -- figures that follow ------------------------------------------------------------------

    @property
    def per_sample(self) -> bool:
        return self.ridge_scale == "per_sample"

    @cached_property
    def interval(self) -> Interval:
        """Where the eigenvalues of P⁻¹A lie, for every prompt."""
        return certified("preconditioned", self.n_max, self.ridge, self.ridge_scale, self.sink)

    @property
    def query_sink(self) -> Sink:
        """In function space, the sink's level on query rows."""
        return query_sink(self.n_max, self.ridge, self.ridge_scale, self.sink)

    def coefficients(self) -> list[tuple[float, float]]:
        """Momentum and step size of each update, from the certified interval."""
        return [*islice(coefficients(self.update, self.interval), self.steps)]

    @cached_property
    def u_range(self) -> float:
        """U, the range of u = 1/(D + s) or v = n/(D + s), D ≥ 1.

        v grows with n: it is at most N/(1 + s), and N/(1 + Nλ) < 1/λ where s = nλ. In function
        space the query rows have it too, with D_* ≥ 0 and a level q of their own.
        """
        n = self.n_max if self.per_sample else 1

        def most(degree: float, level: Sink) -> float:
            return n / (degree + (n * self.ridge if isinstance(level, str) else level))

        near = most(1, self.sink)
        return max(near, most(0, self.query_sink)) if self.update == "function_space" else near

    @cached_property
    def r_alpha(self) -> float:
        """R, the range of the factor that the update's product takes beside u.

        Calibrated (our choice): √N/λ. ‖α*‖ ≤ ‖y‖/λ (per sample ‖nα*‖ is) and standardised labels
        have ‖y‖ ≈ √N, so this covers nearly every prompt; an iterate beyond it is reported, not
        hidden. In function space √N, since the fitted values are at most ‖y‖ long.
        """
        if self.alpha_range == "calibrated":
            return math.sqrt(self.n_max) / (1 if self.update == "function_space" else self.ridge)
        if isinstance(self.alpha_range, str):
            return self._certified_range()
        return float(self.alpha_range)

    def _certified_range(self) -> float:
        """R that no iterate of any prompt within the bounds leaves.

        Let a = α and Λ = N + λ, or a = nα and Λ = 1 + λ for a per-sample ridge: a solves
        (A/n) a = y there. The matrix, A_a, has eigenvalues in [λ, Λ], and ‖a*‖ in its norm is at
        most B_y√(N/λ). An exact iterate is (1 − p_t)a*. The products add e to every preconditioned
        residual, |e_i| ≤ λe_p(R) + e_b = ε and ‖e‖ ≤ ε√(NΛ); their sum over the steps is at most
        Γ = (1 − p_T(μ))/μ of it (certificate.py). Since ‖a‖ ≤ ‖a‖_A/√λ, the range is the least
        fixed point of

            √λ R = (1 + max h_t) B_y√(N/λ) + Γ√(NΛ) ε(R),

        three times as large for Nesterov, whose product reads α + β(α − α₋). ε is linear in R
        for a balanced product and quadratic for a plain one.
        """
        if self.update == "function_space":
            raise SettingsError(
                "alpha_range=certified has no bound for update=function_space; use calibrated or "
                "a number",
                "alpha_range",
                "update",
            )
        n, interval = self.n_max, self.interval
        largest = largest_residual(self.update, interval, self.steps)
        start = (1 + largest) * self.label_bound * math.sqrt(n / self.ridge)
        gain = self.response * math.sqrt(n * ((1 if self.per_sample else n) + self.ridge))
        factor = 3.0 if self.update == "nesterov" else 1.0
        # The level δ of the read-in takes δU from u where the iteration has no sink.
        lost = 0.0 if self.sink else LEVELS[self.dtype][0] * self.u_range
        labels = self.product_error(self.label_bound) + lost * self.label_bound
        fixed = factor * (start + gain * labels)
        slope = factor * gain * self.ridge * self.u_range / self.segments**2
        room = math.sqrt(self.ridge) - factor * gain * self.ridge * lost
        if self.product == "balanced":
            room -= slope / 4
            found = fixed / room if room > 0 else math.inf
        else:
            # slope (1 + R)²/16 − room·R + fixed = 0, the smaller root
            a, b, c = slope / 16, slope / 8 - room, slope / 16 + fixed
            inside = b * b - 4 * a * c
            found = 2 * c / (-b + math.sqrt(inside)) if b < 0 <= inside else math.inf
        if found == math.inf:
            raise SettingsError(
                f"segments={self.segments} leaves no certified range at this width; more segments "
                "or fewer steps, a balanced product, or alpha_range=calibrated",
                "alpha_range",
                "segments",
            )
        return found

    @property
    def response(self) -> float:
        """Γ = (1 − p_T(μ))/μ: how far a constant error in every residual moves α."""
        return (1 - slowest(self.update, self.interval, self.steps)) / float(self.interval.low)

    def product_error(self, r: float) -> float:
        """Largest error of a product u·v with |u| ≤ U, |v| ≤ ``r``.

        A square on [−R', R'] with m hinges a side errs by 0 to h²/4, h = R'/m, and a product is
        a quarter of the difference of two squares of a scaled sum and difference.
        """
        first, second = self.scales(r)
        return second / first * (self.reach(r) / self.segments) ** 2 / 16

    def scales(self, r: float) -> tuple[float, float]:
        """What u is multiplied, and v divided, by before they are added.

        balanced brings both to √(Ur). plain, which is the paper's, adds u/U and v.
        """
        if self.product == "balanced":
            return math.sqrt(r / self.u_range), math.sqrt(r / self.u_range)
        return 1 / self.u_range, 1.0

    def reach(self, r: float) -> float:
        """R', the range of the scaled sum and difference."""
        first, second = self.scales(r)
        return first * self.u_range + r / second

    @property
    def blocks(self) -> int:
        """Blocks of the stack: read-in, updates, read-out."""
        read_in = 2 if self.update == "function_space" else 1
        return read_in + self.steps * (1 if self.layout == "fused" else 2) + 1

    @property
    def big(self) -> float:
        """What hides a key: unmasked logits of a row spread over at most 2B²/σ²."""
        return 1e4 + 2 * (self.input_bound / self.bandwidth) ** 2


# ---------------------------------------------------------------------------------------------
# Attention: the Gaussian kernel from a dot product
#
# −‖x_i − x_j‖²/2σ² = x_i·x_j/σ² − ‖x_j‖²/2σ² − ‖x_i‖²/2σ². The last term is the same for every
# key j, so softmax cancels it: the logit needs the first two only, and half_sq_norm is a channel.
# The weights over context keys are then exactly K_ij/D_i.
#
# Keys that are not context (mask = 1) get −BIG. Unmasked logits of a row spread over at most
# 2B²/σ², so BIG = 1e4 + 2B²/σ² makes exp underflow to exactly 0, and it adds exactly 0 elsewhere.
#
# A sink of level s is one more key with the logit ‖x_i‖²/2σ² + log s: after the cancellation that
# is exp = s, so the weights become K_ij/(D_i + s) and s/(D_i + s). The sink is unmasked by reading
# mask − sink as the key (adding +BIG instead would cost log10(BIG) digits of log s). s = nλ takes
# log n from the sink. Context rows and the others (mask = 1) may have levels of their own; level 0
# on one of them puts −BIG on the sink there.


@dataclass(frozen=True)
class Level:
    """s = value, or value·n."""

    value: float
    per_count: bool = False


def attention(
    c: Construction,
    reads: Tensor,
    writes: Tensor,
    context: Level | None = None,
    others: Level | None = None,
) -> Attention:
    """A head that averages ``reads``·h with weights K_ij/(D_i + s) into ``writes``.

    ``context`` and ``others`` are the sink's levels s on rows of context tokens and on others;
    None is 0.
    """
    row, s2 = c.slots.row, c.bandwidth**2
    q = [row(**{f"x{i + 1}": 1 / s2}) for i in range(c.d)]
    k = [row(**{f"x{i + 1}": 1.0}) for i in range(c.d)]
    q += [row(one=-1 / s2), row(one=-c.big)]
    k += [row(half_sq_norm=1.0), row(mask=1.0, sink=-1.0 if context or others else 0.0)]
    if context or others:
        logit = {"half_sq_norm": 1 / s2}
        if context:
            logit["one"] = math.log(context.value)
        if others:
            logit["mask"] = math.log(others.value) - logit.get("one", 0.0)
        q.append(row(**logit))
        k.append(row(sink=1.0))
    if (context is None) != (others is None):
        q.append(row(mask=-c.big) if others is None else row(one=-c.big, mask=c.big))
        k.append(row(sink=1.0))
    counted = [float(level is not None and level.per_count) for level in (context, others)]
    if any(counted):
        q.append(row(one=counted[0], mask=counted[1] - counted[0]))
        k.append(row(log_count=1.0))
    return Attention(
        *(w.to(c.dtype) for w in (torch.stack(q), torch.stack(k), reads[None], writes[:, None]))
    )


def idle(c: Construction) -> Attention:
    """A head whose value matrix is 0: it adds nothing."""
    return attention(c, c.slots.row(), c.slots.row(z=1.0))


# ---------------------------------------------------------------------------------------------
# MLP: scalar arithmetic with hinges


@dataclass(frozen=True)
class Units:
    """Hidden units of one layer: what each reads, its bias, what it writes.

    reads, writes : (units, channels); bias : (units,)
    """

    reads: Tensor
    bias: Tensor
    writes: Tensor

    def __add__(self, other: Units) -> Units:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Units(*(torch.cat(pair) for pair in pairs))

    def layer(self, dtype: torch.dtype) -> MLP:
        """The units that do anything, as a layer."""
        return MLP(self.reads.to(dtype), self.bias.to(dtype), self.writes.mT.to(dtype))


def linear(reads: Tensor, writes: Tensor, gate: Tensor | float = 0.0) -> Units:
    """v·writes with v = reads·h, as relu(v) − relu(−v).

    Gated: relu(v − G·mask) − relu(−v − G·mask), exact where mask = 0 and 0 where mask = 1 and
    G ≥ |v|.
    """
    return Units(
        torch.stack([reads - gate, -reads - gate]),
        torch.zeros(2, dtype=torch.float64),
        torch.stack([writes, -writes]),
    )


def product(c: Construction, u: str, v: str, r: float, writes: Tensor) -> Units:
    """u·v·writes for |u| ≤ U and |v| ≤ r, with 4m hinges.

    uv = (g'/g)((gu + v/g')² − (gu − v/g')²)/4 for any g, g' > 0, and on [−R', R'], R' = gU + r/g',
    with h = R'/m

        s² ≈ h·relu(|s|) + Σ_{k=1}^{m−1} 2h·relu(|s| − kh),

    the chord of s² between multiples of h: error in [0, h²/4]. All terms are positive, so
    nothing cancels within a square; relu(|s| − kh) = relu(s − kh) + relu(−s − kh).
    """
    first, second = c.scales(r)
    h = c.reach(r) / c.segments
    knots = torch.arange(c.segments, dtype=torch.float64)
    slopes = second / first * h * (2 - (knots == 0).double()) / 4
    row = c.slots.row
    parts = [
        Units((side * s).expand(c.segments, -1), -h * knots, (sign * slopes)[:, None] * writes)
        for sign in (1, -1)
        for s in [row(**{u: first}) + row(**{v: sign / second})]
        for side in (1, -1)
    ]
    return parts[0] + parts[1] + parts[2] + parts[3]


# ---------------------------------------------------------------------------------------------
# Blocks
#
# A per-sample ridge solves (K + nλI)α = y as an iteration of a = nα. From
# α ← α + ηP⁻¹(y − Kα − nλα)
#
#     a ← a + η(v⊙y − P⁻¹Ka − λ·v⊙a),   v = nP⁻¹1,
#
# which is the absolute form with v in place of u: one weight set then serves every n. v ≤ 1/λ where
# s = nλ, and ‖a*‖ ≤ ‖y‖/λ as for the absolute ridge; the read-out divides by n, and with it the
# products' errors (α itself would be multiplied by n twice: in count·u, and in r = nλ).


def build(c: Construction) -> Transformer:
    """The transformer of a construction: read-in, T updates, read-out."""
    first = _read_in(c)
    update = cache(_update(c))  # equal updates are one module
    updates = [block for coefficients in c.coefficients() for block in update(*coefficients)]
    blocks = [*first, *updates, _read_out(c)]
    per = 1 if c.layout == "fused" else 2
    return Transformer(c.slots, blocks, range(len(first) - 1, len(blocks) - 1, per), c.n_max)


def _level(c: Construction, sink: Sink) -> Level | None:
    if isinstance(sink, str):
        return Level(c.ridge, per_count=c.per_sample)
    return Level(sink) if sink else None


def _read_in(c: Construction) -> list[Block]:
    """u (or v) by attention to the sink, and b = u⊙y by a product.

    The sink's value is 1 and its weight s/(D_i + s): scaled by 1/s that is u. Where the iteration
    has no sink s = δ. v has the value n instead, or the level nλ. u is exactly 0 off the context,
    and so are b and every product: 0 there is symmetric in all hinges. In function space a second
    block does the same for the query rows, and there is no b.
    """
    row, nothing = c.slots.row, linear(c.slots.row(), c.slots.row())

    def inverse(level: Level, on_context: bool) -> Attention:
        counted = c.per_sample and not level.per_count
        return attention(
            c,
            row(**{"count" if counted else "sink": 1.0}),
            row(**{c.slots.inverse: 1 / level.value}),
            *((level, None) if on_context else (None, level)),
        )

    near = inverse(_level(c, c.sink) or Level(LEVELS[c.dtype][0]), True)
    if c.update != "function_space":
        labels = product(c, c.slots.inverse, "y", c.label_bound, row(b=1.0))
        return [Block(near, labels.layer(c.dtype))]
    level = _level(c, c.query_sink)
    assert level, "query rows iterate with a sink above 0"
    return [Block(head, nothing.layer(c.dtype)) for head in (near, inverse(level, False))]


def _read_out(c: Construction) -> Block:
    """f = S·Σ_j K_*j α_j/(D_* + S) = k_*ᵀα (1 + O(D_*/S)).

    For a = nα the level is nS/N, so that the sum is divided by n. In function space the queries
    have the answer: it is copied.
    """
    row = c.slots.row
    if c.update == "function_space":
        return Block(idle(c), linear(row(fitted=1.0), row(f=1.0)).layer(c.dtype))
    level = LEVELS[c.dtype][1] / (c.n_max if c.per_sample else 1)
    sink = Level(level, per_count=c.per_sample)
    head = attention(c, row(alpha=1.0), row(f=level), sink, sink)
    return Block(head, linear(row(), row()).layer(c.dtype))


def _update(c: Construction) -> Callable[[float, float], list[Block]]:
    """One update with momentum β and step γ, as one or two blocks: see ``coefficients``.

    G = b − z − λp, with z = P⁻¹Kα (attention) and p = u⊙α (product), both of ``ahead`` for
    Nesterov; in function space G = z − λp with z = P⁻¹K(y − g) and p = u⊙g.
    """
    row, state = c.slots.row, c.slots.state
    source = "ahead" if c.update == "nesterov" else state
    if c.update == "function_space":
        reads, drive, closed = row(y=1.0, fitted=-1.0), row(z=1.0), "sink"
        levels = _level(c, c.sink), _level(c, c.query_sink)
    else:
        reads, drive, closed = row(**{source: 1.0}), row(b=1.0, z=-1.0), "mask"
        levels = (_level(c, c.sink),) * 2
    average, idle_head = attention(c, reads, row(z=1.0), *levels), idle(c)
    # A sink or query that collected α would be multiplied by S at read-out. The gate need only be
    # at least |b − z| ≤ U(B_y + R); more costs nothing, since it adds exactly 0 where it is open.
    most = max(1.0, c.u_range) * (c.label_bound + c.r_alpha)
    gate = row(**{closed: min(100 * most, torch.finfo(c.dtype).max / 4)})
    clear_z = linear(row(z=1.0), row(z=-1.0))

    def ridge_term(writes: Tensor) -> Units:
        return product(c, c.slots.inverse, source, c.r_alpha, writes)

    first = Block(average, ridge_term(row(p=1.0)).layer(c.dtype)) if c.layout == "paper" else None

    def blocks(momentum: float, step: float) -> list[Block]:
        writes, kept = row(**{state: step}), linear(row(), row())
        carried = row()
        if c.update == "nesterov":
            carried, writes = row(ahead=1 / step), row(alpha=step, ahead=step * (1 + momentum))
            kept = linear(row(alpha=1.0), row(alpha=-1.0, ahead=-momentum))
            kept += linear(row(ahead=1.0), row(ahead=-1.0))
        elif "change" in c.slots:
            carried, writes = row(change=momentum / step), row(alpha=step, change=step)
            kept = linear(row(change=1.0), row(change=-1.0))
        move = linear(drive + carried, writes, gate) + kept + clear_z
        if first is None:
            # One MLP does all of it: the product's hinges write into α.
            return [Block(average, (move + ridge_term(-c.ridge * writes)).layer(c.dtype))]
        # (a) z by attention, p by the product; (b) no attention, α moves, z and p are cleared.
        ridge = linear(row(p=1.0), row(p=-1.0) - c.ridge * writes)
        return [first, Block(idle_head, (move + ridge).layer(c.dtype))]

    return blocks
