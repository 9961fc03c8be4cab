"""Guarantee: the topics of that page, each from rows to charts and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import streamlit as st

from krrviz import charts, laws
from krrviz.charts import STYLES, Figure
from krrviz.frames import RULE_METHODS, TITLES, system
from krrviz.guarantee import Guarantee
from krrviz.laws import Axis, Frame
from krrviz.machine import DTYPES
from krrviz.scaling import TUNED_AT, TUNED_STEPS, WIDE, Power, Tail, power
from krrviz.settings import Settings, SettingsError
from krrviz.trust import RULES, factor_name
from krrviz.ui import state
from krrviz.ui.compute import followed, guaranteed, swept
from krrviz.ui.figures import figures

LADDER = [float(f"{digit}e{power}") for power in range(-12, 1) for digit in (1, 3)]
EPS_AXIS = Axis("eps", "relative error ε to reach", reverse=True)


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
    _shown({"budget": laws.budget(_budget(found), eps=eps)}, "budget")
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


def _budget(found: Guarantee) -> Frame:
    proof = found.certificate
    rows = [("proved", term, getattr(proof, term)) for term in ("iteration", "product", "sink")]
    rows.append(("allowed", "rounding", proof.rounding))
    if found.measured is not None:
        rows += [
            ("measured", "iteration", found.measured.iteration),
            ("measured", "product", found.measured.product),
        ]
    return pd.DataFrame(rows, columns=["bar", "term", "value"])


# -- Spectrum -----------------------------------------------------------------------------------


def _spectrum(settings: Settings) -> None:
    with st.spinner("Following the tail"):
        found = followed(settings)
    matrix = "D⁻¹A" if settings.sink == 0 else "P⁻¹A"
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
    values = _eigenvalues(found)
    named = {
        "measured, first prompt": found.errors,
        "its own spectrum, max |p_t|": found.true,
        "certified, h_t": found.certified,
    }
    every = max(1, len(found.errors) // 256)
    rows = pd.DataFrame(
        [
            {"series": name, "step": t, "error": float(curve[t])}
            for name, curve in named.items()
            for t in range(0, len(curve), every)
        ]
    )
    rows = rows[rows.error > 1e-14]
    if settings.update == "function_space":
        st.caption("Query rows have modes of their own, which neither line knows.")
    low, high = found.interval
    _shown(
        {
            "spectrum": laws.eigenvalues(values, low=low, high=high, matrix=matrix),
            "tail": laws.lines(
                rows,
                Axis("step", "step t", log=False),
                Axis("error", "relative error, or what is left of a mode"),
                title=f"Error by step, {RULES[settings.update]}, products exact",
                looks={
                    "measured, first prompt": STYLES["transformer"],
                    "its own spectrum, max |p_t|": STYLES["gradient_descent"],
                    "certified, h_t": STYLES["preconditioned_richardson"],
                },
            ),
        },
        "spectrum",
    )


def _eigenvalues(found: Tail) -> Frame:
    """A tail's eigenvalues: columns prompt, value."""
    prompts, each = found.eigenvalues.shape
    return pd.DataFrame(
        {
            "prompt": np.repeat(np.arange(prompts) + 1, each),
            "value": found.eigenvalues.ravel(),
        }
    )


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
    rows["series"] = "N = " + rows["n"].astype(str)
    shown = {}
    for (scale, sink), part in rows.groupby(["ridge_scale", "sink"], sort=False):
        name = f"{'per-sample' if scale == 'per_sample' else 'absolute'} ridge, sink " + (
            "0 (the paper's)" if sink == "0" else "= ridge"
        )
        shown[f"depth_{scale}_{sink}"] = laws.lines(
            part, EPS_AXIS, Axis("steps", "steps needed", log=False), title=name.capitalize()
        )
    _shown(shown, "depth")
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
    fits, drawn = [], []
    for product in rows["product"].unique():
        for what, column, ideal in (
            ("product error", "product_error", "−2"),
            ("answer", "output", "—"),
        ):
            m = by_m[by_m["product"] == product]
            drawn.append(
                pd.DataFrame(
                    {
                        "series": f"{product}: {what}",
                        "segments": m["segments"],
                        "error": m[column],
                    }
                )
            )
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
    need = by_n.assign(
        series=by_n["product"] + ": product error",
        width=4 * 128 * np.sqrt(by_n["product_error"] / 1e-3),
    )
    st.write(
        "A product's error falls as m⁻². For one error of the product, width grows as √N for the "
        "plain product, the paper's rate, and as the fourth root of N for the balanced one, which "
        "is ours. How the answer follows depends on the prompts."
    )
    _shown(
        {
            "width_error": laws.lines(
                pd.concat(drawn),
                Axis("segments", "hinges per side m"),
                Axis("error", "largest error"),
                title=f"Error against width, N = {settings.n}",
            ),
            "width_n": laws.lines(
                need[["series", "n", "width"]],
                Axis("n", "context length N"),
                Axis("width", "MLP width 4m"),
                title="Width for a product error of 1e-3",
            ),
        },
        "width",
    )
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
    method = rows["method"].map(lambda key: RULE_METHODS.get(key, key))
    own = rows["method"].isin(RULE_METHODS)
    titles = [
        f"Transformer, {RULES[key]}" if mine else TITLES[key]
        for key, mine in zip(rows["method"], own, strict=True)
    ]
    rows = rows.assign(method=method, title=titles)
    st.write(
        "The same stack carries out each rule; conjugate gradients, whose coefficients are global "
        "inner products of the data, cannot be built this way and stand beside them. The order "
        "changes with depth: scrub from early steps to far ones."
    )
    every = rows[(rows.step % 2 == 0)]
    last = int(rows.step.max())
    _shown({"rules": charts.steps(every, domain=(1e-6, 2.0))}, "rules", steps=last)
    reach = []
    for title, part in rows.groupby("title", sort=False):
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
    titles = rows["method"].map(TITLES) + rows["step_size"].map(lambda eta: f", η = {eta:.3g}")
    _shown(
        {
            "transfer": laws.lines(
                rows.assign(series=titles)[["series", "n", "error"]],
                Axis("n", "context length N"),
                Axis("error", f"mean relative error after {TUNED_STEPS} steps", domain=(0.05, 5)),
                title="One step size for all prompts",
                looks={
                    title: STYLES[method]
                    for title, method in zip(titles, rows["method"], strict=True)
                },
            )
        },
        "transfer",
    )


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
    here = ridge if isinstance(settings.sink, str) else float(settings.sink)
    values = _eigenvalues(found)
    at = min(settings.steps, len(found.errors) - 1)
    st.write(
        f"**s = {told}**: condition number certified {high / low:.3g}, met "
        f"{(values.value.max() / values.value.min()):.3g}; relative error of the first prompt "
        f"after {at} steps **{found.errors[at]:.2g}**."
    )
    shown = {"sink_now": laws.eigenvalues(values, low=low, high=high, matrix=f"P⁻¹A, s = {told}")}
    lifted = rows[rows.sink > 0] if len(rows) else rows
    if len(lifted):
        ends = {
            "smallest met": "low",
            "largest met": "high",
            "certified smallest": "certified_low",
            "certified largest": "certified_high",
        }
        spread = [
            pd.DataFrame({"series": name, "sink": lifted["sink"], "value": lifted[column]})
            for name, column in ends.items()
        ]
        base = float(rows.loc[rows.sink == 0, "error"].iloc[0])
        errors = [
            pd.DataFrame({"series": "sink s", "sink": lifted["sink"], "error": lifted["error"]}),
            pd.DataFrame({"series": "s = 0, the paper's", "sink": lifted["sink"], "error": base}),
        ]
        if here > 0:  # zero has no place on a logarithmic axis
            mark = {"series": [f"now: s = {told}"] * 2, "sink": [here] * 2}
            spread.append(pd.DataFrame({**mark, "value": [low, high]}))
            top = [lifted["error"].min(), lifted["error"].max()]
            errors.append(pd.DataFrame({**mark, "error": top}))
        shown["sink_spectrum"] = laws.lines(
            pd.concat(spread),
            Axis("sink", "sink level s"),
            Axis("value", "eigenvalue of P⁻¹A"),
            title="Spectrum of P⁻¹A, P = D + sI",
        )
        shown["sink_error"] = laws.lines(
            pd.concat(errors),
            Axis("sink", "sink level s"),
            Axis("error", "mean relative error"),
            title=f"Error after {settings.steps} steps, certified coefficients",
        )
    _shown(shown, "sink")
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
    rows = rows[rows.step % 2 == 0].rename(columns={"dtype": "series"})
    _shown(
        {
            "precision": laws.lines(
                rows,
                Axis("step", "step t", log=False),
                Axis("error", "mean relative error to exact KRR"),
                title="Error by step in each precision",
            )
        },
        "precision",
    )


def _looseness(settings: Settings) -> None:
    rows = swept("looseness", settings)
    if rows.empty:
        return
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
