"""A table of numbers: inputs, a target, and the scaling that standardised them.

Tables come from the data sets shipped with the package or from a person's own CSV file. Here a
file is only ever read, as text; what cannot be used is refused by name in a ``TableError``, and
what was done to the numbers on the way is told in ``Table.notices``.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import compress
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

MAX_BYTES = 100_000_000
MAX_ROWS = 1_000_000
MAX_COLUMNS = 1_000
MIN_ROWS = 3  # two to learn from and one to predict
MAX_SIZE = 1e100  # of a number: its square, summed over rows, stays far from overflow
MIN_SPREAD = 1e-100  # of a column: its square stays far from underflow
MIN_RELATIVE_SPREAD = 1e-12  # below this a column's spread is the rounding of its numbers

# The shipped sets: rows, and each column with its unit ("" where it has none or the source gives
# none). The last column is the target.
SHIPPED: dict[str, tuple[int, dict[str, str]]] = {
    "motorcycle": (133, {"time": "ms", "acceleration": "g"}),
    "co2": (2225, {"year": "", "co2": "ppm"}),
    "diabetes": (
        442,
        {"age": "years", "sex": "", "bmi": "kg/m²"}
        | dict.fromkeys(("bp", "tc", "ldl", "hdl", "tch", "ltg", "glu", "progression"), ""),
    ),
}

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_QUOTED = re.compile(r'"[^"]*"')
_NUMBER = re.compile(r"(?i)|nan?|[-+]?inf|[-+]?(\d+[.,]?\d*|[.,]\d+)(e[-+]?\d+)?")
_DECIMAL_COMMA = re.compile(rb'(?:^|[;\t\r\n])[ "]*[-+]?\d*,\d')


class TableError(ValueError):
    """Data that cannot be used: the message names the thing, its value and what is allowed."""


@dataclass(frozen=True, eq=False)
class Table:
    """Standardised numbers: every column has mean 0 and population standard deviation 1.

    Parameters
    ----------
    name : the data set's name, or the file's
    X : (rows, d) inputs, standardised, read-only
    y : (rows,) target, standardised, read-only
    x_mean, x_scale : (d,) mean and standard deviation of each input, in its own unit
    y_mean, y_scale : the same of the target
    input_names, target_name : the columns' names
    x_units, y_unit : the columns' units, "" where unknown
    notices : what was done to the data on the way, a sentence each
    """

    name: str
    X: Float[np.ndarray, "rows d"]
    y: Float[np.ndarray, " rows"]
    x_mean: Float[np.ndarray, " d"]
    x_scale: Float[np.ndarray, " d"]
    y_mean: float
    y_scale: float
    input_names: tuple[str, ...]
    target_name: str
    x_units: tuple[str, ...]
    y_unit: str
    notices: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.X.shape[0]

    @property
    def d(self) -> int:
        """Number of inputs."""
        return self.X.shape[1]

    @property
    def input_bound(self) -> float:
        """Largest ‖x‖ over the rows, standardised."""
        return float(np.linalg.norm(self.X, axis=1).max())

    def x_raw(self, X: Float[np.ndarray, "*rows d"]) -> Float[np.ndarray, "*rows d"]:
        """Standardised inputs (..., d) in the columns' own units."""
        return X * self.x_scale + self.x_mean

    def y_raw(self, y: Float[np.ndarray, "*rows"]) -> Float[np.ndarray, "*rows"]:
        """Standardised targets (...) in the target's own unit."""
        return y * self.y_scale + self.y_mean


