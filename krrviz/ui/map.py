"""Map: the controls of that page, its cells, and the ways from a cell to the fan."""

from __future__ import annotations

from typing import Any

import streamlit as st

from krrviz.frames import REFERENCES, TITLES, system
from krrviz.laws import Frame
from krrviz.pictures import map as pictures
from krrviz.pictures.map import NAMES
from krrviz.settings import Settings, SettingsError, View
from krrviz.sweep import Grid, mapped, movable
from krrviz.trust import SOLVED
from krrviz.ui import panels, state
from krrviz.ui.compute import mapped_out
from krrviz.ui.controls import control
from krrviz.ui.figures import figures

LADDER = [float(f"{digit}e{power}") for power in range(-9, 0) for digit in (1, 3)]
SHOWN = {"steps": "Steps to ε", "winner": "Winner", "error": "Error at the last step"}
HOME = "pages/fan.py"


def open_asked() -> None:
    """Go to the fan, where a cell was opened in the run before: a callback cannot."""
    if st.session_state.pop("opened", False):
        st.switch_page(HOME)


def show(settings: Settings) -> None:
    """Draw the controls and the map; what cannot be computed is told in its place."""
    view = state.view()
    _controls(settings, view)
    table = state.table()
    try:
        grid = mapped(settings, view, None if table is None else table.rows)
    except SettingsError as error:
        st.error(f"{state.literal(str(error))}.")
        return
    found = mapped_out(grid, settings)
    rows = pictures.rows(grid, found)

    def picked() -> None:
        number = st.session_state["map figures"]["picked"]
        if number is not None:
            _open(grid, int(number), rows)

    figures(
        pictures.figures(rows, grid, settings, view), steps=0, key="map figures", led=0,
        on_pick=picked,
    )  # fmt: skip
    panels.pictures()["map_rows"] = rows
    if rows.empty:
        return
    _conditions(grid, settings, rows)
    _choose(grid, settings, rows)
    with st.expander("Every cell and method"):
        st.dataframe(rows.drop(columns="cell"), hide_index=True, width="stretch")


def _controls(settings: Settings, view: View) -> None:
    """What is on the axes, what is shown of whom, and ε."""
    control("map_of", "segmented", list(SHOWN), lambda what: SHOWN[what])
    places = st.columns([1, 1, 1.3, 1.3])
    for place, name, other in zip(places, ("map_x", "map_y"), ("map_y", "map_x"), strict=False):
        with place:
            _axis(settings, name, other)
    if view.map_of != "winner":
        with places[2]:
            st.session_state["map method"] = pictures.method_of(settings, view)
            st.selectbox(
                "Method",
                settings.methods,
                key="map method",
                format_func=lambda method: TITLES[method],
                on_change=lambda: state.look(map_method=st.session_state["map method"]),
                help=View.table()["map_method"].help,
            )
    with places[3]:
        rungs = sorted({*LADDER, view.map_eps}, reverse=True)
        control("map_eps", "select_slider", rungs, lambda eps: f"{eps:g}", label="Error ε")


def _axis(settings: Settings, name: str, other: str) -> None:
    """One axis' setting; chosen to be the other's, the two change places."""
    here = getattr(state.view(), name)
    key = f"{name} look"
    st.session_state[key] = here

    def changed() -> None:
        view, chosen = state.view(), st.session_state[key]
        swap = {other: getattr(view, name)} if chosen == getattr(view, other) else {}
        state.look(**{name: chosen}, **swap)

    about = View.table()[name]
    options = list(dict.fromkeys([*movable(settings), here]))
    st.selectbox(
        about.label,
        options,
        key=key,
        format_func=lambda option: NAMES[option],
        on_change=changed,
        help=about.help,
    )


def _conditions(grid: Grid, settings: Settings, rows: Frame) -> None:
    """What every cell has in common."""
    base = Settings.from_query(grid.link)
    policy = settings.policy.replace("_", " ")
    if settings.policy == "manual" and "step_size" not in grid.axes:
        policy += f" η = {settings.step_size:g}"
    own = ", the transformer's certified" if settings.policy != "certified" else ""
    ridge = "n · λI" if settings.ridge_scale == "per_sample" else "λI"
    solved = f"K + {ridge}" if "ridge" in grid.axes else system(settings)
    devices = ", ".join(sorted(set(rows.device) - {""})) or "no device"
    depth = "" if "steps" in grid.axes else f", at most T = {settings.steps} of them"
    refused = rows[rows.refusal != ""].cell.nunique()
    told = f" {refused} cells were refused: hatched, with ✕." if refused else ""
    unsolved = rows[rows.residual > SOLVED].cell.nunique()
    if unsolved:
        told += (
            f" In {unsolved} cells the exact answer itself has a relative residual above "
            f"{SOLVED:g}, up to {rows.residual.max():.0e}: λ is too small there for float64."
        )
    st.caption(
        f"Error to {REFERENCES[settings.reference]}, mean over {base.prompts} prompts (the page "
        f"Fan takes {settings.prompts}), to be within ε = {grid.eps:g}; steps: {policy}{own}"
        f"{depth}; ({solved})α = y; {settings.dtype} on {devices}. A stronger colour is fewer "
        f"steps or a smaller error; “never”: the error was above ε at every step.{told}"
    )


def _choose(grid: Grid, settings: Settings, rows: Frame) -> None:
    """A cell by its two values, for keyboards and fingers: what it holds, and a way to open it."""
    chosen: dict[str, Any] = {}
    *places, last = st.columns([2, 2, 1.2], vertical_alignment="bottom")
    for place, (name, values) in zip(places, [*grid.axes.items()][::-1], strict=True):
        key = f"map {name} of {settings.data}"
        if st.session_state.get(key) not in values:
            st.session_state[key] = values[len(values) // 2]
        with place:
            chosen[name] = st.select_slider(
                NAMES[name].capitalize(), values, key=key, format_func=lambda v: f"{v:.3g}"
            )
    number = next(i for i in range(len(grid)) if grid.values(i) == chosen)
    with last:
        st.button("Open this setting", on_click=_open, args=(grid, number, rows), width="stretch")
    here = rows[rows.cell == number]
    if here.empty:
        st.write("This cell is not computed yet.")
    elif here.refusal.iloc[0]:
        st.write(f"Refused: {state.literal(here.refusal.iloc[0])}.")
    else:
        method = pictures.method_of(settings, state.view())
        mine = here[here.method == method].to_dict("records")[0]
        won = here.winner.iloc[0]
        st.write(
            f"**{TITLES[method]}**: {pictures.reached(mine)}. "
            + (f"Winner: **{TITLES[won]}**." if won else "Every method overflows.")
        )


def _open(grid: Grid, number: int, rows: Frame) -> None:
    """Make a cell's values the settings, and have the fan opened; what was refused is told."""
    here = rows[rows.cell == number]
    if len(here) and here.refusal.iloc[0]:
        state.tell(f"{here.refusal.iloc[0]}.")
        return
    state.change(**grid.values(number))
    st.session_state.opened = not state.problems()
