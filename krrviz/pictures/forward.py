"""Forward: a walk's streams, Jacobians, weights and errors as pictures, its numbers in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from krrviz import charts
from krrviz.anatomy import Anatomy
from krrviz.charts import Domain, Figure
from krrviz.construction.slots import MEANING
from krrviz.construction.transformer import Attention
from krrviz.forward import (
    Matrix,
    Walk,
    around,
    equation,
    jacobian,
    matrices,
    product_near,
    reads,
    writes,
)
from krrviz.frames import fault_rows, square_rows, state_rows, thinned
from krrviz.maps import Frames, Map
from krrviz.pictures.attention import labels, names

PARTS = {"attention": "attention", "mlp": "MLP"}
GREEK = {"alpha": "α", "half_sq_norm": "‖x‖²/2", "log_count": "log n", "count": "n"}
# Of a layer with more hidden units, evenly chosen ones are drawn: no screen is wider.
UNITS = 2048


@dataclass(frozen=True, eq=False)
class Shown:
    """The tokens that an anatomy shows, in its order, with the walk that has all of them."""

    anatomy: Anatomy
    walk: Walk

    def token(self, place: int) -> int:
        """The walk's token at a place of the order."""
        return self.to_walk(int(self.anatomy.order[place]))

    def to_walk(self, token: int) -> int:
        """The walk's number of an anatomy's token: a long prompt is cut in the anatomy."""
        cut, whole = self.anatomy.problem.n_max, self.walk.problem.n_max
        return token if token <= cut else token - cut + whole

    def place(self, token: int) -> int:
        """Where in the order an anatomy's token stands."""
        return self.anatomy.order.tolist().index(token)

    @property
    def tokens(self) -> list[int]:
        return [self.token(place) for place in range(len(self.anatomy.order))]

    def rows(self, places: Sequence[int] | None = None) -> dict[str, Any]:
        """Labels, names and marks of the tokens at some places, or all."""
        a = self.anatomy
        order = a.order if places is None else a.order[list(places)]
        short, long = labels(a), names(a)
        return {
            "rows": [short[i] for i in order],
            "row_names": [f"token {long[i]}" for i in order],
            "row_marks": [a.kinds[i] for i in order],
        }


