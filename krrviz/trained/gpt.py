"""GPT: a GPT-2-style decoder that reads labelled points and predicts labels, and its files.

Pre-norm blocks, learned positions, GELU MLPs (Garg et al., arXiv 2208.01066). Two ways to write a
prompt as tokens:

``interleaved``  x₁ y₁ x₂ y₂ … : every x token answers from what stands before it, so one pass
                 gives the answer at every context length.
``pairs``        (x₁, y₁) … (x_n, y_n), then queries (x, 0) that see the pairs and themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load as read_weights
from safetensors.torch import save_file
from torch import Tensor, nn

ATTENTIONS = ("softmax", "linear", "kernel", "relu")
LAYOUTS = ("interleaved", "pairs")
# What a model may have: a card may come from anyone, and its model is built before weights are read
MOST = {"d": 64, "n": 512, "layers": 128, "width": 1024, "heads": 64}
PARAMETERS = 12_000_000  # in all: 48 MB


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Shape:
    """What determines a model's tensors; none has more than ``MOST`` and ``PARAMETERS``.

    d, n : input dimension, and the most labelled points of a prompt
    layout : see the module; pairs see each other both ways, interleaved tokens only backwards
    attention : softmax; or, divided by the number of keys: linear q·k, kernel exp(q·k/√w), relu
    """

    d: int = 2
    n: int = 32
    layers: int = 8
    width: int = 64
    heads: int = 4
    layout: str = "interleaved"
    attention: str = "softmax"

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name}={value!r} must be a whole number from 1 to {most}")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        for name, allowed in (("layout", LAYOUTS), ("attention", ATTENTIONS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {allowed}")
        if self.parameters > PARAMETERS:
            raise ValueError(f"{self.parameters:,} parameters; at most {PARAMETERS:,} are allowed")

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        w = self.width
        places = 2 * self.n + 1 if self.layout == "interleaved" else 0
        # A block: qkv, out and the MLP's two matrices, their biases, two norms. Around them: read,
        # positions, the last norm, the head.
        return self.layers * (12 * w + 13) * w + (self.d + 3 + places + 3) * w + 1


class Attention(nn.Module):
    """Several heads; ``seen`` says which key each query may look at."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kind = shape.heads, shape.attention
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def split(self, h: Float[Tensor, "*batch tokens width"]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v, each (..., heads, tokens, width / heads)."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.qkv(h).chunk(3, -1))
        return q.transpose(-2, -3), k.transpose(-2, -3), v.transpose(-2, -3)

    def pattern(
        self, h: Float[Tensor, "*batch tokens width"], seen: Tensor
    ) -> Float[Tensor, "*batch heads tokens tokens"]:
        """The weights of values; for softmax their rows sum to 1."""
        q, k, _ = self.split(h)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.kind == "softmax":
            return scores.masked_fill(~seen, -torch.inf).softmax(-1)
        weights = {"linear": scores, "kernel": scores.exp(), "relu": scores.relu()}[self.kind]
        return weights * seen / seen.sum(-1, keepdim=True)

    def forward(self, h: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.split(h)
        if self.kind == "softmax":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            mixed = self.pattern(h, seen) @ v
        return self.out(mixed.transpose(-2, -3).flatten(-2))


class Block(nn.Module):
    """h + attention(norm h), then h + MLP(norm h)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        w = shape.width
        self.norm_1, self.norm_2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.attention = Attention(shape)
        self.mlp = nn.Sequential(nn.Linear(w, 4 * w), nn.GELU(), nn.Linear(4 * w, w))

    def forward(self, h: Tensor, seen: Tensor) -> Tensor:
        h = h + self.attention(self.norm_1(h), seen)
        return h + self.mlp(self.norm_2(h))


class GPT(nn.Module):
    """The decoder. Weights start as GPT-2's: N(0, 0.02²), less on what is added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.read = nn.Linear(shape.d + 2, shape.width)  # x, y, and whether y is there
        # Pairs have no order that matters.
        self.position = (
            nn.Embedding(2 * shape.n + 1, shape.width) if shape.layout == "interleaved" else None
        )
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, 1)
        for name, weight in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            else:
                added = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=0.02 / ((2 * shape.layers) ** 0.5 if added else 1))

    def tokens(
        self,
        X: Float[Tensor, "batch n d"],
        y: Float[Tensor, "batch n"],
        x_query: Float[Tensor, "batch q d"],
    ) -> Float[Tensor, "batch tokens channels"]:
        """A prompt as tokens of (x, y, whether y is there)."""
        one, none = torch.ones_like(y)[..., None], torch.zeros_like(y)[..., None]
        queries = torch.cat([x_query, x_query.new_zeros(*x_query.shape[:-1], 2)], -1)
        if self.shape.layout == "pairs":
            return torch.cat([torch.cat([X, y[..., None], one], -1), queries], -2)
        inputs = torch.cat([X, none, none], -1)
        labels = torch.cat([torch.zeros_like(X), y[..., None], one], -1)
        return torch.cat([torch.stack([inputs, labels], -2).flatten(-3, -2), queries], -2)

    def seen(self, n: int, queries: int, count: Int[Tensor, " batch"] | None = None) -> Tensor:
        """Which key each token sees: (tokens, tokens), or (batch, 1, tokens, tokens)."""
        context = 2 * n if self.shape.layout == "interleaved" else n
        size = context + queries
        at = torch.arange(size, device=self.head.weight.device)
        itself = at[:, None] == at
        if self.shape.layout == "interleaved":
            return (at < context) & (at <= at[:, None]) | itself
        if count is None:
            return (at < context) | itself
        return (at < count[:, None])[:, None, None, :] | itself

    def stream(
        self,
        X: Float[Tensor, "batch n d"],
        y: Float[Tensor, "batch n"],
        x_query: Float[Tensor, "batch q d"],
        count: Int[Tensor, " batch"] | None = None,
    ) -> list[Float[Tensor, "batch tokens width"]]:
        """The residual stream before the first block and after each."""
        n, queries = X.shape[1], x_query.shape[1]
        h = self.read(self.tokens(X, y, x_query))
        if self.position is not None:
            # Every query stands where the next point would; what is beyond the longest prompt of
            # training has its last place.
            last = 2 * min(n, self.shape.n)
            place = torch.arange(2 * n + queries, device=h.device).clamp_max(last)
            h = h + self.position(place)
        seen = self.seen(n, queries, count)
        kept = [h]
        for block in self.blocks:
            kept.append(block(kept[-1], seen))
        return kept

    def answer(self, h: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch"]:
        """What the head reads off the stream."""
        return self.head(self.norm(h))[..., 0]

    def forward(
        self,
        X: Float[Tensor, "batch n d"],
        y: Float[Tensor, "batch n"],
        x_query: Float[Tensor, "batch q d"],
        count: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch answers"]:
        """Answers at the queries; interleaved, those at x₁ … x_n before them."""
        return self.answer(self.at_inputs(self.stream(X, y, x_query, count)[-1], X.shape[1]))

    def at_inputs(self, h: Tensor, n: int) -> Tensor:
        """The tokens that answer: x tokens and queries."""
        if self.shape.layout == "pairs":
            return h[:, n:]
        return torch.cat([h[:, : 2 * n : 2], h[:, 2 * n :]], 1)


# ---------------------------------------------------------------------------------------------
# Checkpoints: weights as safetensors, a card as JSON beside them. Nothing is unpickled.


def digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of all weights, by name."""
    told = hashlib.sha256()
    for name in sorted(weights):
        told.update(name.encode())
        told.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return told.hexdigest()


Puts = dict[Path, Callable[[Path], object]]  # files by what writes each


def replaced(puts: Puts) -> None:
    """Write files, each the old one or the new one and no other; all are the old ones if one fails.

    Raises
    ------
    OSError
        A file cannot be written: the message says which and why.
    """
    partial = {path: path.with_name(path.name + ".partial") for path in puts}
    try:
        for path, put in puts.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                put(partial[path])
                with open(partial[path], "rb") as file:
                    os.fsync(file.fileno())
            except (OSError, SafetensorError) as error:  # the latter for a full disk
                raise OSError(f"{path} cannot be written: {error}") from None
        for path in puts:
            os.replace(partial[path], path)
    finally:
        for left in partial.values():  # a full disk needs the room
            with suppress(OSError):
                left.unlink()


def checkpoint(path: Path, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> Puts:
    """``path``.safetensors and its card ``path``.json, which names the weights' digest."""
    kept = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    told = json.dumps({**card, "sha256": digest(kept)}, indent=2) + "\n"
    return {
        path.with_name(path.name + ".safetensors"): lambda file: save_file(kept, file),
        path.with_name(path.name + ".json"): lambda file: file.write_text(told, "utf-8"),
    }


def write(path: Path, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write a checkpoint; raises OSError, and then the old one is as it was."""
    replaced(checkpoint(path, weights, card))


def load(path: Path) -> tuple[GPT, dict[str, Any]]:
    """The model and the card of a checkpoint; raises CheckpointError as ``loads``."""
    try:
        card, weights = (
            path.with_name(path.name + ending).read_bytes() for ending in (".json", ".safetensors")
        )
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise CheckpointError(f"{path.name}: {missing} is not there") from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None
    return loads(path.name, weights, card)


def loads(named: str, content: bytes, told: bytes) -> tuple[GPT, dict[str, Any]]:
    """The model and the card of a checkpoint's two files; ``named`` is for messages.

    Raises
    ------
    CheckpointError
        A file is missing, truncated or no safetensors; keys, shapes or numbers are not a model's;
        the model is larger than ``Shape`` allows; or weights and card do not belong together.
    """
    try:
        card = json.loads(told)
        shape = Shape(**card["shape"])
        wanted = GPT(shape)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{named}: the card cannot be used: {error}") from None
    try:
        weights = read_weights(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{named}: the weights cannot be read: {error}") from None
    expected = {name: tuple(value.shape) for name, value in wanted.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{named}: {name} has shape {found.get(name, 'nothing')} but the card's model "
                f"has {expected.get(name, 'nothing')}"
            )
    for name, value in weights.items():
        if value.dtype != torch.float32:
            raise CheckpointError(f"{named}: {name} is {value.dtype}, and must be torch.float32")
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{named}: {name} holds values that are not finite")
    if digest(weights) != card.get("sha256"):
        raise CheckpointError(f"{named}: the weights are not those that the card names")
    wanted.load_state_dict(weights)
    return wanted.eval(), card


def shape_card(shape: Shape) -> dict[str, Any]:
    """A shape as a card holds it."""
    return asdict(shape)
