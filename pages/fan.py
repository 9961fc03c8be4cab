"""Fan: do the transformer's error curves fan out as the solvers' do?"""

import streamlit as st

from krrviz import charts
from krrviz.frames import REFERENCES, TITLES, curve_rows, fan_rows, step_rows, thinned, titled
from krrviz.ui import share, shell, state
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import computed, fitted_curve
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
told = {"against": REFERENCES[settings.reference], "domain": (view.floor, 2.0)}
shown = {
    f"fan_{method}": charts.fan(rows, **told)
    for method, rows in titled(thinned(fan_rows(result))).groupby("method", sort=False)
}
shown["steps"] = charts.steps(titled(thinned(step_rows(result))), **told)
if result.d == 1:
    method = settings.methods[0]
    curve = fitted_curve(settings, method)
    fitted, exact, data = curve_rows(curve)
    shown["prediction"] = charts.prediction(
        thinned(fitted),
        exact,
        data,
        series=TITLES[method],
        x_title=curve.x_label,
        y_title=curve.y_label,
    )
figures(shown, steps=settings.steps, key="fan")
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
