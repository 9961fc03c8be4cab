"""Settings and View: the table of defaults and ranges by hand, and links good, bad and hostile."""

import csv
import math
import re
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from krrviz import settings as module
from krrviz.settings import DATASETS, PRESETS, Choice, Number, Settings, SettingsError, View
from krrviz.tables import assets

METHODS = (
    "transformer",
    "preconditioned_richardson",
    "gradient_descent",
    "nesterov",
    "conjugate_gradient",
)

# What the design promises: default, and the allowed words or the two ends of the range.
PROMISED: dict[str, tuple[Any, ...]] = {
    "data": ("motorcycle", "gp", "motorcycle", "co2", "diabetes", "csv"),
    "inputs": ("uniform", "uniform", "clumped", "gaussian"),
    "d": (2, 1, 50),
    "noise": (0.1, 0, 1e3),
    "n": (64, 2, 16384),
    "queries": (32, 1, 1024),
    "prompts": (16, 1, 256),
    "bandwidth": (0.3, 1e-3, 1e3),
    "ridge": (0.1, 1e-12, 1e6),
    "ridge_scale": ("absolute", "absolute", "per_sample"),
    "seed": (0, 0, 2**31 - 1),
    "steps": (32, 0, 100_000),
    "segments": (128, 1, 65_536),
    "layout": ("paper", "paper", "fused"),
    "product": ("balanced", "plain", "balanced"),
    "update": ("richardson", "richardson"),
    "sink": (0, 0, 1e12),
    "alpha_range": ("calibrated",),
    "label_bound": (4,),
    "input_bound": ("auto",),
    "policy": ("certified", "certified", "one_over_l", "optimal", "manual"),
    "step_size": (1, 1e-6, 1e3),
    "methods": (METHODS,),
    "reference": ("krr", "krr", "noiseless", "labels"),
    "device": ("auto", "auto", "cpu", "cuda", "mps"),
    "dtype": ("float64", "float64", "float32"),
}

# What makes a value usable where another field has a say in it.
NEEDS: dict[tuple[str, object], dict[str, Any]] = {
    ("reference", "noiseless"): {"data": "gp"},
    ("ridge_scale", "per_sample"): {"methods": ("nesterov",)},
    ("device", "mps"): {"dtype": "float32"},
    ("n", 16384): {"data": "gp"},
    ("queries", 1024): {"data": "gp"},
}

LATER = [
    *(("update", rule) for rule in ("chebyshev", "heavy_ball", "nesterov", "function_space")),
    ("sink", "ridge"),
    ("sink", "1"),
    ("alpha_range", "certified"),
    ("ridge_scale", "per_sample"),
    ("dtype", "bfloat16"),
    ("dtype", "float16"),
]

HOSTILE = {
    "nothing": "",
    "not a number": "nan",
    "infinite": "inf",
    "minus infinite": "-Infinity",
    "overflows": "1e999",
    "long exponent": "1e99999999",
    "many digits": "9" * 5000,
    "a megabyte of a": "a" * 100_000,
    "markup": "<script>alert(1)</script>",
    "NUL": "1\x00",
    "line ends": "1\r\n2",
    "right to left": "\u202e8\u200f",
    "underscores": "1_000",
    "fullwidth digits": "６４",
    "Arabic digit": "٣",
    "hexadecimal": "0x10",
    "spaces": " 8 ",
    "two points": "1.2.3",
    "only a point": ".",
    "quotes": "';--\"",
    "not UTF-8": "\udcff",
}


def values(rule: module.Rule) -> st.SearchStrategy[Any]:
    """Everything that a rule allows."""
    match rule:
        case Choice():
            return st.sampled_from(rule.options)
        case Number():
            word = st.sampled_from(rule.words) if rule.words else st.nothing()
            low, high = int(rule.low), int(rule.high)
            number = st.integers(low, high) if rule.whole else st.floats(rule.low, rule.high)
            return number | word
        case _:
            return st.lists(st.sampled_from(rule.options), min_size=1).map(tuple)


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    """Any settings at all: fields that do not go together are left at their defaults."""
    chosen = {name: draw(values(about.rule)) for name, about in Settings.table().items()}
    while True:
        try:
            return Settings(**chosen)
        except SettingsError as error:
            del chosen[next(name for name in error.fields if name in chosen)]


def only_problem(link: str) -> str:
    """The one problem of a link whose seed is good, and is applied."""
    read, problems = Settings.read(link + "&seed=7")
    assert read == Settings(seed=7)
    (problem,) = problems
    assert problem.isprintable()
    return problem


# -- defaults and ranges ---------------------------------------------------------------------


def test_every_field_has_the_promised_default() -> None:
    assert asdict(Settings()) == {name: promise[0] for name, promise in PROMISED.items()}


@pytest.mark.parametrize(
    ("name", "value"), [(k, v) for k, promise in PROMISED.items() for v in promise[1:]]
)
def test_every_promised_value_is_allowed(name: str, value: object) -> None:
    made = Settings(**{name: value, **NEEDS.get((name, value), {})})
    assert getattr(made, name) == value
    assert Settings.from_query(made.to_query()) == made


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [(name, *ends) for name, (_, *ends) in PROMISED.items() if isinstance((*ends, "")[0], float | int)],
)
def test_what_lies_beyond_the_range_is_refused_with_the_range(
    name: str, low: float, high: float
) -> None:
    for beyond in (low - 1, high + 1, math.nextafter(low, -1), math.nextafter(high, math.inf)):
        problem = only_problem(f"{name}={beyond!r}" if name != "seed" else f"n=1&seed={beyond!r}&")
        assert problem.startswith(f"{name}={beyond!r} must be ")
        ends = problem.removeprefix(f"{name}={beyond!r} must be ").removeprefix("a whole number ")
        assert [float(end) for end in re.findall(r"[\d.e+-]*\d", ends)] == [low, high]
