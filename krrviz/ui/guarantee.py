"""Guarantee: the topics of that page, each from rows to charts and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import streamlit as st

from krrviz.charts import Figure
from krrviz.frames import rule_rows, system
from krrviz.guarantee import Guarantee
from krrviz.machine import DTYPES
from krrviz.pictures import guarantee as pictures
from krrviz.scaling import TUNED_AT, TUNED_STEPS, WIDE, Power, power
from krrviz.settings import Settings, SettingsError
from krrviz.trust import RULES, factor_name
from krrviz.ui import panels, state
from krrviz.ui.compute import followed, guaranteed, swept
from krrviz.ui.figures import figures

LADDER = [float(f"{digit}e{power}") for power in range(-12, 1) for digit in (1, 3)]


def choose() -> str:
    """Draw the menu of topics; which one is shown."""
    st.session_state.topic = state.view().topic
    st.segmented_control(
        "Topic",
        list(TOPICS),
        key="topic",
        format_func=lambda topic: TOPICS[topic][0],
        on_change=lambda: state.look(topic=st.session_state.topic or state.view().topic),
        label_visibility="collapsed",
    )
    return state.view().topic


def show(topic: str, settings: Settings) -> None:
    """Draw one topic; what cannot be computed is told in its place."""
    try:
        TOPICS[topic][1](settings)
    except SettingsError as error:
        st.error(f"{error}.")


def _shown(shown: Mapping[str, Figure], key: str, steps: int | None = None) -> None:
    figures(shown, steps=steps or 0, key=f"{key} figures", led=0 if steps is None else None)


# -- ε → depth ----------------------------------------------------------------------------------


def _dial(settings: Settings) -> None:
    st.write(
        "Choose how far from exact kernel ridge regression the transformer may answer. The "
        "certificate gives a depth and a width at which no prompt within the bounds does worse."
    )
    eps = state.view().eps
    st.session_state.eps = eps
    st.select_slider(
        "Accuracy ε, in standard deviations of the labels",
        sorted({*LADDER, eps}, reverse=True),
        key="eps",
        format_func=lambda value: f"{value:g}",
        on_change=lambda: state.look(eps=st.session_state.eps),
    )
    with st.spinner("Certifying and measuring"):
        found = guaranteed(settings, eps)
    st.markdown(_table(found))
    if found.measured is None:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.info(f"Not measured: {_cost(found)}. ε = {found.affordable:.2g} can be measured.")
            nearest = float(f"{found.affordable * 1.05:.1e}")
            st.button(f"Take ε = {nearest:g}", on_click=lambda: state.look(eps=nearest))
    if found.measured and found.measured.error > eps:
        st.warning(
            "These prompts do worse than ε: they leave the bounds. See the checks below, and raise "
            "the label or input bound."
        )
    _shown(pictures.budget(found), "budget")
    c = found.construction
    st.caption(
        f"Proved in exact arithmetic while |y| ≤ {c.label_bound:g} and ‖x‖ ≤ {c.input_bound:.3g}; "
        f"no {factor_name(c)} leaves R = {found.certificate.alpha_range:.4g} then. Rounding is an "
        "allowance and no proof; ε has room for it. "
        "The sidebar's T and m are not used here; rule, product, sink, ridge and precision are. "
        f"Solves ({system(settings)})α = y, certified for all n ≤ {c.n_max}."
    )


def _cost(found: Guarantee) -> str:
    if found.seconds == math.inf:
        return "its weights do not fit into this machine's memory"
    return f"that would take about {found.seconds:.3g} s"


def _table(found: Guarantee) -> str:
    c, proof, measured = found.construction, found.certificate, found.measured
    needed = "more than was searched" if found.needed is None else f"{found.needed:,} steps"
    gap = post_hoc = factor = "not measured"
    if measured:
        gap, post_hoc, factor = (
            f"{measured.error:.2e}", f"{measured.post_hoc:.2e}", f"{measured.factor:.3g}"
        )  # fmt: skip
    rows = [
        ("Depth", f"**{c.steps:,} steps**, {c.blocks:,} blocks ({c.layout})", f"needed: {needed}"),
        (
            "Width",
            f"**m = {c.segments:,}** hinges a side, {4 * c.segments:,} units",
            f"{factor_name(c)} within {proof.alpha_range:.4g}; met: {factor}",
        ),
        ("Bound", f"a priori **{proof.a_priori:.2e}**", f"post hoc {post_hoc}"),
        ("Error", f"ε = {found.eps:g}", f"measured **{gap}**"),
        (
            "Size",
            f"{_count(found.parameters)} parameters",
            f"{_count(found.operations)} operations a prompt",
        ),
    ]
    lines = ["| | certified for every prompt | these prompts |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {a} | {b} | {d} |" for a, b, d in rows)])


def _count(value: float) -> str:
    """A large number as people say it."""
    if value >= 1e15:
        return f"{value:.1e}"
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:,.0f}"


# -- Spectrum -----------------------------------------------------------------------------------


def _spectrum(settings: Settings) -> None:
    with st.spinner("Following the tail"):
        found = followed(settings)
    inside = found.interval[0] <= found.eigenvalues.min() * (1 + 1e-9) and (
        found.eigenvalues.max() <= found.interval[1] * (1 + 1e-9)
    )
    certified = float(np.log(found.certified[-1])) / max(1, len(found.errors) - 1)
    st.write(
        f"All eigenvalues lie {'within' if inside else '**outside**'} the certified interval, "
        "which knows N, λ and the sink alone. The slowest of them makes the tail: measured slope "
        f"of log error **{_signed(found.slope)}** a step, from this prompt's own spectrum "
        f"**{_signed(found.expected)}**, certified "
        f"{_signed(certified)} a step at worst."
    )
    if settings.update == "function_space":
        st.caption("Query rows have modes of their own, which neither line knows.")
    _shown(pictures.spectrum(found, settings), "spectrum")


def _signed(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


# -- Depth against ε and N ----------------------------------------------------------------------


def _depth(settings: Settings) -> None:
    rows = swept("depth", settings)
    st.write(
        "Steps until the mean relative error is within ε, one line per N. A straight line is "
        "depth ∝ log 1/ε; lines that fan out are depth that grows with N. In theory they do not "
        "only where the ridge grows with n and the sink with it."
    )
    if rows.empty:
        return
    _shown(pictures.depth(rows, settings), "depth")
    at = rows[rows.eps == 1e-3].groupby(["ridge_scale", "sink"], sort=False)
    told = [
        f"{scale.replace('_', ' ')}, sink {sink}: "
        + ", ".join("more" if math.isnan(steps) else f"{steps:.0f}" for steps in part["steps"])
        for (scale, sink), part in at
    ]
    st.caption(
        f"Steps to 1e-3 at N = {', '.join(map(str, sorted({*rows.n})))}: {'; '.join(told)}. Update "
        f"rule: {RULES[settings.update]}, products exact, {min(4, settings.prompts)} prompts. "
        "Lines end at 10 000 steps, at 2 000 in function space."
    )


# -- Width --------------------------------------------------------------------------------------


def _width(settings: Settings) -> None:
    rows = swept("width", settings)
    if rows.empty:
        return
    by_m = rows[rows.n == settings.n].sort_values("segments")
    by_n = rows[rows.segments == 128].sort_values("n")
    fits = []
    for product in rows["product"].unique():
        for what, column, ideal in (
            ("product error", "product_error", "−2"),
            ("answer", "output", "—"),
        ):
            m = by_m[by_m["product"] == product]
            n = by_n[by_n["product"] == product]
            # error ∝ m⁻², so the width for one error grows as its square root
            need = 128 * np.sqrt(n[column] / 1e-3)
            fits.append(
                {
                    "": f"{product}: {what}",
                    "error against m": _fit(power(m["segments"].to_numpy(), m[column].to_numpy())),
                    "in theory": ideal,
                    "width against N": _fit(power(n["n"].to_numpy(), need.to_numpy())),
                    "in theory, N": {"plain": "½", "balanced": "¼"}[product]
                    if ideal == "−2"
                    else "—",
                }
            )
    st.write(
        "A product's error falls as m⁻². For one error of the product, width grows as √N for the "
        "plain product, the paper's rate, and as the fourth root of N for the balanced one, which "
        "is ours. How the answer follows depends on the prompts."
    )
    _shown(pictures.width(rows, settings), "width")
    st.dataframe(pd.DataFrame(fits), hide_index=True, width="stretch")
    st.caption("Exponents with 95 % intervals of the fits; largest over drawn operands.")


def _fit(found: Power | None) -> str:
    if found is None:
        return "too few points"
    return f"{found.exponent:.3f} ({found.low:.3f} to {found.high:.3f})"


# -- Update rules -------------------------------------------------------------------------------


def _rules(settings: Settings) -> None:
    rows = swept("rules", settings)
    if rows.empty:
        return
    st.write(
        "The same stack carries out each rule; conjugate gradients, whose coefficients are global "
        "inner products of the data, cannot be built this way and stand beside them. The order "
        "changes with depth: scrub from early steps to far ones."
    )
    last = int(rows.step.max())
    _shown(pictures.rules(rows, settings), "rules", steps=last)
    reach = []
    for title, part in rule_rows(rows).groupby("title", sort=False):
        line: dict[str, object] = {"": title}
        for eps in (0.3, 0.1, 1e-2, 1e-3, 1e-4):
            there = part.step[part.error <= eps]
            line[f"{eps:g}"] = str(int(there.min())) if len(there) else f"> {last}"
        reach.append(line)
    st.markdown("**Steps to a mean relative error of**")
    st.dataframe(pd.DataFrame(reach), hide_index=True, width="stretch")
    sink = "= ridge" if isinstance(settings.sink, str) else f"{settings.sink:g}"
    st.caption(
        f"Transformers with m = {settings.segments}, {settings.product} product, certified "
        f"coefficients for N = {settings.n}, sink {sink}; their floor is the product error. "
        "Conjugate gradients run on A, preconditioned ones with D."
    )


# -- One step size ------------------------------------------------------------------------------


def _transfer(settings: Settings) -> None:
    rows = swept("transfer", settings)
    if rows.empty:
        return
    st.write(
        f"Each step size is the best for {TUNED_STEPS} steps where N = {TUNED_AT}, then used for "
        "prompts of other lengths. Divided by the row sums, one step is safe for them all; plain "
        "gradient descent's is safe only up to some N. The transformer runs the weights built for "
        "the largest N."
    )
    _shown(pictures.transfer(rows, settings), "transfer")


# -- The sink -----------------------------------------------------------------------------------


def _sink(settings: Settings) -> None:
    rows = swept("sink", settings.but(sink=0))
    ridge = settings.ridge * (settings.n if settings.ridge_scale == "per_sample" else 1)
    st.write(
        "An attention sink of level s turns the preconditioner D into D + sI: 0 is the paper's, "
        f"the ridge itself ({ridge:.3g}) brings the largest eigenvalue to 1, and a very large s is "
        "plain Richardson. Move it here or under Transformer in the sidebar."
    )
    levels: list[float | str] = [0.0, "ridge", *(10.0**k for k in range(-3, 7))]
    if settings.sink not in levels:
        levels.append(settings.sink)
    st.session_state.sink_dial = settings.sink
    st.select_slider(
        "Sink level s",
        sorted(levels, key=lambda s: ridge if isinstance(s, str) else s),
        key="sink_dial",
        format_func=lambda s: "s = ridge" if isinstance(s, str) else f"{s:g}",
        on_change=lambda: state.change(sink=st.session_state.sink_dial),
    )
    found = followed(settings)
    low, high = found.interval
    told = "ridge" if isinstance(settings.sink, str) else f"{settings.sink:g}"
    met = found.eigenvalues
    at = min(settings.steps, len(found.errors) - 1)
    st.write(
        f"**s = {told}**: condition number certified {high / low:.3g}, met "
        f"{(met.max() / met.min()):.3g}; relative error of the first prompt "
        f"after {at} steps **{found.errors[at]:.2g}**."
    )
    _shown(pictures.sink(found, rows, settings), "sink")
    st.caption(
        f"Update rule: {RULES[settings.update]}, products exact. The certified step grows as the "
        "largest certified eigenvalue falls; a step near 2 damps the top mode slowly, which is why "
        "an early error can be worse with a smaller spectrum."
    )


# -- Precision, looseness -----------------------------------------------------------------------


def _precision(settings: Settings) -> None:
    rows = swept("precision", settings)
    if rows.empty:
        return
    floors = rows.groupby("dtype", sort=False)["error"].min()
    if left_out := [name for name in DTYPES if name not in floors]:
        st.info(f"{', '.join(left_out)} cannot hold the weights of these settings.")
    st.write(
        "The same construction in four precisions, each with its own sink levels. Floors: "
        + ", ".join(f"**{name} {value:.1e}**" for name, value in floors.items())
        + f" within {int(rows.step.max())} Chebyshev steps, with balanced products so wide "
        f"(m = {WIDE:,}) that rounding alone is left, where the depth suffices."
    )
    _shown(pictures.precision(rows, settings), "precision")


def _looseness(settings: Settings) -> None:
    rows = swept("looseness", settings)
    if rows.empty:
        return
    panels.pictures()["looseness"] = rows
    st.write(
        "How many times larger the bounds are than what happens, medians over prompts, at the "
        f"depth T = {settings.steps} and width m = {settings.segments} of the sidebar; balanced "
        "products in float64, and the calibrated range of α, within which the bounds hold."
    )
    ratios = rows.assign(
        **{
            "a priori / measured": rows.a_priori / rows.measured,
            "post hoc / measured": rows.post_hoc / rows.measured,
        }
    )
    told = ratios.groupby(["data", "update"], sort=False)[
        ["measured", "a priori / measured", "post hoc / measured"]
    ].median()
    st.dataframe(
        told.reset_index()
        .replace({"update": RULES})
        .map(lambda x: f"{x:.3g}" if isinstance(x, float) else x),
        hide_index=True,
        width="stretch",
        height=35 * (len(told) + 1) + 3,
    )


TOPICS: Mapping[str, tuple[str, Callable[[Settings], None]]] = {
    "dial": ("ε → depth", _dial),
    "spectrum": ("Spectrum", _spectrum),
    "depth": ("Depth and N", _depth),
    "width": ("Width", _width),
    "rules": ("Update rules", _rules),
    "transfer": ("One step size", _transfer),
    "sink": ("Sink", _sink),
    "precision": ("Precision", _precision),
    "looseness": ("Looseness", _looseness),
}
