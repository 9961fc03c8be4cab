"""How time and memory grow with N, steps and prompts: exponents in log-log, least squares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from krrviz import solvers
from krrviz.bench.large import GP, prompts
from krrviz.bench.record import Goal, Row, interleaved
from krrviz.construction.predict import predict
from krrviz.construction.weights import Construction, build
from krrviz.machine import max_memory

RUNS = 3
N, STEPS, PROMPTS = (1024, 2048, 4096), (32, 64, 128, 256), (4, 8, 16, 32)
MEMORY, MEMORY_STEPS = (6144, 10240, 16384), 4  # beyond what is held


def rows(
    n: Sequence[int] = N,
    steps: Sequence[int] = STEPS,
    count: Sequence[int] = PROMPTS,
    memory: Sequence[int] = MEMORY,
    runs: int = RUNS,
) -> Iterator[Row]:
    """Transformer and Richardson's iteration, the direct solve apart, then the forward's memory."""
    sweeps = {
        "N": (n, lambda value: {"n": value}, 2.1),
        "steps": (steps, lambda value: {"steps": value}, 1.05),
        "prompts": (count, lambda value: {"count": value}, 1.05),
    }
    for axis, (values, change, limit) in sweeps.items():
        goal = Goal(limit, at_least=False)
        for name, job in {"transformer": forward, "preconditioned_richardson": iterate}.items():
            calls = {value: job(**{"n": 256, **change(value)}) for value in values}
            yield from _fitted(f"time of {name}", axis, calls, runs, goal)
    calls = {value: partial(_exact, prompts(value)) for value in n}
    yield from _fitted("time of the direct solve", "N", calls, runs, None)
    yield from _memory(memory)


def forward(n: int, steps: int = 32, count: int = 1) -> Callable[[], object]:
    """``predict``, everything else made beforehand."""
    model = build(Construction.from_settings(GP.but(n=n, steps=steps)))
    return partial(predict, model, prompts(n, count))


def iterate(n: int, steps: int = 32, count: int = 1) -> Callable[[], object]:
    """``solve`` on a problem that has kept no kernel."""
    problem = prompts(n, count)
    return lambda: solvers.solve(replace(problem), "preconditioned_richardson", steps)


def _exact(problem: Any) -> object:
    return replace(problem).exact


def _fitted(
    name: str, axis: str, calls: dict[int, Callable[[], object]], runs: int, goal: Goal | None
) -> Iterator[Row]:
    times = interleaved({f"{axis}={value}": call for value, call in calls.items()}, runs)
    for at, taken in times.items():
        yield Row("growth", name, at, taken)
    slope = exponent([*calls], [taken.median for taken in times.values()])
    yield Row("growth", name, f"exponent in {axis}", None, slope, "", goal)


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """p of y ≈ c·xᵖ, by least squares of logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# -- memory -------------------------------------------------------------------------------------


def _memory(sizes: Sequence[int]) -> Iterator[Row]:
    """Each size in a process of its own; one that does not fit is told and left out of the fit."""
    name, found = "memory of transformer", {}
    if sys.platform != "linux":
        yield Row("growth", name, "not measured: Linux alone tells a process's peak")
        return
    for n in sizes:
        done = subprocess.run(
            [sys.executable, "-c", f"from krrviz.bench.growth import child; child({n})"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            yield Row("growth", name, f"N={n}: more than {max_memory() / 2**30:.3g} GiB, or failed")
            continue
        found[n] = float(done.stdout)
        yield Row("growth", name, f"N={n}", None, found[n], "MiB beyond the base")
    if len(found) > 1:
        slope = exponent([*found], [*found.values()])
        goal = Goal(1.1, at_least=False)
        yield Row("growth", name, f"exponent in N, up to {max(found)}", None, slope, "", goal)


def child(n: int) -> None:
    """Print by how many MiB a forward pass raises this process's peak; at most the limit."""
    import resource

    forward(n=64, steps=MEMORY_STEPS)()  # what a first call loads is no part of it
    call = forward(n=n, steps=MEMORY_STEPS)
    limit = 1024 * _status("VmSize") + int(max_memory())
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far becomes what is held now
    base = _status("VmHWM")
    call()
    print((_status("VmHWM") - base) / 2**10)


def _status(key: str) -> int:
    """KiB that Linux tells of this process."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])
