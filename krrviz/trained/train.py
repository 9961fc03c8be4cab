"""Train: a GPT learns Gaussian process regression; killed at any moment, it goes on as if not."""

from __future__ import annotations

import csv
import io
import json
import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from krrviz.trained.gpt import (
    GPT,
    CheckpointError,
    Puts,
    Shape,
    checkpoint,
    replaced,
    shape_card,
)
from krrviz.trained.prompts import Prompts, Task, answers, draw

BETAS, DECAY, CLIP = (0.9, 0.95), 0.01, 1.0
CHECKED = 256  # prompts of the gap to KRR
WHOLE = {  # batch_of says why steps and seed are bounded so
    "steps": (1, 10**6), "batch": (1, 4096), "warm_up": (0, 10**6), "seed": (0, 2**11 - 1),
    "every": (1, 10**6),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a trained model's weights (on one kind of machine).

    rate : AdamW's, after a linear warm-up of ``warm_up`` steps, then a cosine down to 0
    average : decay of the weights' moving average, which is what is kept
    every : steps between checkpoints
    """

    shape: Shape = field(default_factory=Shape)
    task: Task = field(default_factory=Task)
    steps: int = 10_000
    batch: int = 64
    rate: float = 1e-3
    warm_up: int = 500
    average: float = 0.999
    seed: int = 0
    every: int = 250

    def __post_init__(self) -> None:
        for name, (least, most) in WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name}={value!r} must be a whole number from {least} to {most}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate={self.rate} must be a finite number above 0")
        if not 0 <= self.average < 1:
            raise ValueError(f"average={self.average} must be from 0 to below 1")
        if (self.shape.d, self.shape.n) != (self.task.d, self.task.n):
            raise ValueError("shape and task must have the same d and n")

    def card(self) -> dict[str, Any]:
        """The recipe as a card holds it."""
        return {**asdict(self), "shape": shape_card(self.shape)}

    @classmethod
    def from_card(cls, card: Any) -> Recipe:
        """The recipe that ``card()`` told, also after JSON.

        Raises
        ------
        ValueError
            A key is missing or unknown, or a value is of no use; the message names it and says
            what is allowed.
        """
        parts = _parts(cls, "the recipe", card)
        shape = Shape(**_parts(Shape, "its shape", parts["shape"]))
        task = Task(**_parts(Task, "its task", parts["task"]))
        return cls(**{**parts, "shape": shape, "task": task})

    def learning_rate(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.rate * 0.5 * (1 + math.cos(math.pi * done))


def _parts(kind: type, named: str, card: Any) -> dict[str, Any]:
    """What a card holds of a dataclass: all its fields and no more."""
    wanted = [part.name for part in fields(kind)]
    if not isinstance(card, dict):
        raise ValueError(f"{named} is {card!r:.40} and must be an object of {', '.join(wanted)}")
    for name in card:
        if name not in wanted:
            raise ValueError(f"{name!r} is no part of {named}, which has {', '.join(wanted)}")
    for name in wanted:
        if name not in card:
            raise ValueError(f"{named} lacks {name}; it has {', '.join(wanted)}")
    for part in fields(kind):
        fits, allowed = FITS.get(str(part.type), (None, ""))
        if fits and not fits(card[part.name]):
            raise ValueError(f"{part.name}={card[part.name]!r} must be {allowed}")
    return {name: tuple(x) if isinstance(x, list) else x for name, x in card.items()}


def _number(value: Any) -> bool:
    return type(value) in (int, float)


# What JSON may hold for a field's type. Ranges are the dataclasses' own to check.
FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: type(value) is int, "a whole number"),
    "float": (_number, "a number"),
    "str": (lambda value: isinstance(value, str), "a word"),
    "tuple[float, float]": (
        lambda value: (
            isinstance(value, list | tuple)
            and len(value) == 2
            and all(_number(edge) for edge in value)
        ),
        "two numbers, lowest and highest",
    ),
}


def read_recipe(path: Path) -> Recipe:
    """A recipe as a JSON file holds it: what ``Recipe.card()`` gives.

    Raises
    ------
    ValueError
        It is no JSON or no recipe; the message names the file and what is wrong.
    OSError
        It cannot be read.
    """
    try:
        return Recipe.from_card(json.loads(path.read_text("utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no recipe: {error}") from None


MAIN = Recipe(steps=12_000)
RECIPES: dict[str, Recipe] = {
    "main-0": MAIN,
    "linear-0": replace(MAIN, shape=Shape(attention="linear")),
    "laplacian-0": replace(MAIN, task=Task(kernel="laplacian")),
    "main-1": replace(MAIN, seed=1),
    "main-2": replace(MAIN, seed=2),
    "matern-0": replace(MAIN, task=Task(kernel="matern32")),
    "full-0": replace(MAIN, shape=Shape(layout="pairs")),
    "deep-0": replace(MAIN, shape=Shape(layers=12, width=48)),
}
"""How each shipped checkpoint is made; a card says how many of the steps were taken."""


def batch_of(recipe: Recipe, step: int) -> Prompts:
    """The prompts of a step: they depend on the seed and the step alone."""
    # PyTorch uses the low 32 bits of a seed. No two of these meet, nor any that is checked or
    # probed with: 10⁶, and from 2³¹ on.
    generator = torch.Generator().manual_seed(recipe.seed * 2**20 + step)
    return draw(recipe.task, recipe.batch, generator)


def answered(model: GPT, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """The model's answers and what they are to be: at every x token, or at the query alone."""
    weight = next(model.parameters())
    X, y = (value.to(weight) for value in (prompts.X, prompts.y))
    found = model(X[:, :-1], y[:, :-1], X[:, -1:])
    return found, y[:, -found.shape[1] :]


class Training:
    """A model being trained: weights, their average, the optimiser, and how far it has come."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device, self.step = recipe, device, 0
        self.model = GPT(recipe.shape).to(device)
        self.average = {name: w.detach().clone() for name, w in self.model.named_parameters()}
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.rate, betas=BETAS, weight_decay=DECAY
        )

    def advance(self) -> float:
        """One step; its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(self.step)
        prompts = batch_of(self.recipe, self.step)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            found, wanted = answered(self.model, prompts)
            loss = (found - wanted).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.average_weights()
        self.step += 1
        return float(loss.detach())

    @torch.no_grad()
    def average_weights(self) -> None:
        """Move the average towards the weights as they stand."""
        # The average forgets its random start early on.
        decay = min(self.recipe.average, (1 + self.step) / (10 + self.step))
        for name, weight in self.model.named_parameters():
            self.average[name].lerp_(weight, 1 - decay)

    def averaged(self) -> GPT:
        """A model with the averaged weights."""
        model = GPT(self.recipe.shape).to(self.device)
        model.load_state_dict(self.average)
        return model.eval()

    def state(self) -> dict[str, Tensor]:
        """All tensors that going on needs."""
        kept = {f"average.{name}": value for name, value in self.average.items()}
        for name, weight in self.model.named_parameters():
            kept[f"weight.{name}"] = weight.detach()
            moments = self.optimizer.state.get(weight, {})
            for key in ("exp_avg", "exp_avg_sq"):
                if key in moments:
                    kept[f"{key}.{name}"] = moments[key]
        return kept

    def restore(self, kept: Mapping[str, Tensor], step: int) -> None:
        """Go on from ``state()`` after ``step`` steps."""
        self.step = step
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(kept[f"weight.{name}"])
                self.average[name].copy_(kept[f"average.{name}"])
                if f"exp_avg.{name}" in kept:
                    self.optimizer.state[weight] = {
                        "step": torch.tensor(float(step)),
                        "exp_avg": kept[f"exp_avg.{name}"].to(weight),
                        "exp_avg_sq": kept[f"exp_avg_sq.{name}"].to(weight),
                    }


@torch.no_grad()
def gaps(model: GPT, task: Task, prompts: int = CHECKED, seed: int = 10**6) -> dict[str, float]:
    """How far a model is from exact KRR and from the noiseless function, relative, over all n ≥ 1.

    ``excess`` : its error to the noiseless function over KRR's own, minus 1, at n ≥ N/2
    """
    drawn = draw(task, prompts, torch.Generator().manual_seed(seed))
    found = answered(model, drawn)[0].cpu().double()
    points = found.shape[1]
    krr, f = answers(drawn)[:, -points:], drawn.noiseless[:, -points:]
    late = slice(-1 - task.n // 2, None)
    own, best = ((value - f)[:, late].square().mean().sqrt() for value in (found, krr))
    return {
        "gap_to_krr": float((found - krr).norm() / krr.norm()),
        "excess_error": float(own / best) - 1,
    }


def train(
    recipe: Recipe,
    path: Path,
    device: torch.device,
    told: Callable[[int, float, dict[str, float]], None] = lambda step, loss, found: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train, or go on training, into ``path``.safetensors and ``path``.json; the card.

    Every ``recipe.every`` steps the averaged weights are written there, what going on needs beside
    them as ``path``.state, and a line into ``path``.csv; ``told`` is called, and ``stop`` is asked.

    Raises
    ------
    CheckpointError
        ``path`` holds the training of another recipe.
    OSError
        Nothing can be written; the last checkpoint stays as it was.
    """
    training = Training(recipe, device)
    log, losses, started = _resume(training, path), [], time.perf_counter()
    card: dict[str, Any] = {}
    while training.step < recipe.steps:
        losses.append(training.advance())
        if training.step % recipe.every and training.step != recipe.steps:
            continue
        model = training.averaged()
        loss, found = sum(losses) / len(losses), gaps(model, recipe.task)
        log.append({"step": training.step, "loss": loss, **found})
        card = {
            "shape": shape_card(recipe.shape),
            "recipe": recipe.card(),
            "steps": training.step,
            "figures": {"loss": loss, **found},
            "seconds": round(time.perf_counter() - started, 1),
            "device": device.type,
            "versions": {"python": platform.python_version(), "torch": version("torch")},
        }
        # A full disk leaves all files as they were. The state comes last: what a kill leaves newer
        # than it is made again, and is the same.
        replaced(
            {**_log(path, log), **checkpoint(path, model.state_dict(), card)}
            | _state(path, training)
        )
        losses = []
        told(training.step, loss, found)
        if stop():
            break
    return card


def _log(path: Path, log: list[dict[str, float]]) -> Puts:
    text = io.StringIO()
    rows = csv.DictWriter(text, list(log[0]), lineterminator="\n")
    rows.writeheader()
    rows.writerows(log)
    return {path.with_name(path.name + ".csv"): lambda file: file.write_text(text.getvalue())}


def _state(path: Path, training: Training) -> Puts:
    # One file, so that a kill leaves the old state or the new one, and never half of each.
    told = {"recipe": json.dumps(training.recipe.card()), "step": str(training.step)}
    kept = {name: value.detach().cpu().contiguous() for name, value in training.state().items()}
    state = path.with_name(path.name + ".state.safetensors")
    return {state: lambda file: save_file(kept, file, metadata=told)}


def _resume(training: Training, path: Path) -> list[dict[str, float]]:
    """Bring ``training`` to where ``path`` stopped; the log up to there."""
    state = path.with_name(path.name + ".state.safetensors")
    if not state.exists():
        return []
    try:
        with safe_open(state, "pt") as file:
            told = file.metadata() or {}
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f"{state.name} cannot be read: {error}") from None
    if not {"recipe", "step"} <= {*told}:
        raise CheckpointError(f"{state.name} is no training's state")
    if json.loads(told["recipe"]) != json.loads(json.dumps(training.recipe.card())):
        raise CheckpointError(f"{path.name} holds the training of another recipe; name another")
    training.restore(kept, int(told["step"]))
    with open(path.with_name(path.name + ".csv"), encoding="utf-8", newline="") as file:
        rows = [
            {key: int(value) if key == "step" else float(value) for key, value in row.items()}
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if row["step"] <= training.step]
