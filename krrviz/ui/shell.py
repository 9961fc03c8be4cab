"""Shell: what every page stands in. Pages are listed here, once."""

from __future__ import annotations

import streamlit as st

from krrviz.settings import Settings
from krrviz.ui import state
from krrviz.ui.figures import vega
from krrviz.ui.sidebar import sidebar


def _pages() -> list:
    return [
        st.Page("pages/fan.py", title="Fan", icon=":material/stacked_line_chart:", default=True)
    ]


def run() -> None:
    """The whole app: address in, sidebar, page, address out."""
    st.set_page_config("krrviz", ":material/stacked_line_chart:", layout="wide")
    page = st.navigation(_pages(), position="top" if len(_pages()) > 1 else "hidden")
    state.read_link()
    sidebar()
    vega()
    for problem in state.problems():
        st.warning(problem, icon=":material/warning:")
    page.run()
    state.write_link()


def settings() -> Settings:
    """The settings for a page.

    On a fresh server a page's own address runs the page's file without the shell (its folder is
    named pages/). Then this hands over to the shell, which keeps the query string.
    """
    if not state.started():
        st.navigation(_pages(), position="hidden")
        st.rerun()
    return state.settings()
