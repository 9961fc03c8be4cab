"""Match: which solver's steps a model's layers are like, by every metric, policy and ridge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from krrviz.problem import Problem
from krrviz.solvers import SOLVERS
from krrviz.spectrum import POLICIES, Operator
from krrviz.trained.modes import Modes, linear_map, modes, solver
from krrviz.trained.probe import Answers, Probed, ProbeError, additivity, operator_at
from krrviz.trained.prompts import Prompts, answers
from krrviz.trajectory import Solver, record

Steps = Float[Tensor, "times batch N"]

STEPS = 128  # searched for the step that a layer is most like; fewer saturate
RATES = [quarters / 4 for quarters in range(1, 65)]  # steps a layer, where the rate is fixed
FLOOR = 1e-3  # of an error's logarithm: a method that is exact at n = 1 is not far from all others
GROUPED = 2**15  # numbers that a step moves at once: fewer calls, and threads have no part in it
RESAMPLES = 200  # of the prompts, for 95 % intervals
FANS_ALONE = ("untrained labels", "shuffled krr")  # controls that are not matched
RIDGE_SCALES = ("absolute", "per_sample")


@dataclass(frozen=True)
class Metric:
    """How alike answers are: whether most is best, and what it is in words and symbols."""

    title: str
    told: str
    most: bool = False


METRICS = {
    "similarity": Metric(
        "Similarity of errors",
        "cosine of the residuals f − y over positions, mean over prompts (arXiv 2310.17086)",
        most=True,
    ),
    "difference": Metric(
        "Squared prediction difference",
        "mean (f_ℓ − f_t)² over positions and prompts (arXiv 2211.15661)",
    ),
    "profile": Metric(
        "Log-profile distance",
        "root mean square over n of log₁₀ error of the layer minus log₁₀ error of the step",
    ),
    "operator": Metric(
        "Operator distance",
        "‖∂f_ℓ/∂y − S_t‖/‖S_t‖ over several n, mean over prompts",
    ),
}


@dataclass(frozen=True)
class Variant:
    """A solver under a step policy and a ridge convention; ``per_sample`` solves K + n(λ/N)I."""

    method: str
    policy: str
    ridge_scale: str


@dataclass(frozen=True, eq=False)
class Route:
    """The steps that layers 1 … L are most like, and how alike: mean over these layers.

    scores : of all prompts, then of each resample of them, the best steps chosen anew
    """

    steps: tuple[int, ...]
    scores: Float[Tensor, " resamples"]

    @property
    def score(self) -> float:
        return float(self.scores[0])

    @property
    def interval(self) -> tuple[float, float]:
        """The bootstrap's 95 % interval over prompts."""
        return interval(self.scores)


