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

    and no smaller bound holds for every e of that size. To it come the rounding of attention
    and the answer (an allowance, not a proof: 100 + B²/σ² units in the last place of the
    largest |α|), and D/(D + δ), S/(S + D) at the sink levels.

    Parameters
    ----------
    problem : in float64; alpha : the transformer's states on it. The bound holds while |α| ≤ R
        and |y| is within the label bound.

    Returns
    -------
    (steps+1, ..., Q) : the bound at each step and query
    """
    hinge = c.ridge * c.product_error(c.r_alpha) + c.product_error(c.label_bound)
    largest = alpha.abs().amax(-1).amax(0)[..., None].double()
    ulp = torch.finfo(c.dtype).eps * (100 + (c.input_bound / c.bandwidth) ** 2)
    size = c.step * (hinge + ulp * largest)  # (..., 1)
    # g ← Mᵀg = g − ηA D⁻¹g, for every query at once
    g = problem.k_query
    A = problem.K + torch.diag_embed(problem.r.expand(problem.y.shape))
    sums = [torch.zeros_like(g[..., 0])]
    for _ in range(c.steps):
        sums.append(sums[-1] + g.abs().sum(-1))
        g = g - c.step * (g / problem.degree[..., None, :]) @ A
    delta, level = LEVELS[c.dtype]
    reach = problem.k_query.sum(-1) * largest  # ≥ |f|
    # Read-out weights are K/(D + S): below the smallest normal number they lose their digits.
    underflow = c.n_max * largest * level * torch.finfo(c.dtype).tiny
    return size * torch.stack(sums) + reach * (ulp + delta + c.n_max / level) + underflow
