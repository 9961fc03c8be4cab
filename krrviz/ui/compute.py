"""Compute: results by their settings, shared between sessions, superseded when no longer wanted."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from torch import Tensor

from krrviz.anatomy import Anatomy, anatomy
from krrviz.counterparts import counterpart_rows
from krrviz.export import Shown, shown
from krrviz.fan import Curve, Fan, context_lengths, curve, fan
from krrviz.forward import Walk, walk
from krrviz.guarantee import Guarantee, guarantee
from krrviz.heldout import HeldOut, held_out
from krrviz.laws import Frame
from krrviz.machine import estimate
from krrviz.scaling import SWEEPS, Tail, tail
from krrviz.settings import Settings, SettingsError
from krrviz.suggest import (
    CrossValidation,
    GeneralisedCrossValidation,
    Median,
    cross_validated_bandwidth,
    gcv_ridge,
    median_bandwidth,
)
from krrviz.surgery import Fault, errors
from krrviz.sweep import Course, Grid, cell_course, same
from krrviz.tables import TableError
from krrviz.trained.gpt import GPT, CheckpointError
from krrviz.trained.match import Alignment, Matched, Route, Variant, align, fans, match, rivals
from krrviz.trained.match import Fan as SolverFan
from krrviz.trained.probe import Probed, ProbeError, fixed_task, probe
from krrviz.trust import Check, trust
from krrviz.ui import state

Result = TypeVar("Result")
Card = dict[str, Any]
Fans = dict[Variant, SolverFan]

ENTRIES = 64
SWEPT = 4  # sweeps that a session keeps: the latest
# A computation shows that it is one after this many seconds.
PATIENCE = 0.7
# Estimated seconds, within which a picture can follow a slider that is held.
QUICK = 0.3


Kept = tuple[OrderedDict[tuple[str, Settings], Any], Lock]


@st.cache_resource
def _shared() -> Kept:
    """Finished results, least recently used first. They are shared: read them only."""
    return OrderedDict(), Lock()


def _store(settings: Settings) -> Kept:
    """Where results are kept: those of a person's own file in that person's session alone."""
    if settings.data != "csv":
        return _shared()
    return st.session_state.setdefault("own results", (OrderedDict(), Lock()))


def _cached(name: str, settings: Settings, make: Callable[[], Result]) -> Result:
    """The result of ``make``, kept for these settings.

    ``st.cache_data`` would not do: a progress bar inside it cannot be replayed, and without one
    a run that nobody wants any more would go on to its end.
    """
    results, lock = _store(settings)
    key = (name, settings)
    with lock:
        if key in results:
            results.move_to_end(key)
            return results[key]
    made = make()
    with lock:
        results[key] = made
        while len(results) > ENTRIES:
            results.popitem(last=False)
    return made


def computed(settings: Settings) -> tuple[Fan, list[Check]]:
    """Fan and checks; what cannot be computed is told and the last picture stays."""
    with _refusing(), _progress(state.back) as told:
        result = _cached("fan", settings, lambda: fan(settings, state.table(), told))
        checks = checked(settings, result.residual)
    state.completed()
    return result, checks


def previewed(settings: Settings) -> Fan | None:
    """The fan for a slider that is held; None where it takes too long to follow one.

    Stops that a pointer passes are not kept: they would drive out what others wait for.
    """
    try:
        table = state.table()
        if estimate(settings, len(context_lengths(settings.n))).seconds > QUICK:
            return None
        return fan(settings, table, _abandoned)
    except (SettingsError, TableError):
        return None


def _abandoned(_done: float) -> None:
    """Between the pieces of a computation: reading the session, Streamlit ends a replaced run."""
    st.session_state.get("held")


@contextmanager
def _progress(cancel: Callable[[], None], name: str = "") -> Iterator[Callable[[float], None]]:
    """A bar with a way out, once a computation has taken a while; gone when it is done.

    ``name`` tells it from others of the same run.
    """
    slot, started = st.empty(), time.monotonic()
    bar: list[DeltaGenerator] = []

    def told(done: float) -> None:
        _abandoned(done)
        if bar:
            bar[0].progress(done)
        elif time.monotonic() - started > PATIENCE:
            with slot.container(horizontal=True, vertical_alignment="center"):
                bar.append(st.progress(done, f"Computing {name}".rstrip()))
                st.button("Cancel", key=f"cancel {name}", on_click=cancel)

    yield told
    slot.empty()


@contextmanager
def _refusing() -> Iterator[None]:
    """What cannot be computed is told, and the last picture stays."""
    try:
        yield
    except (SettingsError, TableError) as error:
        state.refuse(f"{error}.")


@contextmanager
def _waiting() -> Iterator[None]:
    """As ``_refusing``; what takes long is seen to go on, with the seconds so far."""
    with _refusing(), st.spinner("Computing", show_time=True):
        yield


def checked(settings: Settings, residual: float | None = None) -> list[Check]:
    """The checks of a picture; ``residual`` of its exact solves where it has more than one."""
    with _refusing():
        table = state.table()
        return _cached(f"trust {residual}", settings, lambda: trust(settings, table, residual))


def dissected(settings: Settings) -> Anatomy:
    """The first prompt's attention; what cannot be computed is told and the last picture stays."""
    with _waiting():
        result = _cached("anatomy", settings, lambda: anatomy(settings, state.table()))
    state.completed()
    return result


