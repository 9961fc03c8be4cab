"""Compute: results by their settings, shared between sessions, superseded when no longer wanted."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from krrviz.fan import Curve, Fan, curve, fan
from krrviz.settings import Settings, SettingsError
from krrviz.tables import TableError
from krrviz.trust import Check, trust
from krrviz.ui import state

Result = TypeVar("Result")

ENTRIES = 64
# A computation shows that it is one after this many seconds.
PATIENCE = 0.7


@st.cache_resource
def _store() -> tuple[OrderedDict[tuple[str, Settings], Any], Lock]:
    """Finished results, least recently used first. They are shared: read them only."""
    return OrderedDict(), Lock()


def _cached(name: str, settings: Settings, make: Callable[[], Result]) -> Result:
    """The result of ``make``, kept for these settings.

    ``st.cache_data`` would not do: a progress bar inside it cannot be replayed, and without one
    a run that nobody wants any more would go on to its end.
    """
    results, lock = _store()
    key = (name, settings)
    with lock:
        if key in results:
            results.move_to_end(key)
            return results[key]
    made = make()
    with lock:
        results[key] = made
        while len(results) > ENTRIES:
            results.popitem(last=False)
    return made


def computed(settings: Settings) -> tuple[Fan, list[Check]]:
    """Fan and checks; what cannot be computed is told and the last picture stays."""
    slot, started = st.empty(), time.monotonic()
    bar: list[DeltaGenerator] = []

    def progress(done: float) -> None:
        # Writing to the page is also where Streamlit abandons a run that a newer one replaces.
        if bar:
            bar[0].progress(done)
        elif time.monotonic() - started > PATIENCE:
            with slot.container(horizontal=True, vertical_alignment="center"):
                bar.append(st.progress(done, "Computing"))
                st.button("Cancel", on_click=state.back)

    try:
        result = _cached("fan", settings, lambda: fan(settings, progress=progress))
        checks = _cached("trust", settings, lambda: trust(result))
    except (SettingsError, TableError) as error:
        state.refuse(f"{error}.")
    slot.empty()
    state.completed()
    return result, checks


def fitted_curve(settings: Settings, method: str) -> Curve:
    """A method's fit of the first prompt."""
    # The curve is the same whatever else is drawn.
    alone = settings.but(methods=(method,), reference="krr")
    return _cached("curve", alone, lambda: curve(alone, method))
