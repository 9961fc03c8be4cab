"""Laws: charts of how depth, width and error grow, each a figure of lines on named axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import altair as alt
import pandas as pd

from krrviz.charts import NARROW, STYLES, VISIBLE, Figure, Layers, Style, once, table, theme

Frame = Any  # a DataFrame, of which pandas' stubs cannot tell a column from a table

# Series that are no methods take these looks in turn; each also has its own dash and mark.
CYCLE = [
    STYLES[key]._replace(width=NARROW)
    for key in (
        "preconditioned_richardson",
        "transformer",
        "gradient_descent",
        "nesterov",
        "heavy_ball",
        "function_space_richardson",
        "conjugate_gradient",
        "chebyshev",
    )
]
# The terms of an error budget.
TERMS = {"iteration": "#0072b2", "product": "#d55e00", "sink": "#7b61c9", "rounding": "#7f7f7f"}
# Powers of ten carry the grid; small numbers are written as such.
POWERS = alt.Axis(
    tickCount=6,
    labelExpr="indexof('125', replace(format(datum.value, '.0e'), /e.*/, '')) < 0 ? '' : "
    "datum.value < 1e-3 || datum.value >= 1e5"
    " ? replace(format(datum.value, '.0e'), '+', '') : format(datum.value, '~g')",
    gridOpacity=cast(
        "Any",
        {
            "condition": {
                "test": "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6",
                "value": 0.16,
            },
            "value": 0.04,
        },
    ),
)


@dataclass(frozen=True)
class Axis:
    """A column, its title with symbol and unit, and its scale.

    ``domain`` cuts a logarithmic axis: what leaves the frame is labelled at its edge.
    """

    column: str
    title: str
    log: bool = True
    reverse: bool = False
    domain: tuple[float, float] | None = None


def lines(
    rows: Frame,
    x: Axis,
    y: Axis,
    *,
    title: str,
    looks: Mapping[str, Style] | None = None,
) -> Figure:
    """Draw one line per ``series``; rows: series and the two columns.

    ``looks`` gives series a style of their own; others take one of ``CYCLE``.
    """
    rows = rows.dropna(subset=[x.column, y.column])
    names = list(dict.fromkeys(rows["series"]))
    given = looks or {}
    styled = tuple((name, given.get(name, CYCLE[i % len(CYCLE)])) for i, name in enumerate(names))
    said = [
        f"{name}: {_told(part.iloc[0], x, y)}, {_told(part.iloc[-1], x, y)}"
        for name, part in rows.groupby("series", sort=False)
    ]
    return Figure(
        _lines(title, x, y, styled, hidden=[]),
        {"curves": rows[["series", x.column, y.column]], "edges": _beyond(rows, x, y)},
        f"{title}. {'; '.join(said)}.",
    )


def _told(row: Any, x: Axis, y: Axis) -> str:
    return f"{row[y.column]:.3g} at {x.column} = {row[x.column]:.3g}"


def _beyond(rows: Frame, x: Axis, y: Axis) -> pd.DataFrame:
    """Where each line first leaves the frame, and how far it goes."""
    found = []
    low, high = y.domain or (-math.inf, math.inf)
    for name, part in rows.groupby("series", sort=False):
        values = part[y.column]
        for edge, arrow, out, far in (
            (low, "↓", values < low, values.min()),
            (high, "↑", values > high, values.max()),
        ):
            if out.any():
                label = f"{arrow} to {far:.0e}" if far < 1e299 else "↑ overflows"
                found.append((name, part.loc[out, x.column].iloc[0], edge, f"{name} {label}"))
    edges = pd.DataFrame(found, columns=["series", x.column, y.column, "label"])
    return edges.assign(row=edges.groupby(y.column).cumcount())


@once
def _lines(title: str, x: Axis, y: Axis, styled: tuple[tuple[str, Style], ...]) -> Layers:
    looks = [{"key": name, "title": name, **style._asdict()} for name, style in styled]

    def scale(look: str) -> alt.Scale:
        return alt.Scale(domain=[one["title"] for one in looks], range=[one[look] for one in looks])

    def channel(make: Any, axis: Axis) -> Any:
        kind: dict[str, Any] = {"type": "log"} if axis.log else {"zero": False}
        if axis.domain:
            kind["domain"] = list(axis.domain)
        ticks = POWERS if axis.log else alt.Axis(tickCount=6)
        scaled = alt.Scale(nice=False, reverse=axis.reverse, **kind)
        return make(f"{axis.column}:Q", title=axis.title, scale=scaled, axis=ticks)

    across, up = channel(alt.X, x), channel(alt.Y, y)
    curves = (
        table("curves")
        .transform_filter(VISIBLE.replace("method", "series"))
        .encode(across, up, alt.Color("series:N", title=None, scale=scale("color")))
    )
    marks = curves.encode(
        alt.Shape("series:N", title=None, scale=scale("shape")),
        tooltip=[
            alt.Tooltip("series:N", title="line"),
            alt.Tooltip(f"{x.column}:Q", format=".4g"),
            alt.Tooltip(f"{y.column}:Q", format=".4g"),
        ],
    )
    size, opacity = (40, 1) if x.log else (60, 0)  # along steps there are too many
    edges = table("edges").encode(
        alt.XValue(alt.ExprRef("width - 6")),
        alt.Y(f"{y.column}:Q"),
        text="label:N",
    )
    # Within the frame: below its upper edge, above its lower one.
    down = alt.ExprRef("indexof(datum.label, '↓') < 0 ? 6 + 14 * datum.row : -17 - 14 * datum.row")
    return alt.layer(
        curves.mark_line(clip=True).encode(
            alt.StrokeDash("series:N", title=None, scale=scale("dash")),
            strokeWidth=alt.value(NARROW),
        ),
        marks.mark_point(clip=True, filled=True, size=size, opacity=opacity),
        *(
            edges.mark_text(style=style, align="right", baseline="top", dy=down)
            for style in ("halo", "note")
        ),
        title=title,
        usermeta={"row": "laws", "tables": ["curves"], "legend": looks},
        config=theme("light"),
    )


def residuals(rows: Frame, *, title: str, unit: str) -> Figure:
    """Draw what is left of each label held out, against the answer: series, answer, residual."""
    names = tuple(dict.fromkeys(rows["series"]))
    said = [
        f"{name}: {len(part)} labels, residuals from {part.residual.min():.3g} to "
        f"{part.residual.max():.3g}"
        for name, part in rows.groupby("series", sort=False)
    ]
    spec = _residuals(title, unit, names, hidden=[])
    return Figure(spec, {"points": rows}, f"{title}. {'; '.join(said)}.")


@once
def _residuals(title: str, unit: str, names: tuple[str, ...]) -> Layers:
    looks = [
        {"key": name, "title": name, **style._asdict(), "width": 0}
        for name, style in zip(names, CYCLE, strict=False)
    ]
    scale = {
        part: alt.Scale(domain=[one["title"] for one in looks], range=[one[part] for one in looks])
        for part in ("color", "shape")
    }
    measure = f" ({unit})" if unit else ""
    points = (
        table("points")
        .transform_filter(VISIBLE.replace("method", "series"))
        .mark_point(filled=True, opacity=0.6, size=26)
        .encode(
            alt.X("answer:Q", title=f"answer{measure}", scale=alt.Scale(zero=False)),
            alt.Y("residual:Q", title=f"label − answer{measure}"),
            alt.Color("series:N", title=None, scale=scale["color"]),
            alt.Shape("series:N", title=None, scale=scale["shape"]),
            tooltip=[alt.Tooltip(f"{name}:Q", format=".4g") for name in ("answer", "residual")],
        )
    )
    zero = alt.Chart(alt.InlineData([{"y": 0}])).mark_rule(opacity=0.5).encode(alt.Y("y:Q"))
    return alt.layer(
        zero,
        points,
        title=title,
        usermeta={"row": "laws", "tables": ["points"], "legend": looks},
        config=theme("light"),
    )


def budget(rows: Frame, *, eps: float) -> Figure:
    """Draw what an error bound is made of: rows of bar, term, value, stacked; a rule at ε."""
    said = "; ".join(
        f"{bar}: " + ", ".join(f"{row.term} {row.value:.2g}" for row in part.itertuples())
        for bar, part in rows.groupby("bar", sort=False)
    )
    order = list(dict.fromkeys(rows["bar"]))
    return Figure(
        _budget(tuple(order), hidden=[]),
        {"bars": rows, "eps": pd.DataFrame({"eps": [eps], "label": [f"ε = {eps:g}"]})},
        f"Error budget against ε = {eps:g}. {said}.",
    )


@once
def _budget(order: tuple[str, ...]) -> Layers:
    colours = alt.Scale(domain=list(TERMS), range=list(TERMS.values()))
    title = "|answer − exact KRR|, in standard deviations of the labels"
    few = alt.Axis(tickCount=5, format="~g")
    x = alt.X("value:Q", title=title, stack=True, axis=few)
    bars = (
        table("bars")
        .transform_filter("indexof(hidden, datum.term) < 0")
        .transform_calculate(order=f"indexof({list(TERMS)!r}, datum.term)")
        .mark_bar(height=22)
        .encode(
            x,
            alt.Y("bar:N", sort=list(order), title=None, axis=alt.Axis(labelLimit=200)),
            alt.Color("term:N", title=None, scale=colours),
            alt.Order("order:Q"),
            tooltip=["bar:N", "term:N", alt.Tooltip("value:Q", format=".3e")],
        )
    )
    sums = (
        table("bars")
        .transform_aggregate(total="sum(value)", groupby=["bar"])
        .transform_calculate(label="'in all ' + format(datum.total, '.2e')")
        .encode(alt.XValue(4), alt.Y("bar:N", sort=list(order)), text="label:N")
    )
    rule = table("eps").encode(alt.X("eps:Q"))
    return alt.layer(
        bars,
        *(sums.mark_text(style=style, align="left", dy=22) for style in ("halo", "note")),
        rule.mark_rule(style="now", strokeWidth=2, strokeDash=[4, 3]),
        rule.mark_text(style="now", align="right", dx=-5, y=alt.ExprRef("height - 6")).encode(
            text="label:N"
        ),
        title="Error budget: what is proved, and what happens",
        usermeta={
            "row": "laws",
            "tables": ["bars"],
            "legend": [
                {"key": term, "title": term, "color": colour, "shape": "M-1,-1H1V1H-1Z"}
                for term, colour in TERMS.items()
            ],
        },
        config=theme("light"),
    )


def eigenvalues(rows: Frame, *, low: float, high: float, matrix: str) -> Figure:
    """Draw eigenvalues, one row of ticks a prompt, within the certified interval."""
    values = rows["value"]
    return Figure(
        _eigenvalues(matrix, hidden=[], left=low / 2, right=high * 2),
        {
            "values": rows,
            "interval": pd.DataFrame(
                {"low": [low], "high": [high], "label": [f"certified: [{low:.3g}, {high:.4g}]"]}
            ),
        },
        f"Eigenvalues of {matrix}: {len(values)} of {rows['prompt'].nunique()} prompts, from "
        f"{values.min():.3g} to {values.max():.4g}, certified [{low:.3g}, {high:.4g}].",
    )


@once
def _eigenvalues(matrix: str) -> Layers:
    x = alt.Scale(type="log", nice=False, domain=[alt.ExprRef("left"), alt.ExprRef("right")])
    band = table("interval").encode(
        alt.X("low:Q", scale=x, title=f"eigenvalue of {matrix}", axis=POWERS),
        alt.X2("high:Q"),
    )
    ticks = table("values").encode(
        alt.X("value:Q", scale=x),
        alt.Y("prompt:O", title="prompt", axis=alt.Axis(labelAngle=0)),
        tooltip=["prompt:O", alt.Tooltip("value:Q", format=".5g")],
    )
    return alt.layer(
        band.mark_rect(color="#2e93cc", opacity=0.18),
        ticks.mark_tick(color="#d55e00", thickness=1.2),
        *(
            table("interval")
            .encode(alt.X("low:Q", scale=x), text="label:N")
            .mark_text(style=style, align="left", y=-7)
            for style in ("halo", "note")
        ),
        title=f"Eigenvalues of {matrix} and the certified interval",
        usermeta={"row": "laws", "tables": ["values"]},
        config=theme("light"),
    )


def matches(
    rows: Frame, path: Frame, *, title: str, metric: str, most: bool, domain: tuple[float, float]
) -> Figure:
    """Draw how alike each layer and each step are: rows of layer, step, until, value.

    A cell reaches from ``step`` to below ``until``. ``path`` holds the layers' best steps: layer,
    step, value. ``most`` says whether the most alike have the largest value; colours, the brighter
    the more alike, span ``domain``.
    """
    said = ", ".join(
        f"layer {row.layer} at step {row.step} ({row.value:.3g})" for row in path.itertuples()
    )
    low, high = domain
    return Figure(
        _matches(title, metric, most, low=low, high=high),
        {"cells": rows, "path": path},
        f"{title}: {metric} of every layer and step. Best steps: {said}.",
    )


@once
def _matches(title: str, metric: str, most: bool) -> Layers:
    # Steps stand at their square roots: early ones differ, late ones hardly do.
    x = alt.X("step:Q", title="step t", scale=alt.Scale(type="sqrt", nice=False, zero=True),
              axis=alt.Axis(values=[0, 4, 16, 32, 64, 128], grid=False))  # fmt: skip
    y = alt.Y("bottom:Q", title="layer ℓ", scale=alt.Scale(nice=False),
              axis=alt.Axis(tickMinStep=1, grid=False, format="d"))  # fmt: skip
    span = alt.Scale(
        scheme="viridis", reverse=not most, clamp=True,
        domain=[alt.ExprRef("low"), alt.ExprRef("high")],
    )  # fmt: skip
    tip = ["layer:Q", "step:Q", alt.Tooltip("value:Q", format=".4g", title=metric)]
    cells = (
        table("cells")
        .transform_calculate(bottom="datum.layer - .5", top="datum.layer + .5")
        .encode(
            x, y, alt.X2("until:Q"), alt.Y2("top:Q"),
            alt.Color("value:Q", title=metric, scale=span), tooltip=tip,
        )
    )  # fmt: skip
    path = (
        table("path")
        .transform_calculate(bottom="datum.layer")
        .encode(x, y, alt.Order("layer:Q"), tooltip=tip)
    )
    return alt.layer(
        cells.mark_rect(),
        path.mark_line(color="#ffffff", strokeWidth=3.5),
        path.mark_line(color="#d1347b", strokeWidth=1.5, strokeDash=[4, 2]),
        path.mark_point(color="#d1347b", fill="#ffffff", opacity=1, size=36, strokeWidth=2),
        title=title,
        usermeta={"row": "maps", "tables": ["cells", "path"]},
        config=theme("light"),
    )


def ranking(rows: Frame, *, title: str, metric: str) -> Figure:
    """Draw scores with their intervals, best above: rows of method, title, score, low, high."""
    said = "; ".join(
        f"{row.title}: {row.score:.3g} ({row.low:.3g} to {row.high:.3g})"
        for row in rows.itertuples()
    )
    order = tuple((row.method, row.title) for row in rows.itertuples())
    return Figure(_ranking(title, metric, order), {"scores": rows}, f"{title}, best first. {said}.")


@once
def _ranking(title: str, metric: str, order: tuple[tuple[str, str], ...]) -> Layers:
    looks = [STYLES[method] for method, _ in order]
    names = [name for _, name in order]
    x = alt.X("score:Q", title=metric, scale=alt.Scale(zero=False, nice=True),
              axis=alt.Axis(tickCount=5))  # fmt: skip
    y = alt.Y("title:N", sort=names, title=None, axis=alt.Axis(labelLimit=220))
    color = alt.Color(
        "title:N", title=None, legend=None,
        scale=alt.Scale(domain=names, range=[look.color for look in looks]),
    )  # fmt: skip
    shape = alt.Shape(
        "title:N", title=None, legend=None,
        scale=alt.Scale(domain=names, range=[look.shape for look in looks]),
    )  # fmt: skip
    scores = table("scores").encode(y, color)
    tip = [
        "title:N",
        *(alt.Tooltip(f"{name}:Q", format=".4g") for name in ("score", "low", "high")),
    ]
    return alt.layer(
        scores.mark_rule(strokeWidth=3, opacity=0.5).encode(alt.X("low:Q"), alt.X2("high:Q")),
        scores.mark_point(filled=True, size=110, opacity=1).encode(x, shape, tooltip=tip),
        title=title,
        usermeta={"row": "laws", "tables": ["scores"]},
        config=theme("light"),
    )
