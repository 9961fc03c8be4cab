"""A model that is the iteration, step by step, is found to be just that, and under its kernel."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

from krrviz.solvers import SOLVERS
from krrviz.trained.gpt import GPT, Shape
from krrviz.trained.match import align, rivals
from krrviz.trained.probe import Probed, probe
from krrviz.trained.prompts import Task

N, RIDGE, SIGMA, EVERY = 6, 0.1, 0.5, 2
TASK = Task(n=N, kernel="laplacian", bandwidth=(SIGMA, SIGMA), ridge=(RIDGE, RIDGE))


def laplacian(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-np.sqrt(np.square(a[:, None] - b[None]).sum(-1)) / SIGMA)


@pytest.fixture(scope="module")
def iterating() -> Probed:
    """Layer ℓ answers as α ← α + ηD⁻¹(y − (K + λI)α) does after 2ℓ steps."""
    torch.manual_seed(0)
    model = GPT(Shape(n=N, layers=3, width=16, heads=2))
    found = probe(model, TASK, 24)
    prompts = found.prompts
    eta = 2 / (RIDGE / N + 1 + RIDGE)  # the certified interval's
    layers = np.zeros((4, 24, N))
    for p in range(24):
        X, y = prompts.X[p].numpy(), prompts.y[p].numpy()
        for n in range(1, N + 1):
            K, alpha = laplacian(X[:n], X[:n]), np.zeros(n)
            for step in range(3 * EVERY + 1):
                if step % EVERY == 0:
                    layers[step // EVERY, p, n - 1] = laplacian(X[n : n + 1], X[:n])[0] @ alpha
                alpha = alpha + eta * (y[:n] - K @ alpha - RIDGE * alpha) / K.sum(1)
    return replace(found, answers={**found.answers, "lens": torch.from_numpy(layers)})


def test_the_iteration_itself_is_recognised(iterating: Probed) -> None:
    found = rivals(iterating, "lens")
    assert found.keys() == SOLVERS.keys()
    own = found["preconditioned_richardson"]
    assert own.steps == (2, 4, 6)
    assert own.score == pytest.approx(1, abs=1e-5)
    assert all(
        route.score < own.score - 1e-4
        for method, route in found.items()
        if method != "preconditioned_richardson"
    )


def test_the_own_kernel_is_nearest_and_the_gap_is_scikit_learns(iterating: Probed) -> None:
    found = {kernel: align(iterating, "lens", kernel) for kernel in ("laplacian", "gaussian")}
    prompts, last = iterating.prompts, iterating.answers["lens"][-1].numpy()
    kernels = {
        "laplacian": laplacian,
        "gaussian": lambda a, b: np.exp(-np.square(a[:, None] - b[None]).sum(-1) / (2 * SIGMA**2)),
    }
    for name, kernel in kernels.items():
        exact = np.zeros_like(last)
        for p in range(len(last)):
            X, y = prompts.X[p].numpy(), prompts.y[p].numpy()
            for n in range(1, N + 1):
                fit = KernelRidge(alpha=RIDGE, kernel="precomputed")  # pyright: ignore[reportArgumentType]
                fit.fit(kernel(X[:n], X[:n]), y[:n])
                exact[p, n - 1] = fit.predict(kernel(X[n : n + 1], X[:n]))[0]
        gap = np.linalg.norm(last - exact) / np.linalg.norm(exact)
        assert found[name].gap == pytest.approx(gap, rel=1e-9)
    own, other = (found[name].similarity for name in ("laplacian", "gaussian"))
    assert own is not None
    assert other is not None
    assert own.score == pytest.approx(1, abs=1e-5)
    assert other.interval[1] < own.interval[0]
    assert align(iterating, "lens", "linear").similarity is None
