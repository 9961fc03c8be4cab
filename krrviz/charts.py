"""Charts: tidy frames in, Vega-Lite out, each chart one Altair expression.

A chart names its tables and holds no rows: it is built and checked once (Altair needs 50 ms for
each), and a change of data moves only columns. All charts share one parameter, `step`: whoever
shows several of them sets it on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

import altair as alt
import pandas as pd

Layers = alt.LayerChart | alt.FacetChart  # what alt.layer may return
Domain = tuple[float, float]
DOMAIN: Domain = (1e-3, 2.0)
"""The error axis: below it a curve leaves the frame, so that 1e-15 does not squash the rest."""

# What the curves of a fan are, in a word and a symbol.
STEP, LAYER = ("step", "t"), ("layer", "ℓ")

CURVES = 33
"""About as many curves are drawn in a fan at most; the current step always is."""


KEYS = ["method", "title"]
PAST = 16  # earlier curves left standing behind a prediction
OVERFLOW = 1e300  # what frames write for an error beyond all numbers


NARROW, WIDE = 2.0, 4.5  # the transformer retraces its solver: wide, it shows beneath the dashes


class Style(NamedTuple):
    """How a method looks everywhere; never told apart by colour alone."""

    color: str  # contrast of at least 3 with the paper of both themes
    dash: tuple[int, ...]
    shape: str  # an SVG path in the square from -1 to 1
    width: float = NARROW


STYLES = {
    "transformer": Style("#d55e00", (1, 0), "M-.9,0A.9,.9,0,1,1,.9,0A.9,.9,0,1,1,-.9,0Z", WIDE),
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
    "broken": Style(
        "#d1347b", (3, 3), "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z"
    ),
}

# How a trained model's answers are read, its controls, and exact KRR beside them.
READ_STYLES = {
    "lens": STYLES["transformer"]._replace(width=3.0),
    "labels": STYLES["preconditioned_richardson"],
    "krr": STYLES["gradient_descent"],
    "untrained labels": STYLES["nesterov"],
    "untrained krr": STYLES["heavy_ball"],
    "shuffled krr": STYLES["preconditioned_conjugate_gradient"],
    "exact": STYLES["conjugate_gradient"],
}
LOOKS = STYLES | READ_STYLES

INK = {"light": "#1a2027", "dark": "#eef2f6"}
PAPER = {"light": "#ffffff", "dark": "#12161c"}
# Viridis without the quarter that would vanish into the paper; the last step stands out most.
RAMP = {
    "light": ["#5ec962", "#28ae80", "#21918c", "#2c728e", "#3b528b", "#472d7b", "#440154"],
    "dark": ["#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"],
}


def theme(mode: str, size: float = 1.0) -> dict[str, Any]:
    """Return the Vega-Lite config of the light or the dark theme, its letters ``size`` as large."""
    ink, paper = INK[mode], PAPER[mode]
    letters = {"labelFontSize": 10 * size, "titleFontSize": 11 * size}
    text = {"labelColor": ink, "titleColor": ink, "titleFontWeight": "normal", **letters}
    flat = {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom"}
    return {
        "background": paper,
        "axis": {**text, "domain": False, "ticks": False, "gridColor": ink, "gridOpacity": 0.13},
        "axisY": {
            **flat,
            "titleX": -32,
            "titleY": -7 * size,
        },  # above the axis, where it costs no width
        "legend": {**text, "labelLimit": 260, "symbolStrokeWidth": 0, "symbolOpacity": 1},
        "range": {"ramp": RAMP[mode]},
        "style": {
            "now": {"color": ink, "fontSize": 11 * size},
            "note": {"color": ink, "fontSize": 11 * size},
            "halo": {"color": paper, "stroke": paper, "strokeWidth": 4, "fontSize": 11 * size},
        },
        "title": {
            "color": ink,
            "fontSize": 12.5 * size,
            "anchor": "start",
            "frame": "bounds",
            "limit": {"expr": "width + 36"},
        },
        "view": {"stroke": None},
    }


@dataclass(frozen=True, eq=False)
class Figure:
    """A Vega-Lite specification without rows, the tables it names, and the figure in words."""

    spec: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    alt: str

    def chart(self) -> alt.LayerChart:
        """Return the chart with its rows in it, of the browser's saved size, for a file."""
        data = {name: columns(table) for name, table in self.tables.items()}
        rows = {
            name: [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
            for name, table in data.items()
        }
        size = {"width": 640, "height": 400}
        spec = {**size, **self.spec, "datasets": rows, "description": self.alt}
        return alt.LayerChart.from_dict(spec, validate=False)

    def rows(self) -> pd.DataFrame:
        """The rows as the browser's CSV file holds them: of several tables a column names which.

        A number that is not finite is missing.
        """
        named, parts = self.spec["usermeta"]["tables"], []
        for name in named:
            part = self.tables[name].replace([math.inf, -math.inf], math.nan)
            if len(named) > 1:
                part.insert(0, "table", name)
                # Whole numbers stay so beside a table that has no such column.
                part = part.astype(dict.fromkeys(part.select_dtypes("integer"), "Int64"))
            parts.append(part)
        return pd.concat(parts, ignore_index=True)


def columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the columns as JSON holds them: every digit, None for what is not finite."""

    def plain(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {str(name): [plain(value) for value in table[name].tolist()] for name in table}


def fan(
    frame: pd.DataFrame,
    *,
    against: str = "KRR",
    domain: Domain = DOMAIN,
    each: tuple[str, str] = STEP,
) -> Figure:
    """Draw one method's fan: error against context length, one curve per step.

    `frame` holds one method's rows: method, title, step, n, error; `against` names the reference,
    `each` says in a word and a symbol what the steps are.
    """
    title, last, n = _column(frame, "title").iloc[0], _last(frame), int(_column(frame, "n").max())
    return Figure(
        _fan(
            title, domain, against, each,
            step=last, every=max(1, math.ceil(last / (CURVES - 1))), leftmost=True,
        ),
        {"curves": frame.filter(["step", "n", "error"]), "edges": _exits(frame, domain)},
        f"{title}: relative error to {against} against context length n, one curve per "
        f"{each[0]}. At n = {n}: {_sampled(frame.loc[frame['n'] == n], each=each[0])}.",
    )  # fmt: skip


def steps(
    frame: pd.DataFrame,
    *,
    against: str = "KRR",
    domain: Domain = DOMAIN,
    each: tuple[str, str] = STEP,
) -> Figure:
    """Draw error against step, one line per method: method, title, step, error."""
    methods = dict(_by_method(frame))
    return Figure(
        _steps(domain, against, tuple(methods), each, step=_last(frame), hidden=[]),
        {"curves": frame.filter([*KEYS, "step", "error"]), "edges": _exits(frame, domain)},
        f"Error by {each[0]}: relative error to {against}. "
        + "; ".join(
            f"{name}: {_sampled(rows, each=each[0])}" for (_, name), rows in methods.items()
        )
        + ".",
    )


def prediction(
    curve: pd.DataFrame,
    exact: pd.DataFrame,
    data: pd.DataFrame,
    *,
    series: str,
    x_title: str,
    y_title: str,
) -> Figure:
    """Draw a method's predictions over data of one input, in the data's own units.

    `curve` holds step, x, prediction; `exact` x, prediction (exact KRR); `data` x, y.
    """
    seen = [*_column(exact, "prediction"), *_column(data, "y")]
    low, high = float(min(seen)), float(max(seen))
    margin = 0.08 * (high - low) or 1.0
    gap = curve.merge(exact, on="x", suffixes=("", "_exact"))
    gap["error"] = (gap["prediction"] - gap["prediction_exact"]).abs()
    stepwise = _last(curve) > 0
    return Figure(
        _prediction(
            f"{series} at step t" if stepwise else series, x_title, y_title, stepwise,
            step=_last(curve), every=max(1, _last(curve) // PAST), hidden=[],
            low=low - margin, high=high + margin,
        ),
        {"curves": curve, "exact": exact, "data": data},
        f"Prediction over the data: {len(data)} context points, exact KRR, and {series} at "
        "each step. Largest distance from exact KRR: "
        f"{_sampled(gap.groupby('step', as_index=False)['error'].max())}.",
    )  # fmt: skip


def states(rows: pd.DataFrame, *, symbol: str, token: str) -> Figure:
    """Draw one token's state by step, in the channel and in the solver.

    `rows` holds method, title, step, state; `symbol` names the state: α, nα or g.
    """
    trusted = rows.loc[rows["method"] != "transformer", "state"]
    seen = [0.0, *(trusted if len(trusted) else rows["state"].clip(-1, 1))]
    seen = [value for value in seen if math.isfinite(value)]
    margin = 0.25 * (max(seen) - min(seen)) or 1.0
    methods = dict(_by_method(rows))
    said = "; ".join(f"{title}: {_sampled(part, 'state')}" for (_, title), part in methods.items())
    return Figure(
        _states(
            tuple(methods), symbol, token,
            step=_last(rows), hidden=[], low=min(seen) - margin, high=max(seen) + margin,
        ),
        {"curves": rows},
        f"{symbol} in the channel and in the solver, of {token} by step. {said}.",
    )  # fmt: skip


def squares(
    marks: pd.DataFrame,
    curve: pd.DataFrame,
    *,
    product: tuple[str, str],
    scales: tuple[float, float],
) -> Figure:
    """Draw the square that hinges make, with a product's two operands on it by step.

    `marks` holds step, sign (s₊ or s₋), s, square; `curve` holds s, made, exact. `product` names
    the factors u and v; the operands are s± = gu ± v/g', g and g' the `scales`.
    """
    gap = (curve["made"] - curve["exact"]).abs().max()
    first, second = (f"{scale:.3g}" for scale in scales)
    share = "" if scales[0] == scales[1] else f"{scales[1] / scales[0]:.3g} "
    u, v = product
    spec = _squares(u, v, first, second, share, step=_last(marks) if len(marks) else 0, hidden=[])
    return Figure(
        spec,
        {"marks": marks, "curve": curve},
        f"{spec['title']}. Largest distance from s² drawn: {gap:.2g}.",
    )


def _column(frame: pd.DataFrame, name: str) -> Any:
    return frame[name]  # pandas does not say whether that is a column or a table


def _last(frame: pd.DataFrame) -> int:
    return int(_column(frame, "step").max())


def _by_method(frame: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    for (method, title), rows in cast("Any", frame.groupby(KEYS, sort=False)):
        yield (str(method), str(title)), rows


def _sampled(frame: Any, value: str = "error", each: str = "step") -> str:
    """Say a value at the first, the middle and the last step."""
    steps, values = frame["step"].to_numpy(), frame[value].to_numpy()
    order = steps.argsort(kind="stable")
    rows: dict[Any, float] = {}
    for i in order[[0, len(order) // 2, -1]]:
        rows.setdefault(steps[i], values[i])
    return ", ".join(
        f"{f'{e:.2g}' if math.isfinite(e) else 'overflow'} at {each} {t}" for t, e in rows.items()
    )


def _exits(frame: pd.DataFrame, domain: Domain) -> pd.DataFrame:
    """Say how far each method's curves go beyond the frame, for labels at its edges."""
    found = []
    for keys, rows in _by_method(frame):
        # Whole columns as arrays: the page draws while a slider moves, and pandas takes its time.
        error, steps = rows["error"].fillna(math.inf).to_numpy(), rows["step"].to_numpy()
        for edge, arrow, far in ((domain[0], "↓", error.min()), (domain[1], "↑", error.max())):
            beyond = steps[error < edge if arrow == "↓" else error > edge]
            power = (
                f"to {far:.0e}".replace("e+", "e").replace("e-0", "e-")
                if far < OVERFLOW
                else "overflows"
            )
            if len(beyond):
                found.append((*keys, int(beyond.min()), edge, f"{arrow} {power}"))
    found.sort(key=lambda line: line[2])
    # Lines often leave close together: each edge's labels are numbered.
    shown = [edge for *_, edge, _ in found]
    rows = [(*line, shown[:i].count(line[3])) for i, line in enumerate(found)]
    return pd.DataFrame(rows, columns=[*KEYS, "step", "shown", "label", "row"])


def once(draw: Callable[..., Layers]) -> Callable[..., dict[str, Any]]:
    """Build a chart once for each set of positional arguments; named ones become parameters."""
    built = lru_cache(64)(lambda *arguments: draw(*arguments).to_dict())

    def spec(*arguments: Any, **params: Any) -> dict[str, Any]:
        values = [{"name": name, "value": value} for name, value in params.items()]
        return {**built(*arguments), "params": values}

    return spec


NOW = "datum.step == step"
VISIBLE = "indexof(hidden, datum.method) < 0"
# An error that is no number has overflowed; zero has no logarithm.
SHOWN = f"isValid(datum.error) ? clamp(datum.error, 1e-300, {OVERFLOW}) : {OVERFLOW}"


def table(name: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name=name))


