"""Inside: a trained model's heads beside D⁻¹K, and what moving a token's α does to the answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.trained.gpt import GPT, Block
from krrviz.trained.probe import SEED, enough, fitted, normed, stream, targets
from krrviz.trained.prompts import KERNELS, Prompts, Task, draw


@dataclass(frozen=True, eq=False)
class Heads:
    """What each head gives to each labelled point, beside the row-normalised kernel.

    attention : rows are points, columns the labelled points that a row may look at (all of them in
        the layout of pairs, the earlier ones otherwise); a point's x and y token are added up, and
        rows divided by the sum of their sizes, since linear attention's weights have signs
    kernel : D⁻¹K at the same places
    share : of the sizes of a row's weights that go to labelled points; alike : correlation of a
        row with D⁻¹K's, mean over rows of three points or more and over prompts
    """

    attention: Float[Tensor, "layers heads batch N N"]
    kernel: Float[Tensor, "batch N N"]
    share: Float[Tensor, "layers heads"]
    alike: Float[Tensor, "layers heads"]


HEADED = 16  # prompts that heads are looked at on


def headed(model: GPT, task: Task) -> Heads:
    """A model's heads on prompts that nothing else sees."""
    return heads(model, draw(task, HEADED, torch.Generator().manual_seed(SEED + 2**27)))


@torch.no_grad()
def heads(model: GPT, prompts: Prompts) -> Heads:
    """Every head's attention on ``prompts``; rows that may look at nothing are 0."""
    like = next(model.parameters())
    X, y = (value.to(like) for value in (prompts.X, prompts.y))
    n = X.shape[1] - 1
    kept = model.stream(X[:, :-1], y[:, :-1], X[:, -1:])
    seen = model.seen(n, 1)
    weights = torch.stack(
        [
            block.attention.pattern(block.norm_1(h), seen)
            for block, h in zip(blocks(model), kept[:-1], strict=True)
        ]
    ).transpose(1, 2)
    allowed = torch.ones(n, n, device=like.device)
    if model.shape.layout == "interleaved":
        whole = weights[..., : 2 * n : 2, :]
        rows = whole[..., : 2 * n].unflatten(-1, (n, 2)).sum(-1)
        allowed = allowed.tril(-1)
    else:
        whole = weights[..., :n, :]
        rows = whole[..., :n]
    rows = (rows * allowed).cpu().double()
    allowed = allowed.cpu().double()

    K = KERNELS[prompts.task.kernel](prompts.X, prompts.X, prompts.bandwidth)[:, :-1, :-1]
    kernel = _shares(K * allowed)
    size = rows.abs().sum(-1) / whole.abs().sum(-1).cpu().double().clamp_min(1e-300)
    count = allowed.sum(-1)
    a, b = (value - value.sum(-1, keepdim=True) / count[:, None].clamp_min(1) * allowed
            for value in (rows, K * allowed))  # fmt: skip
    cosine = torch.nn.functional.cosine_similarity(a * allowed, (b * allowed)[None, None], dim=-1)
    return Heads(
        attention=_shares(rows),
        kernel=kernel,
        share=size[..., count > 0].mean((-1, -2)),
        alike=cosine[..., count >= 3].mean((-1, -2)),
    )


def blocks(model: GPT) -> list[Block]:
    """The model's blocks, by their type."""
    return [block for block in model.blocks if isinstance(block, Block)]


def _shares(rows: Tensor) -> Tensor:
    size = rows.abs().sum(-1, keepdim=True)
    return torch.where(size == 0, 0, rows / torch.where(size == 0, 1, size))


@dataclass(frozen=True)
class Patched:
    """What moving one token's α by one standard deviation at a layer does to later answers.

    direction : ``probe``, the least change that moves the α probe's reading so far; ``pattern``,
    how the stream goes with that reading over prompts; ``random``, as long as the pattern
    slope, correlation : of the change of the answers on Δα·k(x_*, x_j). Were α held there and read
    as k_*ᵀα, both would be 1.
    """

    layer: int
    direction: str
    slope: float
    correlation: float


def patch(model: GPT, task: Task, prompts: int, seed: int = 0) -> list[Patched]:
    """Activation patching along the α probe's direction, at the label token of point N/2.

    Raises
    ------
    ProbeError, SettingsError
        As :func:`krrviz.trained.probe.probe`.
    """
    enough(model.shape, task, prompts)
    generator = torch.Generator().manual_seed(SEED + 2**28 + seed)
    asked, fit = draw(task, prompts, generator), draw(task, prompts, generator)
    wanted = targets(fit, model.shape.layout)["alpha"]
    with torch.no_grad():
        held = stream(model, fit)[1]
        probes = fitted(normed(model, held), wanted[..., None])[..., 0]
    like = next(model.parameters())
    X, y = (value.to(like) for value in (asked.X, asked.y))
    n, j = task.n, task.n // 2
    causal = model.shape.layout == "interleaved"
    token = 2 * j + 1 if causal else j
    later = slice(j + 1, None) if causal else slice(n, None)
    K = KERNELS[task.kernel](asked.X, asked.X, asked.bandwidth)[:, j, later]
    size = float(wanted[:, j].std())
    with torch.no_grad():
        kept = model.stream(X[:, :-1], y[:, :-1], X[:, -1:])
    seen, found = model.seen(n, 1), []
    for layer in range(1, model.shape.layers):
        h = kept[layer][:, token].detach().requires_grad_()
        (slope,) = torch.autograd.grad((normed(model, h) @ probes[layer]).sum(), h)
        with torch.no_grad():
            reading = normed(model, held[layer, :, j]) @ probes[layer]
        off = (reading - reading.mean()).to(like)
        pattern = size * (off @ held[layer, :, j]) / off.square().sum()
        noise = torch.randn(slope.shape, generator=generator).to(like)
        for direction, change in {
            "probe": size * slope / slope.square().sum(-1, keepdim=True),
            "pattern": pattern,
            "random": noise / noise.norm(dim=-1, keepdim=True) * pattern.norm(),
        }.items():
            with torch.no_grad():
                moved = kept[layer].clone()
                moved[:, token] += change
                for block in blocks(model)[layer:]:
                    moved = block(moved, seen)
                gap = model.at_inputs(model.answer(moved) - model.answer(kept[-1]), n)
            change = gap[:, later if causal else slice(None)].cpu().double()
            found.append(Patched(layer, direction, *_regressed(change, size * K)))
    return found


def _regressed(change: Tensor, expected: Tensor) -> tuple[float, float]:
    """Slope through the origin, and correlation."""
    slope = (change * expected).sum() / expected.square().sum()
    stacked = torch.stack([change.flatten(), expected.flatten()])
    return float(slope), float(torch.corrcoef(stacked)[0, 1])
