"""Attention: an anatomy's matrices and rows as maps, with the words and formulas of their cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from krrviz.anatomy import Anatomy, Step
from krrviz.maps import Map, Points


def labels(a: Anatomy) -> list[str]:
    """A short word for each token, in the token layout: its x, or its number."""
    n = a.problem.n_max
    numbers = [
        "sink",
        *(str(i) for i in range(1, 1 + n)),
        *(f"q{i}" for i in range(1, len(a.kinds) - n)),
    ]
    if a.inputs.shape[1] > 1:
        return numbers
    return ["sink", *(f"{x:.4g}" for x in a.inputs[1:, 0])]


def names(a: Anatomy) -> list[str]:
    """What each token is, in the token layout."""
    if a.inputs.shape[1] == 1:
        title, _, unit = a.titles[1].partition(" (")
        places = [f"{title} {x:.4g} {unit.rstrip(')')}".strip() for x in a.inputs[:, 0]]
    else:
        places = [f"at {x:.3g}, {y:.3g}" for x, y in a.inputs]
    return [
        f"{i} (sink)" if kind == "sink" else f"{i} ({kind}, {place})"
        for i, (kind, place) in enumerate(zip(a.kinds, places, strict=True))
    ]


def followed(a: Anatomy, pin: int | str) -> int:
    """The token whose row is shown: the pinned one, or one in the middle."""
    return pin if isinstance(pin, int) else int(a.order[len(a.kinds) // 2])


def matrices(a: Anatomy, block: int) -> list[Map]:
    """Attention, D⁻¹K and their difference at a block; D⁻¹K alone where attention is idle."""
    attention, kernel = a.attention(block), a.kernel(block)
    context = np.array(a.kinds) == "context"
    top = float(kernel[:, context].max())
    levels, tolerance = sorted({*a.levels(block).tolist()} - {0.0}), a.tolerance(block)
    times, symbol = words(a, block)
    rest = " On the sink: not times S." if times else ""
    right = _map(
        a,
        "kernel",
        f"{times}{symbol}",
        kernel,
        limit=top,
        note="From the distances alone, in the log domain."
        if not levels
        else "From the distances alone; the sink's level s = "
        + ", or ".join(f"{level:g}" for level in levels)
        + ".",
        **_formula(a, block),
    )
    if attention is None:
        return [right]
    gap = attention - kernel
    worst = float(np.abs(gap).max())
    verdict = "within" if worst <= tolerance else "beyond"
    return [
        _map(
            a,
            "attention",
            f"{times}attention",
            attention,
            limit=top,
            note=f"softmax(q·k), as the weights make it.{rest}",
        ),
        right,
        _map(
            a,
            "difference",
            "difference",
            gap,
            kind="diverging",
            limit=tolerance,
            minus=("attention", "kernel"),
            note=f"At most {worst:.2g}, {verdict} the tolerance {tolerance:.2g}, the colours' end.",
        ),
    ]


def words(a: Anatomy, block: int) -> tuple[str, str]:
    """The factor and the kernel's symbol at a block."""
    out = block == a.depth - 1 and not a.idle(block)
    return "S · " if out else "", "(D + s)⁻¹K" if a.levels(block).any() else "D⁻¹K"


def _map(a: Anatomy, name: str, title: str, values: np.ndarray, **more: Any) -> Map:
    """A square map, its tokens in the anatomy's order."""
    rows, order = _ordered(a), a.order
    return Map(
        name=name,
        title=title,
        values=values[np.ix_(order, order)],
        rows=rows["cols"],
        row_names=[f"i = {name}" for name in _in_order(a, names(a))],
        row_marks=_in_order(a, a.kinds),
        row_title=f"token i, by {a.titles[0]}",
        **rows,
        **more,
    )


def _ordered(a: Anatomy) -> dict[str, Any]:
    """The columns that all maps share: one a key, what is no context masked."""
    return {
        "cols": _in_order(a, labels(a)),
        "col_names": [f"j = {name}" for name in _in_order(a, names(a))],
        "col_marks": ["masked" if kind == "query" else kind for kind in _in_order(a, a.kinds)],
        "col_title": f"token j, by {a.titles[0]}",
    }