def _x(field: str, title: str, **axis: Any) -> alt.X:
    scale = alt.Scale(nice=False, zero=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(**axis))


def _step() -> alt.X:
    return _x("step", "step t", tickMinStep=1)


def _error(domain: Domain, against: str, opacity: str = "1") -> alt.Y:
    low, high = (math.log10(edge) for edge in domain)
    decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    ticks = [float(f"1e{d}") for d in decades if d % max(1, math.ceil(len(decades) / 6)) == 0]
    label = f"format(datum.value, datum.value < {1e-3:g} ? '.0e' : '~g')"
    axis = alt.Axis(values=ticks, labelExpr=label, titleOpacity=alt.ExprRef(opacity))
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    return alt.Y("shown:Q", title=f"relative error to {against}", axis=axis, scale=scale)


def _written(layer: alt.Chart, domain: Domain, ink: str, **mark: Any) -> list[alt.Chart]:
    """Write labels just inside the frame, with a halo that keeps them off the curves."""
    low, high = domain
    top, room = f"datum.shown > {high * (low / high) ** 0.12}", "4 + 14 * (datum.row || 0)"
    mark["baseline"] = alt.ExprRef(f"{top} ? 'top' : 'bottom'")
    mark["dy"] = alt.ExprRef(f"({top} ? 1 : -1) * ({room})")
    return [layer.mark_text(style=style, **mark) for style in ("halo", ink)]


