"""Trajectory: what an iteration was at every step; record() makes one from any generator."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

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
# is multiplied outside, too, lets methods run side by side and share one product.
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
    taken = list(islice(iterate(solver, problem), steps + 1))
    states = torch.stack([step.state for step in taken])
    given = [step.prediction for step in taken if step.prediction is not None]
    return Trajectory(name, torch.stack(given) if given else problem.predict(states), states)


def predictions(
    solvers: Mapping[str, Solver],
    problem: Problem,
    steps: int,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[str, Float[Tensor, "times *batch Q"]]:
    """What every one of ``solvers`` predicts at its steps 0 to ``steps``; no state is kept.

    They run side by side: a step is one product of A with the vectors that all of them ask for,
    and one with their states. ``progress`` is called before each with the share done.
    """
    runs = [solver(problem) for solver in solvers.values()]
    now = [next(run) for run in runs]
    taken = [_predicted(problem, now)]
    for t in range(steps):
        progress(t / steps)
        images = problem.apply(torch.stack([step.asks for step in now]))
        now = [run.send(image) for run, image in zip(runs, images, strict=True)]
        taken.append(_predicted(problem, now))
    return dict(zip(solvers, torch.stack(taken, 1), strict=True))


def _predicted(problem: Problem, now: Sequence[Step]) -> Float[Tensor, "methods *batch Q"]:
    """What each step predicts, for one step of every method."""
    found = problem.predict(torch.stack([step.state for step in now]))
    for at, step in enumerate(now):
        if step.prediction is not None:
            found[at] = step.prediction
    return found
