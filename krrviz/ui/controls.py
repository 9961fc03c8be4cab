"""Controls: widgets of one field of the view, whose record stays the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from krrviz.settings import View
from krrviz.ui import state


def control(
    field: str,
    kind: str,
    options: list[Any],
    words: Callable[[Any], str],
    width: int | None = None,
    label: str | None = None,
) -> None:
    """A control of one field of the view."""
    st.session_state[f"{field} look"] = getattr(state.view(), field)
    about = View.table()[field]

    def changed() -> None:
        value = st.session_state[f"{field} look"]
        state.look(**{field: getattr(state.view(), field) if value is None else value})

    common: dict[str, Any] = {
        "key": f"{field} look", "on_change": changed, "format_func": words, "help": about.help
    }  # fmt: skip
    if kind == "selectbox":
        st.selectbox(label or about.label, options, width=width or "stretch", **common)
    elif kind == "select_slider":
        st.select_slider(label or about.label, options, width=width or "stretch", **common)
    else:
        st.segmented_control(
            label or about.label,
            options,
            label_visibility="collapsed" if label is None else "visible",
            **common,
        )


def prompts_asked() -> None:
    """How many prompts trained models are asked."""
    sizes = sorted({64, 128, 256, 512, state.view().asked})
    control("asked", "select_slider", sizes, str, 200, "Prompts asked")