@once
def _fan(title: str, domain: Domain, against: str, each: tuple[str, str]) -> Layers:
    word, symbol = each
    low, high = domain
    x = _x("n", "context length n", tickMinStep=1)
    y = _error(domain, against, "leftmost ? 1 : 0")
    curves = table("curves").transform_calculate(shown=SHOWN).encode(x, y)
    now = curves.transform_filter(NOW)
    arrow = f"(datum.shown < {low} ? '  ↓ ' : datum.shown > {high} ? '  ↑ ' : '')"
    power = f"datum.shown < {OVERFLOW} ? replace(format(datum.shown, '.0e'), '+', '') : 'overflow'"
    end = (
        now.transform_joinaggregate(last="max(n)")
        .transform_filter("datum.n == datum.last")
        .transform_calculate(
            label=f"'{symbol} = ' + step + {arrow} + ({arrow} ? {power} : '')",
            shown=f"clamp(datum.shown, {low}, {high})",
        )
        .encode(text="label:N")
    )
    edges = table("edges").encode(alt.XValue(5), y, text="label:N")
    tip = [
        alt.Tooltip("step:Q", title=f"{word} {symbol}"),
        "n:Q",
        alt.Tooltip("error:Q", format=".3e"),
    ]
    return alt.layer(
        curves.transform_filter("datum.step % every == 0")
        .mark_line(clip=True, strokeWidth=1.2)
        .encode(detail="step:N", color=alt.Color("step:Q", title=f"{word} {symbol}")),
        now.mark_line(clip=True, style="now", strokeWidth=3),
        now.mark_point(clip=True, style="now", filled=True, size=22, opacity=1).encode(tooltip=tip),
        # A narrow facet has room for the current step's label alone.
        *_written(edges, domain, "note", align="left", opacity=alt.ExprRef("width > 160 ? 1 : 0")),
        *_written(end, domain, "now", align="right", fontWeight="bold"),
        title=title,
        usermeta={"row": "facets", "tables": ["curves"], "hover": {"x": "n", "y": "error"}},
        config=theme("light"),
    )


