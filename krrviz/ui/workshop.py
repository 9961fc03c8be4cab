"""Workshop: a small model trained from the page, watched, carried away and brought back.

What was trained or loaded last is ``st.session_state["own"] = (model, card)``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
import torch

from krrviz import charts, laws
from krrviz.fan import HUGE
from krrviz.laws import Axis
from krrviz.trained.gpt import ATTENTIONS, LAYOUTS, CheckpointError, Shape
from krrviz.trained.match import pooled
from krrviz.trained.parcel import LIMIT, STATE, Parcel, opened, packed, read
from krrviz.trained.probe import lens
from krrviz.trained.prompts import KERNELS, Task, answers, draw
from krrviz.trained.queue import Job, Queue
from krrviz.trained.train import Recipe
from krrviz.ui import state
from krrviz.ui.figures import figures

MINUTES = 10  # that a training may take
EVERY = 2  # seconds between looks at it
CHECKPOINTS = 40  # in a training
RATE = 2e-3
# Whole and other numbers of the form with their bounds: the largest training takes some minutes on
# two cores that have nothing else to do.
WHOLE = {
    "d": ("Inputs d", 1, 2),
    "n": ("Points N", 4, 32),
    "layers": ("Layers", 1, 4),
    "steps": ("Steps", 20, 2000),
    "batch": ("Batch", 8, 64),
    "seed": ("Seed", 0, 2047),
}
REAL = {"bandwidth": ("Bandwidth σ", 0.1, 10.0), "ridge": ("Ridge λ", 0.001, 10.0)}
CHOICES = {
    "kernel": ("Kernel", [*KERNELS]),
    "attention": ("Attention", [*ATTENTIONS]),
    "layout": ("Layout", [*LAYOUTS]),
    "width": ("Width", [16, 32, 48, 64]),
    "heads": ("Heads", [1, 2, 4]),
}
FIRST = {
    "kernel": "gaussian", "d": 1, "n": 16, "bandwidth": 0.5, "ridge": 0.1,
    "layers": 2, "width": 32, "heads": 2, "attention": "softmax", "layout": "interleaved",
    "steps": 1000, "batch": 32, "seed": 0,
}  # fmt: skip
TASK, MODEL, TRAINING = [*FIRST][:5], [*FIRST][5:10], [*FIRST][10:]
WORDS = {"matern32": "Matérn 3/2", "interleaved": "x, y in turn", "pairs": "(x, y) pairs"}
DRAWN = 128  # labelled points of a prompt that the page draws at most
FRESH = 10**6 + 1  # the seed of prompts that no training sees
DOMAIN = (0.02, 2.0)


@st.cache_resource
def _queue() -> Queue:
    """The server's one queue."""
    return Queue(60 * MINUTES)


def _job() -> Job | None:
    return st.session_state.get("own job")


def _active() -> bool:
    job = _job()
    return job is not None and job.active


def _refuse(message: str | None) -> None:
    st.session_state["own refused"] = message


# -- the form -------------------------------------------------------------------------------------


def form() -> None:
    """Draw the recipe; its button puts a training into the queue."""
    with st.form("own recipe"):
        for names in (TASK, MODEL, TRAINING):
            with st.container(horizontal=True, vertical_alignment="bottom"):
                for name in names:
                    _field(name)
        st.form_submit_button("Start training", on_click=_start, type="primary", disabled=_active())
    st.caption(
        "Inputs are uniform on [−1, 1]ᵈ. The first settings take about a minute on two cores; a "
        "second input takes much longer to learn, and the largest settings come near the limit of "
        f"{MINUTES} minutes, at which a training is stopped and keeps its last checkpoint. One "
        "runs at a time on this server; others wait. Starting replaces the model below: download "
        "it first."
    )


def _field(name: str) -> None:
    look: Any = {"key": f"own {name}", "width": 155, "persist_state": "session"}
    if name in CHOICES:
        label, options = CHOICES[name]
        st.selectbox(label, options, options.index(FIRST[name]), format_func=_word, **look)
        return
    label, low, high = (WHOLE | REAL)[name]
    look |= {"step": 1} if name in WHOLE else {"step": 0.05, "format": "%g"}
    told = label if name == "seed" else f"{label}, {low:g} to {high:g}"
    st.number_input(told, low, high, FIRST[name], **look)


def _word(option: str | int) -> str:
    return WORDS.get(str(option), str(option).capitalize())