def followed(a: Anatomy, pin: int | str) -> int:
    """The anatomy's token that is shown: the pinned one, or one in the middle of the context."""
    context = [int(t) for t in a.order if a.kinds[t] == "context"]
    return pin if isinstance(pin, int) else context[len(context) // 2]


def moment(walk: Walk, block: int, part: str) -> int:
    """The moment after a sub-block of the kept block nearest to ``block``."""
    after = walk.moment_of(block)
    return {"prompt": 0, "attention": after - 1}.get(part, after)


def _kept(walk: Walk) -> set[int]:
    """Steps that charts must hold: those that a moment leads to."""
    return {0, *(moment.step for moment in walk.moments)}


def token(walk: Walk, moment: int, at: int, named: str) -> dict[str, Figure]:
    """A token's state by step, and the product of the update at a moment, where there is one."""
    drawn = {
        "state": charts.states(
            thinned(state_rows(walk, at), _kept(walk)), symbol=walk.symbol, token=named
        )
    }
    product = product_near(walk, walk.moments[moment].block)
    if product:
        marks, curve = square_rows(walk, product, at)
        drawn["squares"] = charts.squares(
            thinned(marks, _kept(walk)),
            curve,
            product=(product.u, channel(product.v)),
            scales=walk.construction.scales(product.r),
        )
    return drawn


def errors(
    walk: Walk,
    intact: Float[Tensor, " times"],
    faulty: Float[Tensor, " times"] | None,
    domain: Domain,
) -> dict[str, Figure]:
    """The error by step, whole and broken."""
    rows = thinned(fault_rows(intact, faulty), _kept(walk))
    return {"errors": charts.steps(rows, against="exact KRR", domain=domain)}


def channel(name: str) -> str:
    return GREEK.get(name) or name.translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def meaning(name: str) -> str:
    """What a channel holds, in words."""
    known = MEANING.get(name) or MEANING["x"]
    return f"{channel(name)}: {known}"


def title(walk: Walk, moment: int) -> str:
    """What a moment is."""
    here = walk.moments[moment]
    if here.part == "prompt":
        return "The prompt, before block 0"
    last = len(walk.model.blocks) - 1
    return f"Block {here.block} of {last} · {here.place} · after the {PARTS[here.part]}"


def told(walk: Walk, moment: int) -> list[str]:
    """What the sub-block at a moment reads and writes, off its weights."""
    if walk.moments[moment].part == "prompt":
        counts = ", log n, n" if "count" in walk.slots else ""
        return [f"x, ‖x‖²/2, y, one, mask, sink{counts} are the prompt's; the rest is 0."]
    layer = walk.layer(moment)
    by, out = reads(walk.slots, layer), writes(walk.slots, layer)

    inputs = walk.slots.names[: walk.slots.d]

    def words(names: Sequence[str]) -> str:
        if len(inputs) > 2 and {*inputs} <= {*names}:  # x₁ … x₁₀, in short
            first, *_, last = inputs
            names = [f"{first} … {last}", *(name for name in names if name not in inputs)]
        return ", ".join(map(channel, names)) or "nothing"

    written = f"writes {words(out)}"
    if isinstance(layer, Attention):
        matched = dict.fromkeys([*by["W_Q"], *by["W_K"]])
        return [
            f"matches tokens on {words(list(matched))}",
            f"carries {words(by['W_V'])}; {written}",
        ]
    return [f"reads {words(by['W_1'])}", written]


def number(value: float, digits: str = ".6g") -> str:
    """A number as text; what is no number has overflowed."""
    return format(value, digits) if math.isfinite(value) else "overflow"


def states(walk: Walk, moment: int, token: int) -> tuple[float, float, float]:
    """The state's channel, the solver's state at the same step, and their difference."""
    found = walk.value(moment, token, walk.slots.state)
    solver = walk.solver_state(moment, token)
    return found, solver, found - solver


def stream(shown: Shown, intact: Walk) -> Map:
    """Tokens × channels at every moment; colours are each channel's own scale when intact."""
    walk = shown.walk
    whole = intact.stream[:, shown.tokens].double().numpy()
    limits = np.abs(np.where(np.isfinite(whole), whole, 0)).max((0, 1))
    channels = walk.slots.names
    return Map(
        "stream",
        "The residual stream",
        walk.stream[:, shown.tokens].double().numpy(),
        cols=[channel(name) for name in channels],
        col_names=[meaning(name) for name in channels],
        row_title=f"token, by {shown.anatomy.titles[0]}",
        kind="diverging",
        limits=limits.tolist(),
        note="Each channel has its own scale, up to its largest magnitude when nothing is broken; "
        "colours go by the root.",
        **shown.rows(),
    )


def frames(walk: Walk, at: int, token: int, name: str) -> Frames:
    """All moments, with what happens at each, and one token's α in the channel and the solver."""

    def marks(moment: int) -> list[str]:
        if walk.moments[moment].part == "prompt":
            return [""] * len(walk.slots)
        layer = walk.layer(moment)
        read = {name for names in reads(walk.slots, layer).values() for name in names}
        written = writes(walk.slots, layer)
        return [
            "written" if name in written else "read" if name in read else ""
            for name in walk.slots.names
        ]

    def line(moment: int) -> str:
        found, solver, gap = states(walk, moment, token)
        step = walk.moments[moment].step
        return (
            f"{walk.symbol} of token {name} after update {step}: {number(found)} in the channel, "
            f"{number(solver)} in the solver, difference {number(gap, '.1e')}"
        )

    moments = range(len(walk.moments))
    return Frames(
        titles=[title(walk, m) for m in moments],
        lines=[[*told(walk, m), line(m)] for m in moments],
        steps=[moment.step for moment in walk.moments],
        col_marks=[marks(m) for m in moments],
        at=at,
    )


def formula(walk: Walk, moment: int, token: int) -> str:
    """The update at a moment in LaTeX, with a token's numbers in it."""
    lines = equation(walk, moment, token).lines
    head, *rest = lines
    aligned = [head, *(f"&{line}" for line in rest)]
    if rest:
        aligned[0] = head.replace(" = ", " &= ", 1).replace(r"\leftarrow", r"&\leftarrow", 1)
    return r"\begin{aligned}" + r"\\".join(aligned) + r"\end{aligned}"


def jacobians(shown: Shown, block: int, token: int) -> list[Map]:
    """‖∂ added to token i/∂ token j‖ for a block's attention and MLP, around one token."""
    walk, a = shown.walk, shown.anatomy
    moment = walk.moment_of(block)
    order = shown.tokens
    context = [t for t in order if 1 <= t <= walk.problem.n_max]
    near = around(token, walk.stream.shape[1], torch.tensor(context)).tolist()
    places = [place for place, t in enumerate(order) if t in near]
    tokens = torch.tensor([order[place] for place in places])
    rows = shown.rows(places)
    left_out = walk.stream.shape[1] - len(places)
    cut = f" {left_out} tokens farther away are not drawn." if left_out else ""
    maps = []
    for part, at in (("attention", moment - 1), ("mlp", moment)):
        norms = jacobian(walk.layer(at), walk.before(at), tokens).double().numpy()
        off = norms[~np.eye(len(norms), dtype=bool)].max(initial=0)
        maps.append(
            Map(
                f"jacobian_{part}",
                f"‖∂({PARTS[part]} at token i)/∂(token j)‖",
                norms,
                cols=rows["rows"],
                col_names=[f"∂ {name}" for name in rows["row_names"]],
                col_marks=rows["row_marks"],
                row_title=f"token i, by {a.titles[0]}",
                col_title="token j",
                limit=_typical(norms),
                note=f"Largest off the diagonal: {number(off, '.3g')}.{cut}"
                if off
                else f"Off the diagonal every entry is exactly 0.{cut}",
                **rows,
            )
        )
    return maps


def _typical(norms: np.ndarray) -> float | None:
    """Where colours end: a few entries, as of a gate or a sink, may be far larger than the rest."""
    some = norms[(norms > 0) & np.isfinite(norms)]
    return float(np.quantile(some, 0.98)) if len(some) else None


def weights(walk: Walk, block: int) -> tuple[list[Map], list[Map]]:
    """A block's matrices: those of its attention, and those of its MLP, which share columns."""
    found = [_weight(m) for m in matrices(walk.slots, walk.model.blocks[block])]
    return found[:4], found[4:]


def _weight(matrix: Matrix) -> Map:
    whole = matrix.values.double().numpy()
    count = whole.shape[1]
    unit = matrix.columns[0].rpartition(" ")[0] if count else ""
    every = max(1, math.ceil(count / UNITS))
    values, chosen = whole[:, ::every], range(0, count, every)
    filled = f"{int((whole != 0).sum())} of {whole.size} entries are not 0."
    return Map(
        matrix.name,
        f"{matrix.name}, {count} {unit}s" if count > 1 else matrix.name,
        values,
        rows=[channel(name) for name in matrix.rows],
        row_names=[meaning(name) for name in matrix.rows],
        cols=[str(j + 1) for j in chosen],
        col_names=[matrix.columns[j] for j in chosen],
        col_title=unit if every == 1 else f"{unit}, one drawn of {every}",
        kind="diverging",
        limits=np.abs(values).max(0).tolist(),
        note=f"{filled} Each column has its own scale; colours go by the root.",
    )
