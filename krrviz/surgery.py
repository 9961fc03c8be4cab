"""Surgery: a transformer with one fault, on a copy of its weights, and what the fault costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from krrviz.construction.predict import predict
from krrviz.construction.transformer import MLP, Block, Stream, Transformer
from krrviz.construction.weights import Construction, build
from krrviz.fan import mean_error, relative_error
from krrviz.machine import CHUNK_BYTES, check, on_device, system_bytes
from krrviz.problem import Problem
from krrviz.settings import Settings, View
from krrviz.tables import Table
from krrviz.tasks import sample

Layer = TypeVar("Layer", bound=nn.Module)

# Matrix -> the sub-block that holds it, and its name there.
MATRICES = {
    "W_Q": ("attention", "w_q"),
    "W_K": ("attention", "w_k"),
    "W_V": ("attention", "w_v"),
    "W_O": ("attention", "w_o"),
    "W_1": ("mlp", "w_1"),
    "W_2": ("mlp", "w_2"),
}


@dataclass(frozen=True)
class SwitchedOff:
    """One block, or one of its sub-blocks, adds nothing; its like elsewhere go on."""

    part: str  # block, attention or mlp
    block: int

    def sentence(self, model: Transformer) -> str:
        what = {"block": "", "attention": "The attention of ", "mlp": "The MLP of "}[self.part]
        name = f"{what}block {self.block}, {place(model, self.block)}, is switched off."
        return name[0].upper() + name[1:]

    def apply(self, model: Transformer) -> Transformer:
        old = model.blocks[self.block]
        attention, mlp = old.attention, old.mlp
        # Nothing is added where what is read out of a layer is 0.
        if self.part in ("block", "attention"):
            attention = edited(attention, w_v=torch.zeros_like(attention.w_v))
        if self.part in ("block", "mlp"):
            mlp = edited(mlp, w_2=torch.zeros_like(mlp.w_2))
        blocks = list(model.blocks)
        blocks[self.block] = Block(attention, mlp)
        return Transformer(model.slots, blocks, model.updates, model.n_max)


@dataclass(frozen=True)
class Quantised:
    """One matrix holds only 2^bits − 1 evenly spaced values, wherever its block stands."""

    matrix: str
    block: int
    bits: int

    def sentence(self, model: Transformer) -> str:
        return f"{matrix_of(model, self.matrix, self.block)} is rounded to {self.bits} bits."

    def apply(self, model: Transformer) -> Transformer:
        def rounded(weight: Tensor) -> Tensor:
            unit = weight.abs().max() / (2 ** (self.bits - 1) - 1)
            return (weight / unit).round() * unit if unit else weight

        return rewritten(model, self.matrix, self.block, rounded)


@dataclass(frozen=True)
class Perturbed:
    """Each entry w of one matrix becomes w(1 + noise·ξ), ξ standard normal, wherever it stands."""

    matrix: str
    block: int
    noise: float
    seed: int

    def sentence(self, model: Transformer) -> str:
        what = matrix_of(model, self.matrix, self.block)
        return f"{what} carries a relative noise of {self.noise:g} (seed {self.seed})."

    def apply(self, model: Transformer) -> Transformer:
        def noisy(weight: Tensor) -> Tensor:
            draw = torch.Generator().manual_seed(self.seed)
            xi = torch.randn(weight.shape, generator=draw, dtype=torch.float64).to(weight)
            return weight * (1 + self.noise * xi)

        return rewritten(model, self.matrix, self.block, noisy)


@dataclass(frozen=True)
class Ungated:
    """The update no longer asks whether a token is context (in function space: the sink)."""

    def sentence(self, model: Transformer) -> str:
        if model.slots.state == "fitted":
            return "The update is not gated: the sink collects a fitted value, and all rows see it."
        return "The α update is not gated: sink and queries collect α, and the read-out sees it."

    def apply(self, model: Transformer) -> Transformer:
        at = model.slots.index

        def opened(mlp: MLP) -> MLP:
            if not bool(mlp.w_2[at[model.slots.state]].any()):
                return mlp
            w_1 = mlp.w_1.clone()
            w_1[:, [at["mask"], at["sink"]]] = 0  # relu(v − G·mask) → relu(v)
            return edited(mlp, w_1=w_1)

        return replaced(model, {mlp: opened(mlp) for mlp in {b.mlp for b in model.blocks}})


@dataclass(frozen=True)
class Unmasked:
    """One query is not masked: to every row it is a key, as if it were labelled y = 0."""

    query: int

    def sentence(self, model: Transformer) -> str:
        return (
            f"Query {self.query + 1} is not masked as a key: it leaks into the row sums D, as if "
            "it were a labelled point with y = 0."
        )

    def apply(self, model: Transformer) -> Transformer:
        return _Leaking(model, self.query)


Fault = SwitchedOff | Quantised | Perturbed | Ungated | Unmasked


def named(view: View) -> Fault | None:
    """The fault that a link names."""
    match view.fault:
        case "none":
            return None
        case "quantise":
            return Quantised(view.fault_matrix, view.fault_block, view.fault_bits)
        case "perturb":
            return Perturbed(view.fault_matrix, view.fault_block, view.fault_noise, view.fault_seed)
        case "ungated":
            return Ungated()
        case "unmask":
            return Unmasked(view.fault_query - 1)
        case part:
            return SwitchedOff(part, view.fault_block)


class _Leaking(Transformer):
    """The same weights on a prompt in which one query's mask is 0."""

    def __init__(self, model: Transformer, query: int) -> None:
        super().__init__(model.slots, list(model.blocks), model.updates, model.n_max)
        self.query = query

    def embed(self, problem: Problem) -> Stream:
        stream = super().embed(problem)
        stream[..., 1 + problem.n_max + self.query, self.slots.index["mask"]] = 0
        return stream


