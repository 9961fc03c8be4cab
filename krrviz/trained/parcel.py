"""Parcel: a checkpoint as a person carries it, as one zip file or as its files side by side."""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from krrviz.trained.gpt import GPT, CheckpointError, loads
from krrviz.trained.train import Recipe

LIMIT = 50  # MB, zipped and unzipped
STATE = ".state.safetensors"  # what going on needs: it stays where the training was
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
LOG = ("step", "loss", "gap_to_krr")
FIGURES = ("gap_to_krr", "excess_error")  # of a card


@dataclass(frozen=True, eq=False)
class Parcel:
    """A checkpoint that can be used, and the files that it came from.

    log : step, loss and gap_to_krr of each checkpoint, none where there was no .csv
    files : by name
    """

    name: str
    model: GPT
    card: Mapping[str, Any]
    recipe: Recipe
    log: list[dict[str, float]]
    files: Mapping[str, bytes]


def read(path: Path) -> Parcel:
    """The checkpoint at ``path``, of one moment; raises CheckpointError as ``opened``."""
    found = {}
    for ending in (".safetensors", ".json", ".csv"):
        file = path.with_name(path.name + ending)
        try:
            found[file.name] = file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{file.name} cannot be read: {error}") from None
    return opened(found)


def opened(files: Mapping[str, bytes]) -> Parcel:
    """A checkpoint from files by name: its .safetensors, .json and maybe .csv, or a zip of them.

    Raises
    ------
    CheckpointError
        Files are missing, too many, too large or damaged, or hold no model; nothing is executed.
    """
    if sum(map(len, files.values())) > LIMIT * 10**6:
        raise CheckpointError(f"the files have more than {LIMIT} MB, which is the limit")
    zips = [name for name in files if name.lower().endswith(".zip")]
    if zips and len(files) == 1:
        files = _unzipped(zips[0], files[zips[0]])
    kept = {
        Path(name).name: content
        for name, content in files.items()
        if Path(name).suffix in (".safetensors", ".json", ".csv") and not name.endswith(STATE)
    }
    weights, cards, logs = (
        [name for name in kept if name.endswith(ending)]
        for ending in (".safetensors", ".json", ".csv")
    )
    if len(weights) != 1 or len(cards) != 1 or len(logs) > 1:
        given = ", ".join(files) or "nothing"
        raise CheckpointError(
            "a checkpoint is one .safetensors file and its .json card, or one .zip of them; "
            f"given: {given:.200}"
        )
    name = weights[0].removesuffix(".safetensors")
    model, card = loads(name, kept[weights[0]], kept[cards[0]])
    recipe = planned(name, model, card)
    return Parcel(name, model, card, recipe, _log(kept[logs[0]]) if logs else [], kept)


def planned(name: str, model: GPT, card: Mapping[str, Any]) -> Recipe:
    """The recipe of a model's card; ``name`` is for messages.

    Raises
    ------
    CheckpointError
        The recipe, the steps taken or the figures are missing, or of no use.
    """
    try:
        recipe = Recipe.from_card(card.get("recipe"))
        if recipe.shape != model.shape:
            raise ValueError("the recipe's shape is not the model's")
        steps, figures = card.get("steps"), card.get("figures")
        if type(steps) is not int:
            raise ValueError(f"steps={steps!r:.40} must be a whole number")
        for figure in FIGURES:
            if not isinstance(figures, dict) or type(figures.get(figure)) not in (int, float):
                raise ValueError(f"figures={figures!r:.80} must hold the number {figure}")
    except ValueError as error:
        raise CheckpointError(f"{name}: the card cannot be used: {error}") from None
    return recipe


def packed(parcel: Parcel) -> bytes:
    """One zip file of a checkpoint's files; the same files give the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in parcel.files.items():
            archive.writestr(zipfile.ZipInfo(name), file, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _unzipped(name: str, content: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [it for it in archive.infolist() if not it.is_dir()]
            # What a member declares is what zipfile reads of it at most.
            if len(members) > 100 or sum(it.file_size for it in members) > LIMIT * 10**6:
                raise zipfile.BadZipFile(f"it holds more than {LIMIT} MB or 100 files")
            if any(it.compress_type not in METHODS for it in members):
                raise zipfile.BadZipFile("it is compressed in a way that is not read here")
            return {it.filename: archive.read(it) for it in members}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{name} cannot be unpacked: {error}") from None


def _log(content: bytes) -> list[dict[str, float]]:
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8")))
        return [{column: float(row[column]) for column in LOG} for row in rows]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise CheckpointError(f"the .csv is no log of {', '.join(LOG)}: {error}") from None