def walked(settings: Settings, fault: Fault | None) -> Walk:
    """The first prompt's way through the stack, whole or broken."""
    with _waiting():
        if settings.data == "csv":  # its walks are no other session's
            table = state.table()
            result = _cached(f"walk {fault}", settings, lambda: walk(settings, fault, table))
        else:
            result = _walk(f"{settings.to_query()} {fault}", settings, fault)
    state.completed()
    return result


@st.cache_resource(max_entries=8, show_spinner=False)
def _walk(key: str, _settings: Settings, _fault: Fault | None) -> Walk:
    """Walks are large: few are kept. They are shared: read them only."""
    return walk(_settings, _fault)


def faulty_errors(settings: Settings, fault: Fault | None) -> Tensor:
    """The error by step over all prompts, whole or broken."""
    with _waiting():
        return _cached(f"errors {fault}", settings, lambda: errors(settings, fault, state.table()))


def guaranteed(settings: Settings, eps: float) -> Guarantee:
    """The construction for ε and what it reaches; raises SettingsError."""
    return _cached(f"guarantee {eps!r}", settings, lambda: guarantee(settings, eps, state.table()))


def followed(settings: Settings) -> Tail:
    """The rule's tail beside its spectrum; raises SettingsError."""
    return _cached("tail", settings, lambda: tail(settings, state.table()))


def swept(name: str, settings: Settings) -> Frame:
    """The rows of a sweep, point by point: stopped, it keeps what it has and can go on.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    points = SWEEPS[name](settings, state.table())
    kept = _pointwise(f"{name} {settings.to_query()}", points, settings)
    return pd.DataFrame([row for label, _ in points for row in kept.get(label, [])])


def mapped_out(grid: Grid, settings: Settings) -> dict[int, Course]:
    """The cells of a map that there are, by number: stopped, it keeps them and can go on."""
    own = same(state.table())
    points = [
        (" × ".join(f"{name} = {value:.3g}" for name, value in grid.values(number).items()),
         partial(cell_course, grid, number, own))
        for number in range(len(grid))
    ]  # fmt: skip
    kept = _pointwise(f"map {' '.join(grid.axes)} {grid.link}", points, settings)
    return {number: kept[label] for number, (label, _) in enumerate(points) if label in kept}


def _pointwise(
    key: str, points: Sequence[tuple[str, Callable[[], Any]]], settings: Settings
) -> dict[str, Any]:
    """What the points give, by label; ``key`` tells them from those of other sweeps."""
    sweeps: dict[str, Any] = st.session_state.setdefault("sweeps", {})
    kept = sweeps[key] = sweeps.pop(key, {})
    while len(sweeps) > SWEPT:
        sweeps.pop(next(iter(sweeps)))
    stopped = st.session_state.get("stopped") == key
    slot, started = st.empty(), time.monotonic()
    bar: list[DeltaGenerator] = []
    for number, (label, point) in enumerate(points):
        if label in kept:
            continue
        if stopped:
            break
        # Writing to the page is also where Streamlit abandons a run that a newer one replaces.
        told = f"{label}: {number + 1} of {len(points)}"
        if bar:
            bar[0].progress(number / len(points), told)
        elif time.monotonic() - started > PATIENCE:
            with slot.container(horizontal=True, vertical_alignment="center"):
                bar.append(st.progress(number / len(points), told))
                st.button("Stop and keep", on_click=_stop, args=(key,))
        own = settings.data == "csv"  # what a person's file gives is no other session's
        kept[label] = point() if own else _point(f"{key} {label}", point)
    slot.empty()
    if len(kept) < len(points):
        with slot.container(horizontal=True, vertical_alignment="center"):
            st.warning(f"Stopped: {len(kept)} of {len(points)} points are shown.")
            st.button("Go on", on_click=_stop, args=(None,))
    return kept


def _stop(key: str | None) -> None:
    st.session_state.stopped = key


@st.cache_data(max_entries=256, show_spinner=False)
def _point(key: str, _point: Callable[[], Any]) -> Any:
    return _point()


def _model(card: Card) -> str:
    """What tells a model and its task from others: the same weights may have more than one.

    Heads and attention leave no trace in the tensors' shapes, and the task none at all.
    """
    return json.dumps([card["sha256"], card["shape"], card["recipe"]["task"]])


def probed(model: GPT, card: Card, asked: int) -> Probed:
    """What a trained model's layers answer; raises ProbeError."""
    key = f"probed {_model(card)} {asked}"
    with st.spinner("Probing", show_time=True):
        return _cached(key, Settings(), lambda: probe(model, fixed_task(card), asked))


