"""Own data: that page's parts, from a file, pasted text or clicked points to a comparison."""

from __future__ import annotations

from typing import Any

import streamlit as st

from krrviz.frames import held_out_rows
from krrviz.heldout import SKLEARN
from krrviz.pictures import own_data as pictures
from krrviz.pictures.fan import figures as fan_figures
from krrviz.settings import DIGEST, Settings, SettingsError
from krrviz.tables import Columns, Table
from krrviz.ui import own, state
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import computed, fitted_curve, kept_out, suggested
from krrviz.ui.controls import control
from krrviz.ui.figures import figures
from krrviz.ui.panels import panel
from krrviz.ui.panels import pictures as pictures_shown

SOURCES = {"upload": "Upload a file", "paste": "Paste", "click": "Click points"}
PASTED = "pasted rows.csv"
POINTS = """
<div class="points" data-testid="points" data-ready="false">
  <svg tabindex="0" role="application"></svg>
  <p><button type="button">Clear</button><output role="status"></output></p>
</div>
"""


def source() -> None:
    """Draw the three ways in."""
    if state.waiting():
        own.ask(another=True)
        return
    control("source", "segmented", [*SOURCES], lambda name: SOURCES[name])
    match state.view().source:
        case "upload":
            own.upload()
        case "paste":
            _paste()
        case _:
            _click()


def _paste() -> None:
    st.text_area(
        "Rows, with a line of column names or without: commas, semicolons or tabs",
        key="own text",
        height=180,
        placeholder="time;height\n0,5;1,25\n1,0;2,5",
    )

    def taken() -> None:
        own.take(st.session_state["own text"].encode(errors="replace"), PASTED)

    st.button("Use these rows", on_click=taken, type="primary")


def _click() -> None:
    """A plot to click points into; from three on they are the data."""
    points: list[list[float]] = st.session_state.setdefault("own points", [])

    def changed() -> None:
        made = [[float(x), float(y)] for x, y in st.session_state["own plot"]["points"] or []]
        st.session_state["own points"] = made
        rows = "".join(f"{x:g},{y:g}\n" for x, y in made)
        if len(made) >= 3:
            own.take(f"x,y\n{rows}".encode(), "clicked points.csv")

    st.caption(
        "Click to add a point, click a point to remove it; or move the cross with the arrow keys "
        "and press Enter. Three points are needed."
    )
    panel("points", POINTS)(key="own plot", data={"points": points}, on_points_change=changed)


def choose(columns: Columns, table: Table) -> None:
    """Draw which columns are the target and the inputs, and what was done to the file."""
    usable = [*columns.numbers]

    def chosen() -> None:
        target, inputs = st.session_state["own target"], st.session_state["own inputs"]
        # All inputs stay all when the target is another.
        kept = state.settings().columns == "all" and inputs == [*table.input_names]
        inputs = [name for name in inputs if name != target]
        every = kept or len(inputs) in (0, len(usable) - 1)
        numbers = ",".join(str(columns.number(name)) for name in inputs)
        changes: dict[str, Any] = {
            "target": columns.number(target), "columns": "all" if every else numbers
        }  # fmt: skip
        try:
            rows = columns.table(target, None if every else inputs).rows
            s = state.settings()
            fits = s.but_data("csv", rows, s.file)
            state.replace(s.but(**changes, n=fits.n, queries=fits.queries))
        except ValueError as error:
            state.tell(f"{error}.")

    st.session_state["own target"] = table.target_name
    st.session_state["own inputs"] = [*table.input_names]
    left, right = st.columns([1, 2])
    left.selectbox("Target", usable, key="own target", on_change=chosen)
    offered = [name for name in usable if name != table.target_name]
    right.multiselect("Inputs", offered, key="own inputs", on_change=chosen)
    st.caption(
        f"{state.literal(table.name)}: {table.rows} rows are used, d = {table.d}; SHA-256 "
        f"{columns.digest[:DIGEST]}. Every column is standardised: divided by its standard "
        "deviation once its mean is taken off."
    )
    for notice in table.notices:
        st.info(state.literal(notice.capitalize()) + ".", icon=":material/info:")


def suggestions(settings: Settings) -> None:
    """Draw what the data suggest, each as a curve with a button."""
    st.markdown("#### Bandwidth and ridge that the data suggest")
    try:
        found = suggested(settings)
    except SettingsError as error:
        st.info(f"No suggestion: {state.literal(str(error))}.", icon=":material/info:")
        return
    median, validated, generalised = found
    figures(pictures.suggestions(*found), steps=0, key="suggestions", led=0)
    offers = [
        ("Median distance: σ", "bandwidth", median.bandwidth, False),
        ("Cross-validation: σ", "bandwidth", validated.bandwidth, validated.at_edge),
        ("Generalised cross-validation: λ", "ridge", generalised.ridge, generalised.at_edge),
    ]
    with st.container(horizontal=True):
        for label, field, value, edge in offers:
            rounded = float(f"{value:.3g}")
            st.button(
                f"{label} = {rounded:g}{' (edge of the grid)' if edge else ''}",
                on_click=state.change,
                kwargs={field: min(max(rounded, 1e-3), 1e3) if field == "bandwidth" else rounded},
                disabled=getattr(settings, field) == rounded,
                key=label,
            )
    st.caption(
        f"Cross-validation in five folds with λ = {settings.ridge:g}; generalised cross-validation "
        f"with σ = {settings.bandwidth:g}. Both on K + λI. A minimum at the edge of its grid is "
        "none."
    )


def comparison(settings: Settings, table: Table) -> None:
    """Draw every method at the rows held out, in the target's unit."""
    st.markdown("#### Rows held out")
    result = kept_out(settings)
    fan, checks = computed(settings)
    method = settings.methods[0]
    if table.d == 1:
        curve = fitted_curve(settings, method)
        shown = fan_figures(fan, curve, settings, state.view().floor)
        figures(
            {name: shown[name] for name in ("steps", "prediction")},
            steps=settings.steps,
            key="own fit",
        )
    else:
        figures(pictures.residuals(result, method), steps=0, key="own residuals", led=0)
    unit, target = f" ({result.unit})" if result.unit else "", state.literal(result.target)
    rows = held_out_rows(result)
    pictures_shown()["held_out"] = rows
    shown = rows.drop(columns="method").rename(
        columns={
            "title": "method",
            "rmse": f"RMSE{unit}",
            "mae": f"mean |label − answer|{unit}",
            "r2": "R²",
            "to_exact": f"largest distance to exact KRR{unit}",
        }
    )
    st.dataframe(
        shown.map(lambda value: value if isinstance(value, str) else f"{value:.4g}"),
        hide_index=True,
        width="stretch",
    )
    st.caption(
        f"{settings.prompts} draws of N = {settings.n} rows to learn from and {settings.queries} "
        f"others held out; methods at step T = {settings.steps}; {target} in its own unit. "
        + (
            "scikit-learn solves the same systems with alpha = r and gamma = 1/2σ²."
            if SKLEARN in result.answers
            else "scikit-learn is not installed here: pip install 'krrviz[sklearn]' adds its "
            "KernelRidge to the table."
        )
    )
    badge(settings, checks, fan)
    report(checks, fan)
