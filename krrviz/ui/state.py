"""State: the one Settings of a browser session, where it comes from and how it is changed.

The record in ``st.session_state`` is the truth. Widgets are views of it: before each is drawn its
value is set from the record, and its callback puts a checked change back. So a value that cannot
be used changes nothing, and a widget that is not drawn loses nothing.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlencode

import streamlit as st

from krrviz.settings import FOREIGN_KEYS, Settings, SettingsError, View


def started() -> bool:
    """Whether the shell has run in this session."""
    return "settings" in st.session_state


def settings() -> Settings:
    """The session's settings."""
    return st.session_state.settings


def view() -> View:
    """The session's view."""
    return st.session_state.view


def problems() -> tuple[str, ...]:
    """What of the last link or change could not be used, a sentence each."""
    return st.session_state.problems


def read_link() -> None:
    """Take settings and view from the address, unless it is the one this session wrote.

    An empty address, as after a change of page, changes nothing once the session has started.
    Nor does one that this session wrote a moment ago, where a control has been moved since: a
    browser asks for the next run before it has heard of the last one's address.
    """
    address = {key: st.query_params.get_all(key) for key in st.query_params}
    if started() and (not address or address == st.session_state.written):
        return
    if started() and st.session_state.get("moved") and address in st.session_state.earlier:
        return
    text = urlencode(address, doseq=True)
    record, bad = Settings.read(text)
    looked, worse = View.read(text)
    if record.data == "csv":
        record = record.but_data(Settings().data)
        bad = (*bad, "data=csv needs a file, which only the command line takes for now.")
    st.session_state.update(settings=record, view=looked, problems=(*bad, *worse), written=address)
    st.session_state.setdefault("completed", Settings())
    st.session_state.setdefault("earlier", deque(maxlen=16)).append(address)


def write_link() -> None:
    """Make the address a complete link: every setting, also the defaults."""
    foreign = {key: st.query_params.get_all(key) for key in FOREIGN_KEYS & {*st.query_params}}
    written = parse_qs(settings().to_query()) | parse_qs(view().to_query()) | foreign
    st.session_state.earlier.append(written)
    st.session_state.update(written=written, moved=False)
    if written != {key: st.query_params.get_all(key) for key in st.query_params}:
        st.query_params.from_dict(written)


def change(**fields: Any) -> None:
    """Change some settings; what cannot be used is told and changes nothing."""
    try:
        if "data" in fields:
            replace(settings().but_data(fields["data"]))
        else:
            replace(settings().but(**fields))
    except SettingsError as error:
        st.session_state.problems = (f"{error}.",)


def replace(record: Settings) -> None:
    """Replace the settings as a whole."""
    st.session_state.update(settings=record, problems=(), moved=True)


def look(**fields: Any) -> None:
    """Change what is looked at."""
    st.session_state.update(view=dataclasses.replace(view(), **fields), moved=True)


def nearest(field: str, size: int, owner: str, things: str) -> None:
    """Hold a looked-at index below ``size``: beyond it the last is shown, and that is told."""
    value = getattr(view(), field)
    if isinstance(value, int) and value >= size:
        told = f"{field}={value}: {owner} has {size} {things}; {size - 1} is the last and is shown."
        st.warning(told, icon=":material/warning:")
        look(**{field: size - 1})


def completed() -> None:
    """Remember these settings as ones that could be computed."""
    st.session_state.completed = settings()


def back() -> None:
    """Go back to the last settings that could be computed."""
    st.session_state.settings = st.session_state.completed


def refuse(message: str) -> NoReturn:
    """Tell why these settings cannot be computed, and show the last that could."""
    if settings() == st.session_state.completed:
        st.error(message)
        st.stop()
    back()
    st.session_state.problems = (message,)
    st.rerun()
