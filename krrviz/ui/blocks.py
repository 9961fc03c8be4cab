"""Blocks: the control that names one block of the transformer."""

from __future__ import annotations

import streamlit as st

from krrviz.construction.transformer import Transformer
from krrviz.surgery import place
from krrviz.ui import state


def choose(model: Transformer) -> int:
    """Draw the control: which part of the stack and, in an update, of which update."""
    last, size = len(model.blocks) - 1, model.updates.step
    updates = (last - 1) // size
    halves = ["update"] if size == 1 else ["update (a)", "update (b)"]
    parts = ["read-in", *(halves if updates else []), "read-out"]
    block = min(int(state.view().block), last)
    # Where in the stack the block stands: its part, and its update, counted from 1.
    part = {0: 0, last: len(parts) - 1}.get(block, 1 + (block - 1) % size)
    update = min(updates, 1 + max(0, block - 1) // size)

    def chosen() -> None:
        at = parts.index(st.session_state.block_part or parts[part])
        inner = 1 + (int(st.session_state.get("block_update", 1)) - 1) * size + at - 1
        state.look(block={0: 0, len(parts) - 1: last}.get(at, inner))

    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.session_state.block_part = parts[part]
        st.segmented_control("Part of the transformer", parts, key="block_part", on_change=chosen)
        if 0 < part < len(parts) - 1:
            st.session_state.block_update = update
            st.number_input(
                f"Update, 1 to {updates}",
                1,
                updates,
                key="block_update",
                on_change=chosen,
                width=160,
            )
        st.caption(f"Block {block} of 0 to {last}: {place(model, block)}")
    return block
