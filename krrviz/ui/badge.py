"""Badge: what the picture was checked against, in sight of every figure."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from krrviz.fan import Fan
from krrviz.frames import REFERENCES, conditions, system
from krrviz.settings import Settings
from krrviz.trust import Check
from krrviz.ui import share

# Below this size of KRR's answer (labels have size 1) a relative error says little.
FAINT = 0.02


def badge(s: Settings, checks: list[Check], result: Fan | None = None) -> None:
    """One line: each check with its figure and tolerance, where it ran, and what depth lacks."""
    against = REFERENCES[s.reference]
    marks = [_mark(check) for check in checks]
    told = [f"solves ({system(s)})α = y", f"{s.dtype} on {result.device if result else 'cpu'}"]
    if result:
        told.insert(1, _steps(s))
        if "transformer" in s.methods:
            short = result.errors["transformer"][-1, -1]
            told.append(f"depth T = {s.steps} leaves the transformer {short:.2g} from {against}")
    st.markdown(" ".join([*marks, *(f":gray-badge[{text}]" for text in told)]))
    if result:
        _caveats(s, result)


def _caveats(s: Settings, result: Fan) -> None:
    for notice in result.notices:
        st.info(notice, icon=":material/info:")
    if s.reference == "krr" and result.scale < FAINT:
        st.info(
            f"Kernel ridge regression itself answers almost 0 here (root mean square "
            f"{result.scale:.1e}, labels have 1): the kernel matrix is nearly the identity, and a "
            "relative error says little. A wider bandwidth gives it something to learn.",
            icon=":material/info:",
        )


def _mark(check: Check) -> str:
    """A check as a mark: said in words, not by its colour alone."""
    colour, icon, words = (
        ("green", "check", "within") if check.passed else ("red", "close", "exceeds")
    )
    if check.passed and not check.telling:
        colour, icon, words = "gray", "help", "too coarse to tell, within"
    return (
        f":{colour}-badge[:material/{icon}: {check.name}: {check.value:.2g} {words} "
        f"{check.tolerance:.2g}]"
    )


def _steps(settings: Settings) -> str:
    """The step policy; the transformer's own where it is another."""
    policy = settings.policy.replace("_", " ")
    if settings.policy == "manual":
        policy = f"manual {settings.step_size:g}"
    own = "transformer" in settings.methods and settings.policy != "certified"
    return f"steps: {policy}" + ("; transformer: certified" if own else "")


def report(checks: list[Check], result: Fan | None = None) -> None:
    """The small print: what each curve is, and what each check means."""
    curves = "What each curve is, and what was checked" if result else "What was checked"
    with st.expander(curves):
        if result:
            st.dataframe(conditions(result), hide_index=True, width="stretch")
        share.tell("Checked", {c.name: f"{c.value:.3g}, at most {c.tolerance:.3g}" for c in checks})
        table = pd.DataFrame(
            {
                "check": [c.name for c in checks],
                "measured": [f"{c.value:.3e}" for c in checks],
                "at most": [f"{c.tolerance:.3e}" for c in checks],
                "meaning": [c.meaning for c in checks],
            }
        )
        st.dataframe(table, hide_index=True, width="stretch")
        st.caption(
            "Our reconstruction of the construction in arXiv 2605.08475. The balanced product, the "
            "calibrated range of α, the step policies and the axes are our choices."
        )
