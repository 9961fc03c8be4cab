"""Ablations: the topics of that page, from checkpoints and their logs to charts and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from krrviz import findings
from krrviz.checkpoints import log, missing, snapshots
from krrviz.counterparts import SCORES
from krrviz.fan import HUGE
from krrviz.findings import CURVES, READ_BY, Frame
from krrviz.frames import system
from krrviz.pictures import ablations as pictures
from krrviz.pictures.ablations import KERNELS, KINDS, MAIN, TRAINED_ON
from krrviz.settings import Settings, SettingsError
from krrviz.tables import TableError
from krrviz.trained.gpt import CheckpointError
from krrviz.trained.match import METRICS
from krrviz.trained.probe import Probed, ProbeError
from krrviz.trust import RULES
from krrviz.ui import state
from krrviz.ui.checkpoints import chosen
from krrviz.ui.compute import aligned, probed, rescored, rivalled
from krrviz.ui.controls import control, prompts_asked
from krrviz.ui.figures import figures
from krrviz.ui.heatmaps import heatmaps

STEP_POLICY = "certified step, ridge K + λI, float64"


# -- which topic --------------------------------------------------------------------------------


def show(settings: Settings) -> None:
    """Draw the page: a topic and what it shows; what cannot be done is told there."""
    control("ablation", "segmented", [*TOPICS], lambda topic: TOPICS[topic][0])
    try:
        TOPICS[state.view().ablation][1](settings)
    except SettingsError as error:
        labels = [Settings.table()[name].label for name in error.fields if name in Settings.table()]
        remedy = f" Change {' or '.join(labels)} in the sidebar." if labels else ""
        st.error(f"{state.literal(str(error))}.{remedy}", icon=":material/error:")
    except (TableError, ProbeError) as error:
        st.error(f"{state.literal(str(error))}.", icon=":material/error:")


def _asking() -> None:
    """How trained models are asked and read."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        control("readout", "segmented", [*READ_BY], lambda name: CURVES[name], label="Readout")
        prompts_asked()


def _answering(names: Sequence[str]) -> dict[str, tuple[dict[str, Any], Probed]]:
    """The cards and answers of the models that are there; one that cannot be used is told."""
    found = {}
    for name in names:
        if missing(name):
            continue
        try:
            model, card = chosen(name)
            found[name] = card, probed(model, card, state.view().asked)
        except (CheckpointError, ProbeError) as error:
            st.error(f"{state.literal(str(error))}.", icon=":material/error:")
    return found


def _listed(names: Sequence[str], words: Mapping[str, str]) -> str:
    """Names in a sentence, with what they are."""
    return ", ".join(f"{name} ({words[name]})" for name in names)


# -- kernels ------------------------------------------------------------------------------------


def _kernels(settings: Settings) -> None:
    st.write(
        "Each model answers prompts drawn from the kernel that it was trained on, and is held "
        "against kernel ridge regression under every kernel. If the kernel matters, each is "
        "nearest to its own; a mismatched reference that is as near speaks against that."
    )
    _asking()
    names = {name: KERNELS[kernel] for name, kernel in TRAINED_ON.items()}
    lost = [name for name in names if missing(name)]
    if lost:
        st.warning(f"Missing: {_listed(lost, names)}. Not shipped yet.", icon=":material/block:")
    models = _answering([*names])
    rows = findings.kernel_rows(
        {
            name: (found, aligned(name, card, found, state.view().readout, [*KERNELS]))
            for name, (card, found) in models.items()
        }
    )
    if models:
        st.markdown(_verdict(rows))
    length = next((found.prompts.task.n for _, found in models.values()), "N")
    heatmaps(pictures.kernels(rows, length, lost), key="kernel grids")
    if not models:
        return
    st.markdown(_standings(rows))
    st.caption(
        f"Models read by {READ_BY[state.view().readout]}, on {state.view().asked} prompts. "
        f"{METRICS['similarity'].title}: {METRICS['similarity'].told}; solver: preconditioned "
        f"Richardson under the reference kernel, {STEP_POLICY}. In brackets 95 % intervals of a "
        "bootstrap over prompts; “≈” stands where one overlaps that of the best. All kernels have "
        "the same σ, by our choice: at one σ the Laplacian is rougher than the Gaussian, and "
        "another σ might bring a reference nearer."
    )


MEASURES = {"gap": ("gap", False), "similarity": ("similarity", True)}


def _verdict(rows: Frame) -> str:
    """Whether each model is nearest to its own kernel, by both measures."""
    lines = []
    for measure, (word, most) in MEASURES.items():
        said = []
        for _, part in rows[rows.measure == measure].groupby("model", sort=False):
            order = findings.contest(part, most=most)
            own = KERNELS[order.own.iloc[0]]
            near = KERNELS[order.reference.iloc[0]]
            equal = ", ".join(KERNELS[kernel] for kernel in order.reference[~order.apart].iloc[1:])
            nearest = "its own" if near == own else f"**{near}, not its own**"
            said.append(
                f"trained on {own}, nearest to {nearest}, "
                + (f"**but not to be told from {equal}**" if equal else "apart from all others")
            )
        lines.append(f"- By {word}: {'; '.join(said)}.")
    return "\n".join(lines)


