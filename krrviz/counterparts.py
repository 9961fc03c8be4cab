"""Counterparts: the hand-built stack with another score than softmax's, and what it then solves.

Everything else is kept: tokens, W_Q and W_K (which hold the sink's level and the mask), W_V, W_O
and the MLPs' shape. That a Laplacian may stand for the Gaussian is LaplacianFormer's idea; which
system each score solves here is derived below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.construction.predict import predict
from krrviz.construction.transformer import Attention, Block, Pattern, Stream, Transformer
from krrviz.construction.weights import Construction, build
from krrviz.fan import mean_error, relative_error
from krrviz.kernel import gaussian_kernel
from krrviz.machine import CHUNK_BYTES, check, on_device, system_bytes
from krrviz.problem import Problem
from krrviz.settings import Settings, SettingsError
from krrviz.spectrum import Interval
from krrviz.tables import Table
from krrviz.tasks import sample

Kernel = Callable[[Tensor, Tensor, float], Tensor]


def _laplacian(a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return (-distance / bandwidth).exp()


def _linear(a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
    return a @ b.mT / bandwidth**2


def _relu(a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
    return _linear(a, b, bandwidth).relu()


@dataclass(frozen=True)
class Score:
    """A map from a pair of inputs to a weight φ(x, x′), before it is divided.

    kernel : (*batch, M, d), (*batch, N, d), σ -> (*batch, M, N)
    normalised : divided by the row's sum; otherwise by the number of context tokens
    unit : φ(x, x) = 1; otherwise it is ‖x‖²/σ²
    """

    title: str
    formula: str
    solves: str
    kernel: Kernel
    normalised: bool = False
    unit: bool = True


SCORES: dict[str, Score] = {
    "softmax": Score(
        "Softmax",
        "exp(−‖x − x′‖²/2σ²) / row sum",
        "Gaussian kernel ridge regression, preconditioned by D",
        gaussian_kernel,
        normalised=True,
    ),
    "laplacian": Score(
        "Laplacian",
        "exp(−‖x − x′‖/σ) / row sum",
        "Laplacian kernel ridge regression, preconditioned by its own D",
        _laplacian,
        normalised=True,
    ),
    "kernel": Score(
        "Unnormalised kernel",
        "exp(−‖x − x′‖²/2σ²) / n",
        "Gaussian kernel ridge regression by gradient descent: the preconditioner is n",
        gaussian_kernel,
    ),
    "linear": Score(
        "Linear",
        "x·x′/σ² / n",
        "linear ridge regression without an intercept",
        _linear,
        unit=False,
    ),
    "relu": Score(
        "ReLU",
        "relu(x·x′/σ²) / n",
        "(K + λI)α = y with K = relu(XXᵀ/σ²), which may have negative eigenvalues: where one is "
        "below −λ, the iteration diverges",
        _relu,
        unit=False,
    ),
}


# ---------------------------------------------------------------------------------------------
# The step
#
# The stack solves Aα = y, A = K + rI with K_ij = φ(x_i, x_j), by a rule on P⁻¹A.
#
# Normalised: P = D + sI. All that the certified interval asks of K is that it is positive
# semidefinite, has a unit diagonal and no entry below 0: it holds for the Laplacian as it stands.
#
# Divided by the count: P = (n + s)I. With K positive semidefinite and φ(x, x) ≤ φ_max, its
# eigenvalues lie in [0, trace] ⊂ [0, nφ_max], so those of P⁻¹A lie in
#
#     [r/(n + s), (nφ_max + r)/(n + s)],   φ_max = 1, or B²/σ² for a dot product.
#
# Both ends are monotone in n, for r = λ or nλ and s = 0, a number or r, so that n = 1 and n = N
# bound every prompt: [λ/N, φ_max + λ] for the paper's, where s = 0 and r = λ.
#
# ReLU: relu(x·x′) is symmetric. In one dimension it is relu(x)relu(x′) + relu(−x)relu(−x′), so
# positive semidefinite; from d = 2 on it is not (on the circle relu(cos θ) has the Fourier
# coefficient −2/15π at 4θ). Gershgorin leaves |eigenvalue| ≤ nφ_max: the upper end holds, the lower
# is a hope, and where A has an eigenvalue below 0 the iteration diverges.


@dataclass(frozen=True)
class Counterpart(Construction):
    """The construction of a stack with another score: another interval, and so other steps.

    Raises
    ------
    SettingsError
        What :class:`Construction` refuses; a score that is none; a dtype other than float64;
        function space; or a certified range of α for a dot product, which has none here.
    """

    score: str = "softmax"

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise SettingsError(f"score={self.score!r} must be one of {', '.join(SCORES)}")
        if self.dtype != torch.float64:
            raise SettingsError("another score in softmax's place needs dtype=float64", "dtype")
        if self.update == "function_space":
            raise SettingsError(
                "update=function_space has no counterpart with another score; use a rule on α",
                "update",
            )
        if self.alpha_range == "certified" and not SCORES[self.score].unit:
            raise SettingsError(
                f"alpha_range=certified has no bound for {self.score} scores; use calibrated or "
                "a number",
                "alpha_range",
            )
        super().__post_init__()

    @cached_property
    def interval(self) -> Interval:
        """Where the eigenvalues of P⁻¹A lie, for every prompt; for ReLU its upper end alone."""
        score = SCORES[self.score]
        if score.normalised:
            return super().interval
        most = 1.0 if score.unit else (self.input_bound / self.bandwidth) ** 2
        ends = []
        for n in (1, self.n_max):
            r = n * self.ridge if self.per_sample else self.ridge
            p = n + (r if isinstance(self.sink, str) else self.sink)
            ends.append((r / p, (n * most + r) / p))
        low, high = zip(*ends, strict=True)
        return Interval(*(torch.tensor(v, dtype=torch.float64) for v in (min(low), max(high))))


# ---------------------------------------------------------------------------------------------
# The pattern
#
# The built head's logits are, on row i and less ‖x_i‖²/2σ² (which softmax cancels),
#
#     −‖x_i − x_j‖²/2σ² on used context keys,   log s on the sink,   −BIG or less elsewhere,
#
# with s = δ at read-in, the iteration's s (none: −BIG) in updates and S at read-out. Their exp is
# K_ij, s and 0; softmax divides by D_i + s. A counterpart keeps s and the zeros, has φ(x_i, x_j)
# for K_ij, and divides by
#
#     Σ_j φ(x_i, x_j) + s   (normalised)   or   n + s,   n = Σ_j (1 − mask_j).
#
# So P = D + sI with φ's own row sums, or (n + s)I, in all three uses: u_i = δ⁻¹·δ/(P_i + δ) is
# 1/P_i, an update's z is P⁻¹Kα, and the read-out S·Σ_j φ(x_*, x_j)α_j/(P_* + S) is k_*ᵀα.


class ScoredAttention(Attention):
    """A head of the construction with ``score`` in softmax's place."""

    def __init__(self, head: Attention, c: Counterpart) -> None:
        super().__init__(head.w_q, head.w_k, head.w_v, head.w_o)
        self.c = c

    def pattern(self, stream: Stream) -> Pattern:
        """The attention weights; normalised rows sum to 1."""
        c, at, score = self.c, self.c.slots.index, SCORES[self.c.score]
        context = (stream[..., at["mask"]] == 0)[..., None, :]
        logits = (stream @ self.w_q.mT) @ (stream @ self.w_k.mT).mT
        level = (logits - stream[..., at["half_sq_norm"], None] / c.bandwidth**2).exp()
        x = stream[..., : c.d]
        weights = torch.where(context, score.kernel(x, x, c.bandwidth), level)
        if score.normalised:
            # A query far from all data has no row sum, and softmax's limit there is never read.
            return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        return weights / (context.sum(-1, keepdim=True) + weights[..., :1])


