"""Trajectory: what an iteration was at every step; record() makes one from any generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

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
    predictions = problem.y.new_empty(steps + 1, *problem.x_query.shape[:-1])
    states = problem.y.new_empty(steps + 1, *problem.y.shape)
    for t, step in enumerate(islice(solver(problem), steps + 1)):
        predictions[t], states[t] = step.prediction, step.state
    return Trajectory(name, predictions, states)
