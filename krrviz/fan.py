"""Fan: every method's error by step and context length, over many prompts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from krrviz import solvers
from krrviz.construction.predict import predict
from krrviz.construction.transformer import Transformer
from krrviz.construction.weights import Construction, build
from krrviz.machine import CHUNK_BYTES, DTYPES, check, on_device, prompt_bytes
from krrviz.problem import Problem
from krrviz.settings import Settings
from krrviz.tables import Table
from krrviz.tasks import dimension, sample, table_of
from krrviz.trajectory import Solver, predictions

PREFIXES = 12
GRID = 101  # points a fitted curve is drawn through

# Frames go into files and charts that know no infinity.
HUGE = 1e300


@dataclass(frozen=True, eq=False)
class Fan:
    """Mean errors over prompts: ``errors[method]`` is (steps+1, len(counts)).

    ``scale`` is the root mean square of the reference at N, in standardised units: where it is
    near 0 a relative error means nothing. ``residual`` is the largest relative residual of the
    exact solves, ``device`` where the methods were computed; ``notices`` tell what went otherwise
    than asked for.
    """

    settings: Settings
    d: int
    counts: tuple[int, ...]
    errors: dict[str, Float[np.ndarray, "times prefixes"]]
    scale: float
    residual: float
    device: str
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Curve:
    """For d = 1: a method's answers to the first prompt on a grid, in the data's own units.

    x (grid,); predictions (steps+1, grid); exact (grid,); data_x, data_y (n,).
    """

    x: Float[np.ndarray, " grid"]
    predictions: Float[np.ndarray, "times grid"]
    exact: Float[np.ndarray, " grid"]
    data_x: Float[np.ndarray, " n"]
    data_y: Float[np.ndarray, " n"]
    x_label: str
    y_label: str


def context_lengths(n: int) -> list[int]:
    """The prefix lengths of a fan: about twelve from 2 to n, denser where errors change fast."""
    if n <= PREFIXES:
        return list(range(1, n + 1))
    spread = 2 + (n - 2) * (np.arange(PREFIXES) / (PREFIXES - 1)) ** 1.5
    return sorted({int(count) for count in spread.round()})


def compiled(settings: Settings, table: Table | None, device: torch.device) -> Transformer | None:
    """The weights on their device, where ``settings`` draw the transformer."""
    if "transformer" not in settings.methods:
        return None
    return build(Construction.from_settings(settings, table)).to(device)


def run_methods(
    settings: Settings,
    problem: Problem,
    model: Transformer | None,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[str, Float[Tensor, "times *batch Q"]]:
    """What every chosen method predicts on ``problem``, step by step.

    Certified steps are those for N, whatever its prefix.
    """
    classical = [method for method in settings.methods if method in solvers.SOLVERS]
    bound: dict[str, Solver] = {}
    for method in classical:
        how = solvers.tuned(problem, method, settings.policy, settings.step_size, settings.n)
        bound[method] = solvers.SOLVERS[method].bind(*how)
    share = len(classical) / len(settings.methods)
    runs = {}
    if bound:
        runs = predictions(bound, problem, settings.steps, lambda done: progress(share * done))
    if model is not None:

        def told(done: float) -> None:
            progress(share + (1 - share) * done)

        runs["transformer"] = predict(model, problem, told).predictions
    return {method: runs[method] for method in settings.methods}


def same_rule(c: Construction) -> Solver:
    """The classical iteration that a construction carries out: its rule, sink level and step."""
    interval, sink = c.interval, c.sink
    if c.update == "richardson":
        return partial(
            solvers.richardson, operator="preconditioned", step=interval.best_step, sink=sink
        )
    if c.update == "function_space":
        return partial(
            solvers.function_space_richardson,
            step=interval.best_step,
            sink=sink,
            far_sink=c.query_sink,
        )
    rule = {
        "chebyshev": solvers.chebyshev,
        "heavy_ball": solvers.heavy_ball,
        "nesterov": solvers.nesterov,
    }[c.update]
    return partial(rule, operator="preconditioned", interval=interval, sink=sink)


def reference(problem: Problem, name: str) -> Float[Tensor, "*batch Q"]:
    """What errors are measured against: krr, noiseless or labels."""
    answers = {"krr": problem.exact, "noiseless": problem.noiseless, "labels": problem.labels}
    answer = answers[name]
    assert answer is not None, f"{name} is not known of this problem"
    return answer


def relative_error(
    predictions: Float[Tensor, "times *batch Q"], answer: Float[Tensor, "*batch Q"]
) -> Float[Tensor, "times *batch"]:
    """‖f_t − f‖/‖f‖ over the queries; infinite where an iterate has overflowed.

    0/0 where the reference is 0 at every query: such a prompt has no relative error.
    """
    gap = (predictions.to(answer) - answer).norm(dim=-1).nan_to_num(nan=torch.inf, posinf=torch.inf)
    size = answer.norm(dim=-1)
    return torch.where(size > torch.finfo(size.dtype).tiny, gap / size, torch.nan)


def mean_error(errors: Float[Tensor, "*any prompts"]) -> Float[Tensor, "*any"]:
    """The mean over the prompts that have a relative error; 0 where none has one."""
    return errors.nanmean(-1).nan_to_num(nan=0, posinf=torch.inf)


def fan(
    settings: Settings,
    table: Table | None = None,
    progress: Callable[[float], None] = lambda done: None,
    counts: Sequence[int] | None = None,
) -> Fan:
    """Errors of every chosen method by step and context length, one weight set for all.

    Prompts and prefixes run as one batch, cut only where memory asks for it; ``progress`` is
    called with the share done between the pieces. ``counts`` are the context lengths, the last of
    them N; without them there are about twelve.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    counts = context_lengths(settings.n) if counts is None else counts
    check(settings, len(counts))
    result, notice = on_device(
        settings, lambda device: _fan(settings, table, progress, counts, device)
    )
    return replace(result, notices=(notice,)) if notice else result


