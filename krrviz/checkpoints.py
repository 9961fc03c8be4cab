"""Checkpoints: the trained models that ship, with their logs; one that is not there is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from krrviz.tables import assets
from krrviz.trained.gpt import GPT, CheckpointError, load
from krrviz.trained.parcel import planned


def path(name: str) -> Path:
    """Where a shipped checkpoint lies, or would."""
    return assets() / "checkpoints" / name


def missing(name: str) -> bool:
    """Whether a checkpoint is not there; a session's own never is."""
    return name != "own" and not path(name).with_name(f"{name}.safetensors").exists()


def loaded(name: str) -> tuple[GPT, dict[str, Any]]:
    """A shipped checkpoint's model and card.

    Raises
    ------
    CheckpointError
        It is missing or cannot be used.
    """
    if missing(name):
        raise CheckpointError(f"{name}: this checkpoint is not shipped yet; choose another")
    model, card = load(path(name))
    planned(name, model, card)
    return model, card


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
