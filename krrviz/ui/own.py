"""Own: the file a person brought. It stays in the session; links hold its hash alone."""

from __future__ import annotations

import streamlit as st

from krrviz.settings import DIGEST, SettingsError
from krrviz.tables import MAX_BYTES, MAX_ROWS, TableError, read_columns
from krrviz.tasks import usable
from krrviz.ui import state

LIMIT = MAX_BYTES // 10**6  # MB
FREE = ("own_data", "workshop")  # pages that are shown without the file


def take(contents: bytes, name: str, another: bool = True) -> None:
    """Hold a file, if it can be used.

    ``another`` lets it take the place of the one that the settings want: they become its own.
    """
    settings = state.settings()
    try:
        columns = read_columns(contents, name, settings.seed)
        choice, table = usable(columns)
        digest = columns.digest[:DIGEST]
        wanted = settings.file if settings.data == "csv" else "none"
        if wanted not in ("none", digest) and not another:
            state.tell(
                f"That is another file: its SHA-256 begins with {digest}, the link's with {wanted}."
            )
            return
        if wanted != digest:
            bandwidth = settings.bandwidth if settings.data == "csv" else 1.0
            settings = settings.but_data("csv", table.rows, digest)
            state.replace(settings.but(bandwidth=bandwidth, **choice))
    except (SettingsError, TableError) as error:
        state.tell(f"{error}.")
        return
    # More rows than are kept were drawn by the seed: then another seed draws others.
    drawn = contents if len(columns.numbers) == MAX_ROWS else None
    st.session_state["own drawn"] = settings.seed, name, drawn
    state.hold(columns)


def ready(page: str) -> bool:
    """Whether a page can be shown; otherwise the file that its link names is asked for."""
    if not state.waiting() or page in FREE:
        _mend()
        return True
    ask(another=False)
    return False


def ask(another: bool) -> None:
    """Ask for the file that the link was made with."""
    file = state.settings().file
    which = (
        "This link asks for a file of your own and does not say which: choose one."
        if file == "none"
        else "This link was made with a file of somebody's own, which no link carries. Choose the "
        f"same file to see the same picture: its SHA-256 begins with {file}."
    )
    st.info(f"{which} It stays in this session, and nobody else sees it.", icon=":material/lock:")
    upload(another)
    if not another:
        st.button(
            "Go on without it", on_click=lambda: state.change(data="motorcycle"), type="tertiary"
        )


def upload(another: bool = True) -> None:
    """Draw the way a file comes in."""

    def taken() -> None:
        file = st.session_state["own upload"]
        if file is not None:
            take(file.getvalue(), file.name, another)

    st.file_uploader(
        f"A CSV or TSV file, at most {LIMIT} MB",
        ["csv", "tsv", "txt"],
        key="own upload",
        on_change=taken,
        max_upload_size=LIMIT,
    )


def _mend() -> None:
    """What the settings want of the file, and it cannot give, gives way to what it can."""
    columns, settings = state.columns(), state.settings()
    if settings.data != "csv" or columns is None:
        return
    seed, name, drawn = st.session_state["own drawn"]
    if drawn is not None and seed != settings.seed:
        st.session_state["own drawn"] = settings.seed, name, drawn
        columns = read_columns(drawn, name, settings.seed)
        state.hold(columns)
    problems = state.problems()
    try:
        table = state.table()
    except (SettingsError, TableError) as error:
        choice, table = usable(columns)
        settings = settings.but(target="last", columns="all").but(**choice)
        state.replace(settings)
        problems = (*problems, f"{error}.")
    assert table is not None, "the file is held"
    if settings.n + settings.queries > table.rows:
        fits = settings.but_data("csv", table.rows)
        state.replace(settings.but(n=fits.n, queries=fits.queries))
        problems = (
            *problems,
            f"n={settings.n} with queries={settings.queries} needs more than the {table.rows} rows "
            f"of this file; n={fits.n} with queries={fits.queries} is shown.",
        )
    st.session_state.problems = problems
