"""Own: the file a person brought. It stays in the session; links hold its hash alone."""

from __future__ import annotations

import streamlit as st

from krrviz.settings import DIGEST, SettingsError
from krrviz.tables import MAX_BYTES, TableError, read_columns
from krrviz.ui import state

LIMIT = MAX_BYTES // 10**6  # MB
HOME = "own_data"  # the page on which a file is chosen, and another may take its place
FREE = (HOME, "workshop")  # pages that are shown without the file


def take(contents: bytes, name: str, another: bool = True) -> bool:
    """Hold a file; whether it can be used.

    ``another`` lets it take the place of the one that the settings want: they become its own.
    """
    settings = state.settings()
    try:
        columns = read_columns(contents, name, settings.seed)
        rows = columns.table().rows
    except TableError as error:
        state.tell(f"{error}.")
        return False
    digest = columns.digest[:DIGEST]
    wanted = settings.file if settings.data == "csv" else "none"
    if wanted != digest:
        if not another:
            state.tell(
                f"That is another file: its SHA-256 begins with {digest}, the link's with {wanted}."
            )
            return False
        bandwidth = settings.bandwidth if settings.data == "csv" else 1.0
        settings = settings.but_data("csv", rows, digest)
        state.replace(settings.but(bandwidth=bandwidth, prompts=min(settings.prompts, 16)))
    state.hold(columns)
    return True


def ready(page: str) -> bool:
    """Whether a page can be shown; otherwise the file that its link names is asked for."""
    if not state.waiting() or page in FREE:
        _mend()
        return True
    ask(another=False)
    return False


def ask(another: bool) -> None:
    """Ask for the file that the link was made with."""
    st.info(
        "This link was made with a file of somebody's own, which no link carries. Choose the same "
        f"file to see the same picture: its SHA-256 begins with {state.settings().file}. It stays "
        "in this session, and nobody else sees it.",
        icon=":material/lock:",
    )
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
    """Columns that cannot be used give way to those that can."""
    try:
        state.table()
    except (SettingsError, TableError) as error:
        fields = error.fields if isinstance(error, SettingsError) else ("target", "columns")
        defaults = {"target": "last", "columns": "all"}
        problems = state.problems()
        state.change(**{name: defaults[name] for name in fields if name in defaults})
        st.session_state.problems = (*problems, f"{error}.")