def counterpart(c: Construction, score: str) -> Transformer:
    """The transformer of ``c`` with ``score``, a key of ``SCORES``, in every head.

    Its steps are those of the score's own interval; ``predict`` and ``run`` take it as it is.

    Raises
    ------
    SettingsError
        What :class:`Counterpart` refuses.
    """
    given = {item.name: getattr(c, item.name) for item in fields(Construction) if item.init}
    own = Counterpart(**given, score=score)
    built = build(own)
    new = {b: Block(ScoredAttention(b.attention, own), b.mlp) for b in set(built.blocks)}
    return Transformer(own.slots, [new[b] for b in built.blocks], built.updates, own.n_max)


# ---------------------------------------------------------------------------------------------
# What it solves


def _system(problem: Problem, score: str) -> tuple[Tensor, Tensor, Tensor]:
    """A (..., N, N), k_* (..., Q, N) and P's diagonal without a sink (..., N), in float64.

    Unused slots have y = 0 and no neighbours, and in P a 1.
    """
    problem, kernel = problem.to(problem.X.device, torch.float64), SCORES[score].kernel
    used = problem.used[..., None, :]
    K = kernel(problem.X, problem.X, problem.bandwidth) * (used & used.mT)
    P = K.sum(-1) if SCORES[score].normalised else problem.count[..., None].to(K)
    k_query = kernel(problem.x_query, problem.X, problem.bandwidth) * used
    r = torch.diag_embed(problem.r.expand(problem.y.shape))
    return K + r, k_query, torch.where(problem.used, P, 1)


