"""Trained: the topics of that page, each from a checkpoint to charts and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
import torch

from krrviz import charts, findings, laws
from krrviz.charts import LAYER, READ_STYLES, STYLES
from krrviz.findings import CURVES, READ_BY, Frame
from krrviz.frames import REFERENCES, TITLES, fan_rows, step_rows, thinned, titled
from krrviz.laws import Axis
from krrviz.settings import CHECKPOINTS, Settings, SettingsError
from krrviz.solvers import SOLVERS
from krrviz.trained.abroad import FURTHER, beyond, live
from krrviz.trained.gpt import GPT, CheckpointError
from krrviz.trained.inside import Heads, heads, patch
from krrviz.trained.match import METRICS, Match, Matched, Metric, Variant, variants
from krrviz.trained.probe import FEW, SEED, TARGETS, Probed, ProbeError, fixed_task, operator_at
from krrviz.trained.prompts import draw
from krrviz.ui import state
from krrviz.ui.checkpoints import chosen, named, told
from krrviz.ui.compute import computed, matched, probed, solver_fans, studied
from krrviz.ui.controls import control, prompts_asked
from krrviz.ui.figures import figures
from krrviz.ui.heatmaps import Map, heatmaps

NEAR = (0.02, 2.0)  # layers come no nearer than this
HEADED = 16  # prompts that heads are looked at on
WORDS = {
    **findings.POLICY_WORDS,
    "absolute": "K + λI",
    "per_sample": "K + n(λ/N)I",
}
DIRECTIONS = {
    "probe": "the probe's own direction",
    "pattern": "the stream's pattern of that reading",
    "random": "a random direction as long as the pattern",
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
        st.error(f"{error}.", icon=":material/error:")


def _models() -> list[str]:
    return [*CHECKPOINTS, *(["own"] if "own" in st.session_state else [])]


def _variant(method: str, policy: str, ridge_scale: str) -> Variant:
    """A method's variant under a policy: its own where the policy does not touch it."""
    wanted = Variant(method, policy, ridge_scale)
    return wanted if wanted in variants(ridge_scale) else Variant(method, "certified", ridge_scale)


def _step_size(settings: Settings) -> float:
    return settings.step_size if settings.policy == "manual" else 1.0


# -- fans ---------------------------------------------------------------------------------------


