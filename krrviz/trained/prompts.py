"""Prompts: Gaussian process regression under any kernel, and its exact answers at every length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.problem import Problem

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]

JITTER = 1e-6  # of the drawn function's covariance, in float64


def _distance(a: Tensor, b: Tensor, bandwidth: Tensor) -> Tensor:
    exact = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return exact / bandwidth[..., None, None]


def _matern(a: Tensor, b: Tensor, bandwidth: Tensor) -> Tensor:
    scaled = math.sqrt(3) * _distance(a, b, bandwidth)
    return (1 + scaled) * (-scaled).exp()


# Each of (a, b, bandwidth) with one bandwidth a prompt; all have k(x, x) = 1 or about.
KERNELS: Mapping[str, Kernel] = {
    "gaussian": lambda a, b, s: (-_distance(a, b, s).square() / 2).exp(),
    "laplacian": lambda a, b, s: (-_distance(a, b, s)).exp(),
    "matern32": _matern,
    "linear": lambda a, b, s: a @ b.mT / s[..., None, None] ** 2,
}


@dataclass(frozen=True)
class Task:
    """What prompts are drawn from: inputs uniform on [−1, 1]ᵈ, labels of variance about 1.

    bandwidth, ridge : lowest and highest σ and λ, drawn log-uniformly for each prompt; λ is the
    label noise's variance before labels are divided by √(1 + λ)
    """

    d: int = 2
    n: int = 32
    kernel: str = "gaussian"
    bandwidth: tuple[float, float] = (0.5, 0.5)
    ridge: tuple[float, float] = (0.1, 0.1)

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel={self.kernel!r} must be one of {', '.join(KERNELS)}")
        for name in ("bandwidth", "ridge"):
            low, high = getattr(self, name)
            object.__setattr__(self, name, (float(low), float(high)))
            if not 0 < low <= high < math.inf:
                raise ValueError(f"{name}={low} to {high} must be finite, above 0 and in order")


@dataclass(frozen=True, eq=False)
class Prompts:
    """A batch in float64: n + 1 points each, of which the last is the query after all others.

    X (batch, n+1, d); y, noiseless (batch, n+1); bandwidth, ridge (batch)
    """

    task: Task
    X: Float[Tensor, "batch points d"]
    y: Float[Tensor, "batch points"]
    noiseless: Float[Tensor, "batch points"]
    bandwidth: Float[Tensor, " batch"]
    ridge: Float[Tensor, " batch"]


def draw(task: Task, batch: int, generator: torch.Generator) -> Prompts:
    """``batch`` prompts of n + 1 points."""

    def between(edges: tuple[float, float]) -> Tensor:
        share = torch.rand(batch, generator=generator, dtype=torch.float64)
        low, high = (math.log(edge) for edge in edges)
        return (low + share * (high - low)).exp()

    points = task.n + 1
    X = 2 * torch.rand(batch, points, task.d, generator=generator, dtype=torch.float64) - 1
    bandwidth, ridge = between(task.bandwidth), between(task.ridge)
    K = KERNELS[task.kernel](X, X, bandwidth)
    K.diagonal(dim1=-2, dim2=-1).add_(JITTER)
    seeds = torch.randn(2, batch, points, 1, generator=generator, dtype=torch.float64)
    f = (torch.linalg.cholesky(K) @ seeds[0])[..., 0]
    scale = (1 + ridge).sqrt()[:, None]
    y = f + ridge.sqrt()[:, None] * seeds[1, ..., 0]
    return Prompts(task, X, y / scale, f / scale, bandwidth, ridge)


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelProblem(Problem):
    """A problem under another kernel than the Gaussian; all slots are used.

    Where a kernel's row sums are not all positive, row-sum preconditioning has no meaning, and
    what it makes diverges.
    """

    kernel: str

    @cached_property
    def K(self) -> Float[Tensor, "*batch N N"]:
        return self._between(self.X)

    @cached_property
    def k_query(self) -> Float[Tensor, "*batch Q N"]:
        return self._between(self.x_query)

    def _between(self, points: Tensor) -> Tensor:
        bandwidth = torch.tensor(self.bandwidth, device=self.X.device, dtype=self.X.dtype)
        return KERNELS[self.kernel](points, self.X, bandwidth)


def answers(prompts: Prompts, kernel: str | None = None) -> Float[Tensor, "batch points"]:
    """Exact kernel ridge regression at point n from the n points before it, n = 0 … N.

    ``kernel`` : another than the prompts were drawn from.
    """
    k = KERNELS[kernel or prompts.task.kernel](prompts.X, prompts.X, prompts.bandwidth)
    A = k + torch.diag_embed(prompts.ridge[:, None].expand(prompts.y.shape))
    found = [torch.zeros_like(prompts.y[:, 0])]
    for n in range(1, prompts.y.shape[1]):
        alpha = torch.linalg.solve(A[:, :n, :n], prompts.y[:, :n])
        found.append((k[:, n, :n] * alpha).sum(-1))
    return torch.stack(found, 1)
