"""Probe: what each layer of a trained model answers, holds and does, and the controls of that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.machine import room
from krrviz.trained.gpt import GPT, Shape
from krrviz.trained.prompts import KERNELS, Prompts, Task, answers, coefficients, draw, labelled

Answers = Float[Tensor, "layers batch N"]

PENALTY = 1e-4  # of a ridge probe, relative to its features' mean square
LEAST = 4  # samples a probe needs for each of its coefficients
OPERATOR_AT = (2, 4, 8, 16, 31)  # context lengths whose ∂f/∂y and additivity are looked at
SEED = 2**31  # the first of probing's; training's are below, and PyTorch uses no more than 32 bits
FEW = 32  # prompts of what costs a derivative each

READOUTS = {
    "lens": "the model's own head",
    "labels": "a probe fitted to the labels",
    "krr": "a probe fitted to exact KRR",
}
TARGETS = {
    "labels": "the next label y",
    "krr": "the exact KRR answer",
    "alpha": "its own coefficient αₙ",
    "degree": "its inverse row sum 1/Dₙ",
}


class ProbeError(ValueError):
    """A model that cannot be probed so; the message names what is wanting."""


def fixed_task(card: dict[str, Any]) -> Task:
    """The task that a card's model is probed on: σ and λ at the middle of what it was trained on.

    Raises
    ------
    ProbeError
        The card names no task, or one that its model cannot read.
    """
    try:
        # JSON has lists for tuples.
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in card["recipe"]["task"].items()
        }
        task, shape = Task(**given), card["shape"]
        asked, read = (task.d, task.n), (shape["d"], shape["n"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProbeError(f"the card names no task that can be drawn: {error}") from None
    if asked != read:
        raise ProbeError(f"the card's task has d and n {asked} but its model reads {read}")
    middle = {name: (math.sqrt(math.prod(getattr(task, name))),) * 2
              for name in ("bandwidth", "ridge")}  # fmt: skip
    return replace(task, **middle)


# ---------------------------------------------------------------------------------------------
# What stands in the stream


def stream(model: GPT, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """The stream before the first block and after each, where the model answers and where it reads.

    Returns (layers, batch, N+1, width) at the tokens that answer from n = 0 … N points, and
    (layers, batch, N, width) at the tokens of the labels.
    """
    weight = next(model.parameters())
    X, y = (value.to(weight) for value in (prompts.X[:, :-1], prompts.y[:, :-1]))
    query, n = prompts.X.to(weight), X.shape[1]
    if model.shape.layout == "interleaved":
        kept = model.stream(X, y, query[:, -1:])
        answering = torch.stack([model.at_inputs(h, n) for h in kept])
        return answering, torch.stack([h[:, 1 : 2 * n : 2] for h in kept])
    # Pairs see one another both ways: each context length is a pass of its own.
    answering, kept = [], []
    for m in range(n + 1):
        count = torch.full((len(X),), m, device=X.device)
        kept = model.stream(X, y, query[:, m : m + 1], count)
        answering.append(torch.stack([h[:, -1] for h in kept]))
    return torch.stack(answering, -2), torch.stack([h[:, :n] for h in kept])


@torch.no_grad()
def lens(model: GPT, prompts: Prompts) -> Float[Tensor, "layers batch points"]:
    """What the model's own head reads off the stream before the first block and after each.

    At n = 0 … N points.
    """
    return model.answer(stream(model, prompts)[0]).cpu().double()


# ---------------------------------------------------------------------------------------------
# Linear probes


def targets(prompts: Prompts, layout: str) -> dict[str, Float[Tensor, "batch N"]]:
    """What the probes are fitted to; the first two stand where the model answers, n ≥ 1."""
    K = KERNELS[prompts.task.kernel](prompts.X, prompts.X, prompts.bandwidth)[:, :-1, :-1]
    if layout == "interleaved":  # a token knows of the points up to its own
        alpha, degree = coefficients(prompts)[:, :-1], K.tril().sum(-1)
    else:
        A = K + torch.diag_embed(prompts.ridge[:, None].expand(K.shape[:-1]))
        alpha, degree = torch.linalg.solve(A, prompts.y[:, :-1]), K.sum(-1)
    return {
        "labels": prompts.y[:, 1:],
        "krr": answers(prompts)[:, 1:],
        "alpha": alpha,
        "degree": 1 / degree,
    }


def fitted(
    features: Float[Tensor, "layers batch N channels"], wanted: Float[Tensor, "batch N targets"]
) -> Float[Tensor, "layers channels targets"]:
    """Ridge regression of several targets on each layer's features."""
    H = features.flatten(1, 2)
    gram = H.mT @ H
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    gram.diagonal(dim1=-2, dim2=-1).add_(PENALTY * size[:, None])
    return torch.linalg.solve(gram, H.mT @ wanted.flatten(0, 1))


