"""One large system: conjugate gradients to a residual, and direct solves, beside libraries'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from krrviz import solvers
from krrviz.bench import peers
from krrviz.bench.fan import apart
from krrviz.bench.record import Goal, Row, beside, interleaved
from krrviz.problem import Problem
from krrviz.settings import Settings

SIZES = (4096, 8192)
RUNS = 3
TOLERANCE = 1e-6  # of the relative residual
MOST = 400  # steps in which conjugate gradients get there
GP = Settings(data="gp", d=2, bandwidth=0.5, ridge=0.1, device="cpu", queries=8)  # like these


def prompts(n: int, count: int = 1) -> Problem:
    """``count`` prompts of ``n`` uniform points in the plane, (count, n, 2), labels of a wave.

    Not a Gaussian process: its draw costs a factorisation.
    """
    rng = np.random.default_rng([n, count])
    X = torch.from_numpy(rng.uniform(-1, 1, (count, n + 32, 2)))
    noise = torch.from_numpy(rng.standard_normal((count, n)))
    y = torch.sin(3 * X[:, :n, 0]) * torch.cos(2 * X[:, :n, 1]) + 0.3 * noise
    return Problem(X[:, :n], y, X[:, n:], torch.full((count,), n), bandwidth=0.5, ridge=0.1)


def steps_to(problem: Problem, tolerance: float) -> int:
    """Steps after which the first prompt's relative residual in conjugate gradients is met."""
    states = solvers.solve(problem, "conjugate_gradient", MOST).states[:, 0]
    image = states @ problem.K[0] + problem.ridge * states
    y = problem.y[0]
    reached = (y - image).norm(dim=-1) <= tolerance * y.norm()
    assert bool(reached.any()), f"{MOST} steps do not reach {tolerance:g}"
    return int(reached.int().argmax())


def rows(
    sizes: tuple[int, ...] = SIZES, runs: int = RUNS, tolerance: float = TOLERANCE
) -> Iterator[Row]:
    """From inputs to answers, kernel included. Our steps are counted beforehand, untimed."""
    for n in sizes:
        problem = prompts(n)
        steps = steps_to(problem, tolerance)
        (system,) = peers.systems(problem)

        def cg(problem: Problem = problem, steps: int = steps) -> np.ndarray:
            fresh = replace(problem)  # no kernel kept from an earlier run
            return solvers.solve(fresh, "conjugate_gradient", steps).predictions[-1, 0].numpy()

        def exact(problem: Problem = problem) -> np.ndarray:
            return replace(problem).exact[0].numpy()

        iterative = {
            f"krrviz conjugate_gradient, {steps} steps": cg,
            "scipy.sparse.linalg.cg": partial(peers.scipy_cg, system, tolerance),
            "linear_operator linear_cg": partial(peers.linear_cg, system, tolerance, n),
            "GPyTorch, CG forced": partial(peers.gpytorch_cg, system, tolerance, n),
        }
        direct = {
            "krrviz exact": exact,
            "sklearn KernelRidge": partial(peers.kernel_ridge, system),
            "SciPy cho_solve": partial(peers.cholesky, system),
        }
        for kind, calls, limit in (
            (f"conjugate gradients to {tolerance:g}", iterative, 1 / 1.2),
            ("direct solve", direct, 1.0),
        ):
            goals = {name: Goal(round(limit, 3)) for name in calls}
            yield from beside("large", f"{kind}, N={n}", interleaved(calls, runs), goals, apart)
