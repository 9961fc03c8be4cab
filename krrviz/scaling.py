"""Scaling: how depth, width and error grow, each picture's data as a sweep over points.

A sweep is a list of points, each computed on its own: whoever runs one can stop between points
and keep what there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from krrviz import solvers
from krrviz.construction.certificate import certify
from krrviz.construction.predict import predict
from krrviz.construction.slots import Slots
from krrviz.construction.transformer import Hinges
from krrviz.construction.weights import Construction, build
from krrviz.fan import mean_error, relative_error, same_rule
from krrviz.guarantee import HORIZON, rule_gaps
from krrviz.machine import DTYPES, max_memory
from krrviz.problem import Problem
from krrviz.settings import DATASETS, MAX_N, Settings, SettingsError
from krrviz.spectrum import Operator, eigenvalues, residual_norm, residuals
from krrviz.tables import Table
from krrviz.tasks import sample
from krrviz.trajectory import record
from krrviz.trust import RULES

Rows = list[dict[str, float | int | str]]
Point = tuple[str, Callable[[], Rows]]

SIZES = (16, 32, 64, 128, 256, 512, 1024)
EPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
FAR = 256  # steps that every rule is followed for
WIDE = 32_768  # hinges that leave rounding alone
TUNED_AT, TUNED_STEPS = 32, 10


def _few(settings: Settings, **changes: Any) -> Settings:
    """These settings with few prompts and queries, since sweeps compare many problems.

    In float64, for the calibrated range and in the paper's layout (a fused one has the same numbers
    and, for Chebyshev, other hinges in every block), unless ``changes`` say otherwise.
    """
    few = {
        "prompts": min(4, settings.prompts),
        "queries": min(16, settings.queries),
        "dtype": "float64",
        "alpha_range": "calibrated",
        "layout": "paper",
    }
    return settings.but(**(few | changes))


def sizes(settings: Settings, most: int = SIZES[-1], table: Table | None = None) -> list[int]:
    """The context lengths of a sweep: those of ``SIZES`` that the data and the memory have."""
    rows = DATASETS[settings.data].rows if table is None else table.rows
    queries = min(16, settings.queries)

    def fits(n: int) -> bool:
        if n > min(most, MAX_N) or (rows is not None and n + queries > rows):
            return False
        return 8.0 * 12 * n**2 * min(4, settings.prompts) <= max_memory()

    return [n for n in SIZES if fits(n)]


# ---------------------------------------------------------------------------------------------
# Depth against ε and N (claims 2 and 3)


def depth(settings: Settings, table: Table | None = None) -> list[Point]:
    """The first step at which a rule's mean relative error is within ε, exact products.

    Columns: ridge_scale, sink, n, eps, steps (missing beyond 10 000, or 2 000 in function space);
    for every N, both scalings of the ridge, and the sink at 0 and at the ridge.
    """

    def point(n: int) -> Rows:
        rows: Rows = []
        for scale in ("absolute", "per_sample"):
            for sink in (0, "ridge"):
                s = _few(settings, n=n, ridge_scale=scale, sink=sink)
                problem = sample(s, table)
                c = Construction.from_settings(s, table)
                found = first_steps(c, problem, EPS)
                rows += [
                    {
                        "ridge_scale": scale,
                        "sink": str(sink),
                        "n": n,
                        "eps": eps,
                        "steps": math.nan if steps is None else steps,
                    }
                    for eps, steps in found.items()
                ]
        return rows

    return [(f"N = {n}", partial(point, n)) for n in sizes(settings, table=table)]


def first_steps(
    c: Construction, problem: Problem, wanted: tuple[float, ...]
) -> dict[float, int | None]:
    """The first step at which the rule's error, mean over prompts, is within each ε."""
    found: dict[float, int | None] = dict.fromkeys(wanted)
    size = problem.exact.norm(dim=-1)
    # One decomposition serves all steps of the dual rules; function space has to take them.
    horizon = 2_000 if c.update == "function_space" else HORIZON
    left = sorted(wanted, reverse=True)
    for t, gap in enumerate(islice(rule_gaps(c, problem), horizon + 1)):
        error = float((gap.norm(dim=-1) / size).mean())
        while left and error <= left[0]:
            found[left.pop(0)] = t
        if not left:
            break
    return found


