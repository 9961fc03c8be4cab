"""The classical methods for Aα = y, each a generator of steps from the zero state.

A generator yields its zero state first and never ends; ``record`` stops it, and sends it what A
makes of the vector it asks for. Hyperparameters are bound by the registry ``SOLVERS``. Each
recurrence stands as a comment above its code, with R(α) = y − Aα (operator ``plain``) or
P⁻¹(y − Aα) (``preconditioned``), P = D + sI; the paper's sink level s is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.problem import Problem
from krrviz.spectrum import POLICIES, Interval, Operator, Sink, policy_interval
from krrviz.trajectory import Solver, Step, Steps, Trajectory, record

Vector = Float[Tensor, "*batch N"]


def residual(problem: Problem, operator: Operator, image: Vector, sink: Sink = 0.0) -> Vector:
    """R: y − Aα, or P⁻¹(y − Aα); ``image`` is Aα."""
    r = problem.y - image
    return r if operator == "plain" else r / problem.preconditioner(sink)


def richardson(problem: Problem, operator: Operator, step: Tensor, sink: Sink = 0.0) -> Steps:
    """Richardson iteration; with operator ``plain`` it is gradient descent."""
    alpha = torch.zeros_like(problem.y)
    while True:
        image = yield Step(alpha, asks=alpha)
        # α ← α + ηR(α)
        alpha = alpha + step * residual(problem, operator, image, sink)


def function_space_richardson(
    problem: Problem, step: Tensor, sink: Sink = 0.0, far_sink: Sink = "ridge"
) -> Steps:
    """The same iteration on function values, at context and queries (arXiv 2605.26713, eq. 14).

    Its state is u, the fitted values at the context, not α. ``far_sink`` is the level q of query
    rows (``spectrum.query_sink``).
    """
    u, f = torch.zeros_like(problem.y), torch.zeros_like(problem.x_query[..., 0])
    # With D_* alone the query rows diverge where a query lies far from all data; D_* + q has the
    # same limit: r f = k_*ᵀ(y − u).
    near, far = problem.preconditioner(sink), problem.query_degree + problem.level(far_sink)
    while True:
        gap = problem.y - u
        image = yield Step(u, asks=gap, prediction=f)
        # u_j ← u_j − η r u_j/D_j + η Σ_i k_ij (y_i − u_i)/D_j, and so at the queries;
        # K(y − u) − ru = A(y − u) − ry
        f = f + step * (problem.predict(gap) - problem.r * f) / far
        u = u + step * (image - problem.r * problem.y) / near


def nesterov(problem: Problem, operator: Operator, interval: Interval, sink: Sink = 0.0) -> Steps:
    """Nesterov's method with the constant momentum of strongly convex problems."""
    root = interval.condition.sqrt()
    momentum = (root - 1) / (root + 1)
    alpha = previous = torch.zeros_like(problem.y)
    while True:
        # v = α + β(α − α₋); α₊ = v + R(v)/L; β = (√κ − 1)/(√κ + 1)
        v = alpha + momentum * (alpha - previous)
        image = yield Step(alpha, asks=v)
        previous, alpha = alpha, v + residual(problem, operator, image, sink) / interval.high


def heavy_ball(problem: Problem, operator: Operator, interval: Interval, sink: Sink = 0.0) -> Steps:
    """Polyak's heavy ball with his constants for a quadratic."""
    low, high = interval.low.sqrt(), interval.high.sqrt()
    step, momentum = 4 / (high + low) ** 2, ((high - low) / (high + low)) ** 2
    alpha = previous = torch.zeros_like(problem.y)
    while True:
        image = yield Step(alpha, asks=alpha)
        # α₊ = α + ηR(α) + β(α − α₋); η = 4/(√L + √μ)², β = ((√L − √μ)/(√L + √μ))²
        change = step * residual(problem, operator, image, sink) + momentum * (alpha - previous)
        previous, alpha = alpha, alpha + change


def chebyshev(problem: Problem, operator: Operator, interval: Interval, sink: Sink = 0.0) -> Steps:
    """Chebyshev semi-iteration: the least residual polynomial on [μ, L] at every step.

    With θ = (L + μ)/2 and δ = (L − μ)/2 the polynomial is T_t((θ − x)/δ)/T_t(θ/δ); the ratio
    q_t = T_{t−1}(θ/δ)/T_t(θ/δ) obeys q_t = 1/(2θ/δ − q_{t−1}).
    """
    centre = (interval.high + interval.low) / 2
    # An interval of one point is Richardson with the exact step; δ = 0 would divide by 0.
    radius = ((interval.high - interval.low) / 2).maximum(centre * 1e-9)
    alpha = torch.zeros_like(problem.y)
    image = yield Step(alpha, asks=alpha)
    change = residual(problem, operator, image, sink) / centre
    ratio = radius / centre
    while True:
        # α₊ = α + c; c ← q₊q c + (2q₊/δ) R(α₊)
        alpha = alpha + change
        image = yield Step(alpha, asks=alpha)
        following = 1 / (2 * centre / radius - ratio)
        pull = residual(problem, operator, image, sink)
        change = following * ratio * change + 2 * following / radius * pull
        ratio = following


