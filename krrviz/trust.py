"""Trust: what a picture is checked against, with the tolerance each check must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from krrviz.construction.certificate import product_bound
from krrviz.construction.predict import predict
from krrviz.construction.transformer import Transformer
from krrviz.construction.weights import Construction, build
from krrviz.fan import same_rule
from krrviz.machine import on_device
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.spectrum import Sink
from krrviz.tables import Table
from krrviz.tasks import sample
from krrviz.trajectory import Trajectory, record

# The transformer is checked on the first prompts and queries only: its bound costs as much as
# one more iteration for each query. Large prompts are checked one at a time.
CHECKED_PROMPTS, CHECKED_QUERIES, CHECKED_ENTRIES = 4, 8, 2**20

# The relative residual up to which an answer is called exact.
SOLVED = 1e-10

# The update rules' names.
RULES = {
    "richardson": "Richardson",
    "chebyshev": "Chebyshev",
    "heavy_ball": "heavy ball",
    "nesterov": "Nesterov",
    "function_space": "function space",
}


@dataclass(frozen=True)
class Check:
    """One check: what was measured, and the most it may be.

    ``telling`` is False where the tolerance is so wide that passing says nothing.
    """

    name: str
    value: float
    tolerance: float
    meaning: str
    telling: bool = True

    @property
    def passed(self) -> bool:
        return self.value <= self.tolerance


def trust(
    settings: Settings, table: Table | None = None, residual: float | None = None
) -> list[Check]:
    """The checks of a picture.

    ``residual`` is the largest of the picture's exact solves; without one they are those of the
    prompts checked here. The transformer is checked whether or not it is drawn, on the first
    prompts at half and at full context length.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    prompts = min(CHECKED_PROMPTS, settings.prompts, max(1, CHECKED_ENTRIES // settings.n**2))
    problem = sample(settings.but(prompts=prompts), table)
    queries = problem.x_query[..., :CHECKED_QUERIES, :]
    problem = replace(problem, x_query=queries, noiseless=None, labels=None)
    problem = problem.prefixes([settings.n // 2, settings.n])
    checks = [
        Check(
            "direct solve",
            float(problem.residual.max()) if residual is None else residual,
            SOLVED,
            "The exact answer: largest relative residual ‖y − Aα‖/‖y‖ of the solves, in float64, "
            "by Cholesky or, beyond N = 8192, by conjugate gradients. It fails where λ is so small "
            "beside K's largest eigenvalue, as with repeated rows, that float64 cannot tell A from "
            "a singular matrix, or its iterations do not suffice: a larger λ helps.",
        )
    ]
    c = Construction.from_settings(settings, table)
    model = build(c)

    def run(device: torch.device) -> tuple[Trajectory, float]:
        moved = model.to(device)
        return predict(moved, problem), attention_gap(moved, problem, c.sink)

    (forward, difference), _ = on_device(settings, run)
    rule = RULES[c.update]
    same = record(rule, same_rule(c), problem, c.steps)
    gap = (forward.predictions.cpu().double() - same.predictions).abs()
    gap = gap.nan_to_num(nan=math.inf).flatten()
    bound = product_bound(c, problem, same.states).nan_to_num(nan=0).flatten()
    # The largest gap of all, or of those beyond their bound.
    beyond = gap > bound
    shown = int(torch.where(beyond, gap, -1).argmax() if bool(beyond.any()) else gap.argmax())
    norms = torch.cat([problem.X, problem.x_query], -2).norm(dim=-1)
    tolerance = attention_tolerance(c, float(norms.max()), sink=bool(c.sink))
    where = f" ({prompts} prompts, n = {settings.n // 2} and {settings.n}.)"
    if settings.steps > 0:
        checks = [
            Check(
                f"transformer = {rule}",
                float(gap[shown]),
                float(bound[shown]),
                "Largest gap, over all steps, between the transformer's answer and that of its own "
                f"rule, {rule}, with the same P and step size; every gap must be within its own "
                "product bound." + where,
                telling=float(bound[shown]) < float(same.predictions.abs().max()),
            ),
            Check(
                "attention = P⁻¹K" if c.sink else "attention = D⁻¹K",
                difference,
                tolerance,
                "Largest difference between the updates' softmax weights and P⁻¹K computed in the "
                "log domain, P = D + s; tolerance: 1e-16 (100 + B²/σ²) in float64, B the largest "
                "‖x‖, and four times as much with a sink, whose logit holds ‖x‖²." + where,
                telling=tolerance < 1e-2,
            ),
            *checks,
        ]
    for symbol, value, most in (
        (factor_name(c), largest_factor(c, problem, forward), c.r_alpha),
        ("y", problem.y.abs().max(), c.label_bound),
        ("x", norms.max(), c.input_bound * (1 + 1e-9)),  # a norm summed in another order
    ):
        checks.append(
            Check(
                f"range of {symbol}",
                float(value),
                most,
                f"Largest |{symbol}| met. The weights are made for up to {most:.3g}; beyond it the "
                "product bound or the mask no longer holds." + where,
            )
        )
    return checks


def factor_name(c: Construction) -> str:
    """What the updates' products multiply by u: α, nα, a = α + β(α − α₋), or fitted values."""
    if c.update == "function_space":
        return "g"
    return ("n" if c.per_sample else "") + ("a" if c.update == "nesterov" else "α")


def largest_factor(c: Construction, problem: Problem, run: Trajectory) -> float:
    """The largest |v| of the updates' products u·v: α, nα, α + β(α − α₋), or fitted values."""
    states = run.states.cpu().double()
    if c.update == "function_space":
        return max(map(largest, (states, run.predictions)))
    if c.per_sample:
        states = states * problem.count[..., None]
    if c.update == "nesterov" and c.steps:
        states = torch.cat([states[:1], states[1:] + c.coefficients()[0][0] * states.diff(dim=0)])
    return largest(states)


def largest(values: Tensor) -> float:
    """The largest magnitude; infinite where something has overflowed."""
    return float(values.abs().max().nan_to_num(nan=math.inf))


def attention_tolerance(c: Construction, norm: float, sink: bool = False) -> float:
    """1e-16 (100 + B²/σ²) in float64, and as many units in the last place in other precisions.

    Four times as much where the ``sink`` takes part: its logit holds ‖x_i‖²/2σ², which elsewhere
    cancels with all of its rounding.
    """
    ulps = torch.finfo(c.dtype).eps / torch.finfo(torch.float64).eps
    return (4e-16 if sink else 1e-16) * ulps * (100 + (norm / c.bandwidth) ** 2)


def attention_gap(model: Transformer, problem: Problem, sink: Sink = 0.0) -> float:
    """Largest |attention − P⁻¹K| on context rows of the update blocks, masked keys included.

    Of large prompts the first rows are looked at, as many as have CHECKED_ENTRIES weights.

    P⁻¹K is taken from squared distances by log-sum-exp, sharing no code with attention; K is 0 at
    masked keys, and the sink has s/(D + s).
    """
    count = min(problem.n_max, max(1, CHECKED_ENTRIES // problem.n_max))
    used, looked_at = problem.used, problem.used[..., :count]
    logits = torch.zeros_like(problem.X[..., :count, None, 0] + problem.X[..., None, :, 0])
    for x in problem.X.unbind(-1):
        logits -= (x[..., :count, None] - x[..., None, :]).square() / (2 * problem.bandwidth**2)
    logits = logits.masked_fill(~used[..., None, :], -torch.inf)
    level = problem.level(sink).log()[..., None, :].expand(*looked_at.shape, 1)
    logits = torch.cat([level, logits], -1)
    expected = (logits - logits.logsumexp(-1, keepdim=True)).exp()[looked_at]
    stream, context, worst = model.embed(problem), slice(1, 1 + problem.n_max), 0.0
    for attention in {block.attention for block in model.blocks[model.updates.start + 1 : -1]}:
        if attention.idle:
            continue
        # What no block writes is before the first block what it is at this head's own place.
        if not model.constant(attention):
            return math.inf
        found = (stream[..., 1 : 1 + count, :] @ attention.w_q.mT) @ (stream @ attention.w_k.mT).mT
        rows = found.softmax(-1).cpu().double()[looked_at]
        rows[..., : context.stop] -= expected
        worst = max(worst, float(rows.abs().max().nan_to_num(nan=math.inf)))
    return worst
