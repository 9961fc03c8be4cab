"""Attention = kernel: is each block's softmax attention the row-normalised Gaussian kernel?"""

import streamlit as st

from krrviz.pictures.attention import followed, matrices, names, numbers, points, row, words
from krrviz.ui import share, shell, state
from krrviz.ui.badge import badge, report
from krrviz.ui.blocks import choose
from krrviz.ui.compute import checked, dissected
from krrviz.ui.heatmaps import heatmaps

settings = shell.settings()

share.head(
    "Softmax attention is the row-normalised kernel",
    "The weights' attention, D⁻¹K from distances alone, and their difference, coloured as it nears "
    "the tolerance. Click a cell to follow its row below.",
)

a = dissected(settings)
for notice in a.notices:
    st.info(notice, icon=":material/info:")
tokens = len(a.kinds)
state.nearest("block", a.depth, "the transformer", "blocks")
state.nearest("pin", tokens, "the prompt", "tokens")
state.nearest("pin_key", tokens, "the prompt", "tokens")
block = choose(a.model)
view = state.view()

# Maps show tokens in the anatomy's order; links name them by their place in the prompt.
shown = {int(token): place for place, token in enumerate(a.order)}
pin = view.pin if isinstance(view.pin, int) else None
key = view.pin_key if isinstance(view.pin_key, int) else None if pin is None else a.nearest(pin)


def pinned() -> None:
    cell = st.session_state.attention["pin"]
    i, j = ("none", "none") if cell is None else (int(a.order[at]) for at in cell)
    state.look(pin=i, pin_key=j)


if a.idle(block):
    st.info(
        f"Block {block} ({a.place(block)}) attends to nothing: its value matrix is 0, and only its "
        "MLP works.",
        icon=":material/bedtime:",
    )
heatmaps(
    matrices(a, block),
    key="attention",
    pin=None if pin is None or key is None else (shown[pin], shown[key]),
    on_pin=pinned,
    points=points(a),
)
badge(settings, checked(settings))

token = followed(a, view.pin)
step = a.step(block, token)
if step is not None:
    st.markdown(f"**From score to {words(a, block)[1]}, for token {names(a)[token]}**")
    st.markdown(numbers(a, block, token, key, step))

    def pinned_key() -> None:
        cell = st.session_state.row["pin"]
        state.look(pin=token, pin_key="none" if cell is None else int(a.order[cell[1]]))

    heatmaps(
        row(a, block, token, step),
        key="row",
        pin=None if key is None else (0, shown[key]),
        on_pin=pinned_key,
    )
report(checked(settings))
