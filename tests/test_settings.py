"""Settings and View: the table of defaults and ranges by hand, and links good, bad and hostile."""

import csv
import math
import re
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import jaxtyping
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from krrviz import settings as module
from krrviz.settings import DATASETS, PRESETS, Choice, Number, Settings, SettingsError, Text, View
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
    "file": ("none", "none", "0123456789abcdef"),
    "target": ("last", 1, 1000),
    "columns": ("all", "all", "2", "1,3,12"),
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
    "update": ("richardson", "richardson", "chebyshev", "heavy_ball", "nesterov", "function_space"),
    "sink": (0, 0.0, 1e12),
    "alpha_range": ("calibrated", 1e-6, 1e9),
    "label_bound": (4, 1e-6, 1e9),
    "input_bound": ("auto", 1e-6, 1e9),
    "policy": ("certified", "certified", "one_over_l", "optimal", "manual"),
    "step_size": (1, 1e-6, 1e3),
    "methods": (METHODS,),
    "reference": ("krr", "krr", "noiseless", "labels"),
    "device": ("auto", "auto", "cpu", "cuda", "mps"),
    "dtype": ("float64", "float64", "float32", "bfloat16", "float16"),
}
# Words beside a range.
PROMISED_WORDS = {
    "target": ["last"],
    "sink": ["ridge"],
    "alpha_range": ["calibrated", "certified"],
    "input_bound": ["auto"],
}

# What makes a value usable where another field has a say in it.
NEEDS: dict[tuple[str, object], dict[str, Any]] = {
    ("reference", "noiseless"): {"data": "gp"},
    ("device", "mps"): {"dtype": "float32"},
    ("n", 16384): {"data": "gp"},
    ("queries", 1024): {"data": "gp"},
}

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
        case Text():
            return st.from_regex(rule.pattern, fullmatch=True).filter(lambda text: len(text) < 999)
        case _:
            return st.lists(st.sampled_from(rule.options), min_size=1).map(tuple)


CHOSEN = st.fixed_dictionaries(
    {name: values(about.rule) for name, about in Settings.table().items()}
)


def made(chosen: dict[str, Any]) -> Settings:
    """Settings of these fields, less those that do not go together."""
    while True:
        try:
            return Settings(**chosen)
        except SettingsError as error:
            blamed = next(name for name in error.fields if name in chosen)
            chosen = {name: value for name, value in chosen.items() if name != blamed}


def witness(name: str) -> dict[str, Any]:
    """A good key to stand beside a bad one: it must be applied all the same."""
    return {"segments": 9} if name != "segments" else {"steps": 9}


def only_problem(name: str, raw: str) -> str:
    """What is said of ``name=raw`` (not quoted for a link), once the rest was applied."""
    beside = witness(name)
    read, (problem,) = Settings.read(f"{urlencode(beside)}&{name}={raw}")
    assert read == Settings(**beside)
    assert problem.isprintable()
    assert len(problem) < 400
    return problem


# -- defaults and ranges ---------------------------------------------------------------------


def test_every_field_has_the_promised_default() -> None:
    assert asdict(Settings()) == {name: promise[0] for name, promise in PROMISED.items()}


@pytest.mark.parametrize("name", PROMISED)
def test_every_promised_value_is_allowed(name: str) -> None:
    for value in (*PROMISED[name][1:], *PROMISED_WORDS.get(name, [])):
        made = Settings(**{name: value, **NEEDS.get((name, value), {})})
        assert getattr(made, name) == value
        assert Settings.from_query(made.to_query()) == made


RANGES = [(name, *p[1:]) for name, p in PROMISED.items() if p[1:] and not isinstance(p[1], str)]


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_a_number_beyond_its_range_is_refused_with_the_range(
    name: str, low: float, high: float
) -> None:
    for beyond in (low - 1, high + 1, math.nextafter(low, -1), math.nextafter(high, math.inf)):
        told = only_problem(name, f"{beyond!r}").removeprefix(f"{name}={beyond!r} must be ")
        ends = re.findall(r"[\d.]+(?:e[+-]\d+)?(?=\D)", told)
        assert [float(end) for end in ends] == [low, high]