def assets() -> Path:
    """The folder of files that travel with the package: inside a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "assets"
    return installed if installed.is_dir() else package.parent / "assets"


@cache
def shipped(name: str) -> Table:
    """A shipped data set, ``motorcycle``, ``co2`` or ``diabetes``; its README tells the sources.

    Raises
    ------
    TableError
        No such data set, or its file is missing or not as shipped.
    """
    if name not in SHIPPED:
        raise TableError(f"data set {_shown(name)}: not one of {_listed(list(SHIPPED))}")
    rows, units = SHIPPED[name]
    table = read_csv(assets() / "datasets" / f"{name}.csv")
    found = [*table.input_names, table.target_name]
    if (table.rows, found) != (rows, list(units)):
        held = f"{table.rows} rows of {_listed(found)}, not {rows} of {_listed(list(units))}"
        raise TableError(f"data file '{name}.csv' is damaged: {held}; install krrviz again")
    *x_units, y_unit = units.values()
    return replace(table, name=name, x_units=tuple(x_units), y_unit=y_unit)


def read_csv(path: str | Path, target: str | None = None) -> Table:
    """Read a person's CSV file, which stays as it is; ``parse_csv`` says what it may hold.

    Raises
    ------
    TableError
        The file is missing, a folder or unreadable, or ``parse_csv`` refuses what it holds.
    """
    path = Path(path)
    label = path.name or str(path)
    try:
        if path.is_file():
            with path.open("rb") as file:
                contents = file.read(MAX_BYTES + 1)
            return parse_csv(contents, label, target)
        reason = "is a folder" if path.is_dir() else "no such file"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    raise TableError(f"data file {_shown(label)}: {reason}; give the path of a CSV file")


def parse_csv(contents: bytes, name: str, target: str | None = None) -> Table:
    """Turn the contents of a CSV file into a table.

    UTF-8, UTF-16 with its mark, or Latin-1; cells separated by commas, semicolons or tabs, quoted
    or not; decimal commas where the separator is another; any line ends. A first line of numbers
    only is data, its columns named x1, x2, … and y. All columns hold numbers (true and false are
    1 and 0). Rows with a missing cell and empty or constant columns are left out, repeated rows
    are kept; ``notices`` tells it.

    Parameters
    ----------
    contents : at most 100 MB
    name : the table's name, which starts every error message
    target : name of the column to predict; the last one if None

    Raises
    ------
    TableError
        Too large; not text; ragged or badly quoted lines; one column, over 1000, or two of one
        name; a column of text; a number that is infinite or beyond ±1e100; fewer than 3 complete
        rows or over 10⁶; no such target; a constant target; no input left; a spread so small
        that rounding hides it.
    """
    notices: list[str] = []
    try:
        if len(contents) > MAX_BYTES:
            raise TableError(f"larger than {MAX_BYTES / 1e6:g} MB, the most that is read")
        frame = _complete(_numbers(_utf8(contents, notices), notices), notices)
        return _standardised(name, frame, target, notices)
    except (TableError, pd.errors.ParserError) as error:
        raise TableError(f"data file {_shown(name)}: {error}") from None


def _shown(value: object) -> str:
    """A value fit for a message: quoted, printable, at most 40 characters of it."""
    text = "".join(c for c in str(value)[:400] if c.isprintable())
    return f"'{text[:40]}…'" if len(text) > 40 else f"'{text}'"


def _listed(names: Sequence[str]) -> str:
    """Names fit for a message: the first twelve, and how many more."""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(map(_shown, names[:12])) + more


def _utf8(contents: bytes, notices: list[str]) -> bytes:
    """The same text in UTF-8 without a byte order mark; text has no control characters."""
    utf16 = contents.startswith((b"\xff\xfe", b"\xfe\xff"))
    for encoding in ("utf-16" if utf16 else "utf-8-sig", "latin-1"):
        try:
            text = contents.decode(encoding)
        except UnicodeDecodeError:
            continue
        if not _CONTROL.search(text):
            if encoding == "latin-1":
                notices.append("read as Latin-1, since the file is not UTF-8")
            return text.encode()
    raise TableError("not a text file; save it as CSV in UTF-8")


def _separator(contents: bytes) -> str:
    """The separator that occurs in the first line, and as often in most of the next ones."""
    sample = _QUOTED.sub("", contents[:65_536].decode(errors="ignore"))
    lines = [line for line in sample.splitlines() if line.strip()][:50] or [""]
    counts = {separator: [line.count(separator) for line in lines] for separator in "\t;,"}
    return max(counts, key=lambda s: counts[s][0] and counts[s].count(counts[s][0]))


def _first_line(contents: bytes, separator: str) -> list[str]:
    """The cells of the first line, once every line is known to have as many."""
    lines = io.TextIOWrapper(io.BytesIO(contents), encoding="utf-8", newline="")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    first: list[str] = []
    try:
        rows = (row for row in reader if row not in ([], [""]))  # blank lines do not count
        for count, row in enumerate(rows):
            first = first or row
            if count > MAX_ROWS:
                raise TableError(f"more than {MAX_ROWS} rows, the most that is read")
            if len(row) != len(first):
                found = f"line {reader.line_num} has {len(row)} cells and the first {len(first)}"
                raise TableError(f"{found}; every line needs as many as the first")
    except csv.Error as error:
        raise TableError(f"line {reader.line_num} is not valid CSV ({error})") from None
    if not first:
        raise TableError(f"empty; it needs a line of column names and {MIN_ROWS} rows")
    if not 2 <= len(first) <= MAX_COLUMNS:
        found = f"number of columns: {len(first)} not in [2, {MAX_COLUMNS}]"
        raise TableError(f"{found}; separate cells by commas, semicolons or tabs")
    return first


def _numbers(contents: bytes, notices: list[str]) -> pd.DataFrame:
    """All cells as float64, NaN where one is missing, under the columns' names."""
    separator = _separator(contents)
    first = _first_line(contents, separator)
    decimal = "," if separator != "," and _DECIMAL_COMMA.search(contents) else "."
    if decimal == ",":
        notices.append("decimal commas read as decimal points")
    header = None if all(_NUMBER.fullmatch(cell.strip()) for cell in first) else 0
    names = [" ".join(cell.split()) or f"column {i}" for i, cell in enumerate(first, start=1)]
    if header is None:
        names = [*(f"x{i}" for i in range(1, len(first))), "y"]
        notices.append(f"no line of column names, so named {_listed(names)}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"column names that occur twice: {_listed(twice)}; names must differ")

    read = partial(pd.read_csv, sep=separator, decimal=decimal, header=header, names=names)
    read = partial(read, index_col=False, skipinitialspace=True)
    try:
        return read(io.BytesIO(contents), dtype="float64")
    except ValueError:  # a cell is not a number: read again, as text, to say which
        points = str.maketrans(f"{decimal}.", f".{decimal}")
        with read(io.BytesIO(contents), dtype="str", chunksize=50_000) as chunks:
            for name, cells in (column for chunk in chunks for column in chunk.items()):
                cells = cells.dropna()
                numbers = pd.to_numeric(cells.str.translate(points), errors="coerce")
                for text in cells[pd.isna(numbers)]:
                    found = f"column {_shown(name)} holds text ({_shown(text)})"
                    raise TableError(
                        f"{found}; it must hold numbers, decimal sign '{decimal}'"
                    ) from None
        raise TableError("a cell is not a number; all of them must be") from None


def _complete(frame: pd.DataFrame, notices: list[str]) -> pd.DataFrame:
    """The rows without a missing cell, once the columns that hold nothing are left out."""
    filled = frame.dropna(axis="columns", how="all")
    complete = filled.dropna()
    rows = len(complete) if complete.size else 0
    if not MIN_ROWS <= rows <= MAX_ROWS:
        found = f"number of complete rows: {rows} not in [{MIN_ROWS}, {MAX_ROWS}]"
        raise TableError(f"{found}; the least is two to learn from and one to predict")
    missing = len(filled) - rows
    told = {
        "empty columns left out": _listed([name for name in frame if name not in filled]),
        "rows with a missing cell left out": missing and f"{missing} of {len(filled)}",
        "rows that repeat an earlier one, kept": complete.duplicated().sum(),
    }
    notices += [f"{what}: {which}" for what, which in told.items() if which]
    return complete


def _standardised(name: str, frame: pd.DataFrame, target: str | None, notices: list[str]) -> Table:
    """z = (value − mean)/sd of each column, the sd over all rows (divisor: their number)."""
    target = str(frame.columns[-1]) if target is None else " ".join(target.split())
    if target not in frame:
        raise TableError(f"no column {_shown(target)} with numbers; use {_listed(list(frame))}")
    names = [*(column for column in frame if column != target), target]
    values = np.asfortranarray(frame[names])  # so that sums down a column are pairwise
    size = np.abs(values).max(axis=0)
    for i in np.flatnonzero(size > MAX_SIZE)[:1]:
        found = f"column {_shown(names[i])} holds a number of size {size[i]:g}"
        raise TableError(f"{found}; numbers must lie in [{-MAX_SIZE:g}, {MAX_SIZE:g}]")
    varies = values.min(axis=0) < values.max(axis=0)
    if not varies[-1]:
        raise TableError(f"target {_shown(target)} is {values[0, -1]:g} in all rows; it must vary")
    if not varies[:-1].any():
        raise TableError("no input is left; a column besides the target must vary")
    if not varies.all():
        notices.append(f"constant columns left out: {_listed(list(compress(names, ~varies)))}")

    names, values, size = list(compress(names, varies)), values[:, varies], size[varies]
    mean, sd = values.mean(axis=0), values.std(axis=0)
    least = np.maximum(MIN_SPREAD, MIN_RELATIVE_SPREAD * size)
    for i in np.flatnonzero(sd < least)[:1]:
        found = (
            f"column {_shown(names[i])} has standard deviation {sd[i]:.3g}, under {least[i]:.3g}"
        )
        raise TableError(f"{found}; subtract its mean or change its unit")
    z = (values - mean) / sd
    X, y, x_mean, x_scale = map(np.array, (z[:, :-1], z[:, -1], mean[:-1], sd[:-1]))
    for array in (X, y, x_mean, x_scale):
        array.setflags(write=False)
    return Table(
        name=name,
        X=X,
        y=y,
        x_mean=x_mean,
        x_scale=x_scale,
        y_mean=float(mean[-1]),
        y_scale=float(sd[-1]),
        input_names=tuple(names[:-1]),
        target_name=target,
        x_units=("",) * (len(names) - 1),
        y_unit="",
        notices=tuple(notices),
    )
