"""Charts: tidy frames in, Vega-Lite out, each chart one Altair expression.

A chart names its tables and holds no rows: it is built and checked once (Altair needs 50 ms for
each), and a change of data moves only columns. All charts share one parameter, `step`: whoever
shows several of them sets it on all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

Domain = tuple[float, float]
DOMAIN: Domain = (1e-3, 2.0)
"""The error axis: below it a curve leaves the frame, so that 1e-15 does not squash the rest."""

CURVES = 33
"""About as many curves are drawn in a fan at most; the current step always is."""


class Style(NamedTuple):
    """How a method looks everywhere; never told apart by colour alone."""

    color: str  # contrast of at least 3 with the paper of both themes
    dash: tuple[int, ...]
    shape: str  # an SVG path in the square from -1 to 1


STYLES = {
    "transformer": Style("#d55e00", (1, 0), "M-.9,0A.9,.9,0,1,1,.9,0A.9,.9,0,1,1,-.9,0Z"),
    "preconditioned_richardson": Style("#0072b2", (7, 4), "M-.8,-.8H.8V.8H-.8Z"),
    "function_space_richardson": Style("#7b61c9", (12, 3, 2, 3), "M-1,-.4H1V.4H-1Z"),
    "gradient_descent": Style("#009e73", (2, 2), "M0,-1L1,.8H-1Z"),
    "nesterov": Style("#c0689a", (9, 3, 3, 3), "M0,-1.1L1.1,0L0,1.1L-1.1,0Z"),
    "heavy_ball": Style("#7a8500", (4, 4), "M0,1L1,-.8H-1Z"),
    "chebyshev": Style("#2e93cc", (10, 5), "M-1,0L.8,-1V1Z"),
    "conjugate_gradient": Style(
        "#b8860b", (4, 2), "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z"
    ),
    "preconditioned_conjugate_gradient": Style("#7f7f7f", (1, 3), "M1,0L-.8,-1V1Z"),
}

# Viridis without the end that would vanish into the paper; the last step stands out most.
RAMP = {
    "light": ["#9fda3a", "#4ac16d", "#1fa187", "#277f8e", "#365c8d", "#46327e", "#440154"],
    "dark": ["#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"],
}
INK = {"light": "#1a2027", "dark": "#eef2f6"}
PAPER = {"light": "#ffffff", "dark": "#12161c"}


def theme(mode: str) -> dict[str, Any]:
    """Return the Vega-Lite config of the light or the dark theme."""
    ink, paper = INK[mode], PAPER[mode]
    text = {"labelColor": ink, "titleColor": ink, "titleFontWeight": "normal"}
    return {
        "background": paper,
        "axis": {**text, "domain": False, "ticks": False, "gridColor": ink, "gridOpacity": 0.13},
        "legend": {**text, "labelLimit": 260},
        "range": {"ramp": RAMP[mode]},
        "style": {
            "now": {"color": ink},
            "note": {"color": ink, "fontSize": 11},
            "halo": {"color": paper, "stroke": paper, "strokeWidth": 4, "fontSize": 11},
        },
        "title": {"color": ink, "fontSize": 13, "anchor": "start", "frame": "bounds"},
        "view": {"stroke": None},
    }


@dataclass(frozen=True, eq=False)
class Figure:
    """A Vega-Lite specification without rows, the tables it names, and the figure in words."""

    spec: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    alt: str

    def chart(self) -> alt.LayerChart:
        """Return the chart with its rows in it, for a notebook or a file."""
        rows = {name: list(_records(table)) for name, table in self.tables.items()}
        spec = {**self.spec, "datasets": rows, "description": self.alt}
        return alt.LayerChart.from_dict(spec, validate=False)


def columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the columns as JSON holds them: six digits, None for what is not finite."""
    return {str(name): [_plain(value) for value in table[name].tolist()] for name in table}


def _records(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    data = columns(table)
    return (dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True))


