"""Blocks: the control that names one block of the transformer."""

from __future__ import annotations

import streamlit as st

from krrviz.construction.transformer import Transformer
from krrviz.surgery import place
from krrviz.ui import state


def choose(model: Transformer) -> int:
    """Draw the control: which part of the stack and, in an update, of which update."""
    last, first, size = len(model.blocks) - 1, model.updates.start, model.updates.step
    updates = (last - 1 - first) // size
    halves = ["update"] if size == 1 else ["update (a)", "update (b)"]
    ins = ["read-in", "read-in (queries)"][: first + 1]
    parts = [*ins, *(halves if updates else []), "read-out"]
    block = min(int(state.view().block), last)
    # Where in the stack the block stands: its part, and its update, counted from 1.
    in_update = first < block < last
    part = len(ins) + (block - 1 - first) % size if in_update else min(block, len(parts) - 1)
    update = min(updates, 1 + max(0, block - 1 - first) // size)

    def chosen() -> None:
        at = parts.index(st.session_state.block_part or parts[part])
        inner = first + 1 + (int(st.session_state.get("block_update", 1)) - 1) * size
        outer = {**{k: k for k in range(len(ins))}, len(parts) - 1: last}
        state.look(block=outer.get(at, inner + at - len(ins)))

    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.session_state.block_part = parts[part]
        st.segmented_control("Part of the transformer", parts, key="block_part", on_change=chosen)
        if in_update:
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