@once
def _steps(
    domain: Domain, against: str, methods: tuple[tuple[str, str], ...], each: tuple[str, str]
) -> Layers:
    word, symbol = each
    looks = [{"key": key, "title": name, **LOOKS[key]._asdict()} for key, name in methods]

    def scale(look: str) -> alt.Scale:
        return alt.Scale(domain=[x["title"] for x in looks], range=[x[look] for x in looks])

    x = _x("step", f"{word} {symbol}", tickMinStep=1)
    y = _error(domain, against)
    curves = (
        table("curves")
        .transform_filter(VISIBLE)
        .transform_calculate(shown=SHOWN)
        .encode(x, y, alt.Color("title:N", title=None, scale=scale("color")))
    )
    points = curves.encode(
        alt.Shape("title:N", title=None, scale=scale("shape")),
        tooltip=[
            alt.Tooltip("title:N", title="method"),
            alt.Tooltip("step:Q", title=f"{word} {symbol}"),
            alt.Tooltip("error:Q", format=".3e"),
        ],
    )
    edges = (
        table("edges")
        .transform_filter(VISIBLE)
        .transform_calculate(label="datum.title + ' ' + datum.label")
        .encode(y, text="label:N")
    )
    inside = alt.ExprRef("min(scale('x', datum.step) + 5, width - 5.6 * length(datum.label))")
    rule = table("curves").transform_filter(NOW).transform_aggregate(groupby=["step"])
    return alt.layer(
        rule.mark_rule(style="now", opacity=0.7).encode(x),
        curves.mark_line(clip=True).encode(
            alt.StrokeDash("title:N", title=None, scale=scale("dash")),
            strokeWidth=alt.condition(
                "datum.method == 'transformer'", alt.value(WIDE), alt.value(NARROW)
            ),
        ),
        points.mark_point(clip=True, filled=True, size=90, opacity=0),  # for the tooltips
        points.transform_filter(NOW).mark_point(clip=True, filled=True, size=90, opacity=1),
        *_written(edges, domain, "note", align="left", x=inside),
        title=f"Error by {word}",
        usermeta={
            "row": "wide",
            "tables": ["curves"],
            "hover": {"x": "step"},
            "legend": looks,
            "value": "error",
        },
        config=theme("light"),
    )


