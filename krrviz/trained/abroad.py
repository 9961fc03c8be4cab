"""Abroad: a trained model on prompts it was not trained on, longer ones and the sidebar's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.fan import context_lengths, mean_error, reference, relative_error
from krrviz.machine import room
from krrviz.settings import Settings, SettingsError
from krrviz.solvers import solve
from krrviz.spectrum import true_interval
from krrviz.tables import Table
from krrviz.tasks import sample
from krrviz.trained.gpt import GPT
from krrviz.trained.match import pooled
from krrviz.trained.probe import SEED, fixed_task
from krrviz.trained.prompts import Task, answers, draw

PROMPTS, DEEPEST = 64, 128
FURTHER = 3  # times the longest prompt of training
LONGEST = 512  # labelled points that a trained model is given; its attention grows as their square


@dataclass(frozen=True, eq=False)
class Beyond:
    """Error to exact KRR by context length, up to ``FURTHER`` times that of training.

    curves : ``lens``, the last layer; ``preconditioned_richardson`` and ``gradient_descent`` with
        the step that is certified for training's N; ``tuned``, gradient descent with the least of
        the prompts' own best steps 2/(μ + L) at that N
    """

    lengths: tuple[int, ...]
    curves: dict[str, tuple[float, ...]]
    steps: int


def beyond(model: GPT, task: Task, steps: int) -> Beyond:
    """How a model and two solvers of one step size do on ever longer prompts.

    Solvers take ``steps``, but one at least and ``DEEPEST`` at most.
    """
    steps = min(DEEPEST, max(1, steps))
    longer = replace(task, n=FURTHER * task.n)
    drawn = draw(longer, PROMPTS, torch.Generator().manual_seed(SEED + 2**29))
    lengths = sorted({max(1, round(longer.n * share / 24)) for share in range(1, 25)})
    exact = answers(drawn)
    at = drawn.problem(task.n)
    step = float(true_interval("plain", at).best_step.min())
    curves: dict[str, list[float]] = {}
    for n in lengths:
        problem = drawn.problem(n)
        found = {
            "lens": _last(model, drawn.X[:, :n], drawn.y[:, :n], drawn.X[:, n : n + 1])[..., 0],
            "tuned": solve(problem, "gradient_descent", steps, "manual", step).predictions[
                -1, :, 0
            ],
        }
        for method in ("preconditioned_richardson", "gradient_descent"):
            found[method] = solve(problem, method, steps, n_max=task.n).predictions[-1, :, 0]
        for name, f in found.items():
            error = pooled(f[:, None], exact[:, n : n + 1])
            curves.setdefault(name, []).append(float(error.nan_to_num(nan=torch.inf)))
    return Beyond(tuple(lengths), {name: tuple(curve) for name, curve in curves.items()}, steps)


@torch.no_grad()
def _last(model: GPT, X: Tensor, y: Tensor, x_query: Tensor) -> Float[Tensor, "batch Q"]:
    like = next(model.parameters())
    answer = model(*(value.to(like) for value in (X, y, x_query)))
    return answer[:, -x_query.shape[1] :].cpu().double()


@dataclass(frozen=True, eq=False)
class Live:
    """A trained model on the sidebar's prompts: mean relative error by layer and context length.

    ``outside`` says where the prompts are unlike those it was trained on, a sentence each.
    """

    counts: tuple[int, ...]
    errors: Float[Tensor, "layers prefixes"]
    outside: tuple[str, ...]


@torch.no_grad()
def live(model: GPT, card: dict[str, Any], settings: Settings, table: Table | None = None) -> Live:
    """Every layer's answer, by the model's own head, to the prompts that ``settings`` describe.

    Inputs are scaled by the trained σ over the sidebar's, so that the kernel is the one that the
    model learned, and inputs that it lacks are 0.

    Raises
    ------
    SettingsError
        More inputs, or more points, than the model can read or the memory has room for.
    ProbeError
        The card names no task.
    """
    task, shape = fixed_task(card), model.shape
    if settings.n > LONGEST:
        raise SettingsError(f"n={settings.n}: a trained model is given up to {LONGEST} points", "n")
    causal = shape.layout == "interleaved"
    tokens = (1 + causal) * settings.n + settings.queries
    # Attention's scores and weights, and the stream at every layer, in float32.
    each = 2 * shape.heads * tokens**2 + (shape.layers + 1) * tokens * shape.width
    named = f"n={settings.n}, prompts={settings.prompts} for this model"
    room(4 * settings.prompts * each, named, "n", "prompts")
    problem = sample(settings, table)
    d = problem.X.shape[-1]
    if d > shape.d:
        raise SettingsError(
            f"data={settings.data} has {d} inputs and this model reads {shape.d}", "data", "d"
        )
    counts = context_lengths(settings.n)
    full = problem.prefixes(counts)
    answer = reference(full, settings.reference)
    like = next(model.parameters())
    scale = task.bandwidth[0] / settings.bandwidth

    def inputs(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(scale * x, (0, shape.d - d)).to(like)

    errors = []
    for i, n in enumerate(counts):
        kept = model.stream(
            inputs(problem.X[:, :n]), problem.y[:, :n].to(like), inputs(problem.x_query)
        )
        found = torch.stack([model.answer(h[:, -settings.queries :]) for h in kept])
        errors.append(mean_error(relative_error(found.cpu().double(), answer[i])))
    return Live(
        tuple(counts), torch.stack(errors, -1), tuple(_outside(task, card, settings, problem.X))
    )


def _outside(
    task: Task, card: dict[str, Any], settings: Settings, X: Float[Tensor, "prompts N d"]
) -> Sequence[str]:
    trained = card["recipe"]["task"]
    said = []
    if task.kernel != "gaussian":
        said.append(f"It was trained on the {task.kernel} kernel; exact KRR here is Gaussian.")
    if X.shape[-1] < task.d:
        said.append(f"It reads {task.d} inputs: the prompt's {X.shape[-1]}, and 0.")
    scale = task.bandwidth[0] / settings.bandwidth
    if scale != 1:
        said.append(
            f"σ = {settings.bandwidth:g}: inputs are scaled by {scale:.3g}, so that the kernel is "
            f"that of its σ = {task.bandwidth[0]:g}."
        )
    share = float(((scale * X).abs() > 1).any(-1).double().mean())
    if share > 0:
        said.append(f"{share:.0%} of the points lie outside [−1, 1] then, where it never was.")
    low, high = trained["ridge"]
    if settings.ridge_scale == "per_sample" or not low <= settings.ridge <= high:
        ridge = "nλ" if settings.ridge_scale == "per_sample" else "λ"
        told = f"λ = {low:g}" if low == high else f"λ from {low:g} to {high:g}"
        said.append(f"Ridge {ridge}, λ = {settings.ridge:g}: it was trained on {told}, absolute.")
    if card["shape"]["layout"] == "pairs":
        said.append(f"It was trained at n = {task.n} alone: shorter prompts are new to it.")
    if settings.n > task.n:
        said.append(f"N = {settings.n}: it was trained on up to {task.n} points.")
    if settings.data != "gp":
        said.append("It was trained on Gaussian process draws, not on these data.")
    elif settings.inputs != "uniform":
        said.append(f"Inputs are {settings.inputs}; it was trained on uniform ones.")
    return said
