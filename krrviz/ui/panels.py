"""Panels: components of our own in the browser, each a file of script and one of style."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from streamlit.components.v2 import component
from streamlit.components.v2.types import ComponentRenderer


@cache
def panel(name: str, html: str) -> ComponentRenderer:
    """Register the panel of ``name``.js and ``name``.css, once."""
    here = Path(__file__).parent
    common, js, css = (
        (here / file).read_text("utf-8") for file in ("common.js", f"{name}.js", f"{name}.css")
    )
    return component(f"krrviz_{name}", html=html, css=css, js=f"{common}\n{js}")