def _fan(
    settings: Settings,
    table: Table | None,
    progress: Callable[[float], None],
    counts: Sequence[int],
    device: torch.device,
) -> Fan:
    whole = sample(settings, table)
    model = compiled(settings, table, device)

    # Every prefix of as many prompts as fit: they share the prompts' kernel matrices.
    size = max(1, int(CHUNK_BYTES / prompt_bytes(settings, len(counts))))
    pieces = torch.arange(settings.prompts).split(size)
    errors: dict[str, list[Tensor]] = {method: [] for method in settings.methods}
    power, residual = [], 0.0
    for number, piece in enumerate(pieces):

        def told(done: float, number: int = number) -> None:
            progress((number + done) / len(pieces))

        problem = whole.pick((piece,)).prefixes(list(counts))
        answer = reference(problem, settings.reference)
        power.append(answer[-1].square().flatten())
        residual = max(residual, float(problem.residual.max().nan_to_num(nan=torch.inf)))
        moved = problem.to(device, DTYPES[settings.dtype])
        for method, run in run_methods(settings, moved, model, told).items():
            errors[method].append(relative_error(run.cpu(), answer))
    return Fan(
        settings,
        whole.X.shape[-1],
        tuple(counts),
        {method: mean_error(torch.cat(parts, -1)).numpy() for method, parts in errors.items()},
        float(torch.cat(power).mean().sqrt()),
        residual,
        device.type,
    )


def curve(settings: Settings, method: str, table: Table | None = None) -> Curve:
    """One method's fit of the first prompt at every step, for problems with one input.

    Raises
    ------
    ValueError
        The inputs have more than one dimension.
    """
    settings = settings.but(prompts=1, methods=(method,))
    problem = _gridded(settings, table)

    def run(device: torch.device) -> Tensor:
        moved = problem.to(device, DTYPES[settings.dtype])
        return run_methods(settings, moved, compiled(settings, table, device))[method]

    taken, _ = on_device(settings, run)
    return _curve(problem, taken[:, 0].cpu(), settings, table)


def averaged(settings: Settings, table: Table | None = None) -> Curve:
    """What one softmax makes of the first prompt, as a curve of the one step 0.

    Σ_i softmax_i(−‖x_* − x_i‖²/2σ²) y_i, the Nadaraya–Watson estimator.

    Raises
    ------
    ValueError
        The inputs have more than one dimension.
    """
    problem = _gridded(settings.but(prompts=1), table)
    score = -torch.cdist(problem.x_query[0], problem.X[0]).square() / (2 * settings.bandwidth**2)
    return _curve(problem, (score.softmax(-1) @ problem.y[0])[None], settings, table)


def _gridded(settings: Settings, table: Table | None) -> Problem:
    """The one prompt of ``settings``, asked on a grid over its context."""
    if dimension(settings, table) != 1:
        raise ValueError(f"d={dimension(settings, table)}: a curve needs one input")
    prompt = sample(settings, table)
    grid = torch.linspace(float(prompt.X.min()), float(prompt.X.max()), GRID, dtype=torch.float64)
    return replace(prompt, x_query=grid[None, :, None], noiseless=None, labels=None)


def _curve(
    problem: Problem,
    predictions: Float[Tensor, "times grid"],
    settings: Settings,
    table: Table | None,
) -> Curve:
    """Answers on a grid in the data's own units."""
    raw = None if settings.data == "gp" else table_of(settings, table)

    def own_x(x: Tensor) -> np.ndarray:
        return x.numpy() if raw is None else raw.x_raw(x.numpy()[:, None])[:, 0]

    def own_y(y: Tensor) -> np.ndarray:
        return y.double().numpy() if raw is None else raw.y_raw(y.double().numpy())

    def label(name: str, unit: str) -> str:
        return f"{name} ({unit})" if unit else name

    return Curve(
        x=own_x(problem.x_query[0, :, 0]),
        predictions=own_y(predictions),
        exact=own_y(problem.exact[0]),
        data_x=own_x(problem.X[0, :, 0]),
        data_y=own_y(problem.y[0]),
        x_label="input x" if raw is None else label(raw.input_names[0], raw.x_units[0]),
        y_label="label y (standardised)" if raw is None else label(raw.target_name, raw.y_unit),
    )