def test_whole_numbers_stay_whole() -> None:
    for name, _, high in RANGES:
        whole = Settings.table()[name].rule.allowed.startswith("a whole number")
        assert whole == isinstance(high, int)
        if whole:
            assert "whole number" in only_problem(name, "8.5")


WRONG: dict[str, tuple[str, Any]] = {
    **{f"n {value}": ("n", value) for value in (math.nan, math.inf, True, "8", [8])},
    **{f"{name} nan": (name, math.nan) for name, *_ in RANGES},
    "huge": ("n", 10**400),
    "hugely negative": ("ridge", -(10**400)),
    "number for a word": ("policy", 1),
    "no method": ("methods", ()),
    "not a method": ("methods", ("gp",)),
}


@pytest.mark.parametrize(("name", "value"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_raises_a_settings_error_that_blames_its_field(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As it runs outside the tests, where nobody checks types on the way in.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(SettingsError, match=f"^{name}=") as caught:
        Settings(**{name: value})
    assert caught.value.fields == (name,)


@pytest.mark.parametrize(
    ("data", "bandwidth"),
    [("gp", 0.5), ("motorcycle", 0.3), ("co2", 0.5), ("diabetes", 3.0), ("csv", 1.0)],
)
def test_a_data_set_brings_its_bandwidth_unless_one_is_named(data: str, bandwidth: float) -> None:
    assert Settings(data=data).bandwidth == bandwidth
    assert Settings.from_query(f"data={data}").bandwidth == bandwidth
    assert Settings.from_query(f"data={data}&bandwidth=0.25").bandwidth == 0.25


# -- links ------------------------------------------------------------------------------------


@given(CHOSEN)
def test_a_link_gives_its_settings_back(chosen: dict[str, Any]) -> None:
    settings = made(chosen)
    assert Settings.read(settings.to_query()) == (settings, ())


@given(st.fixed_dictionaries({name: values(about.rule) for name, about in View.table().items()}))
def test_a_link_gives_its_view_back(chosen: dict[str, Any]) -> None:
    assert View.read(View(**chosen).to_query()) == (View(**chosen), ())


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ("file=..%2F..%2Fetc%2Fpasswd", "file=../../etc/passwd must be none or 16 hexadecimal"),
        ("file=none%0A", "file=none\ufffd must be"),
        ("columns=1,,2", "columns=1,,2 must be all or column numbers"),
        ("columns=0", "columns=0 must be"),
        (f"columns={','.join(['1'] * 1000)}", "columns=1,1,1"),
    ],
)
def test_a_text_of_another_form_is_refused(link: str, named: str) -> None:
    read, (problem,) = Settings.read(f"{link}&n=9")
    assert read == Settings(n=9)
    assert problem.startswith(named)


@pytest.mark.parametrize(
    "link", ["controls=n,", "controls=colour", "controls=n%26d", "answers=abcd----", "answers=a"]
)
def test_a_view_of_another_form_is_refused(link: str) -> None:
    read, (problem,) = View.read(f"{link}&step=3")
    assert read == View(step=3)
    assert problem.startswith(link.split("%")[0])


def test_a_link_holds_every_field_and_its_version() -> None:
    pairs = parse_qs(Settings().to_query(), strict_parsing=True)
    assert set(pairs) == {"v", *PROMISED}
    assert pairs["v"] == ["1"]
    assert tuple(pairs["methods"]) == METHODS


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "?{}",
        " {}\n",
        "http://localhost:8501/?{}",
        "https://host.example/a/page?{}#part=2",
        "/page?{}",
        "localhost:8501/page?{}",
        "http://[::1]:8501/page?{}",
        "https://host.example/a=b/page?{}",
    ],
)
def test_a_query_or_a_whole_link_reads_alike(form: str) -> None:
    wanted = Settings(data="gp", n=9, methods=("nesterov", "chebyshev"))
    assert Settings.read(form.format(wanted.to_query())) == (wanted, ())