def read(
    features: Float[Tensor, "layers batch N channels"], probe: Float[Tensor, "layers channels"]
) -> Answers:
    """What probes read off features."""
    return (features @ probe[:, None, :, None])[..., 0]


def explained(found: Answers, target: Float[Tensor, "batch N"]) -> Float[Tensor, " layers"]:
    """R² of each layer; below 0 it is worse than the mean."""
    spread = (target - target.mean()).square().mean()
    return 1 - (found - target).square().mean((1, 2)) / spread


# ---------------------------------------------------------------------------------------------
# All of it


@dataclass(frozen=True, eq=False)
class Probed:
    """What a model's layers answer, hold and do.

    prompts : those it was asked; answers : by readout, controls among them, at n = 1 … N
    krr, noiseless, labels : (batch, N), what they are measured against
    explained : R² on these prompts of the probes for each of ``TARGETS``; and of the same on a
        network that was never trained
    defect : additivity defect of each layer's lens, on the prompts of ``split``
    operators : by readout (layers, few, Σn), ∂f/∂y at ``operator_at``, of the first few prompts
    """

    prompts: Prompts
    answers: dict[str, Answers]
    krr: Float[Tensor, "batch N"]
    noiseless: Float[Tensor, "batch N"]
    labels: Float[Tensor, "batch N"]
    explained: dict[str, Float[Tensor, " layers"]]
    untrained: dict[str, Float[Tensor, " layers"]]
    defect: Float[Tensor, " layers"]
    split: tuple[Prompts, Prompts, Prompts]
    operators: dict[str, Float[Tensor, "layers few entries"]]

    @property
    def few(self) -> Prompts:
        """The prompts of ``operators``."""
        return _few(self.prompts)


def probe(model: GPT, task: Task, prompts: int, seed: int = 0) -> Probed:
    """Ask ``model`` as many prompts, with probes fitted to as many others.

    Two controls stand among the answers: ``untrained …``, the same probes on a network of the
    same shape with random weights; ``shuffled …``, probes fitted to the targets of other prompts.

    Raises
    ------
    ProbeError
        Prompts of fewer than 2 points, or too few prompts for the probes; the message says how
        many are needed.
    SettingsError
        More prompts than the memory has room for.
    """
    enough(model.shape, task, prompts)
    generator = torch.Generator().manual_seed(SEED + seed)
    asked, fit = draw(task, prompts, generator), draw(task, prompts, generator)
    layout = model.shape.layout
    wanted, goal = targets(fit, layout), targets(asked, layout)
    other = untrained(model.shape).to(next(model.parameters()).device)

    probes = {"lens": _head(model)}
    found, r2 = {}, []
    for name, net in (("", model), ("untrained ", other)):
        ours, theirs = _features(net, asked), _features(net, fit)
        r2.append({})
        for place, names in (("answers", ("labels", "krr")), ("labels", ("alpha", "degree"))):
            value = torch.stack([wanted[target] for target in names], -1)
            fits = fitted(theirs[place], value).unbind(-1)
            for target, weights in zip(names, fits, strict=True):
                answer = read(ours[place], weights)
                r2[-1][target] = explained(answer, goal[target])
                if place == "answers":
                    found[name + target], probes[name + target] = answer, weights
        if not name:
            found["lens"] = read(ours["answers"], probes["lens"])
            strange = fitted(theirs["answers"], wanted["krr"].roll(1, 0)[..., None])
            found["shuffled krr"] = read(ours["answers"], strange[..., 0])
    parts = split(asked, generator)
    readers = {name: probes[name] for name in READOUTS}
    return Probed(
        prompts=asked,
        answers=found,
        krr=goal["krr"],
        noiseless=asked.noiseless[:, 1:],
        labels=asked.y[:, 1:],
        explained=r2[0],
        untrained=r2[1],
        defect=additivity(*(lens(model, part)[..., operator_at(task.n)] for part in parts)),
        split=parts,
        operators=operators(model, asked, readers),
    )


