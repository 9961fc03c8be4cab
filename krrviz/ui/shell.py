"""Shell: what every page stands in. Pages are listed here, once."""

from __future__ import annotations

import gc

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from krrviz.settings import Settings
from krrviz.tables import assets
from krrviz.ui import glossary, live, own, share, sidebar, state
from krrviz.ui.figures import vega

# The figure, its steps and its checks are to stand on one screen of 1440 × 900.
STYLE = (
    f"""<style>{glossary.STYLE}"""
    + """
[data-testid="stMainBlockContainer"] { padding: 2.9rem 2.5rem 1rem; }
[data-testid="stSidebarHeader"] { height: 2.5rem; margin-bottom: 0; }
button[data-selected="true"] p { color: color-mix(in srgb, currentColor 60%, CanvasText); }
.katex-display { overflow: visible !important; }
.katex-display > .katex, .katex-display > .katex > .katex-html { white-space: normal !important; }
@media (max-width: 640px) {
  [data-testid="stMainBlockContainer"] { padding: 3.6rem 1rem 1rem; }
  [data-testid="stMarkdownContainer"] :is(td, th) {
    padding: 2px 4px; font-size: .75rem; overflow-wrap: anywhere;
  }
}
</style>"""
)


def _pages() -> list[StreamlitPage]:
    """All pages, the home page first. Streamlit serves that at / alone; /fan leads there too."""
    home = st.Page("pages/fan.py", title="Fan", url_path="home", default=True)

    def go_home() -> None:
        whole = {key: st.query_params.get_all(key) for key in st.query_params}
        st.switch_page(home, query_params=whole)

    return [
        home,
        st.Page("pages/tour.py", title="Tour"),
        st.Page("pages/attention.py", title="Attention = kernel"),
        st.Page("pages/forward.py", title="Forward pass"),
        st.Page("pages/guarantee.py", title="Guarantee"),
        st.Page("pages/map.py", title="Map"),
        st.Page("pages/trained.py", title="Trained"),
        st.Page("pages/ablations.py", title="Ablations"),
        st.Page("pages/workshop.py", title="Train your own"),
        st.Page("pages/own_data.py", title="Own data"),
        st.Page(go_home, title="Fan", url_path="fan", visibility="hidden"),
    ]


def run() -> None:
    """The whole app: address in, sidebar, page, address out."""
    st.set_page_config("krrviz", assets() / "favicon.svg", layout="wide")
    page = st.navigation(_pages(), position="hidden" if st.context.is_embedded else "top")
    state.on_page(page.url_path)
    state.read_link()
    live.release()
    st.html(STYLE)
    if state.big():
        st.html("<style>html { font-size: 21px; }</style>")
    vega()
    ready = own.ready(page.url_path)
    if not st.context.is_embedded:
        sidebar.sidebar()
    elif (named := state.view().controls) != "none":
        sidebar.controls(named.split(","))
    for problem in state.problems():
        st.warning(state.literal(problem))
    share.start()
    if ready:
        page.run()
    glossary.strip()
    share.fill(page.url_path)
    state.write_link()
    _settle()


@st.cache_resource
def _settle() -> None:
    """Once a server: spare the libraries, now loaded, the search for garbage after every run.

    It walks through all that they hold, which takes longer than most runs.
    """
    gc.collect()
    gc.freeze()


def settings() -> Settings:
    """The settings for a page.

    On a fresh server a page's own address runs the page's file without the shell (its folder is
    named pages/). Then this hands over to the shell, which keeps the query string.
    """
    if not state.started():
        st.navigation(_pages(), position="hidden")
        st.rerun()
    return state.settings()
