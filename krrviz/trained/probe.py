"""Probe: what each layer of a trained model answers, and which solver's steps that is like."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.trained.gpt import GPT
from krrviz.trained.prompts import Prompts


@torch.no_grad()
def lens(model: GPT, prompts: Prompts) -> Float[Tensor, "layers batch points"]:
    """What the model's own head reads off the stream before the first block and after each.

    At every x token, n = 0 … N points before it; in the layout of pairs only at the last, n = N.
    """
    weight = next(model.parameters())
    X, y = (value.to(weight) for value in (prompts.X, prompts.y))
    stream = model.stream(X[:, :-1], y[:, :-1], X[:, -1:])
    n = X.shape[1] - 1
    return torch.stack([model.answer(model.at_inputs(h, n)) for h in stream]).cpu().double()