def enough(shape: Shape, task: Task, prompts: int) -> None:
    """Raises ProbeError and SettingsError as :func:`probe`."""
    if task.n < 2:
        raise ProbeError(f"prompts of n={task.n} hold too few points: 2 are needed")
    least = math.ceil(LEAST * (shape.width + 1) / task.n)
    if prompts < least:
        raise ProbeError(
            f"prompts={prompts} of {task.n} points are too few: probes of width {shape.width} need "
            f"at least {least}"
        )
    # At its most: the features of two sets of prompts, copied as fits go; or, when layers are
    # matched, the systems of every length in both eigenbases.
    features = (shape.layers + 1) * (task.n + 1) * (shape.width + 1)
    room(8 * prompts * max(10 * features, 2 * task.n**3), f"prompts={prompts} for this model")


def untrained(shape: Shape, seed: int = 0) -> GPT:
    """A network that has learnt nothing: its weights are N(0, 1/fan-in).

    Training's own start is so near 0 that every block does next to nothing.
    """
    # A generator of its own: PyTorch's is one for all threads, and pages are drawn by many.
    model, generator = GPT(shape), torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)
    return model.eval()


@torch.no_grad()
def _features(model: GPT, prompts: Prompts) -> dict[str, Tensor]:
    """(layers, batch, N, width + 1): where the model answers, n ≥ 1, and where it reads labels."""
    answering, reading = stream(model, prompts)
    return {
        "answers": normed(model, answering[..., 1:, :]),
        "labels": normed(model, reading),
    }


def normed(model: GPT, h: Tensor) -> Tensor:
    """The stream after the final norm, at every layer alike, and a constant."""
    read_off = model.norm(h).cpu().double()
    return torch.cat([read_off, torch.ones_like(read_off[..., :1])], -1)


@torch.no_grad()
def _head(model: GPT) -> Float[Tensor, "layers channels"]:
    """The model's own head as a probe of every layer."""
    own = torch.cat([model.head.weight[0], model.head.bias]).cpu().double()
    return own.expand(model.shape.layers + 1, -1)


# ---------------------------------------------------------------------------------------------
# Additivity, and the operator ∂f/∂y


def split(prompts: Prompts, generator: torch.Generator) -> tuple[Prompts, Prompts, Prompts]:
    """The first few prompts with labels y₁ + y₂, y₁ and y₂: two draws, each of variance ½."""
    few = _few(prompts)
    one, two = (labelled(few.task, few.X, few.bandwidth, few.ridge, generator) for _ in range(2))

    def of(y: Tensor, f: Tensor) -> Prompts:
        return replace(one, y=y / math.sqrt(2), noiseless=f / math.sqrt(2))

    both = of(one.y + two.y, one.noiseless + two.noiseless)
    return both, of(one.y, one.noiseless), of(two.y, two.noiseless)


def additivity(whole: Answers, one: Answers, two: Answers) -> Float[Tensor, " layers"]:
    """‖F(y₁+y₂) − F(y₁) − F(y₂)‖/‖F(y₁+y₂)‖ over lengths, mean over prompts; 0 where F is 0."""
    size = whole.norm(dim=-1)
    return ((whole - one - two).norm(dim=-1) / size.clamp_min(1e-12)).mean(-1)


def operator_at(n: int) -> list[int]:
    """The context lengths whose ∂f/∂y is taken in prompts of ``n`` points."""
    return [m for m in OPERATOR_AT if m <= n]


def operators(
    model: GPT, prompts: Prompts, readers: Mapping[str, Float[Tensor, "layers channels"]]
) -> dict[str, Float[Tensor, "layers few entries"]]:
    """∂f_ℓ/∂y₁…ₙ at each context length, one after the other, of the first few prompts."""
    few = _few(prompts)
    like = next(model.parameters())
    X, layers = few.X.to(like), range(model.shape.layers + 1)
    slopes: dict[str, list[list[Tensor]]] = {name: [[] for _ in layers] for name in readers}
    for n in operator_at(prompts.task.n):
        y = few.y[:, :n].to(like).requires_grad_()
        # Nothing after the query matters to it: the rest of the prompt is left out.
        kept = model.stream(X[:, :n], y, X[:, n : n + 1])
        for layer, h in enumerate(kept):
            features = normed(model, h[:, -1])
            for name, probe in readers.items():
                answer = (features @ probe[layer]).sum()
                (slope,) = torch.autograd.grad(answer, y, retain_graph=True)
                slopes[name][layer].append(slope.cpu().double())
    return {
        name: torch.stack([torch.cat(lengths, -1) for lengths in by_layer])
        for name, by_layer in slopes.items()
    }


def _few(prompts: Prompts) -> Prompts:
    names = ("X", "y", "noiseless", "bandwidth", "ridge")
    return replace(prompts, **{name: getattr(prompts, name)[:FEW] for name in names})
