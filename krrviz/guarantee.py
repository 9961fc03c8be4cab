"""Guarantee: from ε to a transformer, what it costs, what is proved of it and what it reaches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.construction.certificate import Certificate, certify, construction_for
from krrviz.construction.predict import predict
from krrviz.construction.weights import Construction, build
from krrviz.fan import mean_error, relative_error, same_rule
from krrviz.machine import check, max_memory, on_device, weight_bytes
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.spectrum import residuals
from krrviz.tables import Table
from krrviz.tasks import sample
from krrviz.trajectory import iterate, record
from krrviz.trust import largest, largest_factor

# A guarantee is measured on this many prompts and queries, where it takes no longer than this.
PROMPTS, QUERIES, SECONDS = 4, 8, 6.0
# Steps that the search for the depth needed goes through at most.
HORIZON = 10_000


@dataclass(frozen=True, eq=False)
class Guarantee:
    """The construction for an ε, in the labels' standardised units.

    parameters, operations : of the dense stack, weights counted in every block; multiplications
        and additions of one forward pass with all context slots filled
    needed : the first step at which the rule itself is within ε of exact KRR, on the prompts
        measured; None where it is not among the certified steps or the first ``HORIZON``
    measured : what it does on these prompts; None where that takes too long
    seconds : about what a measurement takes, infinite where the weights do not fit into memory
    affordable : an ε near this one that is measured
    """

    eps: float
    construction: Construction
    certificate: Certificate
    parameters: int
    operations: float
    needed: int | None
    measured: Measured | None
    seconds: float
    affordable: float


@dataclass(frozen=True)
class Measured:
    """On the prompts measured, after the last step.

    error : max over prompts and queries of |transformer − exact KRR|
    relative : ‖f_T − f‖/‖f‖ over the queries, mean over prompts
    iteration, product : the part of the rule itself, and that of the transformer against the rule
    post_hoc : the largest post-hoc bound
    factor : the largest number that met a product's range R
    """

    error: float
    relative: float
    iteration: float
    product: float
    post_hoc: float
    factor: float


def guarantee(settings: Settings, eps: float, table: Table | None = None) -> Guarantee:
    """The guarantee of ``eps`` for the problem, rule, product, layout and precision of settings.

    Raises
    ------
    SettingsError
        ε is not above 0 or below what the precision reaches, or the rule has no certificate; or
        what the data cannot give.
    """
    base = Construction.from_settings(settings.but(alpha_range="calibrated"), table)
    c = construction_for(base, eps)
    few = settings.but(
        prompts=min(PROMPTS, settings.prompts),
        queries=min(QUERIES, settings.queries),
        methods=("transformer",),
    )
    check(few.but(steps=0), 1)
    problem = sample(few, table)

    def seconds(c: Construction) -> float:
        """About what measuring takes; without end where the weights do not fit."""
        held = weight_bytes(c.segments, c.steps, c.update, c.layout, c.d)
        if held > max_memory() / 2:
            return math.inf
        # A step costs its calls and its matrix entries, and a number its place in the weights.
        entries = few.prompts * (1 + few.n + few.queries) ** 2
        return c.steps * (1e-3 + 1e-8 * entries) + 5e-9 * held

    affordable = eps
    while seconds(construction_for(base, affordable)) > SECONDS:
        affordable *= 1.25
    gaps = islice(rule_gaps(c, problem), min(c.steps, HORIZON) + 1)
    needed = next((t for t, gap in enumerate(gaps) if float(gap.abs().max()) <= eps), None)
    measured = _measure(settings, c, problem) if affordable == eps else None
    parameters, operations = size(c, 1 + c.n_max + settings.queries)
    return Guarantee(
        eps, c, certify(c), parameters, operations, needed, measured, seconds(c), affordable
    )


def _measure(settings: Settings, c: Construction, problem: Problem) -> Measured:
    run, _ = on_device(settings, lambda device: predict(build(c).to(device), problem))
    answers = run.predictions.cpu().double()
    rule = record("rule", same_rule(c), problem, c.steps)
    post_hoc = certify(c, problem).post_hoc
    assert post_hoc is not None, "prompts were given"
    return Measured(
        error=largest(answers[-1] - problem.exact),
        relative=float(mean_error(relative_error(answers[-1:], problem.exact))),
        iteration=largest(rule.predictions[-1] - problem.exact),
        product=largest(answers[-1] - rule.predictions[-1]),
        post_hoc=largest(post_hoc),
        factor=largest_factor(c, problem, run),
    )


def size(c: Construction, tokens: int) -> tuple[int, float]:
    """Parameters of the dense stack, and operations of a forward pass over ``tokens``."""

    def counted(steps: int, segments: int) -> np.ndarray:
        small = replace(c, steps=steps, segments=segments, alpha_range="calibrated")
        blocks = build(small).blocks
        weights = sum(weight.numel() for block in blocks for weight in block.parameters())
        heads = [block.attention.w_q.shape[0] + block.attention.w_v.shape[0] for block in blocks]
        return np.array([weights, sum(heads)], dtype=float)

    # Both grow by the same with every update, and with every hinge of one.
    def wide(steps: int) -> np.ndarray:
        return counted(steps, 1) + (c.segments - 1) * (counted(steps, 2) - counted(steps, 1))

    weights, heads = wide(0) + c.steps * (wide(1) - wide(0))
    return int(weights), 2.0 * (tokens * weights + tokens**2 * heads)


def rule_gaps(c: Construction, problem: Problem) -> Iterator[Float[Tensor, "*batch Q"]]:
    """f_t − f of the construction's own rule, exact products, for t = 0, 1, … without end.

    P⁻¹A = P^−½(VΛVᵀ)P^½, so f_t − f = −(k_*ᵀP^−½V) p_t(Λ) (VᵀP^½α*): one decomposition gives
    every step. For prompts whose context slots are all used.
    """
    if c.update == "function_space":  # no function of P⁻¹A at the queries
        for step in iterate(same_rule(c), problem):
            assert step.prediction is not None, "function space iterates on its answers"
            yield step.prediction - problem.exact
        return
    root = problem.preconditioner(c.sink).sqrt()
    modes, vectors = torch.linalg.eigh(problem.A / (root[..., None, :] * root[..., :, None]))
    left = (problem.k_query / root[..., None, :]) @ vectors
    right = (vectors.mT @ (root * problem.alpha_star)[..., None])[..., 0]
    for p in residuals(c.update, c.interval, modes):
        yield -((left * (p * right)[..., None, :]).sum(-1))