def _fans(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = probed(model, card, state.view().asked)
    rows: Frame = findings.layer_rows(found)
    kept = ["lens", "labels", "krr", "untrained krr"]
    shown = {
        f"layers_{name.replace(' ', '_')}": charts.fan(
            rows[rows.method == name], against="exact KRR", domain=NEAR, each=LAYER
        )
        for name in kept
    }
    n = int(rows.n.max())
    ends = rows[(rows.n == n) & rows.method.isin(kept)]
    shown["by_layer"] = charts.steps(ends, against=f"exact KRR, n = {n}", domain=NEAR, each=LAYER)
    exact = findings.exact_rows(found)
    shown["by_layer_noiseless"] = charts.steps(
        pd.concat([ends.assign(error=ends.noiseless), exact], ignore_index=True),
        against=f"the noiseless function, n = {n}",
        domain=NEAR,
        each=LAYER,
    )
    st.markdown("**Layer by layer**: error against context length n, pooled over prompts")
    figures(shown, steps=model.shape.layers, key="layers", each=LAYER)
    st.caption(_regularised(found))
    solvers = [method for method in settings.methods if method in SOLVERS]
    if not solvers:
        return
    st.markdown(f"**Solvers on the same prompts**, {_convention(settings)}")
    asked = tuple(_variant(m, settings.policy, settings.ridge_scale) for m in solvers)
    fans = solver_fans(card, found, asked, _step_size(settings))
    steps: Frame = findings.solver_rows(fans)
    steps = steps[steps.step <= max(1, settings.steps)]
    shown = {
        f"solver_{method}": charts.fan(thinned(part), against="exact KRR", domain=NEAR)
        for method, part in steps.groupby("method", sort=False)
    }
    figures(shown, steps=int(steps.step.max()), key="solvers")
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
    result = matched(card, found, _step_size(settings))
    with st.container(horizontal=True):
        control("metric", "segmented", [*METRICS], lambda name: METRICS[name].title, label="Metric")
        control("readout", "segmented", [*READ_BY], lambda name: CURVES[name], label="Readout")
    view, metric = state.view(), METRICS[state.view().metric]
    st.caption(f"{metric.title}: {metric.told}. Read by {READ_BY[view.readout]}.")
    mine = [
        m for m in result.matches
        if m.readout == view.readout and m.variant.ridge_scale == settings.ridge_scale
    ]  # fmt: skip
    ranking: Frame = findings.ranking_rows(mine)
    ranking["title"] = ranking.method.map(TITLES)
    free, fixed = (
        findings.ranked(ranking[ranking.path == way], view.metric, settings.policy)
        for way in ("free", "fixed")
    )
    if free.empty:
        st.info("Operators are not taken of the control; choose another metric or readout.")
        return
    best = free.iloc[0]
    st.markdown(
        f"Most alike: **{best.title}**, {_convention(settings)}; {_contest(free)} "
        f"With a fixed number of steps a layer: **{fixed.iloc[0].title}**, {_contest(fixed)}"
    )
    figures(
        {
            f"ranking_{way}": laws.ranking(
                rows, title=f"Layers 1 to {model.shape.layers}, {name}", metric=metric.title
            )
            for way, name, rows in (
                ("free", "each layer's best step", free),
                ("fixed", "a fixed rate of steps a layer", fixed),
            )
        },
        steps=0,
        key="ranking",
        led=0,
    )
    drawn = [
        m
        for method in free.method
        for m in mine
        if m.metric == view.metric
        and m.variant == _variant(method, settings.policy, settings.ridge_scale)
    ]
    span = _span(drawn)
    st.markdown(
        f"**Every layer beside every step**: bright is alike, from {span[0]:.3g} to {span[1]:.3g}; "
        "circles are each layer's best step"
    )
    figures(
        {f"match_{m.variant.method}": _grid(m, metric, span) for m in drawn},
        steps=0,
        key="match",
        led=0,
    )
    lengths = ", ".join(map(str, operator_at(found.prompts.task.n)))
    st.markdown("**Who wins under which step policy and metric**, with the runner-up")
    st.markdown(findings.winners(ranking))
    st.caption(
        "Scores are means over layers 1 to L, intervals a bootstrap over prompts with the best "
        "steps chosen anew. “≈” stands where the two intervals overlap: no winner then. A best "
        "step of 0 is the answer 0, where all solvers are alike. Operator distances are over the "
        f"first {min(FEW, len(found.labels))} prompts, at n = {lengths}. Manual: η = "
        f"{_step_size(settings):g}, for the methods that take one; others keep the certified "
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


def _span(matches: Sequence[Match]) -> tuple[float, float]:
    """The values that colours span in all maps: but for the far tenth, which clamps."""
    values = np.concatenate([m.grid[1:].flatten().numpy() for m in matches])
    values = values[np.isfinite(values) & (values < 1e6)]
    low, high = np.quantile(values, [0.1, 1.0] if METRICS[matches[0].metric].most else [0.0, 0.9])
    return float(low), float(max(high, low + 1e-9))


def _grid(m: Match, metric: Metric, span: tuple[float, float]) -> charts.Figure:
    layers, times = m.grid.shape
    steps = [t for t in range(times) if t <= 16 or t % (2 if t <= 64 else 4) == 0]
    worst = span[0] if metric.most else span[1]
    values = m.grid.nan_to_num(nan=worst, posinf=worst)
    rows = pd.DataFrame(
        {
            "layer": np.repeat(np.arange(layers), len(steps)),
            "step": np.tile(steps, layers),
            "until": np.tile([*steps[1:], times], layers),
            "value": values[:, steps].flatten().numpy(),
        }
    )
    path = pd.DataFrame(
        {
            "layer": range(1, layers),
            "step": m.free.steps,
            "value": [float(m.grid[at + 1, t]) for at, t in enumerate(m.free.steps)],
        }
    )
    return laws.matches(
        rows, path, title=TITLES[m.variant.method], metric=metric.title, most=metric.most,
        domain=span,
    )  # fmt: skip


# -- operator, additivity, probes ---------------------------------------------------------------


def _operator(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = probed(model, card, state.view().asked)
    result = matched(card, found, _step_size(settings))
    st.write(
        "Conjugate gradients choose their coefficients by the labels, so their answers are not "
        "additive in y; every other solver's are, to the last digit. And ∂f/∂y, at these "
        "labels, tells which linear map a layer is near: plain gradient descent's, or the one "
        "with D⁻¹ in it."
    )
    defects: Frame = findings.defect_rows(found, result)
    linear = [m for m, entry in SOLVERS.items() if entry.takes is not None]
    worst = defects[defects.method.isin(linear)].defect.max()
    drawn = defects[~defects.method.isin(linear) & (defects.step <= 32)].assign(
        series=lambda rows: rows.title, value=lambda rows: rows.defect
    )
    near = _nearest(result, settings)
    shown = {
        "additivity": laws.lines(
            drawn[["series", "step", "value"]],
            Axis("step", "layer ℓ of the model, step t of a solver", log=False),
            Axis("value", "additivity defect", log=False),
            title="Additivity defect in y",
            looks={CURVES["lens"]: READ_STYLES["lens"], **{TITLES[m]: STYLES[m] for m in TITLES}},
        ),
        "operator": laws.lines(
            near,
            Axis("layer", "layer ℓ", log=False),
            Axis("value", "least ‖∂f_ℓ/∂y − S_t‖/‖S_t‖ over steps t", log=False),
            title="Operator distance, by the model's own head",
            looks={TITLES[m]: STYLES[m] for m in TITLES},
        ),
    }
    for network in ("trained", "untrained"):
        rows: Frame = findings.probe_rows(found)
        rows = rows[rows.network == network].assign(series=lambda part: part.title)
        shown[f"probes_{network}"] = laws.lines(
            rows[["series", "layer", "r2"]],
            Axis("layer", "layer ℓ", log=False),
            Axis("r2", "R² of linear probes", log=False, domain=(-0.1, 1.02)),
            title=f"What linear probes find: {network} network",
        )
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


def _nearest(result: Matched, settings: Settings) -> pd.DataFrame:
    """Each method's least operator distance by layer: columns series, layer, value."""
    rows = []
    for m in result.matches:
        if (m.metric, m.readout) != ("operator", "lens"):
            continue
        if m.variant == _variant(m.variant.method, settings.policy, settings.ridge_scale):
            least = m.grid.nan_to_num(nan=np.inf).amin(-1)
            rows.append(
                pd.DataFrame(
                    {
                        "series": TITLES[m.variant.method],
                        "layer": np.arange(len(least)),
                        "value": least.numpy(),
                    }
                )
            )
    frame: Frame = pd.concat(rows, ignore_index=True)
    return frame[frame.layer > 0]


# -- heads --------------------------------------------------------------------------------------


def _heads(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    task = fixed_task(card)
    found = studied(
        "heads",
        card,
        lambda: heads(model, draw(task, HEADED, torch.Generator().manual_seed(SEED + 2**27))),
    )
    layers = model.shape.layers
    state.nearest("layer", layers, "the model", "layers", first=1)
    control("layer", "segmented", list(range(1, layers + 1)), lambda k: f"layer {k}", label="Layer")
    layer = state.view().layer
    st.write(
        "What each head gives to the labelled points, x and y token added up and rows divided by "
        "the sum of their sizes, beside D⁻¹K at the same places, for one prompt."
    )
    n = task.n
    names = [str(i) for i in range(1, n + 1)]
    causal = model.shape.layout == "interleaved"
    common: dict[str, Any] = {
        "rows": names, "cols": names, "row_title": "query: point i", "col_title": "key: point j",
        "row_names": [f"i = {k}" for k in names], "col_names": [f"j = {k}" for k in names],
    }  # fmt: skip
    top = float(found.kernel[0].max())
    signs = "diverging" if model.shape.attention == "linear" else "sequential"
    maps = [
        Map(
            name="kernel", title="D⁻¹K", values=found.kernel[0].numpy(), limit=top,
            note="earlier points only" if causal else "all points", **common,
        ),
        *(
            Map(
                name=f"head_{h + 1}", title=f"head {h + 1}",
                values=found.attention[layer - 1, h, 0].numpy(), limit=top, kind=signs,
                note=f"correlation with D⁻¹K {float(found.alike[layer - 1, h]):.2f}; "
                f"{float(found.share[layer - 1, h]):.0%} of it goes to labelled points",
                **common,
            )
            for h in range(model.shape.heads)
        ),
    ]  # fmt: skip
    heatmaps(maps, key="heads")
    heatmaps([_alike(found)], key="alike", linked=False)


def _alike(found: Heads) -> Map:
    layers, heads_ = found.alike.shape
    return Map(
        name="alike",
        title="Correlation of every head with D⁻¹K",
        values=found.alike.numpy(),
        kind="diverging",
        limit=1.0,
        rows=[str(k) for k in range(1, layers + 1)],
        cols=[str(k) for k in range(1, heads_ + 1)],
        row_title="layer",
        col_title="head",
        row_names=[f"layer {k}" for k in range(1, layers + 1)],
        col_names=[f"head {k}" for k in range(1, heads_ + 1)],
        note=f"Mean over rows of three points or more and over {HEADED} prompts.",
    )


# -- controls -----------------------------------------------------------------------------------


def _controls(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = probed(model, card, state.view().asked)
    rows: Frame = findings.layer_rows(found)
    last = rows[rows.n == rows.n.max()]
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
    patched = pd.DataFrame(
        [
            {"series": DIRECTIONS[p.direction], "layer": p.layer, "slope": p.slope,
             "correlation": p.correlation}
            for p in moved
        ]
    )  # fmt: skip
    figures(
        {"controls": charts.steps(last, against="exact KRR", domain=NEAR, each=LAYER)},
        steps=model.shape.layers,
        key="controls",
        each=LAYER,
    )
    if moved:
        figures(
            {
                "patch_correlation": laws.lines(
                    patched,
                    Axis("layer", "layer ℓ", log=False),
                    Axis("correlation", "correlation with Δα·k(x_*, x_j)", log=False),
                    title="Moving α: does the change of the answers look like the kernel?",
                ),
                "patch_slope": laws.lines(
                    patched,
                    Axis("layer", "layer ℓ", log=False),
                    Axis("slope", "slope on Δα·k(x_*, x_j)", log=False),
                    title="Moving α: how much of it arrives (1 were all of it)",
                ),
            },
            steps=0,
            key="patch",
            led=0,
        )
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
    task, steps = fixed_task(card), min(128, max(1, settings.steps))
    found = studied(f"beyond {steps}", card, lambda: beyond(model, task, 64, steps))
    named = {
        "lens": ("Trained, last layer", READ_STYLES["lens"]),
        "preconditioned_richardson": (
            "Preconditioned Richardson, certified", STYLES["preconditioned_richardson"]
        ),
        "gradient_descent": ("Gradient descent, certified", STYLES["gradient_descent"]),
        "tuned": ("Gradient descent, tuned", STYLES["nesterov"]),
    }  # fmt: skip
    rows = pd.DataFrame(
        [
            {"series": title, "n": n, "error": min(error, 1e300)}
            for name, (title, _) in named.items()
            for n, error in zip(found.lengths, found.curves[name], strict=True)
        ]
    )
    st.write(
        f"Prompts up to {FURTHER} times as long as training's N = {task.n}. Solvers keep one step: "
        "the one certified for that N, or, tuned, the least of the prompts' own best steps at that "
        f"N, which is larger. All take {steps} steps (the sidebar's T)."
    )
    figures(
        {
            "beyond": laws.lines(
                rows,
                Axis("n", "context length n", log=False),
                Axis("error", "relative error to exact KRR", domain=(1e-2, 5)),
                title=f"One step size for all prompts, trained up to n = {task.n}",
                looks=dict(named.values()),
            )
        },
        steps=0,
        key="beyond",
        led=0,
    )
    if model.shape.layout == "interleaved":
        st.caption(
            f"Beyond n = {task.n} there are no learned positions: all later tokens share the last "
            "one, which the model never met twice."
        )
    else:
        st.caption(f"It was trained at n = {task.n} alone: shorter prompts are new to it too.")


# -- the sidebar's own prompts ------------------------------------------------------------------


def _yours(settings: Settings, model: GPT, card: dict[str, Any]) -> None:
    found = studied(f"live {settings.to_query()}", card, lambda: live(model, card, settings))
    result, _ = computed(settings)
    if found.outside:
        st.warning(
            "Outside its training range, and shown all the same. " + " ".join(found.outside),
            icon=":material/travel_explore:",
        )
    layers = found.errors.shape[0]
    own: Frame = pd.DataFrame(
        {
            "method": "lens",
            "title": CURVES["lens"],
            "step": np.repeat(np.arange(layers), len(found.counts)),
            "n": np.tile(found.counts, layers),
            "error": found.errors.flatten().numpy(),
        }
    )
    against = REFERENCES[settings.reference]
    look: dict[str, Any] = {"against": against, "domain": (state.view().floor, 2.0)}
    figures(
        {
            "yours": charts.fan(own, each=LAYER, **look),
            "yours_by_layer": charts.steps(own[own.n == max(found.counts)], each=LAYER, **look),
        },
        steps=layers - 1,
        key="yours",
        each=LAYER,
    )
    figures(
        {
            **{
                f"yours_{method}": charts.fan(part, **look)
                for method, part in titled(thinned(fan_rows(result))).groupby("method", sort=False)
            },
            "yours_steps": charts.steps(titled(thinned(step_rows(result))), **look),
        },
        steps=settings.steps,
        key="yours solvers",
    )
    st.caption(
        f"The sidebar's {settings.prompts} prompts of {settings.data}, {settings.queries} queries "
        f"each; mean relative error to {against}. The model is read by its own head."
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
