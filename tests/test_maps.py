"""Maps: their cells as rows, and as pictures that any program can open."""

import io
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from PIL import Image

from krrviz.maps import DRAWN, Map


def test_cells_are_named_and_what_is_no_number_is_missing() -> None:
    shown = Map(
        "m", "M", np.array([[1 / 3, np.inf], [-2.0, 0.0]]), rows=["1", "2"], cols=["a", "b"],
        row_names=["i = 1", "i = 2"],
    )  # fmt: skip
    assert shown.cells().to_csv(index=False).splitlines() == [
        "row,column,value",
        "i = 1,a,0.3333333333333333",
        "i = 1,b,",
        "i = 2,a,-2.0",
        "i = 2,b,0.0",
    ]


def test_frames_come_one_after_the_other() -> None:
    values = np.arange(6.0).reshape(3, 1, 2)
    cells = Map("m", "M", values, rows=["r"], cols=["a", "b"]).cells()
    assert [*cells.itertuples(index=False, name=None)] == [
        (0, "r", "a", 0), (0, "r", "b", 1), (1, "r", "a", 2), (1, "r", "b", 3), (2, "r", "a", 4),
        (2, "r", "b", 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "look",
    [
        {},
        {"kind": "diverging", "limit": 0.0},
        {"kind": "diverging", "limits": [1.0, 0.0, 2.0]},
        {"kind": "bars"},
    ],
)
def test_charts_are_pictures_and_cells_of_one_label_stand_apart(look: dict[str, Any]) -> None:
    values = np.array([[1.0, -2.0, np.nan], [0.0, 5.0, np.inf]])
    if look.get("kind") == "bars":
        values = values[:1]
    hostile = """]"'</text>\\"""
    rows, cols = ["same"] * len(values), [hostile, "x", "x"]
    chart = Map("m", "M", values, rows=rows, cols=cols, **look).chart()
    text = io.StringIO()
    chart.save(text, format="svg")
    drawing = ET.fromstring(text.getvalue())
    roles = [mark.get("aria-roledescription") for mark in drawing.iter()]
    assert roles.count("rect mark") + roles.count("bar") >= np.isfinite(values).sum()
    assert hostile in "".join(drawing.itertext())
    picture = io.BytesIO()
    chart.save(picture, format="png")
    assert Image.open(picture).size > (20, 20)


def test_a_large_map_is_thinned_in_its_picture_alone() -> None:
    size = 2 * DRAWN + 1
    shown = Map("m", "M", np.eye(size), rows=["r"] * size, cols=["c"] * size)
    rows = shown.chart().to_dict()["datasets"]["cells"]
    assert len(rows) <= DRAWN**2
    assert len(shown.cells()) == size**2
