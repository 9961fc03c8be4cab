"""Fan: do the transformer's error curves fan out as the solvers' do?"""

import streamlit as st

from krrviz.pictures import fan
from krrviz.ui import live, share, shell, state
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import computed, fitted_curve, previewed
from krrviz.ui.figures import figures

FLOORS = (1e-3, 1e-6, 1e-9, 1e-15)

settings, view = shell.settings(), state.view()

share.head(
    "A transformer solves kernel ridge regression",
    "Each curve is one step: error against how many labelled points the prompt holds. The "
    "hand-built transformer retraces preconditioned Richardson. Move σ, λ, N or T; point at a "
    "curve to light its step everywhere.",
)

result, checks = computed(settings)


@st.fragment
def pictures() -> None:
    """The figures, which run alone while a slider is held."""
    if state.view() != view:  # a step chosen here is the whole page's: its link carries it
        st.rerun()
    drawn = live.settings()
    found = previewed(drawn) if drawn != settings else None
    if found is None:
        drawn, found = settings, result
    passing = drawn != settings
    curve = fitted_curve(drawn, drawn.methods[0], passing) if found.d == 1 else None
    shown = fan.figures(found, curve, drawn, view.floor)
    figures(shown, steps=drawn.steps, key="fan", held=live.answer(drawn))


pictures()
badge(settings, checks, result)
st.session_state.floor = view.floor
st.segmented_control(
    "Error axis from",
    sorted({*FLOORS, view.floor}, reverse=True),
    key="floor",
    format_func=lambda floor: f"{floor:g}",
    on_change=lambda: state.look(floor=st.session_state.floor or FLOORS[0]),
    help="Curves that go below leave the frame and are labelled at its edge.",
)
report(checks, result)
