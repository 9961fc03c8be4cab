"""Panels: components of our own in the browser, each a file of script and one of style.

What a page has mounted is kept until its next run, so that it can be written into a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2 import component
from streamlit.components.v2.types import ComponentRenderer

from krrviz.export import Picture

HERE = Path(__file__).parent


@dataclass(frozen=True, eq=False)
class Mounted:
    """A panel on the page: its name, its frame in HTML, and what it was told."""

    name: str
    html: str
    data: Any


def source(file: str) -> str:
    """A script or a style of ours."""
    return (HERE / file).read_text("utf-8")


@cache
def _registered(name: str, html: str) -> ComponentRenderer:
    js = source("common.js") + source(f"{name}.js")
    return component(f"krrviz_{name}", html=html, css=source(f"{name}.css"), js=js)


def panel(name: str, html: str) -> Callable[..., Any]:
    """The panel of ``name``.js and ``name``.css; calling it mounts it."""

    def mount(*, key: str, data: Any, **more: Any) -> Any:
        mounted()[key] = Mounted(name, html, data)
        return _registered(name, html)(key=key, data=data, **more)

    return mount


def pictures() -> dict[str, Picture]:
    """The figures and maps of the page as it stands, by the names of their files."""
    return st.session_state.setdefault("pictures", {})


def mounted() -> dict[str, Mounted]:
    """The panels of the page as it stands, by key."""
    return st.session_state.setdefault("mounted", {})
