"""Fan: do the transformer's error curves fan out as the solvers' do?"""

import streamlit as st

from krrviz import charts
from krrviz.frames import curve_rows, fan_rows, step_rows, titled
from krrviz.ui import shell, state
from krrviz.ui.badge import badge, report
from krrviz.ui.compute import computed, fitted_curve
from krrviz.ui.figures import figures

settings = shell.settings()

st.subheader("A transformer solves kernel ridge regression")
st.write(
    "Each curve is one step: error against how many labelled points the prompt holds. The "
    "hand-built transformer retraces preconditioned Richardson. Move σ, λ, N or T; point at a "
    "curve to light its step everywhere."
)

result, checks = computed(settings)
fans = titled(fan_rows(result))
shown = {f"fan_{method}": charts.fan(rows) for method, rows in fans.groupby("method", sort=False)}
shown["steps"] = charts.steps(titled(step_rows(result)))
if result.d == 1 and "transformer" in settings.methods:
    curve = fitted_curve(settings)
    shown["prediction"] = charts.prediction(
        *curve_rows(curve, "transformer"), x_title=curve.x_label, y_title=curve.y_label
    )


def lit() -> None:
    state.look(step=int(st.session_state.fan["step"]))


step = state.view().step
figures(
    shown, steps=settings.steps, key="fan", step=None if step == "last" else int(step), on_step=lit
)
badge(result, checks)
report(result, checks)