def _in_order(a: Anatomy, words: Sequence[str]) -> list[str]:
    return [words[int(i)] for i in a.order]


def _formula(a: Anatomy, block: int) -> dict[str, Any]:
    """exp(−d²/2σ²)/Σ with each cell's numbers in it."""
    sigma, levels = a.construction.bandwidth, a.levels(block).tolist()
    degree = [f"{np.exp(d):.6g}" if d > -700 else f"e^({d:.6g})" for d in a.log_degree]
    total = [f"({d} + {s:g})" if s else d for d, s in zip(degree, levels, strict=True)]
    sink = [
        f"s/(D + s) = {s:g}/{d} = {{value}}" if s else "The sink is masked: exactly 0."
        for d, s in zip(total, levels, strict=True)
    ]
    factor = a.factor(block)[-1]
    times = f"{factor:g} · " if factor != 1 else ""
    pair = f"{times}exp(−d²/2σ²)/Σ = {times}exp(−{{d2}}/(2 · {sigma:g}²))/{{total}} = {{value}}"
    by_kind = {"sink": "{sink}", "context": pair}
    kinds = _in_order(a, a.kinds)
    return {
        "formula": [by_kind.get(kind, "A masked key: exactly 0.") for kind in kinds],
        "places": a.places[a.order],
        "row_terms": {"total": _in_order(a, total), "sink": _in_order(a, sink)},
    }


def points(a: Anatomy) -> Points:
    """Where the tokens lie: x and y, or two coordinates of the inputs."""
    one = a.inputs.shape[1] == 1
    y = a.labels if one else a.inputs[:, 1]
    return Points(
        title="The prompt: context and queries",
        x=a.inputs[a.order, 0],
        y=y[a.order],
        x_title=a.titles[1],
        y_title=a.titles[2],
    )


def row(a: Anatomy, block: int, token: int, step: Step) -> list[Map]:
    """A token's row from score to D⁻¹K, as bars by key; and all row sums."""
    kernel = a.kernel(block)[token]
    shifted = step.score - step.score.max()
    # Masked keys lie 10⁴ and more below.
    depth = float(np.abs(shifted[np.array(a.kinds) == "context"]).max())
    times, symbol = words(a, block)
    steps = {
        "score": ("1 · score q·k − largest", shifted, depth),
        "exponential": ("2 · exp(score − largest)", step.exponential, None),
        "softmax": (f"3 · divided by their sum: {times}attention", step.attention, None),
        "kernel": (f"{times}{symbol}", kernel, None),
        "difference": ("difference", step.attention - kernel, a.tolerance(block)),
        "degree": ("row sums D of all tokens", a.degree, None),
    }
    tail = _ordered(a)
    return [
        Map(
            name,
            title,
            values[None, a.order],
            ["i"],
            kind="bars",
            limit=limit,
            row_names=[f"i = {names(a)[token]}"],
            **tail,
        )
        for name, (title, values, limit) in steps.items()
    ]


def numbers(a: Anatomy, block: int, token: int, key: int | None, step: Step) -> str:
    """The row's numbers in a sentence or two, those of one key among them."""
    sigma, j = a.construction.bandwidth, token if key is None else key
    times, symbol = words(a, block)
    vector = ", ".join(f"{value:.4g}" for value in step.query[:4])
    vector += ", …" if len(step.query) > 4 else ""
    degree = float(a.degree[token])
    told = [
        f"Row sum D = **{degree:.6g}**. Query row q = W_Q h = ({vector}).",
        f"Key {names(a)[j]}: score **{step.score[j]:.6g}**",
    ]
    if a.kinds[j] == "context":
        distance = a.distance[token, j] / (2 * sigma**2)
        told[-1] += (
            f" = −d²/2σ² + ‖x‖²/2σ² = −{distance:.6g} + {step.cancelled:.6g}, of which the last "
            "is the same for every key and cancels"
        )
    told[-1] += (
        f"; exp(score − largest) = **{step.exponential[j]:.6g}**; divided by the sum "
        f"{step.total:.6g}{', times S' if times else ''}: **{step.attention[j]:.6g}**; "
        f"{times}{symbol} says "
        f"**{a.kernel(block)[token, j]:.6g}**."
    )
    return " ".join(told)