def _standings(rows: Frame) -> str:
    """Each model's references, the nearest first, as a table."""
    lines = ["| trained on | gap, least first | similarity, most first |", "|---|---|---|"]
    for name, kernel in TRAINED_ON.items():
        if missing(name):
            lines.append(f"| {KERNELS[kernel]} | missing | missing |")
            continue
        cells = [
            _order(rows[(rows.model == name) & (rows.measure == measure)], most=most)
            for measure, (_, most) in MEASURES.items()
        ]
        lines.append(f"| {KERNELS[kernel]} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _order(rows: Frame, *, most: bool) -> str:
    order = findings.contest(rows, most=most)
    sign = {True: ">" if most else "<", False: "≈"}
    said = []
    for at, row in enumerate(order.itertuples()):
        kernel = KERNELS[row.reference]
        named = f"**{kernel}**" if row.reference == row.own else kernel
        lead = f"{sign[bool(row.apart)]} " if at else ""
        said.append(f"{lead}{named} {row.score:.3f} [{row.low:.3f}, {row.high:.3f}]")
    return " ".join(said) or "—"


# -- attention ----------------------------------------------------------------------------------


def _attention(settings: Settings) -> None:
    st.write(
        "Linear attention weighs by q·k over the number of keys, without the exponential and "
        "without the row sum. A model that learnt less is less like any solver, whatever its "
        "attention. So the logs are compared at matched loss: when had softmax come as far?"
    )
    _asking()
    lost = [name for name in KINDS if missing(name)]
    if lost:
        st.warning(f"Missing: {_listed(lost, KINDS)}. Not shipped yet.", icon=":material/block:")
    logs = {name: rows for name in KINDS if (rows := log(name)) is not None and len(rows)}
    if logs:
        _courses(logs)
    kinds = pictures.kinds(snapshots(MAIN))
    models = _answering([*kinds])
    if not models:
        return
    st.markdown("**Which solver each is like**, layer by layer at the best steps")
    matched = [name for name in models if name not in KINDS]
    if not matched:
        st.info(
            "The alignment below is not at matched loss: it is of each model at the end of its "
            f"training, and no snapshot of {MAIN} from midway is shipped.",
            icon=":material/balance:",
        )
    ranks = {
        name: findings.route_rows(rivalled(name, card, found, state.view().readout))
        for name, (card, found) in models.items()
    }
    figures(pictures.rankings(ranks, kinds), steps=0, key="alike by attention", led=0)
    st.dataframe(_models(models, kinds, ranks), hide_index=True, width="stretch", row_height=58)
    st.caption(
        f"Models read by {READ_BY[state.view().readout]}, on {state.view().asked} prompts. "
        f"{METRICS['similarity'].title}: {METRICS['similarity'].told}, mean over layers 1 to L. "
        f"Solvers: {STEP_POLICY}, the Gaussian kernel's system of every n. Bars are 95 % "
        "intervals of a bootstrap over prompts; each model has an axis of its own. Gaps "
        "are relative, of the last layer, measured anew on these prompts. A best step of 0 is the "
        "answer 0: a layer that is most like it has not begun, and is like every solver there. "
        + _caveat(models)
    )


def _caveat(models: Mapping[str, object]) -> str:
    return (
        "full-0 was trained at n = N alone; shorter prompts are new to it."
        if "full-0" in models
        else ""
    )


def _courses(logs: Mapping[str, Frame]) -> None:
    """The gap to KRR while training, and when one passed another's."""
    figures(pictures.courses(logs), steps=0, key="courses", led=0)
    said = [_ended(name, rows) for name, rows in logs.items()]
    if MAIN in logs:
        said += [_raced(name, logs[MAIN], rows) for name, rows in logs.items() if name != MAIN]
    st.markdown("\n".join(f"- {line}" for line in said))
    st.caption(
        "From the logs beside the checkpoints, of the averaged weights in float32 on 256 prompts "
        "of each model's own task, Gaussian kernel, ridge K + λI: ‖f − f_KRR‖/‖f_KRR‖ over all n "
        "for causal models, at n = N alone for full-0."
    )


def _ended(name: str, rows: Frame) -> str:
    end = rows.iloc[-1]
    told = f"{KINDS[name]} ({name}): gap {end.gap_to_krr:.3f} after {end.step:,.0f} steps"
    try:
        planned = chosen(name)[1]["recipe"]["steps"]
    except CheckpointError:
        return f"{told}."
    rate = "its learning rate had come down to 0" if end.step >= planned else "not yet at its end"
    return f"{told} of {planned:,} planned: {rate}."


def _raced(name: str, main: Frame, other: Frame) -> str:
    """When the better of two had come as far as the other came in the end."""
    if name == "full-0":
        return (
            "full-0 is measured at n = N alone, the others over all n: its log cannot be matched "
            "with theirs."
        )
    ends = {"main": main.iloc[-1], "other": other.iloc[-1]}
    ahead = ends["main"].gap_to_krr <= ends["other"].gap_to_krr
    fast, slow = (main, ends["other"]) if ahead else (other, ends["main"])
    found = findings.passed(fast, slow.gap_to_krr)
    if found is None:  # a log with numbers missing
        return "Their logs cannot be matched."
    leader, follower = (MAIN, name) if ahead else (name, MAIN)
    before, there = found
    took = f"between steps {before:,} and {there:,}" if before else f"by step {there:,}"
    return (
        f"**At matched loss**: what {follower} reached after {slow.step:,.0f} steps (gap "
        f"{slow.gap_to_krr:.3f}), {leader} had reached {took}, "
        f"in {slow.step / there:.3g} times fewer steps at least, each on a schedule of its own."
    )


def _models(
    models: Mapping[str, tuple[dict[str, Any], Probed]],
    kinds: Mapping[str, str],
    ranks: Mapping[str, Frame],
) -> Frame:
    """Every model in a row: how far it came, and which solver it is most like."""
    rows = []
    for name, kind in kinds.items():
        row = {"model": f"{kind} ({name})"}
        if name not in models:
            rows.append({**row, "trained": "missing"})
            continue
        card, found = models[name]
        layers = found.answers[state.view().readout]
        off = layers[-1] - found.krr
        order = findings.contest(ranks[name], most=True)
        one, two = order.iloc[0], order.iloc[1]
        rows.append(
            {
                **row,
                "trained": f"{card['steps']:,} steps",
                "gap, all n": f"{float(off.norm() / found.krr.norm()):.3f}",
                "gap, n = N": f"{float(off[:, -1].norm() / found.krr[:, -1].norm()):.3f}",
                "most alike": f"{one.title} {one.score:.3f} {'>' if two.apart else '≈'} "
                f"{two.title} {two.score:.3f}",
                "its best steps by layer": " ".join(map(str, one.steps)),
            }
        )
    return pd.DataFrame(rows).fillna("—")


# -- constructed --------------------------------------------------------------------------------


def _constructed(settings: Settings) -> None:
    st.write(
        "The stack built by hand, with another score in softmax's place and everything else kept. "
        "The score decides **which system** it solves: exp without the row sum still reaches "
        "Gaussian KRR, as plain gradient descent; without exp the answer itself is another."
    )
    rows = rescored(settings)
    state.completed()
    figures(pictures.scores(rows, state.view().floor), steps=0, key="scores", led=0)
    last = rows[rows.step == rows.step.max()].set_index("score")
    st.markdown(_scores(last))
    st.write(_relu(rows[rows.score == "relu"]))
    st.caption(
        f"The sidebar's {settings.prompts} prompts of {settings.data}, up to N = {settings.n}, "
        f"σ = {settings.bandwidth:g}; {RULES[settings.update]} on P⁻¹A, coefficients certified "
        f"for each score's own spectrum; ({system(settings)})α = y; {settings.product} products, "
        f"m = {settings.segments}, {settings.dtype}. References: direct solves in float64. P is "
        "the row sums for the normalised scores and the count n for the others, and the sink."
    )


def _scores(last: Frame) -> str:
    """What each score solves and how far it came, as a table."""
    lines = [
        "| score, weight of x′ | error to its own system | error to Gaussian KRR | "
        "least eigenvalue of P⁻¹A | its own system |",
        "|---|---|---|---|---|",
    ]
    for name, entry in SCORES.items():
        row = last.loc[name]
        least = f"{row.lowest:.2g}".replace("-", "−")
        lines.append(
            f"| **{entry.title}** {entry.formula} | {_error(row.own)} | {_error(row.gaussian)} | "
            f"{least}{': cannot converge' if row.lowest <= 0 else ''} | {entry.solves} |"
        )
    return "\n".join(lines)


def _error(value: float) -> str:
    return f"{value:.2g}" if value < HUGE else "overflows"


def _relu(rows: Frame) -> str:
    """Whether ReLU's iteration can converge here, and whether that is seen."""
    lowest, last = rows.lowest.iloc[0], int(rows.step.max())
    if lowest > 0:
        return (
            "ReLU: no eigenvalue is below 0 on these prompts, so its iteration converges too. That "
            "is sure in one dimension only; from two on, eigenvalues can be negative."
        )
    turn = rows.loc[rows.own.fillna(np.inf).idxmin()]
    seen = (
        f"Hardly any of it is seen within T = {last} steps: the error still falls. Raise the depth "
        "to see it turn."
        if turn.step >= last
        else f"Its error is least at step {turn.step:.0f} ({turn.own:.2g}), and grows from there "
        f"to {_error(rows.own.iloc[-1])} at T = {last}."
    )
    told = f"{lowest:.2g}".replace("-", "−")
    return (
        f"ReLU cannot converge here: the least eigenvalue of P⁻¹A is {told}, and that mode "
        f"grows with every step. {seen}"
    )


TOPICS: Mapping[str, tuple[str, Callable[[Settings], None]]] = {
    "kernels": ("Kernels", _kernels),
    "attention": ("Attention", _attention),
    "constructed": ("Hand-built", _constructed),
}
