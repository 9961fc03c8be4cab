"""Peers: kernel ridge regression as a person would write it with NumPy, SciPy and others.

None of this shares code with krrviz. A system is a prompt's own rows (X, y, x_query) as arrays;
loops run over systems, since that is what these libraries offer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import cg
from scipy.spatial.distance import cdist

from krrviz.problem import Problem

# Below this a relative residual is rounding, and SciPy's recurrences divide by 0 a little later.
GONE = 1e-14


@dataclass(frozen=True, eq=False)
class System:
    """One prompt: X (n, d), y (n,), x_query (Q, d), σ and λ (absolute)."""

    X: np.ndarray
    y: np.ndarray
    x_query: np.ndarray
    bandwidth: float
    ridge: float

    def kernel(self, a: np.ndarray) -> np.ndarray:
        """exp(−‖a_i − x_j‖²/2σ²), in place where NumPy lets one."""
        K = cdist(a, self.X, "sqeuclidean")
        K *= -1 / (2 * self.bandwidth**2)
        return np.exp(K, out=K)

    def matrix(self) -> np.ndarray:
        """K + λI."""
        A = self.kernel(self.X)
        A.flat[:: len(A) + 1] += self.ridge
        return A


def systems(problem: Problem) -> list[System]:
    """The prompts of a problem (one batch dimension, absolute ridge), without their padding."""
    return [
        System(X[:n].numpy(), y[:n].numpy(), q.numpy(), problem.bandwidth, problem.ridge)
        for X, y, q, n in zip(
            problem.X, problem.y, problem.x_query, problem.count.tolist(), strict=True
        )
    ]


# -- one system's exact answer ------------------------------------------------------------------


def kernel_ridge(s: System) -> np.ndarray:
    """scikit-learn's KernelRidge."""
    from sklearn.kernel_ridge import KernelRidge

    model = KernelRidge(alpha=cast("Any", s.ridge), kernel="rbf", gamma=1 / (2 * s.bandwidth**2))
    return model.fit(s.X, s.y).predict(s.x_query)


def cholesky(s: System) -> np.ndarray:
    """SciPy's cho_factor and cho_solve."""
    factor = cho_factor(s.matrix(), lower=True, overwrite_a=True, check_finite=False)
    return s.kernel(s.x_query) @ cho_solve(factor, s.y, check_finite=False)


def scipy_cg(s: System, tolerance: float) -> np.ndarray:
    """SciPy's cg, to a relative residual."""
    alpha, failed = cg(s.matrix(), s.y, rtol=tolerance, maxiter=len(s.y))
    assert not failed, "SciPy's cg did not converge"
    return s.kernel(s.x_query) @ alpha


def linear_cg(s: System, tolerance: float, steps: int) -> np.ndarray:
    """linear_operator's linear_cg on the matrix itself; ``steps`` at the most."""
    A = torch.from_numpy(s.matrix())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where ``steps`` end it
        alpha = gpytorch().linear_cg(
            A.matmul,
            torch.from_numpy(s.y)[:, None],
            tolerance=tolerance,
            max_iter=steps,
            max_tridiag_iter=0,
            eps=1e-30,  # by default it stops at a relative residual of about 1e-5
            stop_updating_after=GONE,
        )
    return s.kernel(s.x_query) @ alpha[:, 0].numpy()


@torch.no_grad()
def gpytorch_cg(s: System, tolerance: float, steps: int) -> np.ndarray:
    """GPyTorch's RBFKernel and its solve, made to take conjugate gradients.

    Whatever tolerance is asked, its solve ends at pᵀAp < 1e-10 of labels scaled to norm 1: its
    answers are good to about 1e-5.
    """
    library = gpytorch()
    kernel = library.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(s.bandwidth, dtype=torch.float64)  # a float is rounded
    X, y, x_query = (torch.from_numpy(a) for a in (s.X, s.y, s.x_query))
    diagonal = torch.full_like(y, s.ridge)
    chosen = library.settings
    with (
        warnings.catch_warnings(),
        chosen.max_cholesky_size(0),
        chosen.fast_computations(solves=True),
        chosen.cg_tolerance(tolerance),
        chosen.max_cg_iterations(steps),
        chosen.max_lanczos_quadrature_iterations(1),  # no more than its iterations
    ):
        warnings.simplefilter("ignore")
        alpha = kernel(X).add_diagonal(diagonal).solve(y[:, None])
        return (kernel(x_query, X) @ alpha)[:, 0].numpy()


