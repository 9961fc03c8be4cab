"""Sidebar: the shared controls, each a view of one field of Settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from krrviz.frames import REFERENCES, TITLES
from krrviz.settings import (
    COMPARISON,
    DATASETS,
    MACHINE,
    MAX_N,
    PRESETS,
    PROBLEM,
    TRANSFORMER,
    Choice,
    Number,
    Settings,
    Several,
    View,
    shown,
)
from krrviz.tables import assets
from krrviz.ui import state

IN_SIGHT = ("data", "bandwidth", "ridge", "n", "steps")
# Drawn for Gaussian process draws alone.
GP_ONLY = ("inputs", "d", "noise")
# Drawn on the page Own data alone.
CSV_ONLY = ("file", "target", "columns")
WORDS = {
    **TITLES,
    **REFERENCES,
    **{key: entry.title for key, entry in DATASETS.items()},
    "one_over_l": "1/L",
    "per_sample": "per sample",
    "richardson": "Richardson (the paper's)",
    "function_space": "Function space",
}


def sidebar() -> None:
    """Draw the controls; what a person changes is in the session's settings on the next run."""
    with st.sidebar:
        if st.button("Presets", icon=":material/grid_view:", width="stretch"):
            _presets()
        for name in IN_SIGHT:
            _field(name)
        st.caption("More")
        for group in (PROBLEM, TRANSFORMER, COMPARISON, MACHINE):
            with st.expander(group.capitalize()):
                for name, about in Settings.table().items():
                    if about.group == group and name not in IN_SIGHT and _drawn(name):
                        _field(name)
        _presenter()


def controls(names: Sequence[str]) -> None:
    """Draw some controls where the page is embedded in another."""
    drawn = [name for name in dict.fromkeys(names) if _drawn(name)]
    for start in range(0, len(drawn), 4):
        for place, name in zip(st.columns(4), drawn[start : start + 4], strict=False):
            with place:
                _field(name)


def _presenter() -> None:
    """A switch for a size to be read from the back of a room."""

    def changed() -> None:
        state.look(presenter="on" if st.session_state["presenter on"] else "off")

    st.session_state["presenter on"] = state.big()
    about = View.table()["presenter"]
    st.toggle(about.label, key="presenter on", on_change=changed, help=about.help)


@st.dialog("Presets", width="large")
def _presets() -> None:
    """Cards, each with its transformer's fan; one chosen replaces the settings."""
    st.caption("Settings worth looking at, each with the transformer's fan.")
    places = [place for _ in range(0, len(PRESETS), 3) for place in st.columns(3)]
    for place, (key, preset) in zip(places, PRESETS.items(), strict=False):
        with place.container(border=True):
            picture = (assets() / "presets" / f"{key}.svg").read_text("utf-8")
            st.image(picture, width="stretch", alt=f"{preset.title}: its fan")
            st.markdown(f"**{preset.title}**")
            st.caption(preset.text)
            if st.button("Open", key=f"preset {key}", width="stretch"):
                state.replace(preset.settings)
                st.rerun()


def _drawn(name: str) -> bool:
    settings = state.settings()
    if name in CSV_ONLY:
        return False
    if name in GP_ONLY and settings.data != "gp":
        return False
    return name != "step_size" or settings.policy == "manual"


def _field(name: str) -> None:
    """One control."""
    about, value = Settings.table()[name], getattr(state.settings(), name)

    def changed() -> None:
        entered = st.session_state[name]
        rule = about.rule
        if isinstance(rule, Number) and isinstance(entered, str):
            try:
                entered = rule.parse(entered.strip())
            except ValueError as error:
                state.tell(f"{name}={shown(entered)} {error}.")
                return
        state.change(**{name: entered})

    common = {"key": name, "help": about.help, "on_change": changed}
    st.session_state[name] = value
    match about.rule:
        case Several(options):
            st.session_state[name] = list(value)
            st.multiselect(about.label, options, format_func=_word, **common)
        case Choice(options):
            offered = [o for o in options if _offered(o)]
            st.selectbox(about.label, offered, format_func=_word, **common)
        case Number() if name in IN_SIGHT:
            st.select_slider(about.label, stops(name), format_func=lambda v: f"{v:.4g}", **common)
        case Number(whole=True) as rule:
            st.number_input(about.label, int(rule.low), int(rule.high), step=1, **common)
        case Number():
            st.session_state[name] = value if isinstance(value, str) else f"{value:g}"
            st.text_input(about.label, **common)


def _offered(option: str) -> bool:
    if option == "csv":
        return state.columns() is not None
    return option != "noiseless" or state.settings().data == "gp"


def _word(key: str) -> str:
    return WORDS.get(key, key)


def stops(name: str) -> list[float]:
    """The stops of a slider: a ladder of round numbers, and the value set."""
    return sorted({*_ladder(name), getattr(state.settings(), name)})


def _ladder(name: str) -> Sequence[float]:
    """Even on a logarithmic scale, whole where the field is."""
    settings = state.settings()
    if name == "bandwidth":
        return [_round(10 ** (k / 20)) for k in range(-60, 61)]
    if name == "ridge":
        return [_round(10 ** (k / 4)) for k in range(-48, 25)]
    if name == "steps":
        return [*range(33), *(round(32 * 2 ** (k / 4)) for k in range(1, 25))]
    own = state.table()
    rows = DATASETS[settings.data].rows if own is None else own.rows
    room = MAX_N if rows is None else max(2, rows - settings.queries)
    fine = [*range(2, 33), *range(34, 65, 2), *range(68, 129, 4)]
    coarse = [round(128 * 2 ** (k / 4)) for k in range(1, 29)]
    return [n for n in (*fine, *coarse) if n < room] + [room]


def _round(value: float) -> float:
    """Three significant digits."""
    return round(value, 2 - math.floor(math.log10(value)))
