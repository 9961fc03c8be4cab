"""Kernel: the Gaussian kernel, its products tile by tile, and its partial Cholesky factor."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

# Larger kernel matrices are never held: their products are taken tile by tile.
HELD_BYTES = 2**29
# The rank of the factor that then preconditions.
RANK = 512
# A tile of the kernel stays in a core's cache.
TILE_BYTES = 2**20


def gaussian_kernel(
    a: Float[Tensor, "*batch M d"], b: Float[Tensor, "*batch N d"], bandwidth: float
) -> Float[Tensor, "*batch M N"]:
    """exp(−‖a_i − b_j‖²/2σ²), from the differences themselves: nothing cancels."""
    # No distances in half precision: they are taken in float32, and the kernel is rounded.
    wide = torch.promote_types(a.dtype, torch.float32)
    distance = torch.cdist(a.to(wide), b.to(wide), compute_mode="donot_use_mm_for_euclid_dist")
    return distance.div_(math.sqrt(2) * bandwidth).square_().neg_().exp_().to(a.dtype)


def times(
    matrix: Float[Tensor, "*batch M N"], v: Float[Tensor, "*lead N"]
) -> Float[Tensor, "*lead M"]:
    """``matrix`` @ v; what leads v beyond ``matrix``'s batch are columns of one product."""
    batch = matrix.shape[:-2]
    lead = v.shape[: v.ndim - 1 - len(batch)]
    rows = v.reshape(-1, *batch, v.shape[-1]).movedim(0, -2)
    return (rows @ matrix.mT).movedim(-2, 0).reshape(*lead, *batch, matrix.shape[-2])


def tiled(
    a: Float[Tensor, "*batch M d"],
    b: Float[Tensor, "*batch N d"],
    bandwidth: float,
    v: Float[Tensor, "*lead N"],
) -> Float[Tensor, "*lead M"]:
    """``times`` with the kernel between a and b, of which a few rows at a time are held."""
    size = max(1, TILE_BYTES // (b[..., 0].numel() * b.element_size()))
    lead = v.shape[: v.ndim - b.ndim + 1]
    # Filled in place: parts kept between tiles would leave the heap in pieces.
    out = v.new_empty(*lead, *a.shape[:-1])
    for at in range(0, a.shape[-2], size):
        part = a[..., at : at + size, :]
        out[..., at : at + size] = times(gaussian_kernel(part, b, bandwidth), v)
    return out


def partial_cholesky(
    X: Float[Tensor, "*batch N d"], bandwidth: float, rank: int
) -> Float[Tensor, "*batch N kept"]:
    """L with LLᵀ ≈ K, each column at the row that the others explain least.

    The residual K − LLᵀ is positive semidefinite, so its diagonal says how much is left. Columns
    beyond what rounding can tell from 0 are left out: L has at most ``rank``.
    """
    batch, n = X.shape[:-2], X.shape[-2]
    L = X.new_zeros(*batch, n, rank)
    left = X.new_ones(*batch, n)
    for k in range(rank):
        most, pivot = left.max(-1, keepdim=True)
        at = pivot[..., None]
        row = L.gather(-2, at.expand(*batch, 1, rank))[..., :k]
        x = X.gather(-2, at.expand(*batch, 1, X.shape[-1]))
        column = gaussian_kernel(X, x, bandwidth)[..., 0]
        column = column - (L[..., :k] @ row.mT)[..., 0]
        told = most > n * torch.finfo(X.dtype).eps
        if not bool(told.any()):
            return L[..., :k]
        L[..., k] = torch.where(told, column / most.clamp_min(torch.finfo(X.dtype).tiny).sqrt(), 0)
        left = left - L[..., k].square()
    return L
