"""Sweep: a grid of settings, and what every method reaches in one cell of it."""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from krrviz.fan import HUGE, fan
from krrviz.settings import DATASETS, MAPPED, MAX_N, Number, Settings, SettingsError, View, shown
from krrviz.tables import Table, TableError

Rows = list[dict[str, Any]]
Own = Callable[[Settings], Table]  # a person's table, by the columns that settings choose

MOST = 10_000  # cells
EPS = Number(1e-15, 1e3)
FOUND = (
    "method", "steps_to_eps", "final_error", "winner", "residual", "device", "dtype", "seconds",
    "refusal",
)  # fmt: skip
RANGE = ("from", "to", "count", "scale")


# ---------------------------------------------------------------------------------------------
# One cell


@dataclass(frozen=True, eq=False)
class Course:
    """How every method's mean error went, step by step, at the full context length.

    ``errors[method]`` is (steps+1,); ``residual`` is the largest of the exact solves, ``seconds``
    are those of all methods together, ``device`` the one that computed them. Of what was refused
    there are no errors, and ``refusal`` says why.
    """

    errors: Mapping[str, Float[np.ndarray, " times"]] = field(default_factory=dict)
    residual: float = 0.0
    device: str = ""
    dtype: str = ""
    seconds: float = 0.0
    refusal: str = ""


def course(settings: Settings, table: Table | None = None) -> Course:
    """The fan of ``settings`` at n = N alone.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    started = time.perf_counter()
    result = fan(settings, table, counts=[settings.n])
    return Course(
        {method: error[:, -1].clip(0, HUGE) for method, error in result.errors.items()},
        min(result.residual, HUGE),
        result.device,
        settings.dtype,
        round(time.perf_counter() - started, 4),
    )


def course_rows(found: Course, eps: float) -> Rows:
    """A row for each method, in the columns ``FOUND`` but for the refusal.

    ``steps_to_eps`` is the first step at which the mean error is at most ``eps``, None where that
    never happens. The winner, the same in all rows, has the fewest; of several the one with the
    lower error at the last step. Where nobody gets there, that error alone decides, and nobody
    wins where all have overflowed.
    """
    steps, last = dict[str, int | None](), dict[str, float]()
    for method, error in found.errors.items():
        there = np.flatnonzero(error <= eps)
        steps[method] = int(there[0]) if len(there) else None
        last[method] = float(error[-1])

    def place(method: str) -> tuple[float, float]:
        first = steps[method]
        return math.inf if first is None else first, last[method]

    first = min(last, key=place, default="")
    winner = "" if not first or (last[first] >= HUGE and steps[first] is None) else first
    return [
        {
            "method": method,
            "steps_to_eps": steps[method],
            "final_error": last[method],
            "winner": winner,
            "residual": found.residual,
            "device": found.device,
            "dtype": found.dtype,
            "seconds": found.seconds,
        }
        for method in found.errors
    ]


# ---------------------------------------------------------------------------------------------
# The grid


@dataclass(frozen=True, eq=False)
class Grid:
    """The product of some settings' values, over what a link and ``fixed`` values say of others.

    ``axes`` holds checked values by setting, the last of them changing fastest.
    """

    axes: Mapping[str, tuple[Any, ...]]
    link: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    eps: float = 1e-3

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def values(self, number: int) -> dict[str, Any]:
        """The swept values of a cell, counted from 0."""
        sizes = [len(values) for values in self.axes.values()]
        places = np.unravel_index(number, sizes)
        return {
            name: values[place]
            for (name, values), place in zip(self.axes.items(), places, strict=True)
        }

    def settings(self, number: int) -> Settings:
        """The settings of a cell; a bandwidth that nothing names is its data set's own.

        Raises
        ------
        SettingsError
            The values do not go together.
        """
        return Settings.from_query(self.link, **{**self.fixed, **self.values(number)})

    def methods(self, number: int) -> tuple[str, ...]:
        """The methods of a cell, also of one whose other values do not go together."""
        named = {**self.fixed, **self.values(number)}.get("methods")
        return named or Settings.from_query(self.link).methods

    @cached_property
    def digest(self) -> str:
        """What tells this grid from others."""
        return _digest(json.dumps([self.link, dict(self.fixed), dict(self.axes), self.eps]))

    @property
    def header(self) -> list[str]:
        """The columns of the rows; a swept name that a result has, too, says what was asked."""
        return [f"asked_{name}" if name in FOUND else name for name in self.axes] + [*FOUND]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def cell_digest(settings: Settings, eps: float) -> str:
    """What tells a cell from others, whatever grid it is in."""
    return _digest(f"{settings.to_query()}&eps={eps!r}")


def cell_course(grid: Grid, number: int, own: Own | None = None) -> Course:
    """What every method reaches in one cell; ``own`` gives the table behind ``data=csv``."""
    try:
        settings = grid.settings(number)
        table = own(settings) if own is not None and settings.data == "csv" else None
        return course(settings, table)
    except (SettingsError, TableError) as error:
        return Course(refusal=str(error))


def same(table: Table | None) -> Own | None:
    """The table of a person's file whose columns no cell changes."""
    return None if table is None else lambda _settings: table


