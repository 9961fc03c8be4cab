"""The default fan, and large forward passes and solves, on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from krrviz import solvers
from krrviz.bench.fan import apart
from krrviz.bench.large import GP, prompts
from krrviz.bench.record import Row, beside, interleaved
from krrviz.construction.predict import predict
from krrviz.construction.weights import Construction, build
from krrviz.fan import fan
from krrviz.machine import DTYPES
from krrviz.settings import Settings

SIZES, STEPS = (16384, 65536), 16
RUNS = 3


def rows(
    sizes: tuple[int, ...] = SIZES, runs: int = RUNS, device: str | None = None
) -> Iterator[Row]:
    """The fan beside the CPU's; each size in float32 and float64. ``device``: CUDA where it is."""
    if device is None and not torch.cuda.is_available():
        yield Row("gpu", "skipped", "no CUDA device on this machine")
        return
    device = device or "cuda"
    for dtype in ("float64", "float32"):
        calls = {
            f"fan on {where}": partial(errors, Settings(device=where, dtype=dtype))
            for where in dict.fromkeys((device, "cpu"))
        }
        yield from beside("gpu", f"default fan, {dtype}", interleaved(calls, runs), {}, apart)
    for n in sizes:
        for dtype in ("float32", "float64"):
            yield from _large(n, dtype, runs, device)


def errors(settings: Settings) -> dict[str, np.ndarray]:
    """Those of the fan."""
    return fan(settings).errors


def _large(n: int, dtype: str, runs: int, device: str) -> Iterator[Row]:
    problem = prompts(n).to(device, DTYPES[dtype])
    c = Construction.from_settings(GP.but(steps=STEPS, dtype=dtype))
    model = build(replace(c, n_max=n)).to(device)  # settings stop at KRRVIZ_MAX_N
    jobs: dict[str, Callable[[], object]] = {
        "forward": lambda: predict(model, problem).predictions.sum().item(),
        "conjugate_gradient": lambda: (
            solvers.solve(replace(problem), "conjugate_gradient", STEPS).predictions.sum().item()
        ),
    }
    for job, call in jobs.items():
        name = f"{job}, N={n}, {dtype}, {STEPS} steps"
        try:
            yield Row("gpu", name, "krrviz", interleaved({job: call}, runs)[job])
        except torch.OutOfMemoryError:
            yield Row("gpu", name, "out of memory")