# ---------------------------------------------------------------------------------------------
# Width against error and N (claim 4)


def width(settings: Settings, table: Table | None = None) -> list[Point]:
    """Errors of the products and of the answer, by hinges m and by N.

    Columns: product, n, segments, product_error (largest of u·α, measured), bound (of it), output
    (max over queries of |transformer − its rule| at the last step, mean over prompts). Every m
    at N, and m = 128 at every N.
    """
    pairs = [(settings.n, m) for m in WIDTHS]
    pairs += [(n, 128) for n in sizes(settings, 512, table) if n != settings.n]

    def point(n: int, m: int) -> Rows:
        rows: Rows = []
        problem = sample(_few(settings, n=n), table)
        for product in ("plain", "balanced"):
            s = _few(settings, n=n, segments=m, product=product)
            c = Construction.from_settings(s, table)
            answers = predict(build(c), problem).predictions[-1]
            rule = record("rule", same_rule(c), problem, c.steps).predictions[-1]
            rows.append(
                {
                    "product": product,
                    "n": n,
                    "segments": m,
                    "product_error": product_gap(c),
                    "bound": c.product_error(c.r_alpha),
                    "output": float((answers - rule).abs().amax(-1).mean()),
                }
            )
        return rows

    return [(f"N = {n}, m = {m}", partial(point, n, m)) for n, m in pairs]


def product_gap(c: Construction) -> float:
    """The largest |p − u·v| that the update's product makes, over drawn operands."""
    c = replace(c, layout="paper", steps=1)
    model = build(c)
    block = model.blocks[model.updates.start + 1]
    slots: Slots = c.slots
    source = "ahead" if c.update == "nesterov" else slots.state
    generator, draws = torch.Generator().manual_seed(0), 50_000
    u, v = torch.rand(2, draws, generator=generator, dtype=torch.float64)
    u, v = u * c.u_range, (2 * v - 1) * c.r_alpha
    stream = torch.zeros(draws, len(slots), dtype=torch.float64)
    stream[:, slots.index[slots.inverse]], stream[:, slots.index[source]] = u, v
    made = Hinges(block.mlp)(stream)[:, slots.index["p"]]
    return float((made - u * v).abs().max())


@dataclass(frozen=True)
class Power:
    """y ∝ x^exponent, by least squares of the logarithms, with its 95 % interval."""

    exponent: float
    low: float
    high: float


