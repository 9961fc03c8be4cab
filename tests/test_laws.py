"""Charts of laws: what they draw is their frame, and they say it in words."""

import math

import pandas as pd
import pytest
import vl_convert

from krrviz import laws
from krrviz.laws import Axis

ROWS = pd.DataFrame(
    [
        {"series": name, "n": n, "error": error}
        for name, errors in {"one": [0.5, 0.2, 0.1], "two": [0.1, 40.0, 1e300]}.items()
        for n, error in zip((8, 16, 32), errors, strict=True)
    ]
)
FIGURES = {
    "lines": laws.lines(ROWS, Axis("n", "N"), Axis("error", "error"), title="Errors"),
    "cut": laws.lines(
        ROWS, Axis("n", "N"), Axis("error", "error", domain=(0.15, 5)), title="Cut errors"
    ),
    "linear": laws.lines(
        ROWS.assign(error=[1.0, 2, math.nan, 4, 5, 6]),
        Axis("n", "N", reverse=True),
        Axis("error", "steps", log=False),
        title="Steps",
    ),
    "budget": laws.budget(
        pd.DataFrame(
            [
                ("proved", "iteration", 4e-3),
                ("proved", "product", 5e-3),
                ("measured", "sink", 1e-9),
            ],
            columns=["bar", "term", "value"],
        ),
        eps=0.01,
    ),
    "eigenvalues": laws.eigenvalues(
        pd.DataFrame({"prompt": [1, 1, 2], "value": [0.01, 1.0, 0.5]}),
        low=0.005, high=1.1, matrix="D⁻¹A",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_every_law_draws(name: str) -> None:
    figure = FIGURES[name]
    svg = vl_convert.vegalite_to_svg(figure.chart().to_json())
    assert "NaN" not in svg
    assert figure.spec["title"] in svg
    assert figure.alt


def test_a_line_that_leaves_the_frame_is_labelled() -> None:
    edges = FIGURES["cut"].tables["edges"]
    assert edges.label.tolist() == ["one ↓ to 1e-01", "two ↓ to 1e-01", "two ↑ overflows"]
    svg = vl_convert.vegalite_to_svg(FIGURES["cut"].chart().to_json())
    assert "two ↑ overflows" in svg
    assert len(FIGURES["lines"].tables["edges"]) == 0


def test_what_is_no_number_is_left_out() -> None:
    assert len(FIGURES["linear"].tables["curves"]) == 5


def test_the_words_hold_the_values() -> None:
    assert "one: 0.5 at n = 8, 0.1 at n = 32" in FIGURES["lines"].alt
    assert "proved: iteration 0.004, product 0.005" in FIGURES["budget"].alt
    assert "from 0.01 to 1, certified [0.005, 1.1]" in FIGURES["eigenvalues"].alt
