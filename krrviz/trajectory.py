"""Trajectory: what an iteration was at every step; record() makes one from any generator."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.problem import Problem


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a method, and what it needs for the next.

    state : α, or function values
    asks : the vector v whose image Av the next step takes; it is sent to the generator
    prediction : at the queries; None where it is k_*ᵀ state
    """

    state: Float[Tensor, "*batch N"]
    asks: Float[Tensor, "*batch N"]
    prediction: Float[Tensor, "*batch Q"] | None = None


# Infinite, zero state first; hyperparameters are bound beforehand, stopping lives outside. That A
# is multiplied outside, too, lets methods go in step and share one product.
Steps = Generator[Step, Tensor, None]
Solver = Callable[[Problem], Steps]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """All steps of one method; solvers, construction and probes all make this one type."""

    name: str
    predictions: Float[Tensor, "times *batch Q"]
    states: Float[Tensor, "times *batch N"]

    @property
    def steps(self) -> int:
        return self.predictions.shape[0] - 1


def iterate(solver: Solver, problem: Problem) -> Iterator[Step]:
    """The steps of ``solver`` on ``problem``, without end."""
    run = solver(problem)
    step = next(run)
    while True:
        yield step
        step = run.send(problem.apply(step.asks))


def record(name: str, solver: Solver, problem: Problem, steps: int) -> Trajectory:
    """Run ``solver`` on ``problem`` for ``steps`` steps and keep every one of them."""
    return record_all({name: solver}, problem, steps)[name]


def record_all(
    solvers: Mapping[str, Solver],
    problem: Problem,
    steps: int,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[str, Trajectory]:
    """Run every one of ``solvers`` for ``steps`` steps, side by side, and keep them all.

    A step is one product of A with the vectors that all of them ask for; so is what the states
    predict. ``progress`` is called before each with the share done.
    """
    runs = [solver(problem) for solver in solvers.values()]
    now = [next(run) for run in runs]
    taken = [[step] for step in now]
    for t in range(steps):
        progress(t / steps)
        images = problem.apply(torch.stack([step.asks for step in now]))
        now = [run.send(image) for run, image in zip(runs, images, strict=True)]
        for kept, step in zip(taken, now, strict=True):
            kept.append(step)
    return {
        name: _trajectory(name, problem, kept) for name, kept in zip(solvers, taken, strict=True)
    }


def _trajectory(name: str, problem: Problem, taken: list[Step]) -> Trajectory:
    states = torch.stack([step.state for step in taken])
    given = [step.prediction for step in taken if step.prediction is not None]
    return Trajectory(name, torch.stack(given) if given else problem.predict(states), states)
