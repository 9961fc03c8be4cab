"""Where the eigenvalues lie, what an update rule makes of them, and the step sizes that follow.

Two operators: A = K + rI (``plain``) and P⁻¹A (``preconditioned``), P = D + sI, D = diag(K1). The
paper's P is D itself, s = 0; ``ridge`` stands for s = r.

Certified intervals hold for every prompt of n ≤ N points, from N, λ and s alone. K is positive
semidefinite with unit diagonal, so its eigenvalues lie in [0, n] and 1 ≤ D_i ≤ n. D − K is a
graph Laplacian, so positive semidefinite. With d = vᵀDv in [1, n] and vᵀv = 1 the quotient
vᵀ(K + rI)v / vᵀ(D + sI)v lies between r/(n + s) and (d + r)/(d + s), and so, with c = 1 where
s < r and N otherwise (the side on which the last is largest):

    A:                       absolute: [λ, N + λ]               per sample: [λ, N(1 + λ)]
    P⁻¹A, a number s:        [λ/(N + s), (c + λ)/(c + s)]       [λ/(1 + s), (c + Nλ)/(c + s)]
    P⁻¹A, s = r ("ridge"):   [λ/(N + λ), 1]                     [λ/(1 + λ), 1]

Per sample r = nλ: nλ/(n + s) is least at n = 1 and (c + nλ)/(c + s) largest at n = N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.problem import Problem

Operator = Literal["plain", "preconditioned"]
Sink = float | int | str  # a level s, or "ridge"
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
    def condition(self) -> Tensor:
        """κ = L/μ."""
        return self.high / self.low


def certified(
    operator: Operator, n_max: int, ridge: float, ridge_scale: str, sink: Sink = 0.0
) -> Interval:
    """The interval of the table above, for every prompt of at most ``n_max`` points."""
    per_sample = ridge_scale == "per_sample"
    largest = n_max * ridge if per_sample else ridge
    if operator == "plain":
        low, high = ridge, n_max + largest
    elif isinstance(sink, str):
        low, high = ridge / ((1 if per_sample else n_max) + ridge), 1.0
    else:
        c = 1 if sink < largest else n_max
        low, high = ridge / ((1 if per_sample else n_max) + sink), (c + largest) / (c + sink)
    return Interval(torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64))


def query_sink(n_max: int, ridge: float, ridge_scale: str, sink: Sink) -> Sink:
    """The level q of D_* + q on query rows, where the function-space form iterates there too.

    A query far from all data has D_* = 0: its value shrinks by 1 − ηr/q an update, so q = r keeps
    it stable wherever η < 2. That fails only where s exceeds every r, and then q = s does.
    """
    largest = ridge * (n_max if ridge_scale == "per_sample" else 1)
    return "ridge" if isinstance(sink, str) or sink < largest else sink


# ---------------------------------------------------------------------------------------------
# Update rules: what each makes of an eigenvalue x in [μ, L]
#
# From a zero start the error after t updates is p_t(P⁻¹A) times the first, p_0 = 1. With
# q = (√κ − 1)/(√κ + 1), c = 1 − 1/√κ and U_t the Chebyshev polynomials of the second kind:
#
#   Richardson  p_t = (1 − ηx)ᵗ, at most ρᵗ.
#   Chebyshev   p_t = T_t((θ − x)/δ)/T_t(θ/δ), θ and δ the interval's centre and radius: at most
#               1/T_t(θ/δ) = 1/cosh(t arccosh(θ/δ)).
#   heavy ball  p_t+1 = (1 + β − ηx)p_t − βp_t−1 has roots q·exp(±iφ), and p_1 = 1 − ηx makes it
#               p_t = qᵗ(U_t(cos φ) − qU_t−1(cos φ)); |U_t| ≤ t + 1.
#   Nesterov    p_t+1 = (1 − x/L)((1 + β)p_t − βp_t−1) has roots g·exp(±iφ), g² = β(1 − x/L) ≤ c²,
#               and so p_t = gᵗ(U_t(cos φ) − gU_t−1(cos φ)) = gᵗ(cos tφ + (cos φ − g)U_t−1(cos φ)).
#               cos φ − g = √(1 − x/L)(1 − β)/2√β ≥ 0 falls with x, from 1 − c at μ: then
#               |p_t| ≤ cᵗ(1 + t(1 − c)).
#
# At x = μ the roots of the last two coincide, φ = 0 and U_t = t + 1: p_t(μ) = qᵗ(1 + t(1 − q)), and
# with c in place of q, Nesterov's bound. At x = L heavy ball has φ = π, where its own is attained.


def _root(rule: str, interval: Interval) -> float:
    """The double root at μ: ρ, q or c."""
    condition = float(interval.condition)
    if rule in ("richardson", "function_space"):
        return (condition - 1) / (condition + 1)
    root = math.sqrt(condition)
    return 1 - 1 / root if rule == "nesterov" else (root - 1) / (root + 1)


def residual_norm(rule: str, interval: Interval, t: int) -> float:
    """h_t ≥ |p_t(x)| on the whole interval, for an update rule of ``Settings.update``."""
    root = _root(rule, interval)
    if rule in ("richardson", "function_space"):
        return root**t
    if rule == "chebyshev":
        # 1/cosh(t·arccosh((L + μ)/(L − μ))): exp of that arccosh is 1/q
        return 1.0 if t == 0 else 2 * root**t / (1 + root ** (2 * t))
    if rule == "nesterov":
        return slowest(rule, interval, t)
    return root**t * (1 + t + root * t)


def coefficients(rule: str, interval: Interval) -> Iterator[tuple[float, float]]:
    """Momentum β_t and step size γ_t of every update on [μ, L], without end.

    With G the preconditioned residual:

    Richardson, function space: α ← α + γG, γ = 2/(μ + L).
    heavy ball: change ← β·change + γG(α), α ← α + change; γ = 4/(√L + √μ)², β = q².
    Chebyshev: the same with β_t, γ_t by update. ω_t = T_t−1(θ/δ)/T_t(θ/δ), θ and δ the interval's
        centre and radius; β_t = ω_t ω_t+1, γ_t = 2ω_t+1/δ, but β_0 = 0, γ_0 = 1/θ.
    Nesterov: α₊ = a + γG(a), a₊ = α₊ + β(α₊ − α); γ = 1/L, β = (√κ − 1)/(√κ + 1) = q.
    """
    low, high = float(interval.low), float(interval.high)
    q = _root("heavy_ball", interval)
    theta = (high + low) / 2
    if rule == "heavy_ball":
        yield from repeat((q**2, 4 / (math.sqrt(high) + math.sqrt(low)) ** 2))
    if rule == "nesterov":
        yield from repeat((q, 1 / high))
    if rule != "chebyshev":
        yield from repeat((0.0, 1 / theta))
    # An interval of one point is Richardson with the exact step; δ = 0 would divide by 0.
    radius = max((high - low) / 2, 1e-9 * theta)
    yield 0.0, 1 / theta
    omega = radius / theta
    while True:
        following = 1 / (2 * theta / radius - omega)
        yield omega * following, 2 * following / radius
        omega = following


def residuals(rule: str, interval: Interval, x: Tensor) -> Iterator[Tensor]:
    """p_0(x), p_1(x), …: what each update leaves of the modes ``x``, without end."""
    now, change = torch.ones_like(x), torch.zeros_like(x)
    for momentum, step in coefficients(rule, interval):
        yield now
        if rule == "nesterov":  # the residual is taken at α + βc
            ahead = now + momentum * change
            change = ahead - step * x * ahead - now
        else:
            change = momentum * change - step * x * now
        now = now + change


def largest_residual(rule: str, interval: Interval, steps: int) -> float:
    """The largest h_t of t = 1 … steps; 0 without any step."""
    if steps == 0:
        return 0.0
    # The other rules' h_t fall from the start.
    peak, root = 1, _root(rule, interval)
    if rule == "heavy_ball" and root > 0:
        # qᵗ(1 + t + qt) rises up to here, and falls from here
        peak = max(1, min(steps, int(-1 / math.log(root) - 1 / (1 + root))))
    return max(residual_norm(rule, interval, t) for t in (1, peak, min(steps, peak + 1)))


def slowest(rule: str, interval: Interval, t: int) -> float:
    """p_t(μ) ≥ 0, what is left of the slowest mode that the interval allows."""
    root = _root(rule, interval)
    if rule in ("heavy_ball", "nesterov"):
        return root**t * (1 + t * (1 - root))
    return residual_norm(rule, interval, t)


def true_interval(operator: Operator, problem: Problem, sink: Sink = 0.0) -> Interval:
    """Smallest and largest eigenvalue of each prompt's operator, shape (..., 1)."""
    values = eigenvalues(operator, problem, sink)
    return Interval(values[..., :1], values[..., -1:])