def cell_rows(grid: Grid, number: int, found: Course) -> Rows:
    """The rows of one cell, a method each: the swept values, then the columns ``FOUND``.

    Those of a refused cell hold the values, the method and the refusal.
    """
    rows = course_rows(found, grid.eps)
    if found.refusal:
        rows = [{"method": method, "refusal": found.refusal} for method in grid.methods(number)]
    swept = [
        " ".join(value) if isinstance(value, tuple) else value
        for value in grid.values(number).values()
    ]
    return [
        dict(zip(grid.header, [*swept, *(row.get(name) for name in FOUND)], strict=True))
        for row in rows
    ]


# ---------------------------------------------------------------------------------------------
# The grid's file


def read_grid(path: Path, eps: float = 1e-3, **fixed: Any) -> Grid:
    """A grid from a TOML file: ``link``, the table ``settings``, the table ``sweep``.

    A swept setting is a list of values, or from, to, count and scale (linear or log) of evenly
    spaced ones; those of a whole number are rounded, and each is kept once. ``fixed`` settings win
    over the file's.

    Raises
    ------
    SettingsError
        What of the file cannot be used: its name, its value, and what is allowed.
    OSError
        The file cannot be read.
    """
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML file: {shown_error(error)}") from None
    _known(given, ("link", "settings", "sweep"), f"{path}")
    link = given.get("link", "")
    if not isinstance(link, str):
        raise SettingsError(f"link={shown(link)} must be a link of the app, or a query string")
    Settings.from_query(link)
    named, swept = _table(given, "settings"), _table(given, "sweep")
    if not swept:
        raise SettingsError("[sweep] is empty; allowed: one setting or more, each with its values")
    if both := [name for name in swept if name in named]:
        raise SettingsError(f"{both[0]} is both in [settings] and in [sweep]; one is allowed")
    base = {name: _checked(name, value) for name, value in named.items()} | fixed
    if taken := [name for name in swept if name in fixed]:
        raise SettingsError(f"{taken[0]} is given on the command line; it cannot be swept, too")
    axes = {name: _axis(name, value) for name, value in swept.items()}
    try:
        grid = Grid(axes, link, base, float(EPS.check(eps)))
    except ValueError as error:
        raise SettingsError(f"eps={shown(eps)} {error}") from None
    if len(grid) > MOST:
        sizes = " × ".join(str(len(values)) for values in axes.values())
        raise SettingsError(f"[sweep] has {sizes} = {len(grid)} cells; allowed: 1 to {MOST}")
    return grid


def shown_error(error: Exception) -> str:
    """An error's own words, on one line."""
    return " ".join(str(error).split())[:300]


