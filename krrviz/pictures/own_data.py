"""Own data: what suggests a bandwidth and a ridge, and what is left of rows held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from krrviz import laws
from krrviz.charts import STYLES, Figure
from krrviz.frames import HELD_OUT
from krrviz.heldout import EXACT, HeldOut
from krrviz.laws import Axis
from krrviz.suggest import CrossValidation, GeneralisedCrossValidation, Median


def suggestions(
    median: Median, validated: CrossValidation, generalised: GeneralisedCrossValidation
) -> dict[str, Figure]:
    """Each suggestion as a curve with the place it chooses."""
    return {
        "median": _chosen(
            {"share of pairs": (median.distance, median.share)},
            median.bandwidth,
            Axis("distance", "distance of two inputs (standardised)", log=False),
            Axis("share", "share of pairs nearer", log=False),
            f"Median distance, {median.rows} rows",
        ),
        "cross_validation": _chosen(
            {
                "mean of the folds": (validated.bandwidths, validated.mean),
                "mean + standard error": (
                    validated.bandwidths, validated.mean + validated.standard_error
                ),
            },
            validated.bandwidth,
            Axis("bandwidth", "bandwidth σ"),
            Axis("error", "squared error held out (standardised)", log=False),
            f"Cross-validation, {len(validated.index)} rows",
        ),
        "gcv": _chosen(
            {"GCV score": (generalised.ridges, generalised.score)},
            generalised.ridge,
            Axis("ridge", "ridge λ"),
            Axis("score", "GCV (standardised)", log=False),
            f"Generalised cross-validation, {len(generalised.index)} rows",
        ),
    }  # fmt: skip


def _chosen(curves: dict[str, Any], at: float, x: Axis, y: Axis, title: str) -> Figure:
    """Curves by name, and a line where one place of them is chosen."""
    ends = np.concatenate([up for _, up in curves.values()])
    drawn = {**curves, f"chosen: {at:.3g}": ([at, at], [ends.min(), ends.max()])}
    rows = [
        pd.DataFrame({"series": name, x.column: across, y.column: up})
        for name, (across, up) in drawn.items()
    ]
    looks = {f"chosen: {at:.3g}": STYLES["transformer"]}
    return laws.lines(pd.concat(rows, ignore_index=True), x, y, title=title, looks=looks)


def residuals(result: HeldOut, method: str) -> dict[str, Figure]:
    """One method's residuals at the rows held out, beside those of exact KRR."""
    rows = pd.concat(
        [
            pd.DataFrame(
                {
                    "series": HELD_OUT[name],
                    "answer": answer.ravel(),
                    "residual": (result.labels - answer).ravel(),
                }
            )
            for name, answer in result.answers.items()
            if name in (method, EXACT)
        ],
        ignore_index=True,
    )
    return {
        "residuals": laws.residuals(
            rows, title=f"Residuals of {result.target} at rows held out", unit=result.unit
        )
    }
