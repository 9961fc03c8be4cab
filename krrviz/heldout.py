"""Held out: every method's answers at rows it has not seen, in the data's own units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float

from krrviz.fan import compiled, run_methods
from krrviz.machine import DTYPES, check, on_device
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.tables import Table
from krrviz.tasks import sample, table_of

EXACT, SKLEARN = "exact", "scikit-learn"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Labels and answers, (prompts, queries) each, in the target's unit.

    ``answers`` holds the chosen methods at the last step, ``exact`` KRR by a direct solve, and
    ``scikit-learn``'s KernelRidge of the same rows where that library is installed.
    """

    labels: Float[np.ndarray, "prompts Q"]
    answers: dict[str, Float[np.ndarray, "prompts Q"]]
    target: str
    unit: str


def held_out(
    settings: Settings,
    table: Table | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> HeldOut:
    """Each prompt's context is learned from, its queries are the rows held out.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    check(settings, 1)
    raw, problem = table_of(settings, table), sample(settings, table)
    assert problem.labels is not None, "rows of a table have labels"

    def run(device: torch.device) -> dict[str, np.ndarray]:
        model, moved = compiled(settings, table, device), problem.to(device, DTYPES[settings.dtype])
        runs = run_methods(settings, moved, model, progress)
        return {name: run[-1].double().cpu().numpy() for name, run in runs.items()}

    answers, _ = on_device(settings, run)
    answers[EXACT] = problem.exact.numpy()
    if find_spec("sklearn") is not None:
        answers[SKLEARN] = kernel_ridge(problem)
    return HeldOut(
        raw.y_raw(problem.labels.numpy()),
        {name: raw.y_raw(answer) for name, answer in answers.items()},
        raw.target_name,
        raw.y_unit,
    )


def kernel_ridge(problem: Problem) -> Float[np.ndarray, "prompts Q"]:
    """scikit-learn's answers; its alpha is our r and its gamma 1/2σ²."""
    from sklearn.kernel_ridge import KernelRidge

    gamma = 1 / (2 * problem.bandwidth**2)
    made = cast("Any", KernelRidge)  # whose stubs take a whole alpha only
    found = [
        made(alpha=float(r), kernel="rbf", gamma=gamma).fit(X, y).predict(x_query)
        for r, X, y, x_query in zip(
            problem.r[..., 0], *(t.numpy() for t in (problem.X, problem.y, problem.x_query)),
            strict=True,
        )
    ]  # fmt: skip
    return np.stack(found)
