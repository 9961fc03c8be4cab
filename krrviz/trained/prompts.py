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

    def problem(self, n: int, kernel: str | None = None, ridge_scale: str = "absolute") -> Problem:
        """The first n points and the query after them, of prompts that share one σ and λ.

        ``ridge_scale`` : where it is per_sample the ridge is λ/N, so that both agree at n = N.

        Raises
        ------
        ValueError
            The prompts' σ or λ differ.
        """
        for name in ("bandwidth", "ridge"):
            if len(getattr(self, name).unique()) > 1:
                raise ValueError(f"prompts of more than one {name} are no one problem")
        ridge = float(self.ridge[0])
        return KernelProblem(
            X=self.X[:, :n],
            y=self.y[:, :n],
            x_query=self.X[:, n : n + 1],
            count=torch.full((len(self.X),), n),
            bandwidth=float(self.bandwidth[0]),
            ridge=ridge if ridge_scale == "absolute" else ridge / self.task.n,
            ridge_scale=ridge_scale,
            kernel=kernel or self.task.kernel,
        )


def draw(task: Task, batch: int, generator: torch.Generator) -> Prompts:
    """``batch`` prompts of n + 1 points."""

    def between(edges: tuple[float, float]) -> Tensor:
        share = torch.rand(batch, generator=generator, dtype=torch.float64)
        low, high = (math.log(edge) for edge in edges)
        return (low + share * (high - low)).exp()

    X = 2 * torch.rand(batch, task.n + 1, task.d, generator=generator, dtype=torch.float64) - 1
    return labelled(task, X, between(task.bandwidth), between(task.ridge), generator)


def labelled(
    task: Task,
    X: Float[Tensor, "batch points d"],
    bandwidth: Float[Tensor, " batch"],
    ridge: Float[Tensor, " batch"],
    generator: torch.Generator,
) -> Prompts:
    """Prompts with these inputs and labels drawn for them."""
    K = KERNELS[task.kernel](X, X, bandwidth)
    K.diagonal(dim1=-2, dim2=-1).add_(JITTER)
    seeds = torch.randn(2, *X.shape[:2], 1, generator=generator, dtype=torch.float64)
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
    # The factor of the first n points' system is the first n rows of the whole one's: A = LLᵀ,
    # Lz = y. Row n + 1 of L is k(x_n+1)ᵀL_n⁻ᵀ, so f(x_n+1) = k(x_n+1)ᵀ(L_nL_nᵀ)⁻¹y is that times z.
    factor, z = _factored(prompts, kernel or prompts.task.kernel)
    return (factor.tril(-1) @ z)[..., 0]


def coefficients(prompts: Prompts) -> Float[Tensor, "batch points"]:
    """α of each point in the exact answer of the points up to it: the last entry of α_n."""
    factor, z = _factored(prompts, prompts.task.kernel)
    return z[..., 0] / factor.diagonal(dim1=-2, dim2=-1)  # the last row of L_nᵀα = z


def _factored(prompts: Prompts, kernel: str) -> tuple[Tensor, Tensor]:
    A = KERNELS[kernel](prompts.X, prompts.X, prompts.bandwidth)
    A = A + torch.diag_embed(prompts.ridge[:, None].expand(prompts.y.shape))
    factor = torch.linalg.cholesky(A)
    return factor, torch.linalg.solve_triangular(factor, prompts.y[..., None], upper=False)
