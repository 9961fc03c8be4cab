"""Time training steps beside PyTorch's own encoder: python benchmarks/training.py.

The main recipe's decoder and an equally sized ``nn.TransformerEncoder`` take turns in one run, on
the same prompts, with the same read-in, positions, head, loss, clipping and optimiser. A step is
forward, backward and update; what ours does besides, drawing prompts and averaging weights, is
timed on its own. Processor time is told beside wall time: other work on the machine moves it less.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from krrviz.bench.record import machine
from krrviz.trained.gpt import GPT, Shape
from krrviz.trained.prompts import Prompts
from krrviz.trained.train import BETAS, CLIP, DECAY, RECIPES, Training, answered, batch_of

WARM_UP, PAIRS = 3, 15
GOAL = 1.0  # ours over theirs, median of the pairs' ratios of steps a second
RECIPE = RECIPES["main-0"]


class Encoder(GPT):
    """A GPT whose blocks are PyTorch's pre-norm encoder with a causal mask."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, 4 * shape.width, 0.0, nn.functional.gelu,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.blocks = nn.ModuleList()
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)

    def stream(
        self, X: Tensor, y: Tensor, x_query: Tensor, count: Tensor | None = None
    ) -> list[Tensor]:
        h = super().stream(X, y, x_query, count)[0]
        causal = nn.Transformer.generate_square_subsequent_mask(h.shape[1])
        return [self.encoder(h, causal, is_causal=True)]


def step(model: GPT, optimizer: torch.optim.Optimizer, prompts: Prompts) -> None:
    """Forward, backward and update, as in ``Training.advance``."""
    found, wanted = answered(model, prompts)
    loss = (found - wanted).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of all processors together."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def spread(ratios: list[float]) -> str:
    return f"median {statistics.median(ratios):.2f}  range {min(ratios):.2f}–{max(ratios):.2f}"


def main() -> None:
    torch.manual_seed(0)
    models = GPT(RECIPE.shape), Encoder(RECIPE.shape)
    sizes = [sum(w.numel() for w in model.parameters()) for model in models]
    assert sizes[0] == sizes[1], sizes
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=RECIPE.rate, betas=BETAS, weight_decay=DECAY)
        for m in models
    ]
    whole = Training(RECIPE, torch.device("cpu"))
    times: list[list[tuple[float, float]]] = [[], [], [], []]
    for number in range(WARM_UP + PAIRS):
        prompts = batch_of(RECIPE, number)
        works = [
            *(partial(step, m, o, prompts) for m, o in zip(models, optimizers, strict=True)),
            partial(batch_of, RECIPE, number),
            whole.average_weights,
        ]
        # Whoever is first may have it easier.
        order = (0, 1, 2, 3) if number % 2 else (1, 0, 2, 3)
        found = {k: seconds(works[k]) for k in order}
        if number >= WARM_UP:
            for k, taken in found.items():
                times[k].append(taken)
    ours, theirs, drawing, averaging = times
    wall, used = ([b[k] / a[k] for a, b in zip(ours, theirs, strict=True)] for k in (0, 1))
    shape = RECIPE.shape
    print(*machine().values(), "", sep="\n")
    print(
        f"main-0: {shape.layers} layers, width {shape.width}, {shape.heads} heads, "
        f"{sizes[0]:,} weights; batch {RECIPE.batch}, {2 * shape.n + 1} tokens, float32, "
        f"{PAIRS} pairs"
    )
    for name, taken in (("krrviz", ours), ("nn.TransformerEncoder", theirs)):
        print(f"{name:22} median {1 / statistics.median(t for t, _ in taken):.2f} steps/s")
    print(f"{'ratio, pair by pair':22} {spread(wall)}  (goal {GOAL})")
    print(f"{'ratio, processor time':22} {spread(used)}")
    print("besides, in a step of krrviz's training:")
    for name, taken in (("drawing the prompts", drawing), ("averaging the weights", averaging)):
        took = statistics.median(t for t, _ in taken)
        share = statistics.median(a[0] / b[0] for a, b in zip(taken, ours, strict=True))
        print(f"{name:22} median {1000 * took:.1f} ms, {share:.1%} of a step")


if __name__ == "__main__":
    main()
