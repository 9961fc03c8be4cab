"""Certificate: what is provable about a construction's answer, and the construction for an ε.

The setting of ``Construction._certified_range``: a = α, A_a = K + λI, Λ = N + λ; or a = nα,
A_a = K/n + λI, Λ = 1 + λ where the ridge is per sample. A_a's eigenvalues lie in [λ, Λ], f is
k_aᵀa with k_a = k_* or k_*/n, and A_a a* = y. Bounds hold in exact arithmetic while |α| ≤ R,
|y| ≤ B_y and ‖x‖ ≤ B; with R certified the first holds by itself. What is not the paper's here is
ours.

Iteration. P⁻¹A is self-adjoint in the A-inner product, so ‖a_t − a*‖ ≤ h_t‖a*‖ in that norm, and
|f_t − f| ≤ ‖k_a‖_{A⁻¹}·h_t·‖a*‖_A. ‖a*‖²_A = yᵀA_a⁻¹y ≤ N B_y²/λ. The Schur complement of the
kernel matrix of the context and x* gives K ⪰ k_*k_*ᵀ, so k_*ᵀA⁻¹k_* ≤ |k_*|²/(|k_*|² + r), which
is at most n/(n + r): ‖k_a‖²_{A⁻¹} is at most N/(N + λ), or 1/(n(1 + λ)).

Product. One update of the transformer is the rule's plus e in the preconditioned residual,
|e_i| ≤ ε = λe_p + e_b, e_p and e_b the product errors of u⊙α and u⊙y. The difference is
Σ_k g_T,k(P⁻¹A)e_k, and each rule's |g_T,k| is largest at x = μ, where it is positive: from a
constant e of that mode α grows to (1 − p_T(μ))/μ, so their sum is Γ = (1 − p_T(μ))/μ ≤ 1/μ.

    Richardson  g_T,k = η(1 − ηx)^(T−1−k), and |1 − ηx| ≤ 1 − ημ
    heavy ball  η q^m U_m(cos φ), m = T − 1 − k
    Nesterov    gᵐ U_m(cos φ)/L, g largest at μ
    Chebyshev   (2τ_k − [k = 0])/(δτ_T) · U_m((θ − x)/δ), τ_k = T_k(θ/δ): the three-term
                recurrence in w_t = τ_t d_t has constant coefficients

since |U_m| ≤ m + 1 = U_m(1). With ‖e‖_A ≤ ε√(NΛ) the answer moves by at most
‖k_a‖_{A⁻¹}·Γ·ε√(NΛ) = NΓε, or Γε for a per-sample ridge: there N has left the product term.

Sink. Read-in at level δ makes u smaller by δu/(D + δ) ≤ δU, an e of at most δU(B_y + λR) more;
read-out makes f smaller by D_*/(D_* + S) ≤ N/S of itself.

Rounding is no part of a proof here; an allowance for it stands beside the bounds, and an ε is
promised only where bound and allowance together are within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.construction.weights import LEVELS, Construction
from krrviz.problem import Problem
from krrviz.settings import SettingsError
from krrviz.spectrum import residual_norm


@dataclass(frozen=True, eq=False)
class Certificate:
    """Bounds on |transformer − exact kernel ridge regression| after the last step.

    In the labels' standardised units. ``iteration``, ``product`` and ``sink`` are the terms of the
    a-priori bound, which holds for every prompt; ``rounding`` is an allowance and no proof.
    ``post_hoc`` (..., Q) knows a prompt's own kernel; None without one.
    """

    steps: int
    segments: int
    alpha_range: float
    iteration: float
    product: float
    sink: float
    rounding: float
    post_hoc: Float[Tensor, "*batch Q"] | None = None

    @property
    def a_priori(self) -> float:
        """The bound for every prompt within the construction's bounds."""
        return self.iteration + self.product + self.sink


def certify(c: Construction, problem: Problem | None = None) -> Certificate:
    """The certificate of a construction; with prompts in float64, their post-hoc bounds too.

    Raises
    ------
    SettingsError
        The rule has no certificate.
    """
    _certifiable(c)
    certificate = Certificate(c.steps, c.segments, c.r_alpha, **_terms(c))
    if problem is None:
        return certificate
    # ‖k_*‖_{A⁻¹} and ‖α*‖_A; in a's units their product is the same
    solved = torch.linalg.solve(problem.A, problem.k_query.mT)
    reach = (problem.k_query.mT * solved).sum(-2).clamp(0, 1).sqrt()
    energy = (problem.alpha_star * problem.y).sum(-1, keepdim=True).clamp_min(0).sqrt()
    h = residual_norm(c.update, c.interval, c.steps)
    bound = reach * h * energy + product_bound(c, problem)[-1]
    return replace(certificate, post_hoc=bound)


