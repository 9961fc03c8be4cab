"""Where the eigenvalues lie, and the step sizes that follow.

Two operators: A = K + rI (``plain``) and D⁻¹A (``preconditioned``), D = diag(K1).

Certified intervals hold for every prompt of n ≤ N points, from N and λ alone. K is positive
semidefinite with unit diagonal, so its eigenvalues lie in [0, n] and 1 ≤ D_i ≤ n. D − K is a
graph Laplacian, so positive semidefinite: eig(D⁻¹K) ⊂ [0, 1]. With vᵀv = 1 and
vᵀ(K + rI)v / vᵀDv between r/max D and (vᵀDv + r)/vᵀDv ≤ 1 + r:

    A:    [r, n + r]        absolute: [λ, N + λ]      per sample: [λ, N(1 + λ)]
    D⁻¹A: [r/n, 1 + r]      absolute: [λ/N, 1 + λ]    per sample: [λ, 1 + Nλ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.problem import Problem

Operator = Literal["plain", "preconditioned"]
POLICIES = ("certified", "one_over_l", "optimal", "manual")


@dataclass(frozen=True, eq=False)
class Interval:
    """[μ, L] for each prompt of a batch, shape (..., 1); or for all of them, as 0-d tensors."""

    low: Float[Tensor, "*any"]
    high: Float[Tensor, "*any"]

    @property
    def best_step(self) -> Tensor:
        """η = 2/(μ + L), which contracts every mode by at most (L − μ)/(L + μ)."""
        return 2 / (self.low + self.high)

    @property
    def contraction(self) -> Tensor:
        """ρ = (L − μ)/(L + μ) of the best step."""
        return (self.high - self.low) / (self.high + self.low)

    @property
    def condition(self) -> Tensor:
        """κ = L/μ."""
        return self.high / self.low


def certified(operator: Operator, n_max: int, ridge: float, ridge_scale: str) -> Interval:
    """The interval of the table above, for every prompt of at most ``n_max`` points."""
    per_sample = ridge_scale == "per_sample"
    largest = n_max * ridge if per_sample else ridge
    if operator == "plain":
        low, high = ridge, n_max + largest
    else:
        low, high = (ridge if per_sample else ridge / n_max), 1 + largest
    return Interval(torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64))


def true_interval(operator: Operator, problem: Problem) -> Interval:
    """Smallest and largest eigenvalue of each prompt's operator, shape (..., 1).

    D⁻¹A is similar to the symmetric D^−½AD^−½. Unused slots would add an eigenvalue of their
    own; their diagonal is set to the mean of the used ones, which never is an extreme.
    """
    used = problem.used
    matrix = problem.A
    if operator == "preconditioned":
        root = problem.degree.rsqrt()
        matrix = root[..., :, None] * matrix * root[..., None, :]
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    mean = (diagonal * used).sum(-1, keepdim=True) / problem.count[..., None]
    matrix = matrix + torch.diag_embed(torch.where(used, 0, mean - diagonal))
    values = torch.linalg.eigvalsh(matrix)
    # Rounding may leave the smallest a little below what theory allows: r, or r/max D.
    floor = problem.r
    if operator == "preconditioned":
        floor = floor / problem.degree.amax(-1, keepdim=True)
    return Interval(values[..., :1].maximum(floor), values[..., -1:])


def policy_interval(
    policy: str, operator: Operator, problem: Problem, n_max: int, step_size: float | None = None
) -> Interval:
    """The interval that a step policy believes in.

    certified: from N and λ. one_over_l: certified μ, true L. optimal: true μ and L.
    manual: certified μ, and the L whose 1/L is ``step_size``.
    """
    sure = certified(operator, n_max, problem.ridge, problem.ridge_scale)
    if policy == "certified":
        return sure
    if policy == "manual":
        if step_size is None or not 0 < step_size < math.inf:
            raise ValueError(f"step_size={step_size} must be a finite number above 0")
        high = torch.tensor(1 / step_size, dtype=torch.float64)
        return Interval(sure.low.minimum(high), high)
    true = true_interval(operator, problem)
    if policy == "optimal":
        return true
    if policy == "one_over_l":
        return Interval(sure.low.to(true.high).minimum(true.high), true.high)
    raise ValueError(f"policy={policy!r} must be one of {', '.join(POLICIES)}")