@pytest.mark.parametrize("link", ["", "?", "http://localhost:8501/", "https://host.example/page?"])
def test_a_link_that_names_nothing_is_the_defaults(link: str) -> None:
    assert Settings.read(link) == (Settings(), ())


def test_one_link_carries_settings_and_view() -> None:
    settings, view = Settings(n=9), View(step=3)
    link = f"?{settings.to_query()}&{view.to_query().replace('v=1&', '')}&embed=true"
    assert Settings.read(link) == (settings, ())
    assert View.read(link) == (view, ())


def test_a_link_of_another_version_says_so_and_applies_what_is_known() -> None:
    read, (problem,) = Settings.read("v=2&n=9")
    assert View.read("v=2&step=3") == (View(step=3), ())  # said once
    assert read == Settings(n=9)
    assert problem.startswith("v=2")
    assert "v=1" in problem


def test_methods_repeat_and_keep_one_order() -> None:
    read = Settings.from_query("methods=nesterov&methods=transformer&methods=nesterov")
    assert read.methods == ("transformer", "nesterov")


# -- what is wrong in a link -----------------------------------------------------------------


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_a_bad_value_is_told_with_key_value_and_what_is_allowed(raw: str) -> None:
    start = "".join(c if c.isprintable() else "\ufffd" for c in raw.strip())[:39]
    for name, about in Settings.table().items():
        told = only_problem(name, raw)
        assert told.replace("= ", "=").startswith(f"{name}={start}")
        assert told.endswith(f"must be {about.rule.allowed}.")


def test_an_unknown_key_is_told_with_the_known_ones() -> None:
    read, (problem,) = Settings.read("bandwith=0.5&n=9")
    assert read == Settings(n=9)
    assert problem.startswith("bandwith ")
    assert all(name in problem for name in PROMISED)


def test_a_repeated_key_is_told_and_not_applied() -> None:
    read, (problem,) = Settings.read("n=5&n=6&d=3")
    assert read == Settings(d=3)
    assert problem.startswith("n ")


def test_every_bad_key_is_told() -> None:
    _, problems = Settings.read("n=1&ridge=0&dtype=int8&colour=red")
    assert sorted(problem.split("=")[0].split()[0] for problem in problems) == [
        "colour", "dtype", "n", "ridge",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("clash", "fields"),
    [
        ({"data": "motorcycle", "reference": "noiseless"}, ("reference", "data")),
        ({"device": "mps", "dtype": "float64"}, ("dtype", "device")),
        ({"n": 102}, ("n", "queries", "data")),
    ],
)
def test_settings_that_do_not_go_together_name_the_fields_to_blame(
    clash: dict[str, Any], fields: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**clash)
    assert caught.value.fields == fields
    read, problems = Settings.read(urlencode(clash | {"seed": 7}))
    assert read.seed == 7
    assert len(problems) == 1  # said once


def test_from_query_raises_with_every_problem() -> None:
    with pytest.raises(SettingsError, match=r"n=1 .* ridge=0 "):
        Settings.from_query("n=1&ridge=0")


def test_fixed_fields_win_over_the_link() -> None:
    read, problems = Settings.read("data=gp&reference=noiseless&n=9", data="csv")
    assert (read.data, read.reference, read.n) == ("csv", "krr", 9)
    assert len(problems) == 1


KEYS = st.sampled_from([*PROMISED, "v", "step", "x"])
WORDS = st.sampled_from(
    [w for _, *allowed in PROMISED.values() for w in allowed if isinstance(w, str)]
)
# Lone surrogates too: a command line hands them over for bytes that are no text.
TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
PAIR = st.tuples(KEYS | TEXT, WORDS | TEXT | st.integers().map(str) | st.floats().map(str))