def _plain(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def fan(frame: pd.DataFrame, *, domain: Domain = DOMAIN) -> Figure:
    """Draw one method's fan: error against context length, one curve per step.

    `frame` holds one method's rows: title, step, n, error.
    """
    title, last = str(frame["title"].iloc[0]), int(frame["step"].max())
    edges = pd.DataFrame(
        [(edge, label.replace(" ", " to ", 1)) for edge, label in _exits(frame, domain)],
        columns=["shown", "label"],
    )
    return Figure(
        _fan(title, domain, step=last, every=max(1, math.ceil(last / (CURVES - 1))), leftmost=True),
        {"curves": frame[["step", "n", "error"]], "edges": edges},
        f"{title}: mean relative error against context length n, one curve per step. "
        f"At n = {frame['n'].max()}: {_sampled(frame[frame['n'] == frame['n'].max()])}.",
    )


def steps(frame: pd.DataFrame, *, domain: Domain = DOMAIN, title: str = "Error by step") -> Figure:
    """Draw error against step, one line per method: method, title, step, error."""
    methods = {str(m): rows for m, rows in frame.groupby("method", sort=False)}
    titles = {m: str(rows["title"].iloc[0]) for m, rows in methods.items()}
    edges = [edge for m, rows in methods.items() for edge in _leaves(m, titles[m], rows, domain)]
    return Figure(
        _steps(
            title,
            domain,
            tuple(titles.items()),
            step=int(frame["step"].max()),
            hidden=[],
            leftmost=True,
        ),
        {
            "curves": frame[["method", "title", "step", "error"]],
            "edges": _stacked(
                pd.DataFrame(edges, columns=["method", "title", "step", "shown", "label"])
            ),
        },
        f"{title}. " + "; ".join(f"{titles[m]}: {_sampled(r)}" for m, r in methods.items()) + ".",
    )


def prediction(
    curve: pd.DataFrame,
    exact: pd.DataFrame,
    data: pd.DataFrame,
    *,
    x_title: str,
    y_title: str,
    title: str = "Prediction over the data",
    series: str = "Transformer",
) -> Figure:
    """Draw predictions over the data of one input dimension, in the data's own units.

    `curve` holds step, x, prediction; `exact` x, prediction (exact KRR); `data` x, y.
    """
    seen = pd.concat([exact["prediction"], data["y"]])
    margin = 0.08 * (float(seen.max() - seen.min()) or 1.0)
    gap = curve.merge(exact, on="x", suffixes=("", "_exact"))
    gap["error"] = (gap["prediction"] - gap["prediction_exact"]).abs()
    return Figure(
        _prediction(
            title,
            x_title,
            y_title,
            series,
            step=int(curve["step"].max()),
            hidden=[],
            low=float(seen.min()) - margin,
            high=float(seen.max()) + margin,
        ),
        {"curves": curve, "exact": exact, "data": data},
        f"{title}: {len(data)} context points, exact KRR, and the {series.lower()} by step. Largest "
        f"distance from exact KRR: {_sampled(gap.groupby('step', as_index=False)['error'].max())}.",
    )


def _number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "beyond all numbers"


def _sampled(frame: pd.DataFrame) -> str:
    """Say the error at the first, the middle and the last step."""
    rows = frame.sort_values("step")
    rows = rows.iloc[sorted({0, len(rows) // 2, len(rows) - 1})] if len(rows) else rows
    return ", ".join(
        f"{_number(e)} at step {t}" for t, e in zip(rows.step, rows.error, strict=True)
    )


def _exits(frame: pd.DataFrame, domain: Domain) -> Iterator[tuple[float, str]]:
    """Say how far the curves go beyond the frame: at which edge, and what to write there."""
    error = frame["error"].fillna(math.inf)
    if error.min() < domain[0]:
        yield domain[0], f"↓ {_power(error.min())}"
    if error.max() > domain[1]:
        yield domain[1], f"↑ {_power(error.max())}" if math.isfinite(error.max()) else "↑ overflows"


def _power(value: float) -> str:
    return f"{value:.0e}".replace("e+", "e").replace("e-0", "e-").replace("e0", "e")


def _leaves(
    method: str, title: str, frame: pd.DataFrame, domain: Domain
) -> Iterator[tuple[str, str, int, float, str]]:
    """Say at which step a method's line first goes beyond the frame, and how far it gets there."""
    error = frame["error"].fillna(math.inf)
    for edge, label in _exits(frame, domain):
        beyond = error < edge if edge == domain[0] else error > edge
        yield method, title, int(frame.loc[beyond, "step"].min()), edge, f"{title} {label}"


def _stacked(edges: pd.DataFrame) -> pd.DataFrame:
    """Give labels at the same edge rows of their own, for lines often leave close together."""
    edges = edges.sort_values("step", kind="stable")
    return edges.assign(row=edges.groupby("shown").cumcount())


def _once(draw: Callable[..., alt.LayerChart]) -> Callable[..., dict[str, Any]]:
    """Build a chart once for each set of positional arguments; named ones become parameters."""
    built = cache(lambda *arguments: draw(*arguments).to_dict())

    def spec(*arguments: Any, **params: Any) -> dict[str, Any]:
        values = [{"name": name, "value": value} for name, value in params.items()]
        return {**built(*arguments), "params": values}

    return spec


def _table(name: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name=name))


def _error_axis(domain: Domain, field: str = "shown") -> alt.Y:
    """Return the logarithmic error axis; its title lies flat above it, on a row's first chart."""
    low, high = (math.log10(edge) for edge in domain)
    decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    ticks = [float(f"1e{d}") for d in decades if d % max(1, math.ceil(len(decades) / 6)) == 0]
    axis = alt.Axis(
        values=ticks, format="~g", titleAngle=0, titleAlign="left", titleBaseline="bottom",
        titleX=-32, titleY=-7, titleOpacity=alt.ExprRef("leftmost ? 1 : 0"),
    )  # fmt: skip
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    return alt.Y(f"{field}:Q", title="mean relative error to KRR", axis=axis, scale=scale)


# An error that is no number has overflowed; zero has no logarithm.
SHOWN = "isValid(datum.error) ? clamp(datum.error, 1e-300, 1e300) : 1e300"
VISIBLE = "indexof(hidden, datum.method) < 0"
NOW = "datum.step == step"
POWER = "datum.shown >= 1e300 ? 'overflow' : replace(format(datum.shown, '.0e'), '+', '')"


def _written(layer: alt.Chart, ink: str, domain: Domain, **mark: Any) -> list[alt.Chart]:
    """Write labels just inside the frame, with a halo to keep them off the curves."""
    top, row = f"datum.shown > {domain[1] / 4}", "14 * (datum.row || 0)"
    place = {
        "baseline": alt.ExprRef(f"{top} ? 'top' : 'bottom'"),
        "dy": alt.ExprRef(f"{top} ? 4 + {row} : -4 - {row}"),
    }
    return [
        layer.mark_text(style="halo", **place, **mark),
        layer.mark_text(style=ink, fontSize=11, **place, **mark),
    ]


@_once
def _fan(title: str, domain: Domain) -> alt.LayerChart:
    low, high = domain
    x = alt.X("n:Q", title="context length n", scale=alt.Scale(zero=False, nice=False))
    curves = _table("curves").transform_calculate(shown=SHOWN).encode(x, _error_axis(domain))
    now = curves.transform_filter(NOW)
    beyond = f"(datum.shown < {low} ? '  ↓ ' : datum.shown > {high} ? '  ↑ ' : '')"
    end = (
        now.transform_joinaggregate(last="max(n)")
        .transform_filter("datum.n == datum.last")
        .transform_calculate(
            label=f"'t = ' + step + {beyond} + ({beyond} ? {POWER} : '')",
            shown=f"clamp(datum.shown, {low}, {high})",
        )
        .encode(text="label:N")
    )
    edge = _table("edges").encode(alt.XValue(5), _error_axis(domain), text="label:N")
    tip = [alt.Tooltip("step:Q", title="step t"), "n:Q", alt.Tooltip("error:Q", format=".3e")]
    return alt.layer(
        curves.transform_filter("datum.step % every == 0")
        .mark_line(clip=True, strokeWidth=1.2)
        .encode(detail="step:N", color=alt.Color("step:Q", title="step t")),
        now.mark_line(clip=True, style="now", strokeWidth=3),
        now.mark_point(clip=True, style="now", filled=True, size=22, opacity=1).encode(tooltip=tip),
        *_written(edge, "note", domain, align="left"),
        *_written(end, "now", domain, align="right", fontWeight="bold"),
        title=title,
        usermeta={"row": "facets", "tables": ["curves"], "hover": {"x": "n", "y": "error"}},
        config=theme("light"),
    )


@_once
def _steps(title: str, domain: Domain, titles: tuple[tuple[str, str], ...]) -> alt.LayerChart:
    names, styles = [name for _, name in titles], [STYLES[method] for method, _ in titles]
    shapes = alt.Scale(domain=names, range=[style.shape for style in styles])
    dashes = alt.Scale(domain=names, range=[list(style.dash) for style in styles])
    colors = alt.Scale(domain=names, range=[style.color for style in styles])
    x = alt.X("step:Q", title="step t", scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=1))
    color = alt.Color("title:N", title=None, scale=colors)
    curves = (
        _table("curves")
        .transform_filter(VISIBLE)
        .transform_calculate(shown=SHOWN)
        .encode(x, _error_axis(domain), color)
    )
    points = curves.encode(
        shape=alt.Shape("title:N", title=None, scale=shapes),
        tooltip=[
            alt.Tooltip("title:N", title="method"),
            alt.Tooltip("step:Q", title="step t"),
            alt.Tooltip("error:Q", format=".3e"),
        ],
    )
    edge = (
        _table("edges")
        .transform_filter(VISIBLE)
        .encode(x, _error_axis(domain), color, text="label:N")
    )
    late = "datum.step > 0.6 * domain('x')[1]"
    return alt.layer(
        _table("curves")
        .mark_rule(style="now", opacity=0.6)
        .encode(x=alt.XDatum(alt.ExprRef("step"), type="quantitative")),
        # The constructed transformer retraces its solver: drawn wide, it shows beneath the dashes.
        curves.mark_line(clip=True).encode(
            strokeDash=alt.StrokeDash("title:N", scale=dashes, legend=None),
            strokeWidth=alt.condition(
                "datum.method == 'transformer'", alt.value(4.5), alt.value(2)
            ),
        ),
        points.mark_point(clip=True, filled=True, size=90, opacity=0),
        points.transform_filter(NOW).mark_point(clip=True, filled=True, size=90, opacity=1),
        *_written(edge, "method", domain, align=alt.ExprRef(f"{late} ? 'right' : 'left'"), dx=5),
        title=title,
        usermeta={
            "row": "wide",
            "tables": ["curves"],
            "hover": {"x": "step"},
            "value": "error",
            "legend": [
                {"key": method, "title": name, **STYLES[method]._asdict(), "width": width}
                for method, name in titles
                for width in [4.5 if method == "transformer" else 2]
            ],
        },
        config=theme("light"),
    )


@_once
def _prediction(title: str, x_title: str, y_title: str, series: str) -> alt.LayerChart:
    transformer, krr = STYLES["transformer"], STYLES["preconditioned_richardson"]
    keys = {
        "data": {"title": "context points", "color": "#7f7f7f", "shape": transformer.shape},
        "exact": {"title": "exact KRR", "color": krr.color, "dash": krr.dash, "width": 2.5},
        "now": {"title": f"{series} at step t", "color": transformer.color, "width": 3},
        "past": {"title": "earlier steps", "color": transformer.color, "width": 1},
    }
    colors = alt.Scale(
        domain=[look["title"] for look in keys.values()],
        range=[look["color"] for look in keys.values()],
    )

    def layer(table: str, key: str, y: str) -> alt.Chart:
        return (
            _table(table)
            .transform_calculate(series=json.dumps(keys[key]["title"]))
            .transform_filter(f"indexof(hidden, '{key}') < 0")
            .encode(
                alt.X("x:Q", title=x_title, scale=alt.Scale(zero=False, nice=False)),
                alt.Y(
                    f"{y}:Q",
                    axis=alt.Axis(title=y_title, titleAngle=0, titleAlign="left",
                                  titleBaseline="bottom", titleX=-32, titleY=-7, tickCount=6),
                    scale=alt.Scale(
                        domain=[alt.ExprRef("low"), alt.ExprRef("high")], nice=False, zero=False
                    ),
                ),
                color=alt.Color("series:N", title=None, scale=colors),
            )
        )  # fmt: skip

    point = {"tooltip": ["x:Q", "y:Q"]}
    return alt.layer(
        layer("curves", "past", "prediction")
        .transform_filter("datum.step < step")
        .mark_line(clip=True, strokeWidth=1, opacity=0.22)
        .encode(detail="step:N"),
        layer("data", "data", "y").mark_point(filled=True, size=28, opacity=0.8).encode(**point),
        layer("curves", "now", "prediction")
        .transform_filter(NOW)
        .mark_line(clip=True, strokeWidth=3),
        layer("exact", "exact", "prediction").mark_line(strokeWidth=2.5, strokeDash=list(krr.dash)),
        title=title,
        usermeta={
            "row": "wide",
            "tables": ["curves", "exact", "data"],
            "legend": [{"key": key, **look} for key, look in keys.items()],
        },
        config=theme("light"),
    )
