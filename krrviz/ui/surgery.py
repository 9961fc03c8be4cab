"""Surgery: the controls that break the transformer, each a view of the link's fault."""

from __future__ import annotations

from typing import Any

import streamlit as st

from krrviz.settings import Choice, Number, View, shown
from krrviz.surgery import Fault, named
from krrviz.ui import state

WORDS = {
    "none": "nothing: whole",
    "block": "switch off a block",
    "attention": "switch off an attention sub-block",
    "mlp": "switch off an MLP sub-block",
    "quantise": "round a matrix to few bits",
    "perturb": "add noise to a matrix",
    "ungated": "leave the α update ungated",
    "unmask": "unmask a query as a key",
}
ASKS = {
    "block": ("fault_block",),
    "attention": ("fault_block",),
    "mlp": ("fault_block",),
    "quantise": ("fault_matrix", "fault_block", "fault_bits"),
    "perturb": ("fault_matrix", "fault_block", "fault_noise", "fault_seed"),
    "unmask": ("fault_query",),
}


def fault(depth: int, queries: int) -> Fault | None:
    """The fault that the link names; what is beyond the model is told, and the nearest taken."""
    kind = state.view().fault
    if "fault_block" in ASKS.get(kind, ()):
        state.nearest("fault_block", depth, "the transformer", "blocks")
    if kind == "unmask" and state.view().fault_query > queries:
        told = f"fault_query={state.view().fault_query}: the prompt has {queries} queries; "
        st.warning(f"{told}the last is taken.")
        state.look(fault_query=queries)
    return named(state.view())


def reset() -> None:
    """Make the transformer whole; what the fault was set to goes back as well."""
    state.look(**{name: about.default for name, about in _defaults().items()})


def controls(depth: int, queries: int) -> None:
    """Draw the controls of the fault, and the way back."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        _control("fault", 300)
        for name in ASKS.get(state.view().fault, ()):
            most = {"fault_block": depth - 1, "fault_query": queries}.get(name)
            _control(name, 150, most)
        st.button("Reset", on_click=reset, disabled=state.view().fault == "none")


def _word(option: str) -> str:
    return WORDS.get(option, option)


def _defaults() -> dict[str, Any]:
    return {f.name: f for f in View.__dataclass_fields__.values() if f.name.startswith("fault")}


def _control(name: str, width: int, most: int | None = None) -> None:
    about = View.table()[name]
    value, key = getattr(state.view(), name), f"{name} control"

    def changed() -> None:
        entered = st.session_state[key]
        if isinstance(entered, str) and isinstance(about.rule, Number):
            try:
                entered = about.rule.parse(entered.strip())
                about.rule.check(entered)
            except ValueError as error:
                state.tell(f"{name}={shown(entered)} {error}.")
                return
        state.look(**{name: entered})

    st.session_state[key] = value
    common: dict[str, Any] = {"key": key, "on_change": changed, "help": about.help, "width": width}
    match about.rule:
        case Choice(options):
            label = "Break" if name == "fault" else about.label
            st.selectbox(label, options, format_func=_word, **common)
        case Number(whole=True) as rule:
            high = int(rule.high) if most is None else most
            st.number_input(f"{about.label}, {int(rule.low)} to {high}" if most else about.label,
                            int(rule.low), high, step=1, **common)  # fmt: skip
        case _:
            st.session_state[key] = f"{value:g}"
            st.text_input(about.label, **common)