def _certifiable(c: Construction) -> None:
    if c.update == "function_space":
        raise SettingsError(
            "update=function_space has no certificate: its queries iterate too; allowed: "
            "richardson, chebyshev, heavy_ball, nesterov",
            "update",
        )


def _reach(c: Construction) -> float:
    """‖k_a‖_{A⁻¹}·√(NΛ) = N or 1, what an ℓ∞ perturbation of a is multiplied by."""
    return 1.0 if c.per_sample else float(c.n_max)


def _iteration(c: Construction, steps: int) -> float:
    """The a-priori bound on what ``steps`` exact updates leave: B_y√(N/λ)‖k_a‖_{A⁻¹} h_t."""
    n = c.n_max
    # per sample N/λ·1/(n(1 + λ)): the prompt's own n stands in both
    size = 1 / (c.ridge * (1 + c.ridge)) if c.per_sample else n / c.ridge * n / (n + c.ridge)
    return c.label_bound * math.sqrt(size) * residual_norm(c.update, c.interval, steps)


def _terms(c: Construction) -> dict[str, Any]:
    """The terms of the a-priori bound, by name."""
    delta, level = LEVELS[c.dtype]
    r, gain, start = c.r_alpha, c.response * _reach(c), _iteration(c, 0)
    iteration = _iteration(c, c.steps)
    product = gain * (c.ridge * c.product_error(r) + c.product_error(c.label_bound))
    read_in = 0.0 if c.sink else gain * delta * c.u_range * (c.label_bound + c.ridge * r)
    answer = start + iteration + product + read_in  # ≥ |f|
    return {
        "iteration": iteration,
        "product": product,
        "sink": read_in + answer * c.n_max / level,
        "rounding": gain * float(_rounding(c, torch.tensor(r))) + _ulp(c) * answer,
    }


def _ulp(c: Construction) -> float:
    return torch.finfo(c.dtype).eps * (100 + (c.input_bound / c.bandwidth) ** 2)


def _rounding(c: Construction, largest: Tensor) -> Tensor:
    """What rounding may add to a preconditioned residual; an allowance, not a proof.

    100 + B²/σ² units in the last place of what attention averages, and 4 of the hinges' terms,
    which reach (gU + |v|/g')²/4 however small the product.
    """

    def hinged(r: float, v: Tensor | float) -> Tensor | float:
        first, second = c.scales(r)
        return second / first * (first * c.u_range + v / second) ** 2 / 4

    space = c.update == "function_space"
    summed = c.ridge * hinged(c.r_alpha, largest)
    summed += 0.0 if space else hinged(c.label_bound, c.label_bound)
    averaged = largest + c.label_bound if space else largest
    return _ulp(c) * averaged + 4 * torch.finfo(c.dtype).eps * summed


def product_bound(
    c: Construction, problem: Problem, states: Float[Tensor, "times *batch N"] | None = None
) -> Float[Tensor, "times *batch Q"]:
    """How far the transformer's answer may lie from its rule's own, at every step.

    The answer differs by at most ε Σ_k ‖g_T,k(P⁻¹A)ᵀ k_a‖₁, see above, and no smaller bound holds
    for every e of that size. To it come, as allowances and not as proofs, the rounding of attention
    and of the hinges, and D/(D + δ), S/(S + D) at the sink levels.

    Parameters
    ----------
    problem : in float64
    states : the rule's own on it, for the size of what is rounded; by default R stands for them

    Returns
    -------
    (steps+1, ..., Q) : the bound at each step and query
    """
    count = problem.count[..., None].double() if c.per_sample else 1.0
    space = c.update == "function_space"
    scale = 1.0 if space else count  # of the state: a = nα
    if states is None:
        largest = torch.full_like(problem.r, c.r_alpha)
    else:
        largest = states.abs().amax(-1).amax(0)[..., None].double() * scale
    hinge = c.ridge * c.product_error(c.r_alpha)
    hinge += 0.0 if space else c.product_error(c.label_bound)
    delta, level = LEVELS[c.dtype]
    # δ is no rounding error in half precision; elsewhere it is far below it
    read_in = 0.0 if c.sink else delta * c.u_range * (c.label_bound + c.ridge * largest)
    size = hinge + _rounding(c, largest) + read_in
    total = torch.stack(list(_sums(c, problem, (1.0 if space else 1 / count))))
    if space:
        return size * total + _ulp(c) * largest
    reach = problem.k_query.sum(-1) * largest / count  # ≥ |f|
    # Read-out weights are K/(D + S): below the smallest normal number they lose their digits.
    underflow = c.n_max * largest / count * level * torch.finfo(c.dtype).tiny
    return size * total + reach * (_ulp(c) + c.n_max / level) + underflow


def _image(problem: Problem, rows: Float[Tensor, "*batch Q N"]) -> Float[Tensor, "*batch Q N"]:
    """Rows times A."""
    return problem.apply(rows.movedim(-2, 0)).movedim(0, -2)


