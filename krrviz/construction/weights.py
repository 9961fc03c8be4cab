"""Weights: from parameters (never data) to a transformer that solves (K + λI)α = y.

Our reconstruction of the construction in arXiv 2605.08475, from its abstract and digests; what
is our choice is said so. Every derivation stands above the code that carries it out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from krrviz.construction.slots import Slots
from krrviz.construction.transformer import MLP, Attention, Block, Transformer
from krrviz.machine import DTYPES
from krrviz.settings import Settings, SettingsError
from krrviz.spectrum import certified
from krrviz.tables import Table
from krrviz.tasks import dimension, input_bound

# Sink levels of read-in (δ) and read-out (S): small and large enough that D + δ = D and
# D/(D + S) = D/S to the last digit but one.
LEVELS = {torch.float64: (1e-15, 1e15), torch.float32: (1e-9, 1e9)}


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
    alpha_range : ``calibrated`` or R ≥ |α| itself
    dtype : of the weights

    Raises
    ------
    SettingsError
        An update rule, sink level, ridge scale, range or precision that is not available yet,
        or a number that is out of range.
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
    sink: float | str = 0.0
    alpha_range: float | str = "calibrated"
    dtype: torch.dtype = torch.float64
    slots: Slots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", Slots(self.d))
        for name, available in (
            ("ridge_scale", ("absolute",)),
            ("layout", ("paper", "fused")),
            ("product", ("plain", "balanced")),
            ("update", ("richardson",)),
            ("sink", (0,)),
            ("dtype", tuple(LEVELS)),
        ):
            value = getattr(self, name)
            if value not in available:
                raise SettingsError(
                    f"{name}={value} is not available for the transformer; allowed: "
                    + ", ".join(str(v) for v in available),
                    name,
                )
        for name, least in (("d", 1), ("n_max", 1), ("steps", 0), ("segments", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)} must be at least {least}", name)
        if self.alpha_range == "certified":
            raise SettingsError(
                "alpha_range=certified is not available yet; use calibrated or a number",
                "alpha_range",
            )
        for name in ("bandwidth", "ridge", "input_bound", "label_bound", "alpha_range"):
            value = getattr(self, name)
            if value != "calibrated" and not 0 < value < math.inf:
                raise SettingsError(f"{name}={value} must be a finite number above 0", name)

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

    # -- figures that follow ------------------------------------------------------------------

    @property
    def step(self) -> float:
        """η = 2/(μ + L) of the certified interval [λ/N, 1 + λ]: safe for every prompt."""
        interval = certified("preconditioned", self.n_max, self.ridge, self.ridge_scale)
        return float(interval.best_step)

    @property
    def r_alpha(self) -> float:
        """R, the range of α that the product u·α is made for.

        Calibrated (our choice): √N/λ. ‖α*‖ ≤ ‖y‖/λ and standardised labels have ‖y‖ ≈ √N, so
        this covers nearly every prompt; an iterate beyond it is reported, not hidden.
        """
        if isinstance(self.alpha_range, str):
            return math.sqrt(self.n_max) / self.ridge
        return float(self.alpha_range)

    def product_error(self, r: float) -> float:
        """Largest error of a product u·v with |u| ≤ 1, |v| ≤ ``r``.

        A square on [−R', R'] with m hinges a side errs by 0 to h²/4, h = R'/m, and a product is
        a quarter of the difference of two squares of a scaled sum and difference.
        """
        g = self.balance(r)
        return ((g + r / g) / self.segments) ** 2 / 16

    def balance(self, r: float) -> float:
        """The factor g that u is multiplied, and v divided, by before they are added."""
        return math.sqrt(r) if self.product == "balanced" else 1.0


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
# mask − sink as the key (adding +BIG instead would cost log10(BIG) digits of log s).


def attention(
    c: Construction,
    reads: str,
    writes: str,
    scale: float = 1.0,
    sink_level: float = 0.0,
    silence_queries: bool = False,
) -> Attention:
    """A head that averages channel ``reads`` with weights K_ij/(D_i + s) into ``writes``.

    ``silence_queries``: tokens off the context give the sink no weight either, so that what they
    read from it is exactly 0.
    """
    row, s2 = c.slots.row, c.bandwidth**2
    big = 1e4 + 2 * c.input_bound**2 / s2
    q = [row(**{f"x{i + 1}": 1 / s2}) for i in range(c.d)]
    k = [row(**{f"x{i + 1}": 1.0}) for i in range(c.d)]
    q += [row(one=-1 / s2), row(one=-big)]
    k += [row(half_sq_norm=1.0), row(mask=1.0, sink=-1.0 if sink_level else 0.0)]
    if sink_level:
        hush = -big if silence_queries else 0.0
        q.append(row(half_sq_norm=1 / s2, one=math.log(sink_level), mask=hush))
        k.append(row(sink=1.0))
    w_o = c.slots.row(**{writes: scale})[:, None]
    return Attention(
        *(w.to(c.dtype) for w in (torch.stack(q), torch.stack(k), row(**{reads: 1.0})[None], w_o))
    )


def idle(c: Construction) -> Attention:
    """A head whose value matrix is 0: it adds nothing."""
    head = attention(c, "alpha", "z")
    head.w_v.zero_()
    return head


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
    """u·v·writes for |u| ≤ 1 and |v| ≤ r, with 4m hinges.

    uv = ((gu + v/g)² − (gu − v/g)²)/4, and on [−R', R'], R' = g + r/g, with h = R'/m

        s² ≈ h·relu(|s|) + Σ_{k=1}^{m−1} 2h·relu(|s| − kh),

    the chord of s² between multiples of h: error in [0, h²/4]. All terms are positive, so
    nothing cancels within a square; relu(|s| − kh) = relu(s − kh) + relu(−s − kh).
    """
    g = c.balance(r)
    h = (g + r / g) / c.segments
    knots = torch.arange(c.segments, dtype=torch.float64)
    slopes = h * (2 - (knots == 0).double()) / 4
    row = c.slots.row
    parts = [
        Units((side * s).expand(c.segments, -1), -h * knots, (sign * slopes)[:, None] * writes)
        for sign in (1, -1)
        for s in [row(**{u: g}) + row(**{v: sign / g})]
        for side in (1, -1)
    ]
    return parts[0] + parts[1] + parts[2] + parts[3]


# ---------------------------------------------------------------------------------------------
# Blocks


def build(c: Construction) -> Transformer:
    """The transformer of a construction: read-in, T updates, read-out.

    Preconditioned Richardson with P = D: α ← α + η(b − z − λp), z = D⁻¹Kα (attention),
    b = D⁻¹y = u⊙y, p = u⊙α (products), u = D⁻¹1.
    """
    row, delta, level = c.slots.row, *LEVELS[c.dtype]

    # Read-in. The sink's value is 1 and its weight δ/(D_i + δ): scaled by 1/δ that is u. Then
    # b = u·y, |u| ≤ 1 since D_i ≥ K_ii = 1. u is exactly 0 off the context, and so are b and
    # every product: 0 there is symmetric in all hinges.
    read_in = Block(
        attention(c, "sink", "u", 1 / delta, delta, silence_queries=True),
        product(c, "u", "y", c.label_bound, row(b=1.0)).layer(c.dtype),
    )

    # Read-out: f = S·Σ_j K_*j α_j/(D_* + S) = k_*ᵀα (1 + O(D_*/S)).
    read_out = Block(attention(c, "alpha", "f", level, level), linear(row(), row()).layer(c.dtype))

    # Updates. z and b go through a gate: a sink or query that collected α would be multiplied
    # by S at read-out. G need only be at least |b − z| ≤ B_y + R; more costs nothing, since the
    # gate adds exactly 0 on context tokens.
    gate = row(mask=100 * (c.label_bound + c.r_alpha))
    move = linear(row(b=1.0, z=-1.0), row(alpha=c.step), gate)
    clear_z = linear(row(z=1.0), row(z=-1.0))
    average = attention(c, "alpha", "z")
    if c.layout == "paper":
        # (a) z by attention, p by the product; (b) no attention, α moves, z and p are cleared.
        apply_ridge = linear(row(p=1.0), row(alpha=-c.step * c.ridge, p=-1.0))
        update = [
            Block(average, product(c, "u", "alpha", c.r_alpha, row(p=1.0)).layer(c.dtype)),
            Block(idle(c), (move + clear_z + apply_ridge).layer(c.dtype)),
        ]
    else:
        # One MLP does all of it: the product's hinges write into α.
        ridge_term = product(c, "u", "alpha", c.r_alpha, row(alpha=-c.step * c.ridge))
        update = [Block(average, (move + clear_z + ridge_term).layer(c.dtype))]

    blocks = [read_in, *(update * c.steps), read_out]
    return Transformer(c.slots, blocks, range(0, len(blocks) - 1, len(update)), c.n_max)
