"""A table of numbers: inputs, a target, and the scaling that standardised them.

Tables come from the data sets shipped with the package or from a person's own CSV file. Here a
file is only ever read, as text: first into ``Columns``, all of its columns that can be used as
numbers, then into a ``Table``, some of them chosen and standardised. What cannot be used is refused
by name, and what was done to the numbers on the way is told in ``notices``.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from krrviz.settings import MAX_COLUMNS

MAX_BYTES = 50_000_000
MAX_ROWS = 1_000_000
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

# How a date may be written, and whether a column of them says by itself which number is the day.
_TIME = (
    r"(?:[T ](?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
    r"(?:Z|[-+][0-9]{2}:?[0-9]{2})?))?"
)
_DATES = tuple(
    re.compile(rf"^\s*{date}{_TIME}\s*$")
    for date in (
        r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})",
        r"(?P<day>[0-9]{1,2})\.(?P<month>[0-9]{1,2})\.(?P<year>[0-9]{4})",
        r"(?P<day>[0-9]{1,2})/(?P<month>[0-9]{1,2})/(?P<year>[0-9]{4})",
        r"(?P<month>[0-9]{1,2})/(?P<day>[0-9]{1,2})/(?P<year>[0-9]{4})",
    )
)


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


@dataclass(frozen=True, eq=False)
class Columns:
    """What a CSV file holds, before anybody chose from it.

    Parameters
    ----------
    name : the file's name, which starts every error message
    numbers : the columns that can be used, in the file's order, NaN where a cell is missing
    refused : the other columns and why, with a cell as an example
    all_names : the names of all columns, in the file's order
    units : the units that were found out: "days" of columns of dates
    notices : what was done to the file on the way, a sentence each
    digest : SHA-256 of the file's bytes, in hexadecimal
    """

    name: str
    numbers: pd.DataFrame
    refused: dict[str, str]
    all_names: tuple[str, ...]
    units: dict[str, str]
    notices: tuple[str, ...]
    digest: str

    def table(self, target: str | None = None, inputs: Sequence[str] | None = None) -> Table:
        """The chosen columns, standardised over the rows that miss none of their cells.

        Parameters
        ----------
        target : the column to predict; the last that can be used if None
        inputs : the columns to predict it from, in this order; all others if None

        Raises
        ------
        TableError
            A column that is not there or was refused; a target among the inputs, or an input
            twice; no input left; a number that is infinite or beyond ±1e100; fewer than 3 complete
            rows; a constant target; a spread so small that rounding hides it.
        """
        notices = list(self.notices)
        try:
            usable = list(self.numbers)
            if not usable:
                raise TableError(f"no column holds numbers; {_reasons(self.refused, 3)}")
            if target is None and self.all_names[-1] not in usable:
                notices.append(f"target: {_shown(usable[-1])}, the last column of numbers")
            y = usable[-1] if target is None else self._column(target)
            chosen = [c for c in usable if c != y]
            if inputs is not None:
                chosen = [self._column(name) for name in inputs]
            if y in chosen:
                raise TableError(f"column {_shown(y)} is the target; it cannot be an input too")
            if twice := [name for name, count in Counter(chosen).items() if count > 1]:
                raise TableError(f"inputs named twice: {_listed(twice)}; once is allowed")
            if not chosen:
                found = f"no input is left; a column besides {_shown(y)} must hold numbers"
                raise TableError("; ".join([found, *filter(None, [_reasons(self.refused, 3)])]))
            frame = _complete(pd.DataFrame(self.numbers, columns=[*chosen, y]), notices)
            table = _standardised(self.name, frame, notices)
        except TableError as error:
            raise TableError(f"data file {_shown(self.name)}: {error}") from None
        unit = [self.units.get(name, "") for name in (*table.input_names, y)]
        return replace(table, x_units=tuple(unit[:-1]), y_unit=unit[-1])

    def number(self, name: str) -> int:
        """The place of a column that can be used, counted from 1; raises TableError."""
        return self.all_names.index(self._column(name)) + 1

    def _column(self, named: str) -> str:
        """A column that can be used, however it is spaced."""
        column = " ".join(named.split())
        if column in self.refused:
            raise TableError(f"column {_shown(column)} {self.refused[column]}; {self._usable()}")
        if column not in self.numbers:
            raise TableError(f"no column {_shown(column)} with numbers; {self._usable()}")
        return column

    def _usable(self) -> str:
        return f"use {_listed(list(self.numbers))}"


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


def read_csv(
    path: str | Path,
    target: str | None = None,
    inputs: Sequence[str] | None = None,
    seed: int = 0,
) -> Table:
    """Read a person's CSV file: ``open_csv``, then ``Columns.table``.

    Raises
    ------
    TableError
        Either of them refuses.
    """
    return open_csv(path, seed).table(target, inputs)


def open_csv(path: str | Path, seed: int = 0) -> Columns:
    """Read the columns of a person's file, which stays as it is; see ``read_columns``.

    Raises
    ------
    TableError
        The file is missing, a folder or unreadable, or ``read_columns`` refuses what it holds.
    """
    path = Path(path)
    label = path.name or str(path)
    try:
        if path.is_file():
            with path.open("rb") as file:
                contents = file.read(MAX_BYTES + 1)
            return read_columns(contents, label, seed)
        reason = "is a folder" if path.is_dir() else "no such file"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    raise TableError(f"data file {_shown(label)}: {reason}; give the path of a CSV file")


def parse_csv(
    contents: bytes,
    name: str,
    target: str | None = None,
    inputs: Sequence[str] | None = None,
    seed: int = 0,
) -> Table:
    """Turn the contents of a CSV file into a table: ``read_columns``, then ``Columns.table``.

    Raises
    ------
    TableError
        Either of them refuses.
    """
    return read_columns(contents, name, seed).table(target, inputs)


def read_columns(contents: bytes, name: str, seed: int = 0) -> Columns:
    """Turn the contents of a CSV file into columns of numbers.

    UTF-8, UTF-16 with its mark, or Latin-1; cells separated by commas, semicolons or tabs, quoted
    or not; decimal commas where the separator is another; any line ends. A first line of numbers
    and dates only is data, its columns named x1, x2, … and y.

    A column of numbers may hold true and false instead, which are 1 and 0, or dates: 2024-03-01,
    2024-03-01T12:30, 01.03.2024 (day first), or 03/01/2024 where a number above 12 says which one
    is the day. They become days since 1970-01-01, UTC where they name a time zone. Other columns
    are refused.

    Parameters
    ----------
    contents : at most 50 MB
    name : the file's name, which starts every error message
    seed : fixes which 10⁶ rows are kept of more than that, in the file's order

    Raises
    ------
    TableError
        Too large; not text; ragged or badly quoted lines; one column, over 1000, or two of one
        name.
    """
    notices: list[str] = []
    try:
        if len(contents) > MAX_BYTES:
            raise TableError(f"larger than {MAX_BYTES / 1e6:g} MB, the most that is read")
        numbers, refused, dates = _numbers(_utf8(contents, notices), notices)
    except (TableError, pd.errors.ParserError) as error:
        raise TableError(f"data file {_shown(name)}: {error}") from None
    names = tuple(numbers)
    if dates:
        notices.append(f"dates read as days since 1970-01-01: {_listed(dates)}")
    if len(numbers) > MAX_ROWS:
        notices.append(f"{MAX_ROWS} rows drawn at random of {len(numbers)}, in their order")
        kept = np.random.default_rng(seed).choice(len(numbers), MAX_ROWS, replace=False)
        numbers = numbers.iloc[np.sort(kept)]
    for column in numbers.columns[numbers.isna().all()].difference([*refused]):
        refused[column] = "is empty"
    refused = {column: refused[column] for column in names if column in refused}
    if refused:
        notices.append(f"columns left out: {_reasons(refused, 12)}")
    return Columns(
        name=name,
        numbers=numbers.drop(columns=list(refused)),
        refused=refused,
        all_names=names,
        units=dict.fromkeys(dates, "days"),
        notices=tuple(notices),
        digest=hashlib.sha256(contents).hexdigest(),
    )


def _shown(value: object) -> str:
    """A value fit for a message: quoted, printable, at most 40 characters of it."""
    text = "".join(c for c in str(value)[:400] if c.isprintable())
    return f"'{text[:40]}…'" if len(text) > 40 else f"'{text}'"


def _listed(names: Sequence[str]) -> str:
    """Names fit for a message: the first twelve, and how many more."""
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(map(_shown, names[:12])) + more


def _reasons(refused: dict[str, str], most: int) -> str:
    """Why columns are refused, ``most`` of them and how many more."""
    told = [f"column {_shown(column)} {reason}" for column, reason in refused.items()]
    more = [f"{len(told) - most} more columns"] if len(told) > most else []
    return "; ".join([*told[:most], *more])


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
    sample = _QUOTED.sub("", contents[:1_000_000].decode(errors="ignore"))
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
        for row in rows:
            first = first or row
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


def _numbers(contents: bytes, notices: list[str]) -> tuple[pd.DataFrame, dict[str, str], list[str]]:
    """All cells as float64, NaN where one is missing; why columns are refused; those of dates.

    A refused column holds NaN.
    """
    separator = _separator(contents)
    first = _first_line(contents, separator)
    decimal = "," if separator != "," and _DECIMAL_COMMA.search(contents) else "."
    if decimal == ",":
        notices.append("decimal commas read as decimal points")
    data = all(_NUMBER.fullmatch(cell.strip()) or _dated(cell) for cell in first)
    header = None if data else 0
    names = [" ".join(cell.split()) or f"column {i}" for i, cell in enumerate(first, start=1)]
    if header is None:
        names = [*(f"x{i}" for i in range(1, len(first))), "y"]
        notices.append(f"no line of column names, so named {_listed(names)}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"column names that occur twice: {_listed(twice)}; names must differ")

    read = partial(pd.read_csv, sep=separator, decimal=decimal, header=header, names=names)
    read = partial(read, index_col=False, skipinitialspace=True)
    try:
        return read(io.BytesIO(contents), dtype="float64"), {}, []
    except ValueError:  # a cell is not a number: read again, as text, to say which
        points = str.maketrans(f"{decimal}.", f".{decimal}")
        texts: dict[str, str] = {}  # the first such cell of a column
        with read(io.BytesIO(contents), dtype="str", chunksize=50_000) as chunks:
            for name, cells in (column for chunk in chunks for column in chunk.items()):
                if name not in texts:
                    cells = cells.dropna()
                    numbers = pd.to_numeric(cells.str.translate(points), errors="coerce")
                    texts |= {str(name): text for text in cells[pd.isna(numbers)].iloc[:1]}
    kinds: dict[Any, Any] = {name: "str" if name in texts else "float64" for name in names}
    try:
        frame = read(io.BytesIO(contents), dtype=kinds)
    except ValueError:
        raise TableError("a cell is not a number; all of them must be") from None
    refused, dates = dict[str, str](), list[str]()
    for name, text in texts.items():
        words: Any = frame[name]
        truth = words.dropna().isin(["True", "TRUE", "true", "False", "FALSE", "false"])
        found = [] if truth.all() else _days(words)
        if truth.all():
            frame[name] = words.str.lower().map({"true": 1.0, "false": 0.0})
            continue
        frame[name] = found[0] if len(found) == 1 else np.nan
        if len(found) == 1:
            dates.append(name)
        elif found:
            refused[name] = f"holds dates ({_shown(text)}) that may be day or month first"
        else:
            sign = f"; decimal sign '{decimal}'" if _NUMBER.fullmatch(text.strip()) else ""
            refused[name] = f"holds text ({_shown(text)}{sign})"
    return frame.astype("float64"), refused, dates


def _dated(cell: str) -> bool:
    """Whether a cell is written like a date."""
    return any(form.match(cell) for form in _DATES)


def _days(cells: pd.Series) -> list[pd.Series]:
    """Days since 1970-01-01, for each way in which every cell is a date; NaN where one misses."""
    held, found = cells.dropna(), []
    for form in _DATES:
        if not form.match(held.iloc[0]):
            continue
        parts = held.astype(object).str.extract(form)
        date = parts.year + "-" + parts.month.str.zfill(2) + "-" + parts.day.str.zfill(2)
        stamps = pd.to_datetime(
            date + "T" + parts.time.fillna("00:00"), format="ISO8601", errors="coerce", utc=True
        )
        if stamps.notna().all():
            try:
                days = (stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
            except pd.errors.OutOfBoundsDatetime:  # before 1678 or after 2261
                continue
            found.append(days.reindex(cells.index))
    return found


def _complete(frame: pd.DataFrame, notices: list[str]) -> pd.DataFrame:
    """The rows without a missing cell."""
    complete = frame.dropna()
    if len(complete) < MIN_ROWS:
        found = f"number of complete rows: {len(complete)} is under {MIN_ROWS}"
        raise TableError(f"{found}; the least is two to learn from and one to predict")
    missing = len(frame) - len(complete)
    told = {
        "rows with a missing cell left out": missing and f"{missing} of {len(frame)}",
        "rows that repeat an earlier one, kept": complete.duplicated().sum(),
    }
    notices += [f"{what}: {which}" for what, which in told.items() if which]
    return complete


def _standardised(name: str, frame: pd.DataFrame, notices: list[str]) -> Table:
    """z = (value − mean)/sd of each column, the sd over all rows (divisor: their number)."""
    *_, target = names = [str(column) for column in frame]
    values = np.asfortranarray(frame)  # so that sums down a column are pairwise
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