def conjugate_gradient(problem: Problem, operator: Operator) -> Steps:
    """Conjugate gradients, preconditioned by D where the operator is ``preconditioned``."""
    scale = problem.degree if operator == "preconditioned" else torch.ones_like(problem.y)
    alpha, r = torch.zeros_like(problem.y), problem.y
    direction = z = r / scale
    rz = (r * z).sum(-1, keepdim=True)
    # Once the residual is gone to the last digit the iterate is held: what the recurrences go on
    # to make of rounding grows without end.
    floor = rz * torch.finfo(rz.dtype).eps ** 2
    while True:
        image = yield Step(alpha, asks=direction)
        # a = rᵀz/pᵀAp; α ← α + ap; r ← r − aAp; z = P⁻¹r; p ← z + (rᵀz)₊/(rᵀz) p
        going = rz > floor
        length = torch.where(going, rz / (direction * image).sum(-1, keepdim=True), 0)
        alpha, r = alpha + length * direction, r - length * image
        z = r / scale
        new = (r * z).sum(-1, keepdim=True)
        direction, rz = z + torch.where(going, new / rz, 0) * direction, new


# ---------------------------------------------------------------------------------------------
# Registry


@dataclass(frozen=True)
class Method:
    """A classical method: its name, its update, its operator, and what a step policy gives it."""

    title: str
    update: str
    operator: Operator
    generator: Callable[..., Steps]
    takes: Literal["step", "interval"] | None
    manual: bool  # whether the manual policy's step size applies to it

    def policy(self, wanted: str) -> str | None:
        """The step policy it follows where ``wanted`` is asked for; None where it has none."""
        if self.takes is None:
            return None
        return "certified" if wanted == "manual" and not self.manual else wanted

    def bind(self, interval: Interval, step: Tensor) -> Solver:
        """The method with its hyperparameters."""
        if self.takes == "step":
            return partial(self.generator, step=step)
        if self.takes == "interval":
            return partial(self.generator, interval=interval)
        return self.generator


SOLVERS: dict[str, Method] = {
    "preconditioned_richardson": Method(
        "Preconditioned Richardson",
        "α ← α + ηD⁻¹(y − Aα)",
        "preconditioned",
        partial(richardson, operator="preconditioned"),
        takes="step",
        manual=True,
    ),
    "function_space_richardson": Method(
        "Function-space Richardson",
        "u ← u + ηD⁻¹(K(y − u) − ru), at the queries too",
        "preconditioned",
        function_space_richardson,
        takes="step",
        manual=True,
    ),
    "gradient_descent": Method(
        "Gradient descent",
        "α ← α + η(y − Aα)",
        "plain",
        partial(richardson, operator="plain"),
        takes="step",
        manual=True,
    ),
    "nesterov": Method(
        "Nesterov",
        "v = α + β(α − α₋), α ← v + (y − Av)/L",
        "plain",
        partial(nesterov, operator="plain"),
        takes="interval",
        manual=True,
    ),
    "heavy_ball": Method(
        "Heavy ball",
        "α ← α + η(y − Aα) + β(α − α₋)",
        "plain",
        partial(heavy_ball, operator="plain"),
        takes="interval",
        manual=False,
    ),
    "chebyshev": Method(
        "Chebyshev",
        "Chebyshev semi-iteration on D⁻¹A",
        "preconditioned",
        partial(chebyshev, operator="preconditioned"),
        takes="interval",
        manual=False,
    ),
    "conjugate_gradient": Method(
        "Conjugate gradient",
        "conjugate gradients on A",
        "plain",
        partial(conjugate_gradient, operator="plain"),
        takes=None,
        manual=False,
    ),
    "preconditioned_conjugate_gradient": Method(
        "Preconditioned CG",
        "conjugate gradients on A, preconditioned by D",
        "preconditioned",
        partial(conjugate_gradient, operator="preconditioned"),
        takes=None,
        manual=False,
    ),
}


def solve(
    problem: Problem,
    method: str,
    steps: int,
    policy: str = "certified",
    step_size: float | None = None,
    n_max: int | None = None,
) -> Trajectory:
    """Run a classical method for ``steps`` steps.

    Parameters
    ----------
    problem : the systems, in the dtype and on the device to compute in
    method : a key of ``SOLVERS``
    steps : 0 or more
    policy : ``certified``, ``one_over_l``, ``optimal`` or ``manual``. Chebyshev and heavy ball
        have no single step size and take the certified interval under ``manual``; conjugate
        gradient has no policy.
    step_size : for ``manual``: η of the Richardson forms and gradient descent, 1/L of Nesterov
    n_max : the N that the certified interval is for; default the problem's context slots

    Raises
    ------
    ValueError
        An unknown method or policy, negative steps, or a manual step size that is not positive.
    """
    if method not in SOLVERS:
        raise ValueError(f"method={method!r} must be one of {', '.join(SOLVERS)}")
    if steps < 0:
        raise ValueError(f"steps={steps} must be 0 or more")
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r} must be one of {', '.join(POLICIES)}")
    interval, step = tuned(problem, method, policy, step_size, n_max or problem.n_max)
    return record(method, SOLVERS[method].bind(interval, step), problem, steps)


def tuned(
    problem: Problem, method: str, policy: str, step_size: float | None, n_max: int
) -> tuple[Interval, Tensor]:
    """The interval and the step that a policy gives a method on ``problem``; each 0-d or (..., 1).

    Raises
    ------
    ValueError
        A manual step size that is not positive.
    """
    entry = SOLVERS[method]
    followed = entry.policy(policy) or "certified"  # conjugate gradient ignores the interval
    interval = policy_interval(followed, entry.operator, problem, n_max, step_size)
    interval = Interval(interval.low.to(problem.y), interval.high.to(problem.y))
    # 1/L for one_over_l and manual, 2/(μ + L) otherwise.
    step = 1 / interval.high if followed in ("one_over_l", "manual") else interval.best_step
    return interval, step
