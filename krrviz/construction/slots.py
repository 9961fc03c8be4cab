"""Slots: the residual stream's channels by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# What each channel holds, per token. z and p are scratch: every update leaves them 0.
MEANING = {
    "x": "input",
    "half_sq_norm": "half the squared length of x",
    "y": "label (0 off the context)",
    "one": "1",
    "mask": "1 on every token that is not labelled context",
    "sink": "1 on the sink",
    "u": "D⁻¹1: one over the row sum",
    "b": "D⁻¹y",
    "z": "D⁻¹Kα, written by attention",
    "p": "u·α, written by the product",
    "alpha": "the dual coefficients",
    "f": "the answer, at query tokens",
}


@dataclass(frozen=True)
class Slots:
    """Channel name -> index, for inputs of dimension ``d``."""

    d: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All channels in order; the inputs are x1 … xd."""
        return (*(f"x{i + 1}" for i in range(self.d)), *list(MEANING)[1:])

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def row(self, **coefficients: float) -> Tensor:
        """(channels,) float64: the linear form Σ coefficient · channel."""
        row = torch.zeros(len(self), dtype=torch.float64)
        for name, value in coefficients.items():
            row[self.index[name]] = value
        return row
