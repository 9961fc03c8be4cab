"""Maps: matrices with all that is shown of them, as rows or as a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from krrviz.charts import Figure, table, theme

Cell = tuple[int, int]
DRAWN = 256  # rows and columns of a chart at most: of more, evenly chosen ones


@dataclass(frozen=True, eq=False)
class Map:
    """One matrix and how it is shown.

    Parameters
    ----------
    name : what tests ask for; title : what a person reads
    values : drawn and read out at full precision; values that are not finite are said so. One
        matrix, or one for each frame
    rows, cols : a label each, short enough for an axis
    kind : ``sequential`` (from 0), ``diverging`` (around 0), or ``bars``: the row of the current
        cell (or the only one) as bars
    note : one line beneath
    row_title, col_title : the axes' titles
    row_names, col_names : what the readout calls rows and columns, where a label is too short
    row_marks, col_marks : what each row and column is (sink, query, masked, …), "" for nothing
        special; equal neighbours are a group
    limit : the value at the end of the colours, or of the bars; beyond it nothing changes. The
        largest magnitude by default
    limits : the same, for each column its own
    words : by row, then column, what a cell says that has no number; "" for those that have one
    minus : the two maps that it is the difference of; the browser takes it itself
    formula : how a cell comes about, for all columns or for each; ``{name}`` stands for a term,
        ``{value}`` for the cell's own value, ``{d2}`` for the squared distance of its places
    row_terms : words by row
    places : where the tokens lie that are both rows and columns
    """

    name: str
    title: str
    values: Float[np.ndarray, "*frames rows cols"]
    rows: Sequence[str]
    cols: Sequence[str]
    kind: Literal["sequential", "diverging", "bars"] = "sequential"
    note: str = ""
    row_title: str = ""
    col_title: str = ""
    row_names: Sequence[str] = ()
    col_names: Sequence[str] = ()
    row_marks: Sequence[str] = ()
    col_marks: Sequence[str] = ()
    limit: float | None = None
    limits: Sequence[float] = ()
    words: Sequence[str] = ()
    minus: tuple[str, str] | None = None
    formula: str | Sequence[str] = ""
    row_terms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    places: Float[np.ndarray, "tokens d"] | None = None

    def cells(self) -> pd.DataFrame:
        """The cells as they are read: columns row, column, value; frame first where there are some.

        A value that is no finite number is missing.
        """
        *frames, rows, cols = self.values.shape
        count = math.prod(frames)
        held: dict[str, Any] = {"frame": np.repeat(np.arange(count), rows * cols)} if frames else {}
        named = np.array(self.row_names or self.rows), np.array(self.col_names or self.cols)
        held["row"] = np.tile(np.repeat(named[0], cols), count)
        held["column"] = np.tile(named[1], rows * count)
        held["value"] = np.where(np.isfinite(self.values), self.values, np.nan).ravel()
        return pd.DataFrame(held)

    def chart(self) -> alt.LayerChart:
        """The map as a Vega-Lite chart, for a notebook or a file; of frames the last.

        Colours go by the root of a cell's share of the limit, as in the browser, but for those of
        diverging maps with one limit.
        """
        every, along = (math.ceil(size / DRAWN) for size in self.values.shape[-2:])
        values = self.values.reshape(-1, *self.values.shape[-2:])[-1, ::every, ::along]
        values = np.where(np.isfinite(values), values, np.nan)
        largest = self.limit or np.abs(values[np.isfinite(values)]).max(initial=0)
        limits = np.array(self.limits[::along] or [largest], dtype=float)
        share = values / np.where(limits > 0, limits, 1)
        root = self.kind == "sequential" or len(self.limits) > 0
        if root:
            share = np.sign(share) * np.sqrt(np.abs(share))
        i, j = (place.ravel() for place in np.indices(values.shape))
        cells = pd.DataFrame({"i": i, "j": j, "value": values.ravel(), "share": share.ravel()})
        part = f"{largest:.3g}" if len(limits) == 1 else "the column's limit"
        labels = list(self.rows[::every]), list(self.cols[::along])
        spec = _drawn(self, *labels, f"{'root of the ' if root else ''}share of {part}")
        return Figure(spec, {"cells": cells}, f"{self.title}. {self.note}").chart()


@dataclass(frozen=True, eq=False)
class Points:
    """Where each row's token lies; those of the current cell light up. NaN has no place."""

    title: str
    x: Float[np.ndarray, " tokens"]
    y: Float[np.ndarray, " tokens"]
    x_title: str
    y_title: str


@dataclass(frozen=True, eq=False)
class Frames:
    """Moments at which the maps have a matrix each; they are moved through in the browser.

    Parameters
    ----------
    titles : what each moment is
    lines : words beneath, some for each moment
    steps : the step t of each; charts on the same page follow it
    col_marks : what each column is at each moment; it replaces the maps' own
    at : the moment to open at, as in a link; it wins over one chosen in the browser
    """

    titles: Sequence[str]
    lines: Sequence[Sequence[str]]
    steps: Sequence[int]
    col_marks: Sequence[Sequence[str]]
    at: int = 0


def _drawn(shown: Map, rows: list[str], cols: list[str], share: str) -> dict[str, Any]:
    """A map's specification; cells stand at numbers, since two of them may have one label."""

    def axis(names: list[str], **look: Any) -> alt.Axis:
        said = f"{json.dumps(names, ensure_ascii=False)}[datum.value]"
        return alt.Axis(labelExpr=said, labelOverlap=True, **look)

    cells, size = table("cells"), {"width": min(640, 20 * len(cols))}
    along = alt.X("j:O", title=shown.col_title or None, axis=axis(cols, labelAngle=-90))
    if shown.kind == "bars":
        drawn = cells.mark_bar().encode(along, alt.Y("value:Q", title=None))
    else:
        low, scheme = (-1, "blueorange") if shown.kind == "diverging" else (0, "viridis")
        down = alt.Y("i:O", title=shown.row_title or None, axis=axis(rows))
        scale = alt.Scale(domain=[low, 1], scheme=scheme, clamp=True)
        color = alt.Color("share:Q", title=share, scale=scale)
        drawn = cells.mark_rect().encode(down, along, color)
        size["height"] = min(640, 20 * len(rows))
    return alt.layer(drawn, title=shown.title, config=theme("light")).to_dict() | size