def interval(scores: Float[Tensor, " resamples"]) -> tuple[float, float]:
    """The bootstrap's 95 % interval: of a score of all prompts, then of each resample of them."""
    low, high = scores[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Match:
    """A readout beside a solver by one metric.

    grid : every layer beside every step; free : each layer's own best step; fixed : t = rate·ℓ
    """

    readout: str
    metric: str
    variant: Variant
    grid: Float[Tensor, "layers times"]
    free: Route
    fixed: Route
    rate: float


@dataclass(frozen=True, eq=False)
class Fan:
    """A solver's relative error by step and n = 1 … N, pooled over prompts."""

    to_krr: Float[Tensor, "times N"]
    to_noiseless: Float[Tensor, "times N"]


@dataclass(frozen=True, eq=False)
class Matched:
    """All that ``match`` finds. ``defects`` are the solvers' by step, on the certified step."""

    matches: list[Match]
    fans: dict[Variant, Fan]
    defects: dict[str, Float[Tensor, " times"]]


def variants(ridge_scale: str) -> list[Variant]:
    """Every solver under every policy that makes a difference to it."""
    return [
        Variant(method, policy, ridge_scale)
        for method, entry in SOLVERS.items()
        for policy in POLICIES
        if entry.policy(policy) == policy or (entry.takes is None and policy == "certified")
    ]


def variant(method: str, policy: str, ridge_scale: str) -> Variant:
    """A method's variant under a policy: its own where the policy does not touch it."""
    wanted = Variant(method, policy, ridge_scale)
    return wanted if wanted in variants(ridge_scale) else Variant(method, "certified", ridge_scale)


def pooled(
    found: Float[Tensor, "*any batch N"], answer: Float[Tensor, "batch N"]
) -> Float[Tensor, "*any N"]:
    """‖f − answer‖/‖answer‖ over prompts, at each n: one query's own ratio may divide by 0."""
    return (found - answer).norm(dim=-2) / answer.norm(dim=-2)


# ---------------------------------------------------------------------------------------------
# What the solvers do on the same prompts


@dataclass(frozen=True, eq=False)
class Systems:
    """Prompts cut to some lengths n, under a ridge convention, ready for every solver.

    groups : problems of some lengths each, that are run as one batch; modes : of each group by
    operator; n_max : what certified steps are for; step_size : the manual policy's
    """

    groups: list[list[Problem]]
    modes: list[dict[str, Modes]]
    n_max: int
    step_size: float

    @classmethod
    def of(
        cls,
        prompts: Prompts,
        lengths: Iterable[int],
        ridge_scale: str = "absolute",
        step_size: float = 1.0,
        kernel: str | None = None,
    ) -> Systems:
        """Raises ProbeError where row sums are not positive, ValueError as ``Prompts.problem``."""
        problems = [prompts.problem(n, kernel, ridge_scale) for n in lengths]
        if not all(_positive(problem) for problem in problems):
            named = kernel or prompts.task.kernel
            raise ProbeError(f"D⁻¹ has no meaning for the {named} kernel's row sums")
        size = max(1, GROUPED // prompts.X[..., 0].numel())
        groups = [problems[at : at + size] for at in range(0, len(problems), size)]
        operators: set[Operator] = {entry.operator for entry in SOLVERS.values()}
        held = [{way: modes(group, way) for way in operators} for group in groups]
        return cls(groups, held, prompts.task.n, step_size)

    def answers(self, variant: Variant) -> Float[Tensor, "times batch lengths"]:
        """f_t at the query after the first n points."""
        parts = []
        for group, run, held in self._ready(variant):
            found = record("", run, held, STEPS).predictions[..., 0]
            parts.append(found.unflatten(1, (len(group), -1)).transpose(1, 2))
        return torch.cat(parts, -1)

    def operators(self, variant: Variant) -> Float[Tensor, "times batch entries"]:
        """∂f_t/∂y₁…ₙ at each length, one after the other."""
        parts = []
        for group, run, held in self._ready(variant):
            maps = linear_map(held, variant.method, run, STEPS).unflatten(1, (len(group), -1))
            parts += [maps[:, at, :, : problem.n_max] for at, problem in enumerate(group)]
        return torch.cat(parts, -1)

    def _ready(self, variant: Variant) -> Iterator[tuple[list[Problem], Solver, Modes]]:
        for group, held in zip(self.groups, self.modes, strict=True):
            run = solver(group, variant.method, variant.policy, self.step_size, self.n_max)
            yield group, run, held[SOLVERS[variant.method].operator]


def fan(systems: Systems, variant: Variant, probed: Probed) -> Fan:
    """One solver's errors on the prompts of ``probed``."""
    found = bounded(systems.answers(variant))
    return Fan(pooled(found, probed.krr), pooled(found, probed.noiseless))


# ---------------------------------------------------------------------------------------------
# Metrics


def fans(probed: Probed, wanted: tuple[Variant, ...], step_size: float) -> dict[Variant, Fan]:
    """Solvers of one ridge convention on the prompts that a model was asked."""
    lengths = range(1, probed.prompts.task.n + 1)
    systems = Systems.of(probed.prompts, lengths, wanted[0].ridge_scale, step_size)
    return {variant: fan(systems, variant, probed) for variant in wanted}


def similarity(
    layers: Answers, steps: Steps, labels: Float[Tensor, "batch N"]
) -> Float[Tensor, "batch layers times"]:
    """Cosine of the residuals f − y over positions."""
    a, b = (normalize(f - labels, dim=-1) for f in (layers, steps))
    return a.transpose(0, 1) @ b.permute(1, 2, 0)


def difference(layers: Answers, steps: Steps) -> Float[Tensor, "batch layers times"]:
    """Mean squared difference over positions; of operators, over their entries."""
    return _apart(layers.transpose(0, 1), steps.transpose(0, 1)).square()


def profile(
    layers: Float[Tensor, "resamples layers N"], steps: Float[Tensor, "resamples times N"]
) -> Float[Tensor, "resamples layers times"]:
    """RMS over n of the difference of log₁₀ errors, from FLOOR up; arguments are their squares."""
    return _apart(*(squares.clamp_min(FLOOR**2).log10() / 2 for squares in (layers, steps)))


def _apart(
    a: Float[Tensor, "batch layers N"], b: Float[Tensor, "batch times N"]
) -> Float[Tensor, "batch layers times"]:
    """Root mean square difference; from the differences themselves, so that equals are 0 apart."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist") / a.shape[-1] ** 0.5


def resampled(prompts: int) -> Float[Tensor, "resamples prompts"]:
    """Weights of the prompts: all alike, then as often as each is drawn with replacement.

    Each row sums to 1.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(prompts, (RESAMPLES, prompts), generator=generator)
    one = torch.ones(RESAMPLES, prompts, dtype=torch.float64)
    counts = torch.zeros_like(one).scatter_add_(1, drawn, one)
    return torch.cat([one[:1], counts]) / prompts


def routes(
    grids: Float[Tensor, "resamples layers times"], most: bool
) -> tuple[Route, Route, float]:
    """The best steps of layers 1 … L, free and at a fixed rate; and that rate."""
    grids = grids[:, 1:]
    values = grids if most else -grids
    layers = torch.arange(1, grids.shape[1] + 1)

    free = values.argmax(-1)
    scores = grids.gather(-1, free[..., None])[..., 0].mean(-1)

    rates = torch.tensor([rate for rate in RATES if rate * len(layers) <= STEPS])
    at = (rates[:, None] * layers).round().long()
    along = values[:, layers - 1, at].mean(-1)
    best = along.argmax(-1)
    fixed = grids[:, layers - 1, at].mean(-1).gather(-1, best[:, None])[:, 0]
    return (
        Route(tuple(free[0].tolist()), scores),
        Route(tuple(at[best[0]].tolist()), fixed),
        float(rates[best[0]]),
    )


# ---------------------------------------------------------------------------------------------
# All of it


def match(
    probed: Probed, step_size: float = 1.0, told: Callable[[float], None] = lambda done: None
) -> Matched:
    """Every readout beside every solver, policy and ridge convention, by every metric.

    ``step_size`` is the manual policy's; ``told`` is called with the share done.

    Raises
    ------
    ProbeError
        The prompts' kernel has row sums that are not positive.
    ValueError
        The prompts do not share one σ and λ.
    """
    prompts, n = probed.prompts, probed.prompts.task.n
    weights = resampled(len(prompts.y))
    size = _weighed(weights, probed.krr.square())[:, None]

    def squares(found: Answers) -> Tensor:
        """Relative squared errors by resample, layer or step, and n."""
        return _weighed(weights, (found - probed.krr).square().transpose(0, 1)) / size

    readouts = {k: found for k, found in probed.answers.items() if k not in FANS_ALONE}
    off = {name: squares(found) for name, found in readouts.items()}
    few = probed.few
    matches: list[Match] = []
    fans: dict[Variant, Fan] = {}
    for number, ridge_scale in enumerate(RIDGE_SCALES):
        every = Systems.of(prompts, range(1, n + 1), ridge_scale, step_size)
        cut = Systems.of(few, operator_at(n), ridge_scale, step_size)
        tried = variants(ridge_scale)
        for at, variant in enumerate(tried):
            told((number + at / len(tried)) / len(RIDGE_SCALES))
            found = bounded(every.answers(variant))
            fans[variant] = Fan(pooled(found, probed.krr), pooled(found, probed.noiseless))
            errors = squares(found)
            slopes = bounded(cut.operators(variant))
            for readout, layers in readouts.items():
                grids = {
                    "similarity": _weighed(weights, similarity(layers, found, probed.labels)),
                    "difference": _weighed(weights, difference(layers, found)),
                    "profile": profile(off[readout], errors),
                }
                if readout in probed.operators:
                    apart = difference(probed.operators[readout], slopes).sqrt()
                    whole = slopes.square().mean(-1).sqrt().transpose(0, 1)[:, None]
                    grids["operator"] = _weighed(resampled(len(few.y)), apart / whole)
                for metric, values in grids.items():
                    grid = _sound(values, metric)
                    free, fixed, rate = routes(grid, METRICS[metric].most)
                    # A copy: a view would hold the grids of all resamples, 1.3 GB in all.
                    kept = grid[0].clone()
                    matches.append(Match(readout, metric, variant, kept, free, fixed, rate))
    return Matched(matches, fans, _defects(probed, step_size))


@dataclass(frozen=True, eq=False)
class Alignment:
    """A readout beside kernel ridge regression, and the paper's iteration, under some kernel.

    gaps : ‖f_L − f‖/‖f‖ of the last layer over positions and prompts, then of each resample of the
    prompts; similarity : of errors with preconditioned Richardson's on the certified step, along
    the best steps; None where the kernel's row sums are not all positive, and D⁻¹ has no meaning
    """

    kernel: str
    gaps: Float[Tensor, " resamples"]
    similarity: Route | None

    @property
    def gap(self) -> float:
        return float(self.gaps[0])


def align(probed: Probed, readout: str, kernel: str) -> Alignment:
    """How a model's layers are like answers under ``kernel``, whatever it was trained on."""
    prompts, layers = probed.prompts, probed.answers[readout]
    exact = answers(prompts, kernel)[:, 1:]
    weights = resampled(len(exact))
    off, size = ((weights @ f.square().sum(-1)).sqrt() for f in (layers[-1] - exact, exact))
    if not preconditionable(prompts, kernel):
        return Alignment(kernel, off / size, None)
    found = Systems.of(prompts, range(1, prompts.task.n + 1), kernel=kernel).answers(
        Variant("preconditioned_richardson", "certified", "absolute")
    )
    return Alignment(kernel, off / size, _alike(probed, readout, found))


def rivals(
    probed: Probed, readout: str, told: Callable[[float], None] = lambda done: None
) -> dict[str, Route]:
    """Similarity of errors with every solver on its certified step, absolute ridge, best steps.

    What :func:`match` finds, but one metric, one policy and one readout of it, in a tenth of the
    time. ``told`` is called with the share done.
    """
    every = Systems.of(probed.prompts, range(1, probed.prompts.task.n + 1))
    found = {}
    for at, method in enumerate(SOLVERS):
        told(at / len(SOLVERS))
        steps = every.answers(Variant(method, "certified", "absolute"))
        found[method] = _alike(probed, readout, steps)
    return found


def _alike(probed: Probed, readout: str, steps: Float[Tensor, "times batch N"]) -> Route:
    labels = probed.labels
    alike = similarity(probed.answers[readout], bounded(steps), labels)
    return routes(_sound(_weighed(resampled(len(labels)), alike), "similarity"), True)[0]


def preconditionable(prompts: Prompts, kernel: str | None = None) -> bool:
    """Whether every row sum of every prompt's first n points is positive, at n = 1 … N."""
    lengths = range(1, prompts.task.n + 1)
    return all(_positive(prompts.problem(n, kernel)) for n in lengths)


def _positive(problem: Problem) -> bool:
    return bool((problem.degree > 0).all())


def bounded(values: Tensor) -> Tensor:
    """What has diverged, held where its square is still a number."""
    return values.nan_to_num(nan=1e15, posinf=1e15, neginf=-1e15).clamp(-1e15, 1e15)


def _weighed(weights: Tensor, values: Float[Tensor, "batch *rest"]) -> Tensor:
    """Means over prompts by each row of weights."""
    return (weights @ values.flatten(1)).unflatten(1, values.shape[1:])


def _sound(grid: Tensor, metric: str) -> Tensor:
    """Where there is no number (a map that is 0) nothing is alike."""
    worst = -1.0 if METRICS[metric].most else torch.inf
    return grid.nan_to_num(nan=worst, posinf=torch.inf)


def _defects(probed: Probed, step_size: float) -> dict[str, Float[Tensor, " times"]]:
    """Every solver's additivity defect by step, on the certified step."""
    parts = [
        Systems.of(part, operator_at(part.task.n), "absolute", step_size) for part in probed.split
    ]
    return {
        method: additivity(
            *(part.answers(Variant(method, "certified", "absolute")) for part in parts)
        )
        for method in SOLVERS
    }
