"""Live: pictures that follow a slider of the sidebar while it is held.

A held slider has sent nothing yet. The figures panel watches it in the browser and asks, one
request at a time, for the picture at the stop under the pointer. Session and link keep what they
were: they change when the slider is let go.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from krrviz.settings import Settings, SettingsError
from krrviz.ui import sidebar, state

# The sliders followed, and their symbols.
SYMBOLS = {"bandwidth": "σ", "ridge": "λ", "n": "N", "steps": "T"}


def hold(asked: dict[str, Any]) -> None:
    """Remember what a held slider asks for: a field, the number of its stop, and of the request."""
    st.session_state.held = asked


def release() -> None:
    """Forget it: the whole page is run, and shows the settings."""
    st.session_state.pop("held", None)


def settings() -> Settings:
    """The settings at the stop of a held slider; the session's own where there is none."""
    held = st.session_state.get("held")
    if held is None:
        return state.settings()
    try:
        stops = sidebar.stops(held["field"])
        return state.settings().but(**{held["field"]: stops[held["stop"]]})
    except (SettingsError, IndexError):
        return state.settings()


def answer(drawn: Settings) -> dict[str, Any]:
    """What the figures panel is told: the sliders, the request, and what is not as it is set."""
    held = st.session_state.get("held")
    told = ""
    for name, symbol in SYMBOLS.items():
        now, later = getattr(state.settings(), name), getattr(drawn, name)
        if now != later:
            told = f"{symbol} = {later:.4g} while held; checks and link: {symbol} = {now:.4g}"
    return {"fields": [*SYMBOLS], "number": held and held["number"], "caption": told}