@once
def _prediction(series: str, x_title: str, y_title: str, stepwise: bool) -> Layers:
    point, krr = STYLES["transformer"], STYLES["preconditioned_richardson"]
    looks = {
        "data": {"title": "context points", "color": "#7f7f7f", "shape": point.shape},
        "exact": {"title": "exact KRR", "color": krr.color, "dash": krr.dash, "width": 2.5},
        "now": {"title": series, "color": point.color, "width": 3},
        **(
            {"past": {"title": "earlier steps", "color": "#e0a070", "width": 1}} if stepwise else {}
        ),
    }
    scale = alt.Scale(domain=[alt.ExprRef("low"), alt.ExprRef("high")], nice=False, zero=False)

    def layer(rows: str, key: str, y: str) -> alt.Chart:
        return (
            table(rows)
            .transform_filter(f"indexof(hidden, '{key}') < 0")
            .encode(
                _x("x", x_title),
                alt.Y(f"{y}:Q", title=y_title, scale=scale, axis=alt.Axis(tickCount=6)),
                color=alt.value(looks[key]["color"]),
            )
        )

    # The points alone name their series: that is enough for a legend of all.
    points = layer("data", "data", "y").transform_calculate(series="'context points'")
    names = alt.Scale(
        domain=[look["title"] for look in looks.values()],
        range=[look["color"] for look in looks.values()],
    )
    past = [
        layer("curves", "past", "prediction")
        .transform_filter("datum.step < step && datum.step % every == 0")
        .mark_line(clip=True, strokeWidth=1, opacity=0.5)
        .encode(detail="step:N")
        for _ in range(stepwise)
    ]
    return alt.layer(
        *past,
        points.mark_point(filled=True, size=28, opacity=0.8).encode(
            alt.Color("series:N", title=None, scale=names), tooltip=["x:Q", "y:Q"]
        ),
        layer("curves", "now", "prediction")
        .transform_filter(NOW)
        .mark_line(clip=True, strokeWidth=3),
        layer("exact", "exact", "prediction").mark_line(strokeWidth=2.5, strokeDash=list(krr.dash)),
        title="Prediction over the data",
        usermeta={
            "row": "wide",
            "tables": ["curves", "exact", "data"],
            "legend": [{"key": key, **look} for key, look in looks.items()],
        },
        config=theme("light"),
    )