@given(
    st.sampled_from(["", "?", "http://host/?", "http://[?", "//\u2100?"]),
    st.lists(PAIR.map("=".join), max_size=8),
    TEXT,
)
@example("http://[?", [], "")
@example("http://host.\u2100?", [], "")
def test_no_text_makes_a_link_raise(start: str, pairs: list[str], end: str) -> None:
    for record in (Settings, View):
        read, problems = record.read(start + "&".join(pairs) + end)
        assert isinstance(read, record)
        assert all(problem.isprintable() for problem in problems)


# -- data sets --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.rows])
def test_a_shipped_data_set_is_as_large_as_its_file(name: str) -> None:
    with (assets() / "datasets" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    assert DATASETS[name].rows == len(rows)
    assert {DATASETS[name].d} == {len(row) - 1 for row in rows}


def test_every_shipped_file_is_a_data_set() -> None:
    files = {path.stem for path in (assets() / "datasets").glob("*.csv")}
    assert files == {name for name, entry in DATASETS.items() if entry.rows}


@pytest.mark.parametrize("queries", [1, 32, 131, 132, 1000])
def test_the_row_limit_is_where_the_message_says(queries: int) -> None:
    most = 133 - queries
    if most >= 2:
        assert Settings(n=most, queries=queries).n == most
    beyond: dict[str, Any] = {"n": max(2, most + 1), "queries": queries}
    with pytest.raises(SettingsError, match=f"n={beyond['n']} .* has 133") as caught:
        Settings(**beyond)
    # Whatever the message allows is allowed.
    for name, *ends in re.findall(r"(n|queries) (\d+) to (\d+)", str(caught.value)):
        for end in ends:
            allowed: dict[str, Any] = {**beyond, name: int(end)}
            assert Settings(**allowed)


def test_but_data_takes_the_sets_bandwidth_and_as_much_context_as_fits() -> None:
    start = Settings(data="gp", bandwidth=0.7, n=500, ridge=0.3, reference="noiseless")
    moved = start.but_data("motorcycle")
    assert moved == Settings(data="motorcycle", n=133 - 32, ridge=0.3)
    assert start.but_data("co2") == Settings(data="co2", n=500, ridge=0.3)
    assert start.but_data("gp").bandwidth == 0.5


@pytest.mark.parametrize("rows", [3, 4, 5, 40, 97, 10**6])
def test_but_data_fits_a_file_of_any_length(rows: int) -> None:
    made = Settings().but_data("csv", rows, "0" * 16)
    assert made.n + made.queries <= rows
    assert (made.data, made.file, made.target, made.columns) == ("csv", "0" * 16, "last", "all")
    assert made.but_data("gp").file == "none"


@pytest.mark.parametrize("data", [*DATASETS])
@pytest.mark.parametrize("queries", [1, 1024])
def test_but_data_goes_from_any_settings_to_any_data(data: str, queries: int) -> None:
    start = Settings(data="gp", n=4096, queries=queries)
    assert start.but_data(data).data == data


def test_but_keeps_everything_else() -> None:
    assert Settings(n=9, ridge=2.0).but(n=10) == Settings(n=10, ridge=2.0)


# -- presets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PRESETS])
def test_a_preset_survives_its_link(name: str) -> None:
    preset = PRESETS[name]
    assert Settings.read(preset.settings.to_query()) == (preset.settings, ())
    assert preset.title
    assert preset.text


def test_the_presets_are_what_they_are_called() -> None:
    settings = {name: preset.settings for name, preset in PRESETS.items()}
    assert settings["gentle"].ridge >= 1
    assert settings["ill_conditioned"].ridge <= 1e-3
    assert settings["clumped"].inputs == "clumped"
    assert settings["one_dimensional"].d == 1
    assert settings["high_dimensional"].data == "diabetes"  # ten inputs


# -- the machine's own limit -------------------------------------------------------------------


@pytest.mark.parametrize("most", ["32", "100", "100000"])
def test_any_limit_on_n_leaves_the_package_usable(
    most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRRVIZ_MAX_N", most)
    loaded = runpy.run_path(str(Path(module.__file__)), run_name="settings_again")
    assert loaded["Settings"].table()["n"].rule.high == int(most)
