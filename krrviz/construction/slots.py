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
    "log_count": "log n on the sink, n the prompt's labelled tokens",
    "count": "n on the sink",
    "u": "P⁻¹1: one over the row sum, the sink's level added",
    "v": "nP⁻¹1",
    "b": "P⁻¹y, times n where the ridge is per sample",
    "z": "P⁻¹Kα, written by attention; of y − g in function space",
    "p": "u·α, or its like, written by the product",
    "change": "the last change of α",
    "ahead": "α + β(α − α₋), where the next residual is taken",
    "alpha": "the dual coefficients, times n where the ridge is per sample",
    "fitted": "the fitted values g: at the context, and at the queries too",
    "f": "the answer, at query tokens",
}
# The channels that only some constructions have.
OPTIONAL = ("log_count", "count", "u", "v", "b", "change", "ahead", "alpha", "fitted")


@dataclass(frozen=True)
class Slots:
    """Channel name -> index, for inputs of dimension ``d``.

    ``optional`` are the channels of ``OPTIONAL`` that there are.
    """

    d: int
    optional: tuple[str, ...] = ("u", "b", "alpha")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All channels in order; the inputs are x1 … xd."""
        left_out = {*OPTIONAL} - {*self.optional}
        rest = [name for name in list(MEANING)[1:] if name not in left_out]
        return (*(f"x{i + 1}" for i in range(self.d)), *rest)

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: str) -> bool:
        return name in self.index

    @property
    def state(self) -> str:
        """The channel that holds what the iteration iterates."""
        return "alpha" if "alpha" in self else "fitted"

    @property
    def inverse(self) -> str:
        """The channel that holds the preconditioner's inverse: u, or v = nu."""
        return "u" if "u" in self else "v"

    def row(self, **coefficients: float) -> Tensor:
        """(channels,) float64: the linear form Σ coefficient · channel."""
        row = torch.zeros(len(self), dtype=torch.float64)
        for name, value in coefficients.items():
            row[self.index[name]] = value
        return row
