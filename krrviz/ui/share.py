"""Share: a page's heading, and beside it the ways out: its link, its data, its files."""

from __future__ import annotations

import html
import io
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import streamlit as st

from krrviz.construction.stored import save_construction
from krrviz.construction.weights import Construction
from krrviz.export import PAGES, Picture, rows, script
from krrviz.settings import Settings
from krrviz.tables import Table
from krrviz.ui import standalone, state
from krrviz.ui.glossary import marked
from krrviz.ui.panels import mounted, panel, pictures

VERSIONS = ("krrviz", "torch", "numpy", "altair")

COPY = """
<div class="share" data-testid="share">
  <input type="text" readonly hidden aria-label="Link to this picture">
  <output role="status"></output>
  <button type="button">Copy link</button>
</div>
"""


def start() -> None:
    """Begin a page: nothing is on it."""
    mounted().clear()
    pictures().clear()
    st.session_state.told = {}
    st.session_state.pop("heading", None)


def tell(name: str, table: Mapping[str, object]) -> None:
    """Have a table stand beneath the pictures in files."""
    st.session_state.setdefault("told", {})[name] = table


def head(title: str, text: str) -> None:
    """A page's heading and what it asks, its symbols explained; the ways out are filled in last."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader(title, width="stretch")
        slot = st.container(horizontal=True, width="content", vertical_alignment="center")
    st.html(f'<p class="glossary">{marked(text)}</p>')
    st.session_state.heading = title, text, slot


def fill(page: str) -> None:
    """Put the ways out beside the heading, once all of the page is known."""
    if "heading" not in st.session_state:
        return
    title, text, slot = st.session_state.heading
    with slot:
        if st.context.is_embedded:
            st.link_button("Open in krrviz", f"{page or '.'}?{state.query()}")
            return
        panel("share", COPY)(key="share", data={"page": page, "query": state.query()})
        with st.popover("Export", icon=":material/download:"):
            _files(page or "fan", title, text)
            _embedding(page)


def _files(page: str, title: str, text: str) -> None:
    """Buttons for files; each is made when it is asked for."""
    panels, told = dict(mounted()), dict(st.session_state.told)
    # Not asked of the session later: a file is made outside of it.
    settings, view, query, table = state.settings(), state.view(), state.query(), state.table()
    shown = dict(pictures())

    def web_page() -> str:
        about = {"Link": {"page": page, "query": query}, **told}
        about["Settings"] = {
            label.label: getattr(settings, name) for name, label in Settings.table().items()
        }
        about["Versions"] = {name: version(name) for name in VERSIONS}
        return standalone.page(title, text, panels, about)

    files: dict[str, tuple[str, str, Callable[[], str | bytes]]] = {
        "Web page (.html)": (f"{page}.html", "text/html", web_page),
    }
    if shown:
        files["Data (.zip of CSV)"] = f"{page}.zip", "application/zip", lambda: _zip(shown)
    if page in PAGES and shown and not (page == "trained" and view.model == "own"):
        files["Python script (.py)"] = (
            f"{page}.py", "text/x-python", lambda: script(page, settings, view)
        )  # fmt: skip
    if page in PAGES and "transformer" in settings.methods:
        files["Hand-built transformer's weights (.zip)"] = (
            "transformer.zip", "application/zip", lambda: _weights(settings, table)
        )  # fmt: skip
    for label, (name, kind, make) in files.items():
        st.download_button(label, make, name, kind, key=label, on_click="ignore", width="stretch")


def _zip(shown: Mapping[str, Picture]) -> bytes:
    """Each picture's numbers as NAME.csv."""
    return _packed({f"{name}.csv": rows(it).to_csv(index=False) for name, it in shown.items()})


def _weights(settings: Settings, table: Table | None) -> bytes:
    """The constructed transformer: tensors, and a card that says what they are."""
    with TemporaryDirectory() as folder:
        at = Path(folder) / "transformer"
        save_construction(at, Construction.from_settings(settings, table))
        return _packed({file.name: file.read_bytes() for file in at.parent.iterdir()})


def _packed(files: Mapping[str, str | bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def _embedding(page: str) -> None:
    """How the page is put into slides or a course page."""
    base = (st.context.url or "").partition("?")[0]
    link = html.escape(f"{base}{'' if page else '/'}?{state.query()}&embed=true")
    st.markdown("**On slides and course pages**")
    st.code(
        f'<iframe src="{link}" title="krrviz: {page or "fan"}" width="100%" height="900" '
        'style="border:0" loading="lazy"></iframe>',
        language="html",
        wrap_lines=True,
    )
    st.caption(
        "Navigation and the sidebar's controls are hidden there, but for those that the link "
        "names: controls=bandwidth,ridge in place of controls=none shows these two."
    )