def _sums(c: Construction, problem: Problem, scale: Tensor | float) -> Iterator[Tensor]:
    """Σ_{k<t} ‖g_t,k(P⁻¹A)ᵀ k_a‖₁ for t = 0 … T, each (..., Q); every rule in O(T)."""
    P = problem.preconditioner(c.sink)[..., None, :]
    steps, (momentum, step) = c.steps, (c.coefficients() or [(0.0, 0.0)])[-1]
    w = problem.k_query * (scale[..., None] if isinstance(scale, Tensor) else scale)
    old = torch.zeros_like(w)
    total = torch.zeros_like(w[..., 0])
    yield total
    if c.update == "chebyshev":
        low, high = float(c.interval.low), float(c.interval.high)
        theta, radius = (high + low) / 2, max((high - low) / 2, 1e-9 * (high + low) / 2)
        q = theta / radius - math.sqrt((theta / radius) ** 2 - 1)  # τ_t = (q⁻ᵗ + qᵗ)/2
        early, late = total, total
        for t in range(1, steps + 1):
            # 2Σ τ_k/τ_t |w_t−1−k| − |w_t−1|/τ_t, with j = t − k: qʲ + q²ᵗ⁻ʲ over 1 + q²ᵗ
            size = w.abs().sum(-1)
            early = early + q**t * size
            late = q**2 * late + q**t * size
            yield 2 / (radius * (1 + q ** (2 * t))) * (early + late - q**t * size)
            w, old = 2 * (theta * w - _image(problem, w / P)) / radius - old, w
        return
    if c.update == "function_space":
        # f_t+1 = f_t + η(k_*ᵀ(y − g) − rf)/(D_* + q): a is f's own share, w that of g
        far = problem.k_query.sum(-1) + problem.level(c.query_sink)
        a, w = torch.ones_like(far), torch.zeros_like(w)
        for _ in range(steps):
            total = total + step * (w.abs().sum(-1) + a.abs())
            yield total
            pull = (a * step / far)[..., None] * problem.k_query
            w = w - step * _image(problem, w / P) - pull
            a = a * (1 - step * problem.r / far)
        return
    for _ in range(steps):
        total = total + step * w.abs().sum(-1)
        yield total
        if c.update == "nesterov":
            ahead = (1 + momentum) * w - momentum * old
            w, old = ahead - step * _image(problem, ahead / P), w
        else:
            w, old = w - step * _image(problem, w / P) + momentum * (w - old), w


# ---------------------------------------------------------------------------------------------
# The inverse: ε -> depth and width


def floor(c: Construction) -> float:
    """The least ε that ``construction_for`` reaches: twice what sink levels and rounding cost.

    Infinite where they leave no certified range at any width.
    """
    _certifiable(c)
    try:
        # R and Γ only grow with depth; 1e9 steps and 2⁶⁰ hinges are as good as no limit.
        best = replace(c, steps=10**9, segments=2**60, alpha_range="certified")
    except SettingsError:
        return math.inf
    found = _terms(best)
    # |f| is at most the answer's bound and what the iteration leaves, itself no larger than that.
    answer = _iteration(c, 0) * (c.n_max / LEVELS[c.dtype][1] + _ulp(c))
    # and a little for the products
    return 2 * (found["sink"] + found["rounding"] + answer) * (1 + 1e-6)


def construction_for(c: Construction, eps: float) -> Construction:
    """The shallowest, then narrowest, construction like ``c`` that is certified for ``eps``.

    Half of ε is the iteration's, half is for products, sink and rounding; R is certified.

    Raises
    ------
    SettingsError
        ε is not above 0 or not above what the precision can reach, or the rule has no certificate.
    """
    _certifiable(c)
    if not 0 < eps < math.inf:
        raise SettingsError(f"eps={eps} must be a finite number above 0", "eps")
    if eps <= (least := floor(c)):
        reached = {str(c.dtype).removeprefix("torch."): least}
        reached["float64"] = floor(replace(c, dtype=torch.float64))
        told = ", ".join(
            f"{name} reaches " + ("no ε at all" if value == math.inf else f"{1.05 * value:.2g}")
            for name, value in reached.items()  # rounded up
        )
        raise SettingsError(f"eps={eps:g} is below what can be certified here: {told}", "eps")
    steps = _first(lambda t: _iteration(c, t) <= eps / 2)
    deep = replace(c, steps=steps, alpha_range="calibrated")

    def enough(segments: int) -> bool:
        try:
            wide = replace(deep, segments=segments, alpha_range="certified")
        except SettingsError:  # no certified range yet
            return False
        found = _terms(wide)
        return found["product"] + found["sink"] + found["rounding"] <= eps / 2

    return replace(deep, segments=max(1, _first(enough)), alpha_range="certified")


def _first(holds: Callable[[int], bool]) -> int:
    """The least whole number from which ``holds``: it fails below and holds above."""
    if holds(0):
        return 0
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
