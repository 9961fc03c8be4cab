"""Trained: the topics of that page, each from a checkpoint to charts and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from krrviz import findings
from krrviz.charts import LAYER
from krrviz.findings import CURVES, READ_BY, Frame
from krrviz.frames import REFERENCES
from krrviz.pictures import trained as pictures
from krrviz.pictures.trained import step_size
from krrviz.settings import CHECKPOINTS, Settings, SettingsError
from krrviz.solvers import SOLVERS
from krrviz.trained.abroad import DEEPEST, FURTHER, beyond, live
from krrviz.trained.gpt import GPT, CheckpointError
from krrviz.trained.inside import headed, patch
from krrviz.trained.match import METRICS, STEPS
from krrviz.trained.probe import FEW, TARGETS, Probed, ProbeError, fixed_task, operator_at
from krrviz.ui import state
from krrviz.ui.checkpoints import chosen, named, told
from krrviz.ui.compute import computed, matched, probed, solver_fans, studied
from krrviz.ui.controls import control, prompts_asked
from krrviz.ui.figures import figures
from krrviz.ui.heatmaps import heatmaps

WORDS = {
    **findings.POLICY_WORDS,
    "absolute": "K + λI",
    "per_sample": "K + n(λ/N)I",
}

# -- which model, which topic -------------------------------------------------------------------


def show(settings: Settings) -> None:
    """Draw the page: a model, a topic, and what it shows; what cannot be done is told there."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        control("model", "selectbox", _models(), named, 330)
        prompts_asked()
    control("study", "segmented", [*TOPICS], lambda topic: TOPICS[topic][0])
    try:
        model, card = chosen(state.view().model)
        st.caption(told(card))
        TOPICS[state.view().study][1](settings, model, card)
    except (CheckpointError, ProbeError, SettingsError) as error:
        st.error(f"{state.literal(str(error))}.", icon=":material/error:")


def _models() -> list[str]:
    return [*CHECKPOINTS, *(["own"] if "own" in st.session_state else [])]


# -- fans ---------------------------------------------------------------------------------------


