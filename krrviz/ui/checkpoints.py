"""Checkpoints: the trained models that pages show, by name; one that is not there is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from krrviz.checkpoints import loaded, missing, path
from krrviz.trained.gpt import GPT, CheckpointError

MODELS = {
    "main-0": "Main: softmax, Gaussian kernel",
    "main-1": "Main, second seed",
    "main-2": "Main, third seed",
    "linear-0": "Linear attention",
    "laplacian-0": "Trained on the Laplacian kernel",
    "matern-0": "Trained on the Matérn 3/2 kernel",
    "full-0": "Full prompt: pairs see one another",
    "deep-0": "Deeper and narrower: 12 layers",
    "own": "Your own",
}


def named(name: str) -> str:
    """A checkpoint's title, which says where it is missing."""
    return MODELS[name] + (" (missing)" if missing(name) else "")


def chosen(name: str) -> tuple[GPT, dict[str, Any]]:
    """A checkpoint's model and card.

    Raises
    ------
    CheckpointError
        It is missing or cannot be used.
    """
    if name == "own":
        if "own" not in st.session_state:
            raise CheckpointError("own: nothing was trained or loaded in this session")
        return st.session_state["own"]
    return _loaded(name, *(_written(path(name), e) for e in (".safetensors", ".json")))


# No parameter's name may begin with _: such ones are no part of the cache's key.
@st.cache_resource(max_entries=16, show_spinner=False)
def _loaded(name: str, weights_written: int, card_written: int) -> tuple[GPT, dict[str, Any]]:
    return loaded(name)


def _written(at: Path, ending: str) -> int:
    """When a file was last written, in ns; 0 where it is not there."""
    try:
        return at.with_name(at.name + ending).stat().st_mtime_ns
    except OSError:
        return 0


def told(card: dict[str, Any]) -> str:
    """A card in a line."""
    shape, recipe, figures = card["shape"], card["recipe"], card["figures"]
    task = recipe["task"]
    return (
        f"{shape['layers']} layers, width {shape['width']}, {shape['heads']} heads, "
        f"{shape['attention']} attention, {shape['layout']} tokens; trained {card['steps']:,} of "
        f"{recipe['steps']:,} steps on prompts of the {task['kernel']} kernel, up to {task['n']} "
        f"points, d = {task['d']}, σ = {_range(task['bandwidth'])}, λ = {_range(task['ridge'])}, "
        f"seed {recipe['seed']}; relative gap to exact KRR {figures['gap_to_krr']:.3f}, error to "
        f"the noiseless function {1 + figures['excess_error']:.3f} times KRR's at n ≥ N/2. "
        f"Weights {card['sha256'][:12]}."
    )


def _range(edges: list[float]) -> str:
    low, high = edges
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