def gpytorch() -> Any:
    """What is used of GPyTorch; its import uses a deprecated part of torch, and says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from gpytorch import kernels, settings
        from linear_operator.utils import linear_cg
    return SimpleNamespace(kernels=kernels, settings=settings, linear_cg=linear_cg)


# -- one system's trajectory --------------------------------------------------------------------


def scipy_trajectory(s: System, steps: int) -> np.ndarray:
    """Predictions (steps+1, Q) of SciPy's cg, a callback keeping every iterate."""
    states = [np.zeros_like(s.y)]
    cg(
        s.matrix(),
        s.y,
        rtol=GONE,
        maxiter=steps,
        callback=lambda alpha: states.append(alpha.copy()),
    )
    states += [states[-1]] * (steps + 1 - len(states))
    return np.stack(states) @ s.kernel(s.x_query).T


def trajectories(s: System, n_max: int, steps: int) -> dict[str, np.ndarray]:
    """Predictions (steps+1, Q) of every classical method, and ``exact`` (Q,).

    Step sizes are those certified for ``n_max`` tokens.
    """
    K, K_query, y, ridge = s.kernel(s.X), s.kernel(s.x_query), s.y, s.ridge
    A = K.copy()
    A.flat[:: len(A) + 1] += ridge
    D = K.sum(1)
    plain, scaled = (ridge, n_max + ridge), (ridge / n_max, 1 + ridge)

    def gradient(alpha: np.ndarray) -> np.ndarray:
        return y - A @ alpha

    def preconditioned(alpha: np.ndarray) -> np.ndarray:
        return (y - A @ alpha) / D

    def states(iterates: Iterator[np.ndarray]) -> np.ndarray:
        return np.stack([*islice(iterates, steps + 1)])

    made = {
        "preconditioned_richardson": _richardson(preconditioned, y, 2 / sum(scaled)),
        "gradient_descent": _richardson(gradient, y, 2 / sum(plain)),
        "nesterov": _nesterov(gradient, y, *plain),
        "heavy_ball": _heavy_ball(gradient, y, *plain),
        "chebyshev": _chebyshev(preconditioned, y, *scaled),
        "conjugate_gradient": _conjugate(A, y, np.ones_like(D)),
        "preconditioned_conjugate_gradient": _conjugate(A, y, D),
    }
    taken = {name: states(iterates) @ K_query.T for name, iterates in made.items()}
    taken["function_space_richardson"] = states(_functions(K, K_query, s, 2 / sum(scaled)))
    taken["exact"] = K_query @ cho_solve(cho_factor(A), y)
    return taken


Residual = Callable[[np.ndarray], np.ndarray]


def _richardson(residual: Residual, y: np.ndarray, step: float) -> Iterator[np.ndarray]:
    alpha = np.zeros_like(y)
    while True:
        yield alpha
        alpha = alpha + step * residual(alpha)


def _nesterov(residual: Residual, y: np.ndarray, low: float, high: float) -> Iterator[np.ndarray]:
    root = np.sqrt(high / low)
    momentum = (root - 1) / (root + 1)
    alpha = before = np.zeros_like(y)
    while True:
        yield alpha
        ahead = alpha + momentum * (alpha - before)
        before, alpha = alpha, ahead + residual(ahead) / high


def _heavy_ball(residual: Residual, y: np.ndarray, low: float, high: float) -> Iterator[np.ndarray]:
    total = np.sqrt(high) + np.sqrt(low)
    step, momentum = 4 / total**2, ((np.sqrt(high) - np.sqrt(low)) / total) ** 2
    alpha = before = np.zeros_like(y)
    while True:
        yield alpha
        before, alpha = alpha, alpha + step * residual(alpha) + momentum * (alpha - before)


def _chebyshev(residual: Residual, y: np.ndarray, low: float, high: float) -> Iterator[np.ndarray]:
    # The form of Saad, Iterative Methods for Sparse Linear Systems, algorithm 12.1.
    theta, delta = (high + low) / 2, (high - low) / 2
    sigma = theta / delta
    rho = 1 / sigma
    alpha = np.zeros_like(y)
    direction = residual(alpha) / theta
    while True:
        yield alpha
        alpha = alpha + direction
        following = 1 / (2 * sigma - rho)
        direction = following * rho * direction + 2 * following / delta * residual(alpha)
        rho = following


def _conjugate(A: np.ndarray, y: np.ndarray, scale: np.ndarray) -> Iterator[np.ndarray]:
    alpha, r = np.zeros_like(y), y
    z = direction = r / scale
    rz = first = r @ z
    while True:
        yield alpha
        if rz <= GONE**2 * first:
            continue
        image = A @ direction
        length = rz / (direction @ image)
        alpha, r = alpha + length * direction, r - length * image
        z = r / scale
        rz, before = r @ z, rz
        direction = z + rz / before * direction


def _functions(K: np.ndarray, K_query: np.ndarray, s: System, step: float) -> Iterator[np.ndarray]:
    near, far = K.sum(1), K_query.sum(1) + s.ridge
    u, f = np.zeros_like(s.y), np.zeros(len(K_query))
    while True:
        yield f
        gap = s.y - u
        f = f + step * (K_query @ gap - s.ridge * f) / far
        u = u + step * (K @ gap - s.ridge * u) / near
