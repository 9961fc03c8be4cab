"""Tour: the stations of that page; progress is in the link."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from krrviz.charts import LAYER, STEP, Figure
from krrviz.export import Picture
from krrviz.lessons import AVERAGE, TOUR, Station
from krrviz.maps import Map
from krrviz.settings import STATIONS, Settings
from krrviz.ui import state
from krrviz.ui.compute import pictured
from krrviz.ui.figures import figures
from krrviz.ui.heatmaps import heatmaps

LETTERS = "abc"
SKIPPED = "s"


def go(number: int) -> None:
    """Go to a station: its settings become the session's."""
    station = TOUR[number - 1]
    state.replace(station.settings)
    state.look(station=number, step="last", lit_layer="last", **station.look)


def answer(letter: str) -> None:
    """Note what was predicted at this station."""
    view = state.view()
    at = view.station - 1
    state.look(answers=view.answers[:at] + letter + view.answers[at + 1 :])


def stations() -> Station:
    """Draw the way through; the station that one stands at."""
    view = state.view()
    st.session_state["tour station"] = view.station

    def chosen() -> None:
        go(st.session_state["tour station"] or view.station)

    st.segmented_control(
        "Station",
        range(1, STATIONS + 1),
        key="tour station",
        format_func=lambda k: f"{k}{'' if view.answers[k - 1] == '-' else ' ✓'}",
        on_change=chosen,
        help="✓ stands where a prediction was made.",
    )
    return TOUR[view.station - 1]


def predict(station: Station) -> None:
    """Draw the claim, the question, and, once predicted, what is right."""
    view = state.view()
    given = view.answers[view.station - 1]
    st.markdown(f"#### {view.station} of {STATIONS}: {station.title}")
    st.write(station.text)
    st.latex(station.formula)
    st.markdown(f"**Predict:** {station.question}")
    if given == "-":
        key = f"tour answer {view.station}"
        st.radio(
            station.question,
            range(len(station.options)),
            index=None,
            key=key,
            format_func=lambda k: f"{LETTERS[k]}) {station.options[k]}",
            label_visibility="collapsed",
        )
        chosen = st.session_state[key]
        with st.container(horizontal=True):
            st.button(
                "Reveal",
                type="primary",
                disabled=chosen is None,
                on_click=lambda: answer(LETTERS[chosen or 0]),
            )
            st.button("Show without predicting", on_click=lambda: answer(SKIPPED), type="tertiary")
        return
    lines = [
        f"- {LETTERS[k]}) {f'**{option}** ← right' if k == station.right else option}"
        f"{' (your prediction)' if given == LETTERS[k] else ''}"
        for k, option in enumerate(station.options)
    ]
    st.markdown("\n".join(lines))
    if given == LETTERS[station.right]:
        st.success(f"As predicted. {station.reveal}", icon=":material/check:")
    else:
        st.info(station.reveal, icon=":material/lightbulb:")
    st.button("Predict again", on_click=lambda: answer("-"), type="tertiary")


def pictures(station: Station, settings: Settings) -> None:
    """Draw what settles the question, from the session's settings."""
    if settings != station.settings:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("The settings are no longer this station's; its words may not fit.")
            st.button("Put them back", on_click=go, args=(state.view().station,))
    if state.view().answers[state.view().station - 1] == "-":
        st.info(
            "The picture comes with the answer. Predict first.", icon=":material/visibility_off:"
        )
        return
    shown = pictured("tour", settings)
    state.completed()
    if not shown:
        needs = "data of one input" if station.shown == (AVERAGE,) else "other settings"
        st.info(f"This picture needs {needs}.", icon=":material/info:")
    maps = [it for it in shown.values() if isinstance(it, Map)]
    if maps:
        heatmaps(maps, key="tour maps")
    layers = station.page == "trained"
    drawn = {name: it for name, it in shown.items() if isinstance(it, Figure)}
    if drawn:
        stepless = all("step" not in part for it in drawn.values() for part in it.tables.values())
        figures(
            drawn,
            steps=_last(drawn),
            key="tour figures",
            led=0 if stepless or _last(drawn) == 0 else None,
            each=LAYER if layers else STEP,
        )


def _last(drawn: Mapping[str, Picture]) -> int:
    steps = [
        int(part["step"].to_numpy().max())
        for it in drawn.values()
        if isinstance(it, Figure)
        for part in it.tables.values()
        if "step" in part and len(part)
    ]
    return max(steps, default=0)


def onward(station: Station) -> None:
    """Draw back and next, and the way to the page that the picture is from."""
    at = state.view().station
    with st.container(horizontal=True):
        st.button(
            "Back", icon=":material/arrow_back:", disabled=at == 1, on_click=go, args=(at - 1,)
        )
        st.button(
            "Next",
            disabled=at == STATIONS,
            on_click=go,
            args=(at + 1,),
            type="primary" if state.view().answers[at - 1] != "-" else "secondary",
        )
        page = "" if station.page == "fan" else station.page
        st.link_button(
            f"Open on the page {station.page.capitalize()}",
            f"{page or './'}?{state.query(**station.look)}",
            type="tertiary",
        )  # fmt: skip
