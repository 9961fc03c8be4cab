"""Map: a grid's cells as rows, and as the figure of what a view asks of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from krrviz import atlas
from krrviz.atlas import LETTERS, NEVER, REFUSED
from krrviz.charts import Figure
from krrviz.fan import HUGE
from krrviz.frames import REFERENCES, TITLES
from krrviz.laws import Frame
from krrviz.settings import Settings, View
from krrviz.sweep import Course, Grid, cell_rows
from krrviz.trust import SOLVED

NAMES = {
    "bandwidth": "bandwidth σ",
    "ridge": "ridge λ",
    "n": "context length N",
    "steps": "depth T",
    "segments": "hinges per side m",
    "sink": "sink level s",
    "noise": "label noise",
    "d": "input dimension d",
    "step_size": "step size η",
    "seed": "seed",
}
# Errors that have the strongest and the weakest colour.
BEST, WORST = 1e-6, 1.0


def rows(grid: Grid, found: Mapping[int, Course]) -> Frame:
    """The rows of the cells there are, a method each, with the cell's number."""
    timeless = [name for name in grid.header if name != "seconds"]
    made = pd.DataFrame(
        [
            {"cell": number, **row}
            for number, course in found.items()
            for row in cell_rows(grid, number, course)
        ],
        columns=["cell", *timeless],
    ).astype({"steps_to_eps": float, "final_error": float, "residual": float})
    words = ["winner", "device", "dtype", "refusal"]  # "" where a cell has none
    return made.assign(**{name: made[name].fillna("") for name in words})


def method_of(settings: Settings, view: View) -> str:
    """The method whose map is shown: the view's, or the first one drawn."""
    return view.map_method if view.map_method in settings.methods else settings.methods[0]


def figures(rows: Frame, grid: Grid, settings: Settings, view: View) -> dict[str, Figure]:
    """The map of steps, of winners or of errors, as far as there are cells."""
    if rows.empty:
        return {}
    method, what, eps = method_of(settings, view), view.map_of, f"ε = {grid.eps:g}"
    shown = rows[rows.method == method]
    cells = [_cell(row, what, rows, grid) for row in shown.to_dict("records")]
    title = {
        "steps": f"{TITLES[method]}: steps to {eps}",
        "winner": f"Winner: fewest steps to {eps}",
        "error": f"{TITLES[method]}: relative error to {REFERENCES[settings.reference]} at the "
        "last step",
    }[what]
    won = {cell["method"] for cell in cells}
    y, x = ((name, NAMES[name]) for name in grid.axes)
    methods = tuple((m, TITLES[m]) for m in settings.methods if m in won)
    return {
        "map": atlas.cells(
            pd.DataFrame(cells), x=x, y=y, title=title, methods=methods if what == "winner" else ()
        )
    }


def _cell(row: Mapping[Any, Any], what: str, rows: Frame, grid: Grid) -> dict[str, Any]:
    """What is drawn of one cell."""
    drawn = {name: row[name] for name in grid.axes} | {"cell": row["cell"]}
    if row["refusal"]:
        told = f"refused: {row['refusal']}"
        return drawn | _look("refused", math.nan, "", REFUSED, told)
    steps, error, winner = row["steps_to_eps"], row["final_error"], row["winner"]
    if what == "winner":
        best = rows[(rows.cell == row["cell"]) & (rows.method == winner)].to_dict("records")
        if not best:
            return drawn | _look("never", math.nan, "", NEVER, "every method overflows")
        told = f"{TITLES[winner]}: {reached(best[0])}"
        return drawn | _look("reached", 1.0, winner, LETTERS[winner], told)
    told = reached(row)
    if what == "error":
        part = np.log10(WORST / max(error, 1e-300)) / np.log10(WORST / BEST)
        share = float(np.clip(part, 0, 1))
        return drawn | _look("reached", share, row["method"], _number(error), told)
    if math.isnan(steps):
        return drawn | _look("never", math.nan, row["method"], NEVER, told)
    most = grid.settings(row["cell"]).steps
    share = 1 - math.sqrt(steps / max(1, most))
    return drawn | _look("reached", share, row["method"], f"{steps:.0f}", told)


def _look(state: str, share: float, method: str, label: str, told: str) -> dict[str, Any]:
    return {"state": state, "share": share, "method": method, "label": label, "told": told}


def reached(row: Mapping[Any, Any]) -> str:
    """How far a method came in a cell, in words."""
    end = f"error {_number(row['final_error'])} at the last step"
    if row["residual"] > SOLVED:
        end += f", to an exact answer solved to {row['residual']:.0e} only"
    if math.isnan(row["steps_to_eps"]):
        return f"ε never reached, {end}"
    return f"ε reached at step {row['steps_to_eps']:.0f}, {end}"


def _number(error: float) -> str:
    """An error as short as a cell needs it."""
    if error >= HUGE:
        return "∞"
    short = f"{error:.2g}" if 1e-3 <= error < 100 else f"{error:.0e}"
    return short.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