def matched(card: Card, found: Probed, step_size: float) -> Matched:
    """Its layers beside every solver."""
    key = f"matched {_model(card)} {len(found.labels)} {step_size!r}"
    with _progress(lambda: state.look(study="fan")) as told:
        return _cached(key, Settings(), lambda: match(found, step_size, told))


def solver_fans(card: Card, found: Probed, variants: tuple[Variant, ...], step_size: float) -> Fans:
    """The solvers' errors on the prompts that a trained model was asked."""
    key = f"fans {_model(card)} {len(found.labels)} {variants} {step_size!r}"
    with st.spinner("Running the solvers", show_time=True):
        return _cached(key, Settings(), lambda: fans(found, variants, step_size))


def aligned(
    name: str, card: Card, found: Probed, readout: str, kernels: Sequence[str]
) -> list[Alignment]:
    """A trained model's layers beside kernel ridge regression under each kernel."""

    def make() -> list[Alignment]:
        done = []
        for number, kernel in enumerate(kernels):
            told(number / len(kernels))
            done.append(align(found, readout, kernel))
        return done

    key = f"aligned {_model(card)} {len(found.labels)} {readout} {' '.join(kernels)}"
    with _progress(lambda: state.look(ablation="constructed"), name) as told:
        return _cached(key, Settings(), make)


def rivalled(name: str, card: Card, found: Probed, readout: str) -> dict[str, Route]:
    """A trained model's similarity of errors with every solver on its certified step."""
    key = f"rivals {_model(card)} {len(found.labels)} {readout}"
    with _progress(lambda: state.look(ablation="constructed"), name) as told:
        return _cached(key, Settings(), lambda: rivals(found, readout, told))


def rescored(settings: Settings) -> Frame:
    """The hand-built stack's errors with each score; raises SettingsError and TableError."""
    with st.spinner("Computing", show_time=True):
        return _cached(
            "scores", settings, lambda: pd.DataFrame(counterpart_rows(settings, state.table()))
        )


def studied(
    name: str, card: Card, make: Callable[[], Result], settings: Settings | None = None
) -> Result:
    """Some other study of a trained model, kept by its name, model and task.

    ``settings`` are given where it depends on them.
    """
    with st.spinner("Computing", show_time=True):
        return _cached(f"{name} {_model(card)}", settings or Settings(), make)


def fitted_curve(settings: Settings, method: str, passing: bool = False) -> Curve:
    """A method's fit of the first prompt; not kept for a stop that a pointer is ``passing``."""
    # The curve is the same whatever else is drawn.
    alone = settings.but(methods=(method,), reference="krr")
    if passing:
        return curve(alone, method, state.table())
    return _cached("curve", alone, lambda: curve(alone, method, state.table()))


def pictured(page: str, settings: Settings) -> Shown:
    """A page's pictures as they are exported; what cannot be computed is told."""
    view = state.view()
    with _waiting():
        try:
            return _cached(
                f"{page} {view}", settings, lambda: shown(page, settings, view, state.table())
            )
        except (CheckpointError, ProbeError) as error:
            state.refuse(f"{error}.")


def suggested(settings: Settings) -> tuple[Median, CrossValidation, GeneralisedCrossValidation]:
    """What the session's own table suggests; raises SettingsError."""
    table = state.table()
    assert table is not None, "asked of a person's own table"
    X, y, ridge = table.X, table.y, settings.ridge
    with _progress(state.back, "suggestions") as told:
        return (
            _cached("median", settings, lambda: median_bandwidth(X, settings.seed)),
            _cached(
                f"cross-validation {ridge!r}",
                settings.but(bandwidth=1.0),
                lambda: cross_validated_bandwidth(X, y, ridge, settings.seed, told),
            ),
            _cached("gcv", settings, lambda: gcv_ridge(X, y, settings.bandwidth, settings.seed)),
        )


def kept_out(settings: Settings) -> HeldOut:
    """Every method at rows held out."""
    with _refusing(), _progress(state.back, "held-out rows") as told:
        result = _cached("held out", settings, lambda: held_out(settings, state.table(), told))
    state.completed()
    return result
