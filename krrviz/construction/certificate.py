"""Certificate: what is provable about a construction's answer."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.construction.weights import LEVELS, Construction
from krrviz.problem import Problem


def product_bound(
    c: Construction, problem: Problem, alpha: Float[Tensor, "times *batch N"]
) -> Float[Tensor, "times *batch Q"]:
    """How far the transformer's answer may lie from Richardson's, at every step.

    One update of the transformer is Richardson's plus a perturbation e of α, from the products'
    hinges: |e_i| ≤ η(λe_p + e_b), e_p and e_b the product errors of u·α and u·y. The difference
    δ obeys δ_{t+1} = Mδ_t + e_t with M = I − ηD⁻¹A, so the answer k_*ᵀδ_t differs by at most

        η(λe_p + e_b) Σ_{τ<t} ‖(Mᵀ)^τ k_*‖₁,

    and no smaller bound holds for every e of that size. To it come, as allowances and not as
    proofs, the rounding of attention and of the answer (100 + B²/σ² units in the last place of
    the largest |α|) and of the hinge sums (4 units of their terms, which reach
    (g|u| + |v|/g)²/4 however small the product); and D/(D + δ), S/(S + D) at the sink levels.

    Parameters
    ----------
    problem : in float64; alpha : Richardson's states on it, for the size of what is rounded. The
        bound holds while |α| ≤ R, |y| and ‖x‖ are within the construction's bounds.

    Returns
    -------
    (steps+1, ..., Q) : the bound at each step and query
    """
    hinge = c.ridge * c.product_error(c.r_alpha) + c.product_error(c.label_bound)
    largest = alpha.abs().amax(-1).amax(0)[..., None].double()
    ulp = torch.finfo(c.dtype).eps * (100 + (c.input_bound / c.bandwidth) ** 2)

    def terms(r: float, v: Tensor | float) -> Tensor | float:
        g = c.balance(r)
        return (g + v / g) ** 2 / 4

    summed = c.ridge * terms(c.r_alpha, largest) + terms(c.label_bound, c.label_bound)
    rounding = ulp * largest + 4 * torch.finfo(c.dtype).eps * summed
    size = c.step * (hinge + rounding)  # (..., 1)
    # g ← Mᵀg = g − ηA D⁻¹g, for every query at once
    g = problem.k_query
    A = problem.A
    sums = [torch.zeros_like(g[..., 0])]
    for _ in range(c.steps):
        sums.append(sums[-1] + g.abs().sum(-1))
        g = g - c.step * (g / problem.degree[..., None, :]) @ A
    delta, level = LEVELS[c.dtype]
    reach = problem.k_query.sum(-1) * largest  # ≥ |f|
    # Read-out weights are K/(D + S): below the smallest normal number they lose their digits.
    underflow = c.n_max * largest * level * torch.finfo(c.dtype).tiny
    return size * torch.stack(sums) + reach * (ulp + delta + c.n_max / level) + underflow