def broken(model: Transformer, fault: Fault | None) -> Transformer:
    """``model`` with a fault; ``model`` itself, which no fault ever changes, without one."""
    return model if fault is None else fault.apply(model)


def place(model: Transformer, block: int) -> str:
    """What a block is for, by where it stands: read-in, update 3, read-out."""
    first = model.updates.start
    if block <= first:
        return "read-in" if block == 0 else "read-in of the queries"
    if block == len(model.blocks) - 1:
        return "read-out"
    update, part = divmod(block - 1 - first, model.updates.step)
    half = f", {('first', 'second')[part]} half" if model.updates.step == 2 else ""
    return f"update {update + 1}{half}"


def matrix_of(model: Transformer, matrix: str, block: int) -> str:
    """A matrix and where it is used, in words."""
    like = sum(other is model.blocks[block] for other in model.blocks)
    others = f", and of all {like} like it," if like > 1 else ""
    return f"{matrix} of block {block} ({place(model, block)}){others}"


def edited(layer: Layer, **weights: Tensor) -> Layer:
    """A copy of a layer with some of its weights replaced; the others are shared."""
    return type(layer)(**{**dict(layer.named_parameters()), **weights})


def rewritten(
    model: Transformer, matrix: str, block: int, change: Callable[[Tensor], Tensor]
) -> Transformer:
    """One matrix changed, in the chosen block and wherever that block's layer stands."""
    part, name = MATRICES[matrix]
    layer = getattr(model.blocks[block], part)
    new = edited(layer, **{name: change(getattr(layer, name))})
    return replaced(model, {layer: new})


def replaced(model: Transformer, exchange: Mapping[nn.Module, nn.Module]) -> Transformer:
    """The model with some layers exchanged; blocks that were one module stay one."""
    new = {
        block: Block(
            exchange.get(block.attention, block.attention),  # pyright: ignore[reportArgumentType]
            exchange.get(block.mlp, block.mlp),  # pyright: ignore[reportArgumentType]
        )
        for block in set(model.blocks)
    }
    return Transformer(
        model.slots, [new[block] for block in model.blocks], model.updates, model.n_max
    )


def errors(
    settings: Settings, fault: Fault | None = None, table: Table | None = None
) -> Float[Tensor, " times"]:
    """The transformer's relative error to exact KRR by step, mean over the full prompts.

    Infinite where it has overflowed. Without a fault, the fan's last column.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    check(settings, 1)
    full = sample(settings, table)
    size = max(1, int(CHUNK_BYTES / system_bytes(settings)))

    def work(device: torch.device) -> Tensor:
        model = build(Construction.from_settings(settings, table)).to(device)
        model = broken(model, fault)
        pieces = []
        for prompts in torch.arange(settings.prompts).split(size):
            problem = full.pick((prompts,))
            answers = predict(model, problem).predictions.cpu()
            pieces.append(relative_error(answers, problem.exact))
        return mean_error(torch.cat(pieces, 1))

    return on_device(settings, work)[0]
