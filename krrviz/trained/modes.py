"""Modes: a batch of problems in the eigenbasis of its operator, where every step is elementwise.

With P = I (operator ``plain``) or D (``preconditioned``), P^−½AP^−½ = V diag(x) Vᵀ, W = VᵀP^−½
and β = VᵀP^½α:

    α ← α + ηP⁻¹(y − Aα)   becomes   β ← β + η(ŷ − xβ),  ŷ = Wy,
    f = k_*ᵀα              becomes   f = k̂ᵀβ,            k̂ = Wk_*,

and so for every rule made of A, P⁻¹ and inner products: conjugate gradients preconditioned by P
are plain ones in β. The solvers' own generators run on either form; here a step takes n operations,
not n².
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad

from krrviz.problem import Problem
from krrviz.solvers import SOLVERS, tuned
from krrviz.spectrum import Interval, Operator
from krrviz.trajectory import Solver, Step, Steps, record


@dataclass(frozen=True, eq=False, kw_only=True)
class Modes(Problem):
    """A problem whose y is ŷ; ``values`` x, ``query`` k̂, ``basis`` W, ``lifted`` WPy.

    One query a prompt; on unused slots all but x is 0, so that every state stays 0 there.
    """

    values: Float[Tensor, "batch N"]
    query: Float[Tensor, "batch N"]
    basis: Float[Tensor, "batch N N"]
    lifted: Float[Tensor, "batch N"]

    @cached_property
    def degree(self) -> Float[Tensor, "batch N"]:
        return torch.ones_like(self.values)

    def apply(self, alpha: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead N"]:
        return self.values * alpha

    def predict(self, alpha: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead 1"]:
        return (self.query * alpha).sum(-1, keepdim=True)


def modes(problems: Sequence[Problem], operator: Operator) -> Modes:
    """Problems of full prompts, of one length each, in their eigenbases: one batch of them all."""
    longest = max(problem.n_max for problem in problems)
    parts: list[dict[str, Tensor]] = []
    for problem in problems:
        P = problem.degree if operator == "preconditioned" else torch.ones_like(problem.y)
        root = P.sqrt()
        values, vectors = torch.linalg.eigh(problem.A / root[..., :, None] / root[..., None, :])
        basis = vectors.mT / root[..., None, :]
        query, y, lifted = (
            (basis @ v[..., None])[..., 0]
            for v in (problem.k_query[..., 0, :], problem.y, P * problem.y)
        )
        room = (0, longest - problem.n_max)
        parts.append(
            {
                "X": pad(problem.X, (0, 0, *room)),
                "x_query": problem.x_query,
                "count": problem.count,
                "values": pad(values, room, value=1.0),
                "basis": pad(basis, (*room, *room)),
                **{n: pad(v, room) for n, v in (("query", query), ("y", y), ("lifted", lifted))},
            }
        )
    one = problems[0]
    joined: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Modes(
        **joined,
        bandwidth=one.bandwidth,
        ridge=one.ridge,
        ridge_scale=one.ridge_scale,
    )


def solver(
    problems: Sequence[Problem], method: str, policy: str, step_size: float, n_max: int
) -> Solver:
    """A method with what a policy gives it on each of ``problems``, to be run on their modes."""
    lows, highs, steps = [], [], []
    for problem in problems:
        interval, step = tuned(problem, method, policy, step_size, n_max)
        for kept, value in ((lows, interval.low), (highs, interval.high), (steps, step)):
            kept.append(value.expand(len(problem.y), 1))
    step = torch.cat(steps)
    if method == "function_space_richardson":
        far = torch.cat([problem.k_query.sum(-1) + problem.r for problem in problems])
        return partial(_function_space, step=step, far=far)
    return SOLVERS[method].bind(Interval(torch.cat(lows), torch.cat(highs)), step)


def _function_space(problem: Problem, step: Tensor, far: Tensor) -> Steps:
    """The function-space form, whose state here is what each mode adds to the answer."""
    assert isinstance(problem, Modes)
    # With w = VᵀP^½u: P⁻¹(K(y − u) − ru) = P⁻¹(A(y − u) − ry) is x(ỹ − w) − rŷ, ỹ = WPy; the
    # query's k_*ᵀ(y − u) is k̂ᵀ(ỹ − w).
    w = f = torch.zeros_like(problem.y)
    while True:
        gap = problem.lifted - w
        image = yield Step(f, asks=gap, prediction=f.sum(-1, keepdim=True))
        f = f + step * (problem.query * gap - problem.r * f) / far
        w = w + step * (image - problem.r * problem.y)


def linear_map(
    problem: Modes, method: str, run: Solver, steps: int
) -> Float[Tensor, "times batch N"]:
    """S_t = ∂f_t/∂y; of conjugate gradients, which are not linear in y, at these labels."""
    one, none = torch.ones_like(problem.y), torch.zeros_like(problem.y)

    def ran(**labels: Tensor) -> Tensor:
        return record(method, run, replace(problem, **labels), steps).states

    def onto_labels(rows: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum("tbi,bij->tbj", rows, weight)

    if method == "function_space_richardson":
        inverse = problem.basis.square().sum(-2)  # WᵀW = P⁻¹
        P = torch.where(problem.used, 1 / inverse, 0)
        through = onto_labels(ran(y=none, lifted=one), problem.basis * P[..., None, :])
        return through + onto_labels(ran(y=one, lifted=none), problem.basis)
    if SOLVERS[method].takes is not None:
        return onto_labels(ran(y=one, lifted=none) * problem.query, problem.basis)
    # Done after n steps but for rounding: later ones are held.
    n = problem.n_max
    last = min(steps, 2 * n)
    each = problem.pick((torch.arange(len(problem.y)).repeat_interleave(n),))
    with warnings.catch_warnings(), forward_ad.dual_level():
        # PyTorch's forward mode warns of PyTorch's own code, the first time.
        warnings.filterwarnings("ignore", r"`torch\.jit", DeprecationWarning)
        dual = forward_ad.make_dual(each.y, problem.basis.mT.flatten(0, 1))
        object.__setattr__(each, "y", dual)
        found = record(method, run, each, last).predictions[..., 0]
        slope = forward_ad.unpack_dual(found).tangent
        assert slope is not None
        rows = slope.unflatten(1, (-1, n))
    return torch.cat([rows, rows[-1:].expand(steps - last, -1, -1)])
