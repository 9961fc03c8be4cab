"""Trust: what a picture is checked against, with the tolerance each check must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch

from krrviz.construction.certificate import product_bound
from krrviz.construction.transformer import Transformer, predict
from krrviz.construction.weights import Construction, build
from krrviz.machine import on_device
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.solvers import richardson
from krrviz.tables import Table
from krrviz.tasks import sample
from krrviz.trajectory import record

# Prompts that are checked: the first few, since the bound costs Q times the iteration.
CHECKED = 4


@dataclass(frozen=True)
class Check:
    """One check: what was measured, and the most it may be."""

    name: str
    value: float
    tolerance: float
    meaning: str

    @property
    def passed(self) -> bool:
        return self.value <= self.tolerance


def trust(settings: Settings, table: Table | None = None) -> list[Check]:
    """The checks of a picture, on its first prompts at the full context length.

    The transformer is checked whether or not it is drawn, unless it has no form for these
    settings (a per-sample ridge).
    """
    problem = sample(settings.but(prompts=min(CHECKED, settings.prompts)), table)
    checks = [
        Check(
            "direct solve",
            float(problem.residual.max()),
            1e-10,
            "The exact answer: relative residual ‖y − Aα‖/‖y‖ of the Cholesky solve, float64.",
        )
    ]
    if settings.ridge_scale != "absolute":
        return checks
    c = Construction.from_settings(settings, table)
    model = build(c)
    forward, _ = on_device(settings, lambda device: predict(model.to(device), problem))
    states, answers = forward.states.cpu(), forward.predictions.cpu()
    same = record(
        "richardson",
        partial(richardson, operator="preconditioned", step=torch.tensor(c.step)),
        problem,
        c.steps,
    )
    gap = (answers.double() - same.predictions).abs().nan_to_num(nan=math.inf).flatten()
    bound = product_bound(c, problem, states).nan_to_num(nan=0).flatten()
    # The largest gap of all, or of those beyond their bound.
    beyond = gap > bound
    told = int(torch.where(beyond, gap, -1).argmax() if bool(beyond.any()) else gap.argmax())
    return [
        Check(
            "transformer = Richardson",
            float(gap[told]),
            float(bound[told]),
            "Largest gap, over all steps, between the transformer's answer and preconditioned "
            "Richardson with the same step size; every gap must be within its own product bound.",
        ),
        Check(
            "attention = D⁻¹K",
            attention_gap(model, problem),
            attention_tolerance(c),
            "Largest difference between the softmax weights and D⁻¹K computed in the log domain.",
        ),
        *checks,
        Check(
            "range of α",
            float(states.abs().max().nan_to_num(nan=math.inf)),
            c.r_alpha,
            "Largest |α| met; the products are made for |α| up to R = "
            f"{c.r_alpha:.3g}. Beyond it the product bound no longer holds.",
        ),
        Check(
            "range of y",
            float(problem.y.abs().max()),
            c.label_bound,
            "Largest |label|, standardised; the products are made for |y| up to the label bound.",
        ),
    ]


def attention_tolerance(c: Construction) -> float:
    """1e-16 (100 + B²/σ²) in float64, and as many units in the last place in other precisions."""
    ulps = torch.finfo(c.dtype).eps / torch.finfo(torch.float64).eps
    return 1e-16 * ulps * (100 + (c.input_bound / c.bandwidth) ** 2)


def attention_gap(model: Transformer, problem: Problem) -> float:
    """Largest |attention − D⁻¹K| over the update blocks, masked keys included (K = 0 there).

    D⁻¹K is taken from squared distances by log-sum-exp, sharing no code with attention.
    """
    X, used = problem.X, problem.used
    logits = -(X[..., :, None, :] - X[..., None, :, :]).square().sum(-1) / (
        2 * problem.bandwidth**2
    )
    logits = logits.masked_fill(~used[..., None, :], -torch.inf)
    expected = (logits - logits.logsumexp(-1, keepdim=True)).exp()[used]
    stream, context, worst = model.embed(problem), slice(1, 1 + problem.n_max), 0.0
    for attention in {block.attention for block in model.blocks[1:-1]}:
        if attention.idle:
            continue
        # What no block writes is before the first block what it is at this head's own place.
        if not model.constant(attention):
            return math.inf
        rows = attention.pattern(stream)[..., context, :].cpu().double()[used]
        rows[..., context] -= expected
        worst = max(worst, float(rows.abs().max().nan_to_num(nan=math.inf)))
    return worst
