"""Rows of the bench: how times are taken, what a row holds, and what they were taken on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("krrviz", "torch", "numpy", "scipy", "scikit-learn", "gpytorch", "linear-operator")


@dataclass(frozen=True)
class Goal:
    """A figure's limit: at least, or at most, ``limit``."""

    limit: float
    at_least: bool = True

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Times:
    """Seconds of every counted run of one contender, and what its last run gave."""

    seconds: tuple[float, ...]
    result: Any

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Row:
    """One line of a section's table; a field that does not apply is None.

    ``value`` is the figure in ``unit``: most often how many times as long as ours a contender
    took. ``difference`` is how far its numbers are from ours, at the most.
    """

    section: str
    name: str
    contender: str
    times: Times | None = None
    value: float | None = None
    unit: str = ""
    goal: Goal | None = None
    difference: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        return self.goal.met(self.value) if self.goal and self.value is not None else None

    def cells(self) -> dict[str, str]:
        """Column -> text, in the order of the columns; empty where nothing applies."""

        def number(value: float | None) -> str:
            return "" if value is None else f"{value:.4g}"

        times = self.times
        return {
            "section": self.section,
            "name": self.name,
            "contender": self.contender,
            "seconds_median": number(times and times.median),
            "seconds_min": number(times and min(times.seconds)),
            "runs": str(len(times.seconds)) if times else "",
            "value": number(self.value),
            "unit": self.unit,
            "goal": str(self.goal or ""),
            "met": {None: "", True: "yes", False: "no"}[self.met],
            "difference": number(self.difference),
        }


def interleaved(contenders: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, Times]:
    """Times of every contender: one warm-up each, then ``runs`` rounds in which each runs once.

    Whatever else slows the machine for a while so slows all of them.
    """
    results = {name: call() for name, call in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, call in contenders.items():
            started = time.perf_counter()
            results[name] = call()
            taken[name].append(time.perf_counter() - started)
    return {name: Times(tuple(taken[name]), results[name]) for name in contenders}


def beside(
    section: str,
    name: str,
    times: Mapping[str, Times],
    goals: Mapping[str, Goal],
    difference: Callable[[Any, Any], float],
) -> list[Row]:
    """Rows of contenders for one job; the first is ours, the others are told in our times."""
    (ours, mine), *others = times.items()
    return [Row(section, name, ours, mine)] + [
        Row(
            section,
            name,
            other,
            its,
            its.median / mine.median,
            "× our time",
            goals.get(other),
            difference(mine.result, its.result),
        )
        for other, its in others
    ]


def machine() -> dict[str, str]:
    """What times are taken on: processor, cores, threads, GPU if there is one, versions."""
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "threads": _threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "versions": ", ".join(
            [f"python {platform.python_version()}", *filter(None, map(_version, PACKAGES))]
        ),
    }


def _cpu() -> str:
    about = Path("/proc/cpuinfo")  # Linux; platform knows no model there
    lines = about.read_text("utf-8").splitlines() if about.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _threads() -> str:
    """Threads of torch, and of each BLAS that NumPy and SciPy bring."""
    told = [f"torch {torch.get_num_threads()}"]
    try:
        from threadpoolctl import threadpool_info
    except ImportError:  # comes with scikit-learn
        return told[0]
    blas = {f"{i['internal_api']} {i['num_threads']}" for i in threadpool_info()}
    return ", ".join(told + sorted(name for name in blas if "blas" in name))


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
