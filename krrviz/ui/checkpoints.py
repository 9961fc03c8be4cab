"""Checkpoints: the trained models that pages show, by name; one that is not there is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from krrviz.tables import assets
from krrviz.trained.gpt import GPT, CheckpointError, load

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


def path(name: str) -> Path:
    """Where a shipped checkpoint lies, or would."""
    return assets() / "checkpoints" / name


def missing(name: str) -> bool:
    """Whether a checkpoint is not there."""
    return name != "own" and not path(name).with_name(f"{name}.safetensors").exists()


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
    if missing(name):
        raise CheckpointError(f"{name}: this checkpoint is not shipped yet; choose another")
    return _loaded(name, path(name).with_name(f"{name}.safetensors").stat().st_mtime)


@st.cache_resource(max_entries=16, show_spinner=False)
def _loaded(name: str, _stamp: float) -> tuple[GPT, dict[str, Any]]:
    return load(path(name))


def log(name: str) -> pd.DataFrame | None:
    """What was measured while a checkpoint was trained: step, loss, gap_to_krr, excess_error.

    None where there is no such file, or none that can be read.
    """
    named = ["step", "loss", "gap_to_krr", "excess_error"]
    try:
        rows = pd.read_csv(path(name).with_name(f"{name}.csv")).filter(named).astype(float)
    except (OSError, ValueError):
        return None
    return rows if len(rows.columns) == len(named) else None


def snapshots(of: str) -> list[str]:
    """Checkpoints from midway through the training of another, which their cards name."""
    found = []
    for file in sorted(path(of).parent.glob("*.json")):
        try:
            card = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(card, dict) and card.get("of") == of and not missing(file.stem):
            found.append(file.stem)
    return found


def told(card: dict[str, Any]) -> str:
    """A card in a line."""
    shape, recipe = card["shape"], card.get("recipe", {})
    task, figures = recipe.get("task", {}), card.get("figures", {})
    said = [
        f"{shape['layers']} layers, width {shape['width']}, {shape['heads']} heads, "
        f"{shape['attention']} attention, {shape['layout']} tokens"
    ]
    if task:
        said.append(
            f"trained {card['steps']:,} steps on prompts of the {task['kernel']} kernel, up to "
            f"{task['n']} points, d = {task['d']}, σ = {_range(task['bandwidth'])}, λ = "
            f"{_range(task['ridge'])}, seed {recipe['seed']}"
        )
    if "gap_to_krr" in figures:
        said.append(
            f"relative gap to exact KRR {figures['gap_to_krr']:.3f}, error to the noiseless "
            f"function {1 + figures['excess_error']:.3f} times KRR's at n ≥ N/2"
        )
    return "; ".join(said) + f". Weights {card['sha256'][:12]}."


def _range(edges: list[float]) -> str:
    low, high = edges
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