def _start() -> None:
    if _active():  # a second click, on its way while the first was heard
        return
    given = {name: st.session_state[f"own {name}"] for name in FIRST}
    _refuse(None)
    try:
        job = _queue().put(recipe(given))
    except (ValueError, OSError) as error:
        _refuse(f"The training cannot start: {error}.")
        return
    for kept in ("own", "own parcel", "own rows", "own seen"):
        st.session_state.pop(kept, None)
    st.session_state["own job"] = job


def recipe(given: Mapping[str, Any]) -> Recipe:
    """The recipe of a form; raises ValueError for a value that cannot be used."""
    n, steps, bandwidth, ridge = (given[name] for name in ("n", "steps", "bandwidth", "ridge"))
    parts = ("d", "layers", "width", "heads", "layout", "attention")
    return Recipe(
        shape=Shape(n=n, **{name: given[name] for name in parts}),
        task=Task(
            d=given["d"], n=n, kernel=given["kernel"],
            bandwidth=(bandwidth, bandwidth), ridge=(ridge, ridge),
        ),
        steps=steps, batch=given["batch"], seed=given["seed"],
        warm_up=min(100, steps // 10), rate=RATE, average=0.99, every=max(1, steps // CHECKPOINTS),
    )  # fmt: skip


# -- the training as it goes ----------------------------------------------------------------------


def watch() -> None:
    """Draw the training and what it has made, every other second while it goes on."""
    active = _active()
    st.fragment(_watched, run_every=EVERY if active else None)(active)


def _watched(active: bool) -> None:
    job = _job()
    if job is not None:
        ended = not job.active
        _take(job)  # after the look: then nothing is written any more
        if active and ended:
            st.rerun()
        _progress(job)
    parcel: Parcel | None = st.session_state.get("own parcel")
    if parcel is not None:
        _shown(parcel)
        if not active:
            st.download_button(
                "Download weights, card and log (.zip)", packed(parcel), f"{parcel.name}.zip",
                "application/zip", on_click="ignore",
            )  # fmt: skip


def _take(job: Job) -> None:
    """Take a job's newest checkpoint into the session."""
    try:
        written = job.path.with_name(job.path.name + STATE).stat().st_mtime_ns  # the last to come
    except OSError:
        return  # none yet
    if written == st.session_state.get("own seen"):
        return
    try:
        _keep(read(job.path))
        st.session_state["own seen"] = written
    except CheckpointError as error:  # between two of its files, while it goes on
        if not job.active:
            st.error(f"The last checkpoint cannot be used: {state.literal(str(error))}.")


def _progress(job: Job) -> None:
    parcel: Parcel | None = st.session_state.get("own parcel")
    last = parcel.log[-1] if parcel else {}
    step, steps = int(last.get("step", 0)), job.recipe.steps
    kept = f"The checkpoint of step {step:,} is kept." if parcel else "There was no checkpoint yet."
    match job.state:
        case "waiting":
            ahead = _queue().ahead(job)
            st.info(f"Waiting: {ahead} training{'s' if ahead != 1 else ''} before yours.")
        case "running":
            told = f"Step {step:,} of {steps:,}, {_clock(job.seconds)} so far"
            if parcel:
                left = parcel.card["seconds"] / step * (steps - step)
                late = job.seconds + left > 60 * MINUTES
                told += (
                    f", about {_clock(left)} left{' (beyond the time limit)' if late else ''}: "
                    f"loss {last['loss']:.3f}, gap to KRR {last['gap_to_krr']:.3f}"
                )
            st.progress(step / steps, told)
        case "done":
            st.success(f"Trained: {steps:,} steps in {_clock(job.seconds)}.")
        case "cancelled":
            st.info(f"Cancelled. {kept}")
        case "stopped":
            st.warning(f"Stopped at the time limit of {MINUTES} minutes. {kept}")
        case "failed":
            st.error(f"The training failed: {state.literal(job.told)}. {kept}")
    if job.active:
        st.button("Cancel", on_click=_queue().cancel, args=(job,))


def _clock(seconds: float) -> str:
    return time.strftime("%M:%S", time.gmtime(seconds))


# -- what was trained or loaded -------------------------------------------------------------------


def _keep(parcel: Parcel) -> None:
    """Make a checkpoint the session's own; raises CheckpointError where it cannot be drawn."""
    if parcel.recipe.task.n > DRAWN:
        raise CheckpointError(
            f"{parcel.name} was trained on n={parcel.recipe.task.n} points; at most {DRAWN} are "
            "drawn here"
        )
    try:
        rows = fan_rows(parcel)
    except RuntimeError as error:
        raise CheckpointError(f"{parcel.name}: its prompts cannot be drawn: {error}") from None
    st.session_state.update(
        {"own": (parcel.model, parcel.card), "own parcel": parcel, "own rows": rows}
    )


def fan_rows(parcel: Parcel) -> pd.DataFrame:
    """A model's fan over fresh prompts of its task: columns method, title, step, n, error.

    ``step`` is the layer after which the model's head reads; ``error`` is ‖f_ℓ − f_KRR‖/‖f_KRR‖
    over the prompts.
    """
    model, task = parcel.model, parcel.recipe.task
    few = task.n > 32 or model.shape.parameters > 10**6
    prompts = draw(task, 8 if few else 64, torch.Generator().manual_seed(FRESH))
    found, wanted = lens(model, prompts)[..., 1:], answers(prompts)[:, 1:]
    errors = pooled(found, wanted).numpy()
    errors = np.nan_to_num(errors, nan=HUGE, posinf=HUGE).clip(0, HUGE)
    index = pd.MultiIndex.from_product(
        [range(len(errors)), range(1, task.n + 1)], names=["step", "n"]
    )
    rows = pd.DataFrame({"error": errors.ravel()}, index=index).reset_index()
    return rows.assign(method="transformer", title="Your model")


def _shown(parcel: Parcel) -> None:
    rows: pd.DataFrame = st.session_state["own rows"]
    task, shape = parcel.recipe.task, parcel.model.shape
    end = float(rows["error"].to_numpy()[-1])
    st.write(
        f"**{_word(task.kernel)} kernel, {shape.attention} "
        f"attention**, {shape.layers} layers, width {shape.width}, {shape.heads} heads, "
        f"{_word(shape.layout)}, {shape.parameters:,} parameters. "
        f"At n = {task.n} it is **{end:.3g}** away from exact KRR, relative."
    )
    shown = {"own_fan": charts.fan(rows, against="exact KRR", domain=DOMAIN, each=charts.LAYER)}
    if parcel.log:
        # Not "step": that is what the scrubber moves over.
        log = pd.DataFrame(parcel.log).rename(columns={"step": "at", "gap_to_krr": "gap to KRR"})
        curves = log.melt("at", ["loss", "gap to KRR"], "series", "value")
        shown["own_log"] = laws.lines(
            curves.query(f"0 < value < {HUGE}"),
            Axis("at", "training step", log=False),
            Axis("value", "loss, gap to KRR", log=False),
            title="Training",
        )
    figures(shown, steps=shape.layers, key="own figures", each=charts.LAYER)
    st.caption(
        "Each layer is read by the model's own head; ℓ = 0 is before the first. Errors are "
        "‖f − f_KRR‖/‖f_KRR‖ over "
        "prompts that no training sees, their exact answers by direct solves. "
        + (
            f"This layout was trained at n = {task.n} alone: shorter prompts are new to it."
            if shape.layout == "pairs"
            else ""
        )
    )


# -- load -----------------------------------------------------------------------------------------


def load() -> None:
    """Draw the way back: a checkpoint's files or zip, checked before they become a model."""
    st.file_uploader(
        f"Load a model: the .zip, or its .safetensors and .json (at most {LIMIT} MB)",
        ["zip", "safetensors", "json", "csv"],
        accept_multiple_files=True,
        key=_uploads(),
        on_change=_loaded,
        max_upload_size=LIMIT,
        disabled=_active(),
    )


def _uploads() -> str:
    """The uploader's key: another after each model that was loaded, so that it is empty again."""
    return f"own files {st.session_state.get('own loads', 0)}"


def _loaded() -> None:
    files = {file.name: file.getvalue() for file in st.session_state[_uploads()]}
    _refuse(None)
    if not files:
        return
    try:
        _keep(opened(files))
        st.session_state.pop("own job", None)
        st.session_state["own loads"] = st.session_state.get("own loads", 0) + 1
    except CheckpointError as error:
        _refuse(f"Not loaded: {error}.")


def problem() -> None:
    """Tell what could not be started or loaded."""
    if told := st.session_state.get("own refused"):
        st.error(state.literal(told))