def _known(given: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in allowed:
            raise SettingsError(
                f"{where}: {shown(name)} is not known; allowed: {', '.join(allowed)}"
            )


def _table(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One of the file's two tables; its names are settings."""
    table = given.get(name, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{name}={shown(table)} must be a table of settings, as in [{name}]")
    _known(table, tuple(Settings.table()), f"[{name}]")
    return table


def _checked(name: str, value: object, part: str = "") -> Any:
    """``value`` as the setting holds it; ``part`` names it where it is one end of a range."""
    rule = Settings.table()[name].rule
    try:
        return rule.check(value)
    except (ValueError, TypeError):  # the latter of tables within lists, which have no hash
        said = f"{name}: {part}" if part else name
        raise SettingsError(f"{said}={shown(value)} must be {rule.allowed}", name) from None


def _axis(name: str, given: object) -> tuple[Any, ...]:
    """A setting's values in the order they are swept."""
    if isinstance(given, dict):
        values = _range(name, given)
    elif isinstance(given, list):
        values = tuple(_checked(name, value) for value in given)
    else:
        raise SettingsError(
            f"{name}={shown(given)} must be a list of values, or from, to, count and scale", name
        )
    if not values:
        raise SettingsError(f"{name}=[] is empty; allowed: one value or more", name)
    seen = set()
    for value in values:
        if value in seen:
            raise SettingsError(f"{name}={shown(value)} stands twice; once is allowed", name)
        seen.add(value)
    return values


def _range(name: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Evenly spaced values, both ends among them."""
    rule = Settings.table()[name].rule
    if not isinstance(rule, Number):
        raise SettingsError(f"{name} is no number: list its values; allowed: {rule.allowed}", name)
    _known(given, RANGE, name)
    for part in ("from", "to", "count"):
        if part not in given:
            raise SettingsError(f"{name} lacks {part}; a range has from, to and count", name)
    low, high = (_end(name, given, part) for part in ("from", "to"))
    count, scale = given["count"], given.get("scale", "linear")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise SettingsError(
            f"{name}: count={shown(count)} must be a whole number 1 to {MOST}", name
        )
    if scale not in ("linear", "log"):
        raise SettingsError(f"{name}: scale={shown(scale)} must be linear or log", name)
    for part, end in (("from", low), ("to", high)):
        if scale == "log" and end <= 0:
            raise SettingsError(f"{name}: {part}={end:g} must be above 0 where scale is log", name)
    if count == 1 and low != high:
        raise SettingsError(f"{name}: count=1 has no room for both from and to; 2 has", name)
    if count > 1 and low == high:
        raise SettingsError(
            f"{name}: count={count} values from {low:g} to {high:g} are all the same; allowed: 1",
            name,
        )
    spread = (np.geomspace if scale == "log" else np.linspace)(low, high, count)
    values = [*map(float, spread)]
    values[0], values[-1] = low, high  # to the last digit
    return tuple(dict.fromkeys(round(v) if rule.whole else v for v in values))


def _end(name: str, given: Mapping[str, Any], part: str) -> float:
    """One end of a range."""
    end = _checked(name, given[part], part)
    if isinstance(end, str):
        raise SettingsError(f"{name}: {part}={shown(end)} must be a number", name)
    return end


# ---------------------------------------------------------------------------------------------
# The page's grid

FEW = 4  # prompts of a map at most
SIDE, LONGEST = 7, 128  # values of n or the bandwidth, and the largest n
LADDERS: Mapping[str, tuple[float, ...]] = {
    "ridge": (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0),
    "steps": (4, 8, 16, 32, 64, 128, 256),
    "segments": (8, 16, 32, 64, 128, 256, 512),
    "sink": (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
    "noise": (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "d": (1, 2, 3, 5, 8, 12, 20),
    "step_size": (0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0),
    "seed": (0, 1, 2, 3, 4, 5, 6),
}


def mapped(settings: Settings, view: View, rows: int | None = None) -> Grid:
    """The grid of two settings that a view's map shows: the second named changes fastest.

    Its values do not depend on where the two settings stand; the bandwidth's lie around the data
    set's own, and n goes as far as its ``rows`` allow. Few prompts, so that it is there in seconds.

    Raises
    ------
    SettingsError
        The two are one, or one of them changes nothing with these settings.
    """
    if view.map_x == view.map_y:
        raise SettingsError(f"map_x and map_y are both {view.map_x}; a map has two settings")
    for name in ("map_x", "map_y"):
        swept = getattr(view, name)
        if swept not in (there := movable(settings)):
            needed = "policy=manual" if swept == "step_size" else "data=gp"
            raise SettingsError(
                f"{name}={swept} changes nothing without {needed}; allowed: {', '.join(there)}"
            )
    room = rows or DATASETS[settings.data].rows
    most = max(2, min(LONGEST, MAX_N, LONGEST if room is None else room - settings.queries))
    ladders = {
        **LADDERS,
        "bandwidth": tuple(DATASETS[settings.data].bandwidth * 2.0**k for k in range(-3, 4)),
        "n": tuple(dict.fromkeys(round(n) for n in np.geomspace(min(4, most), most, SIDE))),
    }
    base = settings.but(prompts=min(FEW, settings.prompts))
    axes = {name: ladders[name] for name in (view.map_y, view.map_x)}
    return Grid(axes, base.to_query(), eps=view.map_eps)


def movable(settings: Settings) -> list[str]:
    """The settings of a map that change something."""
    idle = {"noise", "d"} if settings.data != "gp" else set[str]()
    if settings.policy != "manual":
        idle.add("step_size")
    return [name for name in MAPPED if name not in idle]
