"""Stored: a construction's weights as safetensors, with a JSON card that says what they are.

Layers that stand in several blocks are stored once, and the card says which block has which.
Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from krrviz.construction.certificate import certify
from krrviz.construction.transformer import MLP, Attention, Block, Transformer
from krrviz.construction.weights import Construction, build
from krrviz.machine import DTYPES, room, weight_bytes

FORMAT = 1
LAYERS = {"attention": Attention, "mlp": MLP}
VERSIONS = ("krrviz", "torch", "safetensors")


class StoredError(ValueError):
    """A file that holds no construction that can be used; the message names it and says why."""


def save_construction(path: Path, construction: Construction) -> dict[str, Any]:
    """Build the transformer and write ``path``.safetensors and its card ``path``.json; the card.

    Raises
    ------
    SettingsError
        The weights need more memory than is allowed.
    """
    c = construction
    _fits(c)
    model = build(c)
    tensors: dict[str, Tensor] = {}
    names: dict[Attention | MLP, str] = {}
    for number, block in enumerate(model.blocks):
        for part in LAYERS:
            layer = getattr(block, part)
            if layer not in names:
                names[layer] = f"{part}_{number}"  # of the first block that it stands in
                for name, value in layer.named_parameters():
                    tensors[f"{names[layer]}.{name}"] = value.detach().clone()
    content = save(tensors)
    card = {
        "format": FORMAT,
        "construction": _written(c),
        "blocks": [[names[block.attention], names[block.mlp]] for block in model.blocks],
        "updates": [model.updates.start, model.updates.stop, model.updates.step],
        "tensors": _told(tensors),
        "sha256": hashlib.sha256(content).hexdigest(),
        "a_priori": _bound(c),
        "versions": {"python": platform.python_version()} | {n: version(n) for n in VERSIONS},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    weights, told = _files(path)
    weights.write_bytes(content)
    told.write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    return card


def load_construction(path: Path) -> tuple[Transformer, Construction]:
    """The transformer at ``path``.safetensors, and the construction that its card names.

    Raises
    ------
    StoredError
        A file is missing, damaged or of another kind, or weights and card do not belong together.
    SettingsError
        The weights need more memory than is allowed.
    """
    weights, told = _files(path)
    if weights.is_file():
        room(weights.stat().st_size, weights.name)
    try:
        card = json.loads(told.read_bytes())
        if card["format"] != FORMAT:
            raise ValueError(f"format {card['format']!r:.20}: this version reads {FORMAT}")
        c = _read(card["construction"])
        content = weights.read_bytes()
        if hashlib.sha256(content).hexdigest() != card["sha256"]:
            raise ValueError("the weights are not those that the card names")
        tensors = load(content)
        if _told(tensors) != card["tensors"]:
            raise ValueError("the tensors are not those that the card names")
        return _assembled(c, card["blocks"], range(*card["updates"]), tensors), c
    except OSError as error:
        raise StoredError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoredError(f"{path.name}: no construction can be read: {error!s:.200}") from None


def _assembled(
    c: Construction, blocks: list[list[str]], updates: range, tensors: Mapping[str, Tensor]
) -> Transformer:
    """The stack: one module for each layer and each pair of layers, as it was built."""
    layers: dict[str, Any] = {}
    for name, value in tensors.items():
        layer, _, part = name.partition(".")
        layers.setdefault(layer, {})[part] = value
    made = {name: LAYERS[name.partition("_")[0]](**parts) for name, parts in layers.items()}
    pairs = {(first, second): Block(made[first], made[second]) for first, second in blocks}
    stack = [pairs[first, second] for first, second in blocks]
    if len(stack) != c.blocks or len(updates) != c.steps + 1:
        raise ValueError(f"{len(stack)} blocks where the construction has {c.blocks}")
    width = {block.attention.w_q.shape[1] for block in stack} | {
        block.mlp.w_1.shape[1] for block in stack
    }
    if width != {len(c.slots)} or {value.dtype for value in tensors.values()} != {c.dtype}:
        raise ValueError("the tensors are not the construction's")
    return Transformer(c.slots, stack, updates, c.n_max)


def _files(path: Path) -> tuple[Path, Path]:
    weights, told = (path.with_name(path.name + end) for end in (".safetensors", ".json"))
    return weights, told


def _fits(c: Construction) -> None:
    named = f"segments={c.segments}, steps={c.steps} in these weights"
    room(weight_bytes(c.segments, c.steps, c.update, c.layout, c.d), named, "segments", "steps")


def _written(c: Construction) -> dict[str, Any]:
    """Every field as JSON holds it."""
    told = {f.name: getattr(c, f.name) for f in fields(c) if f.init}
    return told | {"dtype": str(c.dtype).removeprefix("torch.")}


def _read(told: dict[str, Any]) -> Construction:
    given: dict[str, Any] = {**told, "dtype": DTYPES[told["dtype"]]}
    return Construction(**given)


def _told(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        name: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        for name, value in sorted(tensors.items())
    }


def _bound(c: Construction) -> float | None:
    """The certificate's a-priori bound; None for a rule without one, or a bound beyond numbers."""
    bound = math.inf if c.update == "function_space" else certify(c).a_priori
    return bound if math.isfinite(bound) else None
