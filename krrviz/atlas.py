"""Atlas: a chart of two settings, a cell for each pair of their values."""

from __future__ import annotations

from typing import Any

import altair as alt

from krrviz.charts import STYLES, VISIBLE, Figure, Layers, once, table, theme

Frame = Any  # a DataFrame, of which pandas' stubs cannot tell a column from a table

# How a winner is written in its cell; the legend says what the letters stand for.
LETTERS = {
    "transformer": "T",
    "preconditioned_richardson": "R",
    "function_space_richardson": "F",
    "gradient_descent": "G",
    "nesterov": "N",
    "heavy_ball": "H",
    "chebyshev": "C",
    "conjugate_gradient": "CG",
    "preconditioned_conjugate_gradient": "PCG",
}
NEVER, REFUSED = "never", "✕"
# Strokes from edge to edge of a square from -1 to 1.
HATCH = "M-1,0L0,-1M-1,1L1,-1M0,1L1,0"
RAMP: Any = "ramp"  # the theme's, which Altair's types do not know
ROOM = "pow(min(bandwidth('x'), bandwidth('y')), 2)"


def cells(
    rows: Frame,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    title: str,
    methods: tuple[tuple[str, str], ...] = (),
) -> Figure:
    """Draw one cell for each row.

    `rows` holds the columns of both axes, cell (its number), state (reached, never, refused),
    share (how strong its colour is, from 0 to 1), method (whose colour it has), label (what is
    written in it) and told (a sentence on it). `x` and `y` are a column and its title; `methods`
    are those of a map of winners, key and title, of which each has its colour.
    """
    said = "; ".join(
        f"{x[0]} = {row[x[0]]:.4g}, {y[0]} = {row[y[0]]:.4g}: {row['told']}"
        for row in rows.to_dict("records")
    )
    return Figure(_cells(title, x, y, methods, hidden=[]), {"cells": rows}, f"{title}. {said}.")


@once
def _cells(
    title: str, x: tuple[str, str], y: tuple[str, str], methods: tuple[tuple[str, str], ...]
) -> Layers:
    looks = [STYLES[method] for method, _ in methods]

    def axis(**more: Any) -> alt.Axis:
        return alt.Axis(format=".3~g", grid=False, labelAngle=0, **more)

    across = alt.X(f"{x[0]}:O", title=x[1], axis=axis(labelOverlap=True))
    up = alt.Y(f"{y[0]}:O", title=y[1], axis=axis(), sort="descending")
    tip = [alt.Tooltip(f"{name}:Q", format=".4g") for name in (x[0], y[0])]
    placed = table("cells").encode(across, up, tooltip=[*tip, alt.Tooltip("told:N", title="here")])
    if methods:
        scale = alt.Scale(domain=[m for m, _ in methods], range=[look.color for look in looks])
        color: Any = alt.Color("method:N", scale=scale, legend=None)
        placed = placed.transform_filter(VISIBLE)
    else:
        scale = alt.Scale(domain=[0, 1], range=RAMP)
        color = alt.Color("share:Q", scale=scale, legend=None)

    def of(state: str) -> alt.Chart:
        return placed.transform_filter(f"datum.state == '{state}'")

    look: dict[str, Any] = {"cursor": "pointer", "strokeOpacity": 0.35, "strokeWidth": 1}
    return alt.layer(
        of("reached").mark_rect(opacity=0.8, **look).encode(color),
        of("never").mark_rect(style="now", fillOpacity=0.04, strokeDash=[3, 3], **look),
        of("refused").mark_rect(style="now", fillOpacity=0.16, **look),
        of("refused").mark_point(
            style="now", shape=HATCH, filled=False, strokeWidth=1, opacity=0.45,
            size=alt.ExprRef(ROOM), cursor="pointer",
        ),
        *(
            placed.mark_text(style=style, cursor="pointer", fontWeight="bold").encode(
                text="label:N"
            )
            for style in ("halo", "now")
        ),
        title=title,
        usermeta={
            "row": "laws",
            "tables": ["cells"],
            "pick": "cell",
            "legend": [
                {"key": method, "title": f"{LETTERS[method]}  {name}", "color": style.color,
                 "shape": style.shape}
                for (method, name), style in zip(methods, looks, strict=True)
            ],
        },
        config=theme("light"),
    )  # fmt: skip
