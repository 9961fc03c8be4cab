"""Trajectory: what an iteration was at every step; record() makes one from any generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.problem import Problem


@dataclass(frozen=True, eq=False)
class Step:
    """One step: the method's state (α, or function values) and its predictions at the queries."""

    state: Float[Tensor, "*batch N"]
    prediction: Float[Tensor, "*batch Q"]


# Infinite, zero state first; hyperparameters are bound beforehand, stopping lives outside.
Solver = Callable[[Problem], Iterator[Step]]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """All steps of one method; solvers, construction and probes all make this one type."""

    name: str
    predictions: Float[Tensor, "times *batch Q"]
    states: Float[Tensor, "times *batch N"]

    @property
    def steps(self) -> int:
        return self.predictions.shape[0] - 1


def record(name: str, solver: Solver, problem: Problem, steps: int) -> Trajectory:
    """Run ``solver`` on ``problem`` for ``steps`` steps and keep every one of them."""
    taken = list(islice(solver(problem), steps + 1))
    return Trajectory(
        name,
        torch.stack([step.prediction for step in taken]),
        torch.stack([step.state for step in taken]),
    )
