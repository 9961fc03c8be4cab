"""Ablations: maps of models by reference kernel, courses of training, and other scores' errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from krrviz import laws
from krrviz.charts import STYLES, Figure
from krrviz.fan import HUGE
from krrviz.findings import Frame
from krrviz.laws import Axis
from krrviz.maps import Map
from krrviz.trained.match import METRICS

KERNELS = {
    "gaussian": "Gaussian",
    "laplacian": "Laplacian",
    "matern32": "Matérn 3/2",
    "linear": "linear",
}
TRAINED_ON = {"main-0": "gaussian", "laplacian-0": "laplacian", "matern-0": "matern32"}
MAIN = "main-0"
KINDS = {
    "main-0": "Softmax",
    "linear-0": "Linear attention",
    "full-0": "Softmax, full prompt",
}


def kernels(rows: Frame, length: int | str, lost: Collection[str]) -> list[Map]:
    """Models by reference kernel: gap, unlikeness, and how far the references are apart.

    ``rows`` are ``findings.kernel_rows``; ``length`` is the prompts' N, ``lost`` the models that
    are missing.
    """
    score = rows.set_index(["measure", "model", "reference"]).score.to_dict()

    def grid(name: str, title: str, measure: str, note: str) -> Map:
        cells = [
            [score.get((measure, model, kernel), np.nan) for kernel in KERNELS]
            for model in TRAINED_ON
        ]
        words = [
            "missing" if model in lost else "" if np.isfinite(value) else "—"
            for model, row in zip(TRAINED_ON, cells, strict=True)
            for value in row
        ]
        values = np.array(cells, dtype=float)
        trained = [KERNELS[kernel] for kernel in TRAINED_ON.values()]
        return Map(
            name=name,
            title=title,
            values=1 - values if measure == "similarity" else values,
            rows=trained,
            cols=[*KERNELS.values()],
            row_title="trained on",
            col_title="reference",
            row_names=[f"trained on {kernel}" for kernel in trained],
            col_names=[f"{kernel} reference" for kernel in KERNELS.values()],
            words=words,
            note=note,
        )

    return [
        grid(
            "gap",
            "Gap of the last layer to KRR",
            "gap",
            f"‖f − f*‖/‖f*‖ over n = 1 to {length}, f* exact KRR under the reference.",
        ),
        grid(
            "unlike",
            "1 − similarity of errors with the iteration",
            "similarity",
            "Preconditioned Richardson, best steps, layers 1 to L. 0 is the most alike; “—”: no "
            "row-sum preconditioner, since row sums are not all positive.",
        ),
        grid(
            "yardstick",
            "Gap of exact KRR under the own kernel",
            "yardstick",
            "No model: how far apart the references themselves are on these prompts.",
        ),
    ]


def courses(logs: Mapping[str, Frame]) -> dict[str, Figure]:
    """The gap to exact KRR while training."""
    rows = pd.concat(
        [part.assign(series=f"{KINDS[name]} ({name})") for name, part in logs.items()],
        ignore_index=True,
    )
    looks = {"main-0": "transformer", "linear-0": "gradient_descent", "full-0": "nesterov"}
    return {
        "courses": laws.lines(
            rows[["series", "step", "gap_to_krr"]],
            Axis("step", "training step"),
            Axis("gap_to_krr", "relative gap to exact KRR"),
            title="Gap to exact KRR while training",
            looks={f"{KINDS[name]} ({name})": STYLES[look] for name, look in looks.items()},
        )
    }


def kinds(snapshots: Collection[str]) -> dict[str, str]:
    """The models compared by attention, with what they are."""
    return {**KINDS, **dict.fromkeys(snapshots, "Softmax, at matched loss")}


def rankings(ranks: Mapping[str, Frame], kinds: Mapping[str, str]) -> dict[str, Figure]:
    """Which solver each model is like."""
    return {
        f"alike_{name}": laws.ranking(
            rows, title=f"{kinds[name]} ({name})", metric=METRICS["similarity"].title
        )
        for name, rows in ranks.items()
    }


def scores(rows: Frame, floor: float) -> dict[str, Figure]:
    """Error by step of the hand-built stack with each score."""
    drawn = {
        "own": "Error to the system that each solves",
        "gaussian": "Error to exact Gaussian KRR",
    }
    looks = {
        "Softmax": STYLES["transformer"],
        "Laplacian": STYLES["preconditioned_richardson"],
        "Unnormalised kernel": STYLES["gradient_descent"],
        "Linear": STYLES["heavy_ball"],
        "ReLU": STYLES["broken"],
    }
    return {
        f"scores_{column}": laws.lines(
            rows.assign(series=rows.title, error=rows[column].clip(1e-300, HUGE).fillna(HUGE))[
                ["series", "step", "error"]
            ],
            Axis("step", "step t", log=False),
            Axis("error", "mean relative error", domain=(floor, 2.0)),
            title=title,
            looks=looks,
        )
        for column, title in drawn.items()
    }