def power(x: np.ndarray, y: np.ndarray) -> Power | None:
    """The power law through points; None for fewer than three that are positive numbers."""
    good = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    if good.sum() < 3 or np.ptp(np.log(x[good])) == 0:
        return None
    from scipy import stats  # half a second: loaded where it is used

    fit: Any = stats.linregress(np.log(x[good]), np.log(y[good]))
    half = float(stats.t.ppf(0.975, good.sum() - 2)) * float(fit.stderr)
    return Power(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


# ---------------------------------------------------------------------------------------------
# Every rule, early and far


def rules(settings: Settings, table: Table | None = None) -> list[Point]:
    """Error by step of each rule's transformer, and of conjugate gradients beside them.

    Columns: method, step, error (mean relative error to exact KRR).
    """

    def point(method: str) -> Rows:
        s = _few(settings, steps=max(FAR, settings.steps))
        problem = sample(s, table)
        if method in RULES:
            c = Construction.from_settings(s.but(update=method), table)
            run = predict(build(c), problem)
        else:
            run = solvers.solve(problem, method, s.steps)
        errors = mean_error(relative_error(run.predictions, problem.exact))
        return [{"method": method, "step": t, "error": e} for t, e in enumerate(errors.tolist())]

    methods = (*RULES, "conjugate_gradient", "preconditioned_conjugate_gradient")
    return [(method, partial(point, method)) for method in methods]


# ---------------------------------------------------------------------------------------------
# One step for all prompts (claim 12)


def transfer(settings: Settings, table: Table | None = None) -> list[Point]:
    """Error after 10 steps against N, each step size tuned where N = 32, for these 10 steps.

    Columns: method (preconditioned_richardson, gradient_descent, transformer), step_size, n,
    error. The transformer's weights are those for the largest N, as they stand.
    """
    ns = [8, *sizes(settings, 256, table)]
    operators: dict[str, Operator] = {
        "preconditioned_richardson": "preconditioned",
        "gradient_descent": "plain",
    }

    def errors(method: str, step: float, n: int) -> float:
        problem = sample(_few(settings, n=n), table)
        run = record(
            method,
            partial(
                solvers.richardson,
                operator=operators[method],
                step=torch.tensor(step, dtype=torch.float64),
            ),
            problem,
            TUNED_STEPS,
        )
        return float(mean_error(relative_error(run.predictions[-1:], problem.exact)))

    def point(method: str) -> Rows:
        if method == "transformer":
            s = _few(settings, n=ns[-1], steps=TUNED_STEPS, update="richardson", sink=0)
            c = Construction.from_settings(s, table)
            problem = sample(s, table).prefixes(ns)
            run = predict(build(c), problem)
            found = mean_error(relative_error(run.predictions[-1:], problem.exact))[0].tolist()
            step = c.coefficients()[0][1]
        else:
            problem = sample(_few(settings, n=min(TUNED_AT, ns[-1])), table)
            largest = eigenvalues(operators[method], problem)[..., -1].max()
            tried = (np.geomspace(0.05, 1.95, 40) / float(largest)).tolist()
            step = min(tried, key=lambda eta: errors(method, eta, problem.n_max))
            found = [errors(method, step, n) for n in ns]
        return [
            {"method": method, "step_size": step, "n": n, "error": min(error, 1e300)}
            for n, error in zip(ns, found, strict=True)
        ]

    return [(method, partial(point, method)) for method in (*operators, "transformer")]


# ---------------------------------------------------------------------------------------------
# The sink's level


def sink(settings: Settings, table: Table | None = None) -> list[Point]:
    """What the sink's level s does to P⁻¹A and to the error, the settings' rule and steps.

    Columns: sink (s; r of the full prompt where ``named`` is ridge), named, low and high (the
    eigenvalues met), certified_low, certified_high, error at the last step.
    """
    s = _few(settings)
    ridge = s.ridge * (s.n if s.ridge_scale == "per_sample" else 1)
    levels: list[tuple[float, float | str]] = [(0.0, 0.0), (ridge, "ridge")]
    levels += [(x, x) for x in np.geomspace(1e-3, 1e6, 19).tolist()]

    def point(value: float, level: float | str) -> Rows:
        problem = sample(s, table)
        c = Construction.from_settings(s.but(sink=level), table)
        met = eigenvalues("preconditioned", problem, level)
        gap = next(islice(rule_gaps(c, problem), s.steps, None))
        return [
            {
                "sink": value,
                "named": "ridge" if level == "ridge" else "",
                "low": float(met.min()),
                "high": float(met.max()),
                "certified_low": float(c.interval.low),
                "certified_high": float(c.interval.high),
                "error": float((gap.norm(dim=-1) / problem.exact.norm(dim=-1)).mean()),
            }
        ]

    return [
        ("s = r" if level == "ridge" else f"s = {value:.3g}", partial(point, value, level))
        for value, level in sorted(levels, key=itemgetter(0))
    ]


# ---------------------------------------------------------------------------------------------
# Precision


def precision(settings: Settings, table: Table | None = None) -> list[Point]:
    """Error by step of the transformer built in each precision: columns dtype, step, error.

    Chebyshev with balanced products so wide that they do not matter; the least error of each is
    its floor. A precision that cannot hold the weights has no rows.
    """

    def point(dtype: str) -> Rows:
        s = _few(
            settings, steps=FAR, product="balanced", segments=WIDE, update="chebyshev", dtype=dtype
        )
        try:
            c = Construction.from_settings(s, table)
        except SettingsError:
            return []
        problem = sample(s, table)
        answers = predict(build(c), problem).predictions
        errors = mean_error(relative_error(answers, problem.exact))
        return [{"dtype": dtype, "step": t, "error": e} for t, e in enumerate(errors.tolist())]

    return [(dtype, partial(point, dtype)) for dtype in DTYPES]


# ---------------------------------------------------------------------------------------------
# How loose the bounds are


def looseness(settings: Settings, table: Table | None = None) -> list[Point]:
    """Bound over measured error at the last step, prompt by prompt, on every data set.

    Columns: data, update, prompt, measured, a_priori, post_hoc (each the largest over queries).
    Ridge, steps, width and product are the settings'; bandwidth is the data set's own.
    """

    def point(data: str, update: str) -> Rows:
        s = settings.but_data(data) if data != settings.data else settings
        s = s.but(update=update, alpha_range="calibrated", reference="krr")
        s = s.but(queries=min(16, s.queries), product="balanced", dtype="float64", layout="paper")
        problem = sample(s, table)
        c = Construction.from_settings(s, table)
        answers = predict(build(c), problem).predictions[-1]
        found = certify(c, problem)
        assert found.post_hoc is not None, "prompts were given"
        measured = (answers - problem.exact).abs().amax(-1)
        post_hoc = found.post_hoc.amax(-1)
        return [
            {
                "data": data,
                "update": update,
                "prompt": p,
                "measured": float(measured[p]),
                "a_priori": found.a_priori,
                "post_hoc": float(post_hoc[p]),
            }
            for p in range(s.prompts)
        ]

    names = [d for d in DATASETS if d != "csv" or table is not None]
    return [
        (f"{data}, {rule}", partial(point, data, rule))
        for data in names
        for rule in RULES
        if rule != "function_space"  # it has no certificate
    ]


SWEEPS: Mapping[str, Callable[[Settings, Table | None], list[Point]]] = {
    "depth": depth,
    "width": width,
    "rules": rules,
    "transfer": transfer,
    "sink": sink,
    "precision": precision,
    "looseness": looseness,
}


# ---------------------------------------------------------------------------------------------
# The spectrum, and the tail that it makes (claims 2 and 7)


@dataclass(frozen=True, eq=False)
class Tail:
    """Error by step of the settings' rule, exact products, beside what its spectrum says.

    eigenvalues : (prompts, N) of P⁻¹A; interval : the certified one
    errors : (steps+1,) relative error on the first prompt; certified : h_t; true : the largest
    |p_t| on the first prompt's own eigenvalues
    slope : of log error a step, over the last quarter above rounding; expected : of ``true`` there
    """

    eigenvalues: np.ndarray
    interval: tuple[float, float]
    errors: np.ndarray
    certified: np.ndarray
    true: np.ndarray
    slope: float
    expected: float


def tail(settings: Settings, table: Table | None = None) -> Tail:
    """Follow the rule until its error is down to rounding, 4096 steps at most."""
    s = _few(settings)
    c = Construction.from_settings(s, table)
    problem = sample(s, table)
    first = problem.pick((torch.tensor([0]),))
    met = eigenvalues("preconditioned", problem, c.sink)
    size = float(first.exact.norm())
    errors, true = [], []
    for gap, p in islice(
        zip(rule_gaps(c, first), residuals(c.update, c.interval, met[0]), strict=False), 4097
    ):
        errors.append(float(gap.norm()) / size)
        true.append(float(p.abs().max()))
        if errors[-1] < 1e-11 and len(errors) > 32:
            break
    steps = np.arange(len(errors))
    last = steps >= 3 * len(errors) // 4
    return Tail(
        met.numpy(),
        (float(c.interval.low), float(c.interval.high)),
        np.array(errors),
        np.array([residual_norm(c.update, c.interval, int(t)) for t in steps]),
        np.array(true),
        *(float(np.polyfit(steps[last], np.log(np.array(y)[last]), 1)[0]) for y in (errors, true)),
    )
