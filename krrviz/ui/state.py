"""State: the one Settings of a browser session, where it comes from and how it is changed.

The record in ``st.session_state`` is the truth. Widgets are views of it: before each is drawn its
value is set from the record, and its callback puts a checked change back. So a value that cannot
be used changes nothing, and a widget that is not drawn loses nothing.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlencode

import streamlit as st

from krrviz.settings import DIGEST, FOREIGN_KEYS, Settings, SettingsError, View
from krrviz.tables import Columns, Table, TableError
from krrviz.tasks import own_table, usable


def started() -> bool:
    """Whether the shell has run in this session."""
    return "settings" in st.session_state


def settings() -> Settings:
    """The session's settings."""
    return st.session_state.settings


def view() -> View:
    """The session's view."""
    return st.session_state.view


def big() -> bool:
    """Whether letters and lines are to be seen from the back of a room."""
    return view().presenter == "on"


def problems() -> tuple[str, ...]:
    """What of the last link or change could not be used, a sentence each."""
    return st.session_state.problems


def columns() -> Columns | None:
    """The file that the session holds; it is in no link and in no other session."""
    return st.session_state.get("own columns")


def hold(file: Columns) -> None:
    """Have the session hold a file."""
    st.session_state.update({"own columns": file, "own table": None})


def waiting() -> bool:
    """Whether the settings want a file that the session does not hold."""
    held = columns()
    return settings().data == "csv" and (held is None or held.digest[:DIGEST] != settings().file)


def table() -> Table | None:
    """The person's own table, where the settings want it; raises SettingsError and TableError."""
    held, s = columns(), settings()
    if s.data != "csv" or held is None or waiting():
        return None
    key = s.file, s.target, s.columns
    kept = st.session_state.get("own table")
    if kept is None or kept[0] != key:
        kept = st.session_state["own table"] = key, own_table(held, s)
    return kept[1]


def read_link() -> None:
    """Take settings and view from the address, where a person has given one.

    Not where a control was moved: its message may have left the browser before the address of
    the change before it arrived there. And not an empty address after a change of page, which
    Streamlit clears; on the same page it means that the person went back to the start.
    """
    address = {key: st.query_params.get_all(key) for key in st.query_params}
    turned = st.session_state.pop("turned", False)
    moved = st.session_state.get("moved", False)
    if started() and (moved or address == st.session_state.written or (turned and not address)):
        return
    text = urlencode(address, doseq=True)
    record, bad = Settings.read(text)
    looked, worse = View.read(text)
    st.session_state.update(settings=record, view=looked, problems=(*bad, *worse), written=address)
    st.session_state.setdefault("completed", Settings())


def on_page(page: str) -> None:
    """Tell which page is shown, so that a change of page is known from a step back."""
    st.session_state.turned = page != st.session_state.get("page", page)
    st.session_state.page = page


def query(**looked: Any) -> str:
    """The query string of a complete link: every setting and all that is looked at.

    ``looked`` wins over the view's own fields.
    """
    here = dataclasses.replace(view(), **looked)
    both = parse_qs(settings().to_query()) | parse_qs(here.to_query())
    return urlencode(both, doseq=True)


def write_link() -> None:
    """Make the address a complete link: every setting, also the defaults."""
    address = {key: st.query_params.get_all(key) for key in st.query_params}
    foreign = {key: address[key] for key in FOREIGN_KEYS & {*address}}
    written = parse_qs(query()) | foreign
    if written != address:
        st.query_params.from_dict(written)
    st.session_state.update(written=written, moved=False)


def literal(text: str) -> str:
    """``text`` as it is, also where it holds Markdown: it may quote a link."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def change(**fields: Any) -> None:
    """Change some settings; what cannot be used is told and changes nothing."""
    try:
        if fields.get("data") == "csv":
            held = columns()
            assert held is not None, "offered where the session holds a file"
            choice, table = usable(held)
            replace(settings().but_data("csv", table.rows, held.digest[:DIGEST]).but(**choice))
        elif "data" in fields:
            replace(settings().but_data(fields["data"]))
        else:
            replace(settings().but(**fields))
    except (SettingsError, TableError) as error:
        tell(f"{error}.")


def tell(problem: str) -> None:
    """Tell of a change that could not be made."""
    st.session_state.update(problems=(problem,), moved=True)


def replace(record: Settings) -> None:
    """Replace the settings as a whole."""
    st.session_state.update(settings=record, problems=(), moved=True)


def look(**fields: Any) -> None:
    """Change what is looked at."""
    st.session_state.update(view=dataclasses.replace(view(), **fields), moved=True)


def nearest(field: str, size: int, owner: str, things: str, first: int = 0) -> None:
    """Hold a looked-at index, counted from ``first``, among ``size`` things.

    Beyond them the last is shown, and that is told.
    """
    value, last = getattr(view(), field), first + size - 1
    if isinstance(value, int) and value > last:
        told = f"{field}={value}: {owner} has {size} {things}; {last} is the last and is shown."
        st.warning(told, icon=":material/warning:")
        look(**{field: last})


def completed() -> None:
    """Remember these settings as ones that could be computed."""
    st.session_state.completed = settings()


def back() -> None:
    """Go back to the last settings that could be computed."""
    st.session_state.update(settings=st.session_state.completed, moved=True)


def refuse(message: str) -> NoReturn:
    """Tell why these settings cannot be computed, and show the last that could."""
    if settings() == st.session_state.completed:
        st.error(literal(message))
        st.stop()
    back()
    st.session_state.problems = (*problems(), message)
    st.rerun()