def eigenvalues(
    operator: Operator, problem: Problem, sink: Sink = 0.0
) -> Float[Tensor, "*batch N"]:
    """Each prompt's eigenvalues in float64, ascending.

    Several methods ask for the same ones: a problem's are kept as long as it is.
    """
    kept = _known.setdefault(problem, {})
    if (operator, sink) not in kept:
        if problem.whole is None:
            kept[operator, sink] = _eigenvalues(operator, problem, sink)
        else:  # one after the other: together they would need the memory of all
            each = (problem.prefix(i) for i in range(len(problem.count)))
            kept[operator, sink] = torch.stack([_eigenvalues(operator, one, sink) for one in each])
    return kept[operator, sink]


_known: WeakKeyDictionary[Problem, dict[tuple[Operator, Sink], Tensor]] = WeakKeyDictionary()


def _eigenvalues(operator: Operator, problem: Problem, sink: Sink) -> Tensor:
    # P⁻¹A is similar to the symmetric P^−½AP^−½. Unused slots would add an eigenvalue of their
    # own; their diagonal is set to the mean of the used ones, which never is an extreme.
    problem = problem.to(problem.X.device, torch.float64)
    used = problem.used
    matrix = problem.A
    P = problem.preconditioner(sink)
    if operator == "preconditioned":
        root = P.rsqrt()
        matrix = root[..., :, None] * matrix * root[..., None, :]
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    mean = (diagonal * used).sum(-1, keepdim=True) / problem.count[..., None]
    matrix = matrix + torch.diag_embed(torch.where(used, 0, mean - diagonal))
    values = torch.linalg.eigvalsh(matrix)
    # Rounding may leave the smallest a little below what theory allows: r, or r/max P.
    floor = problem.r
    if operator == "preconditioned":
        floor = floor / P.amax(-1, keepdim=True)
    return values.maximum(floor)


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