@once
def _states(methods: tuple[tuple[str, str], ...], symbol: str, token: str) -> Layers:
    looks = [{"key": key, "title": name, **STYLES[key]._asdict()} for key, name in methods]

    def scale(look: str) -> alt.Scale:
        return alt.Scale(domain=[x["title"] for x in looks], range=[x[look] for x in looks])

    domain = alt.Scale(domain=[alt.ExprRef("low"), alt.ExprRef("high")], nice=False, zero=False)
    curves = (
        table("curves")
        .transform_filter(VISIBLE)
        .encode(
            _step(),
            alt.Y(
                "state:Q", title=f"{symbol} of {token}", scale=domain, axis=alt.Axis(tickCount=5)
            ),
            alt.Color("title:N", title=None, scale=scale("color")),
        )
    )
    points = curves.encode(
        alt.Shape("title:N", title=None, scale=scale("shape")),
        tooltip=[
            alt.Tooltip("title:N", title="what"),
            alt.Tooltip("step:Q", title="step t"),
            alt.Tooltip("state:Q", format=".6g"),
        ],
    )
    rule = table("curves").transform_filter(NOW).transform_aggregate(groupby=["step"])
    return alt.layer(
        rule.mark_rule(style="now", opacity=0.7).encode(_step()),
        curves.mark_line(clip=True).encode(
            alt.StrokeDash("title:N", title=None, scale=scale("dash")),
            strokeWidth=alt.condition(
                "datum.method == 'transformer'", alt.value(WIDE), alt.value(NARROW)
            ),
        ),
        points.mark_point(clip=True, filled=True, size=90, opacity=0),  # for the tooltips
        points.transform_filter(NOW).mark_point(clip=True, filled=True, size=90, opacity=1),
        title=f"{symbol} in the channel and in the solver",
        usermeta={
            "row": "wide",
            "tables": ["curves"],
            "hover": {"x": "step"},
            "legend": looks,
            "value": "state",
        },
        config=theme("light"),
    )


@once
def _squares(u: str, v: str, first: str, second: str, share: str) -> Layers:
    made, exact = STYLES["transformer"], STYLES["preconditioned_richardson"]
    plus, minus = STYLES["gradient_descent"], STYLES["nesterov"]
    times = "" if first == "1" else f"{first} "
    over = "" if second == "1" else f"/{second}"
    looks = {
        "made": {"title": "made of hinges", "color": made.color, "width": 3},
        "exact": {"title": "s²", "color": exact.color, "dash": exact.dash, "width": 2},
        "s₊": {"title": f"s₊ = {times}{u} + {v}{over}", "color": plus.color, "shape": plus.shape},
        "s₋": {"title": f"s₋ = {times}{u} − {v}{over}", "color": minus.color, "shape": minus.shape},
    }

    def line(key: str, **mark: Any) -> alt.Chart:
        return (
            table("curve")
            .transform_filter(f"indexof(hidden, '{key}') < 0")
            .mark_line(color=looks[key]["color"], strokeWidth=looks[key]["width"], **mark)
            .encode(_x("s", "operand s"), alt.Y(f"{key}:Q", title="square"))
        )

    def mark(key: str) -> alt.Chart:
        return (
            table("marks")
            .transform_filter(f"{NOW} && datum.sign == '{key}' && indexof(hidden, '{key}') < 0")
            .mark_point(
                filled=True, size=130, opacity=1, color=looks[key]["color"],
                shape=looks[key]["shape"],
            )
            .encode(
                _x("s", "operand s"),
                alt.Y("square:Q"),
                tooltip=["sign:N", alt.Tooltip("s:Q", format=".5g"),
                         alt.Tooltip("square:Q", format=".5g")],
            )
        )  # fmt: skip

    return alt.layer(
        line("made"),
        line("exact", strokeDash=list(exact.dash)),
        mark("s₊"),
        mark("s₋"),
        title=f"The product {u}·{v} = {share}(s₊² − s₋²)/4, each square made of hinges",
        usermeta={
            "row": "wide",
            "tables": ["marks", "curve"],
            "legend": [{"key": key, **look} for key, look in looks.items()],
        },
        config=theme("light"),
    )