def _fans(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = probed(model, card, state.view().asked)
    st.markdown("**Layer by layer**: error against context length n, pooled over prompts")
    figures(pictures.layers(found), steps=model.shape.layers, key="layers", each=LAYER)
    st.caption(_regularised(found))
    asked = pictures.asked(settings)
    if not asked:
        return
    st.markdown(f"**Solvers on the same prompts**, {_convention(settings)}")
    fans = solver_fans(card, found, asked, step_size(settings))
    last = min(STEPS, max(1, settings.steps))
    figures(pictures.solvers(fans, settings), steps=last, key="solvers")
    st.caption(
        "Methods, step policy, ridge scale and depth are the sidebar's; of the rest of the sidebar "
        "only the topic “Your prompts” makes use here. A lens is the model's own head on a layer "
        "that was never meant for it; probes are linear, fitted on other prompts."
    )


def _regularised(found: Probed) -> str:
    """How near the truth exact KRR is, and the model's layers."""
    scale = found.noiseless.norm()
    own = float((found.krr - found.noiseless).norm() / scale)
    errors = (found.answers["lens"] - found.noiseless).norm(dim=(1, 2)) / scale
    best = int(errors.argmin())
    return (
        f"To the noiseless function, over all n: exact KRR {own:.3f}; the model's layers by its "
        f"own head, best {float(errors[best]):.3f} at layer {best} and {float(errors[-1]):.3f} at "
        f"the last. Stopping early can regularise, so the nearest to KRR need not be the best."
    )


def _convention(settings: Settings) -> str:
    """Step policy and ridge in words."""
    size = f", η = {settings.step_size:g}" if settings.policy == "manual" else ""
    return f"step policy {WORDS[settings.policy]}{size}, ridge {WORDS[settings.ridge_scale]}"


# -- the match ----------------------------------------------------------------------------------


def _match(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = probed(model, card, state.view().asked)
    result = matched(card, found, step_size(settings))
    with st.container(horizontal=True):
        control("metric", "segmented", [*METRICS], lambda name: METRICS[name].title, label="Metric")
        control("readout", "segmented", [*READ_BY], lambda name: CURVES[name], label="Readout")
    view, metric = state.view(), METRICS[state.view().metric]
    st.caption(f"{metric.title}: {metric.told}. Read by {READ_BY[view.readout]}.")
    stand = findings.standing(
        result, view.metric, view.readout, settings.policy, settings.ridge_scale
    )
    free, fixed = stand.free, stand.fixed
    if free.empty:
        st.info("Operators are not taken of the control; choose another metric or readout.")
        return
    best = free.iloc[0]
    st.markdown(
        f"Most alike: **{best.title}**, {_convention(settings)}; {_contest(free)} "
        f"With a fixed number of steps a layer: **{fixed.iloc[0].title}**, {_contest(fixed)}"
    )
    figures(pictures.rankings(stand, model.shape.layers), steps=0, key="ranking", led=0)
    span = pictures.span(stand.drawn)
    st.markdown(
        f"**Every layer beside every step**: bright is alike, from {span[0]:.3g} to {span[1]:.3g}; "
        "circles are each layer's best step"
    )
    figures(pictures.grids(stand), steps=0, key="match", led=0)
    lengths = ", ".join(map(str, operator_at(found.prompts.task.n)))
    st.markdown("**Who wins under which step policy and metric**, with the runner-up")
    st.markdown(findings.winners(stand.ranking))
    st.caption(
        "Scores are means over layers 1 to L, intervals a bootstrap over prompts with the best "
        "steps chosen anew. “≈” stands where the two intervals overlap: no winner then. A best "
        "step of 0 is the answer 0, where all solvers are alike. Operator distances are over the "
        f"first {min(FEW, len(found.labels))} prompts, at n = {lengths}. Manual: η = "
        f"{step_size(settings):g}, for the methods that take one; others keep the certified "
        "interval. Conjugate gradients have no policy."
    )


def _contest(rows: Frame) -> str:
    """Whether the first of a ranking is apart from the second."""
    one, two = rows.iloc[0], rows.iloc[1]
    apart = findings.apart(one, two)
    return (
        f"{one.score:.4f} [{one.low:.4f}, {one.high:.4f}] against {two.title}'s {two.score:.4f} "
        f"[{two.low:.4f}, {two.high:.4f}]: the intervals {'lie apart' if apart else 'overlap'}."
    )


# -- operator, additivity, probes ---------------------------------------------------------------


def _operator(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = probed(model, card, state.view().asked)
    result = matched(card, found, step_size(settings))
    st.write(
        "Conjugate gradients choose their coefficients by the labels, so their answers are not "
        "additive in y; every other solver's are, to the last digit. And ∂f/∂y, at these "
        "labels, tells which linear map a layer is near: plain gradient descent's, or the one "
        "with D⁻¹ in it."
    )
    defects: Frame = findings.defect_rows(found, result)
    linear = [m for m, entry in SOLVERS.items() if entry.takes is not None]
    worst = defects[defects.method.isin(linear)].defect.max()
    shown = pictures.operator(found, result, settings)
    figures(shown, steps=0, key="operator", led=0)
    last = float(found.defect[-1])
    at = result.defects["conjugate_gradient"][1:9].max()
    st.caption(
        f"Defect of the last layer {last:.3f}; conjugate gradients' largest within 8 steps "
        f"{float(at):.3f}; the linear solvers' {float(worst):.0e}. An answer that y does not move "
        "has defect 1. "
        f"{TARGETS['alpha'].capitalize()} and {TARGETS['degree']} are read at the tokens of the "
        "labels, the others where the model answers."
    )


# -- heads --------------------------------------------------------------------------------------


def _heads(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = studied("heads", card, lambda: headed(model, fixed_task(card)))
    layers = model.shape.layers
    state.nearest("layer", layers, "the model", "layers", first=1)
    control("layer", "segmented", list(range(1, layers + 1)), lambda k: f"layer {k}", label="Layer")
    layer = state.view().layer
    st.write(
        "What each head gives to the labelled points, x and y token added up and rows divided by "
        "the sum of their sizes, beside D⁻¹K at the same places, for one prompt."
    )
    heatmaps(pictures.heads(found, model.shape, layer), key="heads")
    heatmaps([pictures.alike(found)], key="alike", linked=False)


# -- controls -----------------------------------------------------------------------------------


def _controls(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = probed(model, card, state.view().asked)
    st.write(
        "Would any network show this? The same probes on random weights, probes fitted to other "
        "prompts' answers, and one token's α moved along the probe's direction to see whether "
        "later answers follow as k(x_*, x_j)."
    )
    moved = studied(
        f"patch {state.view().asked}",
        card,
        lambda: patch(model, fixed_task(card), state.view().asked),
    )
    figures(pictures.controls(found), steps=model.shape.layers, key="controls", each=LAYER)
    if moved:
        figures(pictures.patches(moved), steps=0, key="patch", led=0)
    else:
        st.info("In a model of one layer no layer comes after α was moved: nothing could follow.")
    real, control = (
        float(found.explained["krr"].max()), float(found.untrained["krr"].max())
    )  # fmt: skip
    st.caption(
        f"Best R² for exact KRR: trained {real:.3f}, untrained {control:.3f}. The untrained "
        "network has weights N(0, 1/fan-in), ours; training's own start is so near 0 that its "
        "blocks do next to nothing."
    )


# -- beyond training ----------------------------------------------------------------------------


def _beyond(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    task, steps = fixed_task(card), min(DEEPEST, settings.steps)
    found = studied(f"beyond {steps}", card, lambda: beyond(model, task, steps))
    st.write(
        f"Prompts up to {FURTHER} times as long as training's N = {task.n}. Solvers keep one step: "
        "the one certified for that N, or, tuned, the least of the prompts' own best steps at that "
        f"N, which is larger. All take {found.steps} steps (the sidebar's T)."
    )
    figures(pictures.beyond(found, task.n), steps=0, key="beyond", led=0)
    if model.shape.layout == "interleaved":
        st.caption(
            f"Beyond n = {task.n} there are no learned positions: all later tokens share the last "
            "one, which the model never met twice."
        )
    else:
        st.caption(f"It was trained at n = {task.n} alone: shorter prompts are new to it too.")


# -- the sidebar's own prompts ------------------------------------------------------------------


def _yours(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    table = state.table()
    found = studied("live", card, lambda: live(model, card, settings, table), settings)
    result, _ = computed(settings)
    if found.outside:
        st.warning(
            "Outside its training range, and shown all the same. " + " ".join(found.outside),
            icon=":material/travel_explore:",
        )
    figures(
        pictures.yours(found, settings, state.view().floor),
        steps=len(found.errors) - 1,
        key="yours",
        each=LAYER,
    )
    solvers = pictures.yours_solvers(result, settings, state.view().floor)
    figures(solvers, steps=settings.steps, key="yours solvers")
    st.caption(
        f"The sidebar's {settings.prompts} prompts of {settings.data}, {settings.queries} queries "
        f"each; mean relative error to {REFERENCES[settings.reference]}. The model is read by its "
        "own head."
    )


TOPICS: Mapping[str, tuple[str, Callable[[Settings, GPT, dict[str, Any]], None]]] = {
    "fan": ("Fans", _fans),
    "match": ("Which solver", _match),
    "operator": ("Operator", _operator),
    "heads": ("Heads", _heads),
    "controls": ("Controls", _controls),
    "beyond": ("Longer prompts", _beyond),
    "yours": ("Your prompts", _yours),
}