def solves(problem: Problem, score: str) -> Float[Tensor, "*batch Q"]:
    """k_*ᵀ(K + rI)⁻¹y at the queries, K_ij = φ(x_i, x_j), by a direct solve in float64."""
    A, k_query, _ = _system(problem, score)
    return (k_query @ torch.linalg.solve(A, problem.y.to(A))[..., None])[..., 0]


def lowest(problem: Problem, score: str, sink: float | str = 0.0) -> Float[Tensor, "*batch"]:
    """Each prompt's smallest eigenvalue of P⁻¹A, all of which are real.

    They are those of P^−½AP^−½. Above 0 every step below 2/L converges; below 0 none does.
    """
    A, _, P = _system(problem, score)
    root = (P + problem.level(sink).to(P)).rsqrt()
    matrix = root[..., :, None] * A * root[..., None, :]
    # The smallest eigenvalue is no larger than any entry of the diagonal: unused slots get the
    # largest, which changes nothing.
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    raised = diagonal.amax(-1, keepdim=True) - diagonal
    matrix = matrix + torch.diag_embed(torch.where(problem.used, 0, raised))
    return torch.linalg.eigvalsh(matrix)[..., 0]


def counterpart_errors(
    settings: Settings, score: str, table: Table | None = None
) -> tuple[Float[Tensor, " times"], Float[Tensor, " times"]]:
    """Relative error by step to the score's own system, and to Gaussian KRR; mean over prompts.

    Infinite where an iterate has overflowed.

    Raises
    ------
    SettingsError
        What :func:`counterpart` refuses, or the data, the device or the memory cannot give.
    """
    check(settings, 1)
    model = counterpart(Construction.from_settings(settings, table), score)
    full = sample(settings, table)
    size = max(1, int(CHUNK_BYTES / system_bytes(settings)))

    def work(device: torch.device) -> tuple[Tensor, Tensor]:
        own, gaussian = [], []
        for prompts in torch.arange(settings.prompts).split(size):
            problem = full.pick((prompts,))
            found = predict(model.to(device), problem).predictions.cpu()
            own.append(relative_error(found, solves(problem, score)))
            gaussian.append(relative_error(found, problem.exact))
        return mean_error(torch.cat(own, 1)), mean_error(torch.cat(gaussian, 1))

    return on_device(settings, work)[0]


def counterpart_rows(
    settings: Settings, table: Table | None = None
) -> list[dict[str, float | int | str]]:
    """All scores' errors by step: score, title, step, own, gaussian, lowest.

    ``lowest`` is the smallest eigenvalue of P⁻¹A over the prompts: above 0 all of them lie in the
    right half plane.

    Raises
    ------
    SettingsError
        As :func:`counterpart_errors`.
    """
    problem, rows = sample(settings, table), []
    for score, entry in SCORES.items():
        least = float(lowest(problem, score, settings.sink).min())
        errors = (error.tolist() for error in counterpart_errors(settings, score, table))
        for step, (own, gaussian) in enumerate(zip(*errors, strict=True)):
            row = {"score": score, "title": entry.title, "step": step}
            rows.append({**row, "own": own, "gaussian": gaussian, "lowest": least})
    return rows
