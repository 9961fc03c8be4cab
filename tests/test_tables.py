"""Tables against Python's own float and statistics, scikit-learn, statsmodels and R's figures."""

import csv
import datetime
import io
import math
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from krrviz import tables
from krrviz.tables import (
    SHIPPED,
    Table,
    TableError,
    assets,
    parse_csv,
    read_columns,
    read_csv,
    shipped,
)


def raw(table: Table) -> np.ndarray:
    """The table's numbers in their own units, target last."""
    return np.column_stack([table.x_raw(table.X), table.y_raw(table.y)])


def names(table: Table) -> tuple[str, ...]:
    return (*table.input_names, table.target_name)


def assert_told(table: Table, parts: tuple[str, ...]) -> None:
    """Each notice holds its part, and there are no others."""
    assert [p for p, text in zip(parts, table.notices, strict=True) if p not in text] == []


# Files that hold the rows (1.5, −2, 10), (2.5, 0.25, 30), (−3, 4e2, 20) under a, b, y.
ROWS = np.array([[1.5, -2, 10], [2.5, 0.25, 30], [-3, 4e2, 20]])
PLAIN = "a,b,y\n1.5,-2,10\n2.5,.25,30\n-3,4e2,20\n"
COMMAS = PLAIN.replace(",", ";").replace(".", ",")
SAME = {
    "plain": (PLAIN.encode(), ()),
    "no last line end": (PLAIN.rstrip().encode(), ()),
    "UTF-8 mark": (PLAIN.encode("utf-8-sig"), ()),
    "UTF-16": (PLAIN.encode("utf-16"), ()),
    "UTF-16, big end first": ("\ufeff".encode("utf-16-be") + PLAIN.encode("utf-16-be"), ()),
    "Windows line ends": (PLAIN.replace("\n", "\r\n").encode(), ()),
    "old Mac line ends": (PLAIN.replace("\n", "\r").encode(), ()),
    "blank lines": (b"\n  \n" + PLAIN.replace("\n", "\n\n").encode() + b"\n\n", ()),
    "spaces": (PLAIN.replace(",", " , ").encode(), ()),
    "semicolons": (PLAIN.replace(",", ";").encode(), ()),
    "tabs": (PLAIN.replace(",", "\t").encode(), ()),
    "decimal commas": (COMMAS.encode(), ("decimal comma",)),
    "decimal commas, tabs": (COMMAS.replace(";", "\t").encode(), ("decimal comma",)),
    "quoted": (
        "\n".join(",".join(f'"{c}"' for c in line.split(",")) for line in PLAIN.split()).encode(),
        (),
    ),
    "quoted decimal commas": (COMMAS.replace("1,5", '"1,5"').encode(), ("decimal comma",)),
    "missing cells": (
        (PLAIN + "1,,3\n,,\nNA,2,3\n1,nan,3\n1,2,  \n").encode(),
        ("a missing cell left out: 5 of 8",),
    ),
    "constant column": (
        b"a,k,b,y\n1.5,.1,-2,10\n2.5,.1,.25,30\n-3,.1,4e2,20\n",
        ("constant columns left out: 'k'",),
    ),
    "empty columns, as a spreadsheet leaves them": (
        b"a,b,,y,\n1.5,-2,,10,\n2.5,.25,,30,\n-3,4e2,,20,\n",
        (
            "left out: column 'column 3' is empty; column 'column 5' is empty",
            "target: 'y', the last column of numbers",
        ),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_one_table_in_many_files(case: str) -> None:
    contents, notices = SAME[case]
    table = parse_csv(contents, "mine.csv")
    np.testing.assert_allclose(raw(table), ROWS, rtol=1e-15, atol=1e-14)
    assert names(table) == ("a", "b", "y")
    assert (table.name, table.rows, table.d) == ("mine.csv", 3, 2)
    assert (table.x_units, table.y_unit) == (("", ""), "")
    assert_told(table, notices)


# Files with names or numbers of their own: contents, target asked for, names, raw rows, notices.
OWN = {
    "target by name": (PLAIN.encode(), "a", ("b", "y", "a"), ROWS[:, [1, 2, 0]], ()),
    "target with spaces around": (PLAIN.encode(), " b ", ("a", "y", "b"), ROWS[:, [0, 2, 1]], ()),
    "no names": (
        PLAIN.partition("\n")[2].encode(),
        None,
        ("x1", "x2", "y"),
        ROWS,
        ("named 'x1', 'x2', 'y'",),
    ),
    "no names, decimal commas": (
        b"1,5;2\n2,5;3\n3,5;7\n",
        "x1",
        ("y", "x1"),
        [[2, 1.5], [3, 2.5], [7, 3.5]],
        ("decimal comma", "named 'x1', 'y'"),
    ),
    "no names, first cell missing": (
        b",2\n1,3\n2,4\n3,6\n",
        None,
        ("x1", "y"),
        [[1, 3], [2, 4], [3, 6]],
        ("named", "missing cell left out: 1 of 4"),
    ),
    "years as names beside a word": (
        b"2019,total\n1,2\n2,3\n3,5\n",
        None,
        ("2019", "total"),
        [[1, 2], [2, 3], [3, 5]],
        (),
    ),
    "a name with a separator, a line end and quotes": (
        b'"time, in\nms","the ""g"""\n1,2\n2,3\n3,5\n',
        None,
        ("time, in ms", 'the "g"'),
        [[1, 2], [2, 3], [3, 5]],
        (),
    ),
    "a line end in a quoted name": (
        b'"time in\nms",y\n1,2\n2,3\n3,5\n',
        None,
        ("time in ms", "y"),
        [[1, 2], [2, 3], [3, 5]],
        (),
    ),
    "another separator in a name": (
        b"time; ms,y\n1,2\n2,3\n3,5\n",
        None,
        ("time; ms", "y"),
        [[1, 2], [2, 3], [3, 5]],
        (),
    ),
    "a name is missing": (
        b",y\n1,2\n2,3\n3,5\n",
        None,
        ("column 1", "y"),
        [[1, 2], [2, 3], [3, 5]],
        (),
    ),
    "Latin-1": (
        "Größe,µ\n1,2\n2,3\n3,5\n".encode("latin-1"),
        "µ",
        ("Größe", "µ"),
        [[1, 2], [2, 3], [3, 5]],
        ("Latin-1",),
    ),
    "repeated rows": (
        b"x,y\n1,2\n2,3\n1,2\n1,2\n",
        None,
        ("x", "y"),
        [[1, 2], [2, 3], [1, 2], [1, 2]],
        ("repeat an earlier one, kept: 2",),
    ),
    "true and false": (
        b"x,y\nTrue,2\nfalse,3\nTRUE,5\n",
        None,
        ("x", "y"),
        [[1, 2], [0, 3], [1, 5]],
        (),
    ),
    "whole numbers beyond 64 bits": (
        b"x,y\n123456789012345678901234567890,2\n-1,3\n3,5\n",
        None,
        ("x", "y"),
        [[123456789012345678901234567890.0, 2], [-1, 3], [3, 5]],
        (),
    ),
    "an offset far above the spread": (
        b"x,y\n1700000000000000000,2\n1700000001000000000,3\n1700000002000000000,5\n",
        None,
        ("x", "y"),
        [[17e17, 2], [17e17 + 1e9, 3], [17e17 + 2e9, 5]],
        (),
    ),
    "as large and as small as allowed": (
        b"x,y\n1e100,1e-99\n-1e100,2e-99\n0,4e-99\n",
        None,
        ("x", "y"),
        [[1e100, 1e-99], [-1e100, 2e-99], [0, 4e-99]],
        (),
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_files_of_their_own(case: str) -> None:
    contents, target, columns, rows, notices = OWN[case]
    table = parse_csv(contents, case, target)
    assert names(table) == columns
    expected = np.array(rows, dtype=float)
    size = np.abs(expected).max(axis=0)
    np.testing.assert_allclose(raw(table) / size, expected / size, rtol=0, atol=4e-16)
    assert_told(table, notices)


# What is refused, the target asked for, and what the message must hold.
BODY = "1,2\n2,3\n3,5\n"
REFUSED = {
    "empty": (b"", None, ["empty"]),
    "blank": (b" \r\n\n  \n", None, ["empty"]),
    "only a mark": (b"\xef\xbb\xbf", None, ["empty"]),
    "names only": (b"x,y\n", None, ["no column holds numbers", "'x' is empty", "'y' is empty"]),
    "one row": (b"x,y\n1,2\n", None, ["complete rows: 1", "3"]),
    "two rows": (b"x,y\n1,2\n3,4\n", None, ["complete rows: 2", "3"]),
    "two complete rows": (b"x,y\n1,2\n3,4\n5,\n,6\n", None, ["complete rows: 2", "3"]),
    "all cells missing": (b"x,y\n,\n,\n,\n", None, ["no column holds numbers", "'x' is empty"]),
    "NUL": (b"x,y\n1,2\n2,\x003\n3,4\n", None, ["not a text file", "UTF-8"]),
    "a picture": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", None, ["not a text file"]),
    "a pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.", None, ["not a text file"]),
    "an archive": (b"PK\x03\x04\x14\x00", None, ["not a text file"]),
    "neither UTF-8 nor Latin-1": (b"x,\x80\n" + BODY.encode(), None, ["not a text file"]),
    "UTF-16 cut short": (PLAIN.encode("utf-16")[:-1], None, ["not a text file"]),
    "UTF-16 without its mark": (PLAIN.encode("utf-16-le"), None, ["not a text file"]),
    "UTF-32": (PLAIN.encode("utf-32"), None, ["not a text file"]),
    "text in a column": (
        b"x,city,y\n1,,2\n2,Paris,3\n3,Rome,4\n",
        "city",
        ["column 'city' holds text ('Paris')", "use 'x', 'y'"],
    ),
    "text late in a column": (
        b"x,y\n" + b"1,2\n" * 120_000 + b"1,two\n",
        None,
        ["column 'y'", "'two'"],
    ),
    "text beside decimal commas": (
        b"x;city;y\n1,5;Paris;2\n2;Rome;3\n3;;4\n",
        " city ",
        ["column 'city'", "'Paris'"],
    ),
    "decimal commas and points": (
        b"x;z;y\n1,5;2;2\n2;3.5;3\n",
        "z",
        ["column 'z'", "'3.5'", "decimal sign ','"],
    ),
    "decimal commas between commas": (
        b'x,y\n"1,5",2\n',
        None,
        ["column 'x'", "'1,5'", "decimal sign '.'"],
    ),
    "a date that is none": (
        b"day,y\n2020-01-01,2\n2020-02-30,3\n2020-01-03,3\n",
        None,
        ["column 'day' holds text ('2020-01-01')"],
    ),
    "dates of two kinds": (
        b"day,y\n2020-01-01,2\n02.01.2020,3\n2020-01-03,3\n",
        None,
        ["column 'day' holds text ('2020-01-01')"],
    ),
    "day or month": (
        b"day,y\n01/02/2020,2\n02/12/2020,3\n12/03/2020,3\n",
        None,
        ["no input", "column 'day' holds dates ('01/02/2020') that may be day or month first"],
    ),
    "slashes that fit neither way": (
        b"day,y\n13/01/2020,2\n01/13/2020,3\n",
        None,
        ["column 'day' holds text ('13/01/2020')"],
    ),
    "text alone": (b"a,b\nu,v\nw,x\n", None, ["no column holds numbers", "'a' holds text ('u')"]),
    "text but for the target": (b"a,b\nu,1\nw,2\n", None, ["no input", "'a' holds text ('u')"]),
    "thousands": (b'x,y\n"1,234",2\n2,3\n3,4\n', None, ["column 'x'", "'1,234'"]),
    "thousands and decimal commas": (b"x;y\n1.234,5;2\n2;3\n", None, ["column 'x'", "'1.234,5'"]),
    "true beside numbers": (b"x,y\nTrue,2\n2,3\n3,4\n", None, ["column 'x'", "'True'"]),
    "underscores": (b"x,y\n1_0,2\n2,3\n3,4\n", None, ["column 'x'", "'1_0'"]),
    "hexadecimal": (b"x,y\n0x10,2\n2,3\n3,4\n", None, ["column 'x'", "'0x10'"]),
    "a quoted space": (b'x,y\n" ",2\n2,3\n3,4\n', None, ["column 'x'", "' '"]),
    "no such target": (PLAIN.encode(), "z", ["'z'", "'a', 'b', 'y'"]),
    "empty target": (b"x,y\n1,\n2,\n3,\n", "y", ["column 'y' is empty", "use 'x'"]),
    "constant target": (b"x,y\n1,.1\n2,.1\n3,.1\n", None, ["target 'y'", "0.1", "vary"]),
    "constant inputs": (b"k,l,y\n1,2,1\n1,2,2\n1,2,3\n", None, ["no input"]),
    "inputs all empty": (b"x,y\n,1\n,2\n,3\n", None, ["no input"]),
    "infinite": (b"x,y\n1,2\n-inf,3\n3,4\n", None, ["column 'x'", "size inf", "1e+100"]),
    "beyond a double": (b"x,y\n1,2\n1e999,3\n3,4\n", None, ["column 'x'", "size inf", "1e+100"]),
    "huge": (b"x,y\n1,2\n2,-1e300\n3,4\n", None, ["column 'y'", "size 1e+300", "1e+100"]),
    "tiny spread": (b"x,y\n1,0\n2,1e-150\n3,0\n", None, ["column 'y'", "e-151", "1e-100"]),
    "spread lost in rounding": (
        b"x,y\n1,2\n1.000000000000001,3\n1,5\n",
        None,
        ["column 'x'", "e-16", "1e-12"],
    ),
    "one name twice": (b"x,x,y\n1,2,3\n2,3,4\n3,4,5\n", None, ["twice", "'x'", "differ"]),
    "one name twice but for spaces": (b"x, x,y\n1,2,3\n2,3,4\n3,4,5\n", None, ["twice", "'x'"]),
    "a short line": (b"a,b,y\n1,2,3\n\n1,2\n", None, ["line 4", "2 cells", "first 3"]),
    "a long line": (b"a,b,y\n1,2,3\n1,2,3,4\n", None, ["line 3", "4 cells", "first 3"]),
    "a line longer by an empty cell": (b"x,y\n1,2,\n", None, ["line 2", "3 cells", "first 2"]),
    "an open quote": (b'x,y\n1,2\n"2,3\n', None, ["line 3", "CSV"]),
    "words after a quote": (b'x,y\n1,2\n"2"2,3\n', None, ["line 3", "CSV"]),
    "an endless cell": (b"x,y\n" + b"1" * 200_000 + b",2\n", None, ["line 2", "CSV", "131072"]),
    "one column": (b"y\n1\n2\n3\n", None, ["columns: 1", "1000", "semicolons"]),
    "cells separated by spaces": (b"x y\n1 2\n2 3\n", None, ["columns: 1", "tabs"]),
    "decimal commas in one column": (b"y\n1,5\n2,5\n", None, ["columns: 1", "tabs"]),
    "1001 columns": (b"," * 1000, None, ["columns: 1001", "1000"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    contents, target, parts = REFUSED[case]
    with pytest.raises(TableError) as error:
        parse_csv(contents, "mine.csv", target)
    message = str(error.value)
    assert message.startswith("data file 'mine.csv': ")
    assert [part for part in parts if part not in message] == []


# Columns of text and of dates: contents, names, raw rows, units, notices.
DAYS = [datetime.date(2024, 3, 1), datetime.date(1969, 12, 31), datetime.date(2000, 2, 29)]
EPOCH = [float(day.toordinal() - datetime.date(1970, 1, 1).toordinal()) for day in DAYS]
DATED = {
    "ISO": ([day.isoformat() for day in DAYS], EPOCH),
    "ISO, time after T": ([f"{day}T12:30" for day in DAYS], [e + 12.5 / 24 for e in EPOCH]),
    "ISO, time after a space": ([f"{day} 06:00:00" for day in DAYS], [e + 0.25 for e in EPOCH]),
    "UTC": ([f"{day}T18:00:00.000Z" for day in DAYS], [e + 0.75 for e in EPOCH]),
    "a time zone": ([f"{day}T01:00+02:00" for day in DAYS], [e - 1 / 24 for e in EPOCH]),
    "one with a time": (
        ["2024-03-01", "1969-12-31T12:00", "2000-02-29"],
        [EPOCH[0], EPOCH[1] + 0.5, EPOCH[2]],
    ),
    "day first, dots": ([f"{day:%d.%m.%Y}" for day in DAYS], EPOCH),
    "dots without zeros": (["1.3.2024", "31.12.1969", "29.2.2000 00:00"], EPOCH),
    "day first, slashes": ([f"{day:%d/%m/%Y}" for day in DAYS], EPOCH),
    "month first, slashes": ([f"{day:%m/%d/%Y}" for day in DAYS], EPOCH),
}  # fmt: skip


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("case", DATED)
def test_dates_become_days(case: str, separator: str) -> None:
    written, expected = DATED[case]
    lines = [["day", "y"], *([day, str(i)] for i, day in enumerate(written)), ["", "9"]]
    contents = "\n".join(map(separator.join, lines)).encode()
    columns = read_columns(contents, "x")
    assert columns.numbers.day.tolist()[:3] == pytest.approx(expected, rel=0, abs=1e-9)
    assert columns.refused == {}
    table = columns.table()
    np.testing.assert_allclose(raw(table)[:, 0], expected, rtol=0, atol=1e-9)
    assert (table.x_units, table.y_unit) == (("days",), "")
    assert_told(table, ("dates read as days since 1970-01-01: 'day'", "missing cell left out: 1"))
    turned = columns.table("day")
    assert (turned.x_units, turned.y_unit) == (("",), "days")


def test_dates_without_names() -> None:
    table = parse_csv(b"2024-03-01,1\n2024-03-02,2\n2024-03-03,4\n", "x")
    assert names(table) == ("x1", "y")
    np.testing.assert_allclose(raw(table), [[19783, 1], [19784, 2], [19785, 4]], rtol=1e-14)


MIXED = (
    b"id,species,size,when,mark,weight,island\n"
    b"1,setosa,1.5,2024-01-01,,10,north\n2,virginica,2.5,2024-01-02,,30,south\n"
    b"3,setosa,,2024-01-03,,20,north\n4,setosa,4.5,2024-01-05,,25,\n"
)


def test_columns_of_text_are_left_out_and_named() -> None:
    columns = read_columns(MIXED, "iris.csv")
    assert columns.all_names == ("id", "species", "size", "when", "mark", "weight", "island")
    assert list(columns.numbers) == ["id", "size", "when", "weight"]
    assert columns.refused == {
        "species": "holds text ('setosa')", "mark": "is empty", "island": "holds text ('north')"
    }  # fmt: skip
    assert np.isnan(columns.numbers["size"].to_numpy()).tolist() == [False, False, True, False]
    table = columns.table()
    assert names(table) == ("id", "size", "when", "weight")
    assert table.rows == 3
    assert_told(
        table,
        (
            "dates read",
            "left out: column 'species' holds text ('setosa'); column 'mark' is empty; column "
            "'island' holds text ('north')",
            "target: 'weight', the last column of numbers",
            "missing cell left out: 1 of 4",
        ),
    )


def test_rows_are_dropped_for_chosen_columns_alone() -> None:
    columns = read_columns(MIXED, "iris.csv")
    table = columns.table("weight", ["when", " id "])
    assert names(table) == ("when", "id", "weight")
    np.testing.assert_allclose(
        raw(table),
        [[19723, 1, 10], [19724, 2, 30], [19725, 3, 20], [19727, 4, 25]],
        rtol=1e-14,
    )
    assert (table.x_units, table.y_unit) == (("days", ""), "")
    assert not [text for text in table.notices if "missing" in text or "target" in text]
    same = parse_csv(MIXED, "iris.csv", "weight", ["when", "id"])
    assert np.array_equal(same.X, table.X)
    assert same.notices == table.notices


@pytest.mark.parametrize(
    ("target", "inputs", "told"),
    [
        ("species", None, "column 'species' holds text ('setosa'); use 'id', 'size'"),
        ("mark", None, "column 'mark' is empty; use 'id'"),
        ("weight", ["id", "island"], "column 'island' holds text ('north'); use 'id'"),
        ("weight", ["id", "width"], "no column 'width' with numbers; use 'id'"),
        ("weight", ["id", "weight"], "column 'weight' is the target; it cannot be an input too"),
        ("weight", ["id", " id"], "inputs named twice: 'id'; once is allowed"),
        ("weight", [], "no input is left"),
    ],
)
def test_choices_that_cannot_be(target: str, inputs: list[str] | None, told: str) -> None:
    with pytest.raises(TableError) as error:
        parse_csv(MIXED, "iris.csv", target, inputs)
    assert str(error.value).startswith("data file 'iris.csv': ")
    assert told in str(error.value)


def test_a_column_that_is_not_chosen_may_hold_anything() -> None:
    contents = b"x,far,y\n1,1e300,2\n2,inf,3\n3,0,5\n"
    assert parse_csv(contents, "x", inputs=["x"]).rows == 3
    with pytest.raises(TableError, match="column 'far' holds a number of size inf"):
        parse_csv(contents, "x")


def test_true_and_false_beside_a_column_of_text() -> None:
    columns = read_columns(b"b,word,y\nTrue,u,2\nfalse,v,3\n,w,5\n", "x")
    np.testing.assert_array_equal(columns.numbers.b, [1, 0, np.nan])
    assert list(columns.refused) == ["word"]


def test_the_digest_is_the_files(tmp_path: Path) -> None:
    if (tool := shutil.which("sha256sum")) is None:
        pytest.skip("no sha256sum here")
    (tmp_path / "mine.csv").write_bytes(MIXED)
    printed = subprocess.check_output([tool, tmp_path / "mine.csv"], text=True)
    assert read_columns(MIXED, "x").digest == printed.split()[0]


HOSTILE = ["x" * 100_000, "<script>alert(1)</script>", "\u202eright\u202d to left", "=1+1", "'; --"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_a_name(name: str) -> None:
    contents = f'"{name}",city,y\n1,<b>,2\n2,v,3\n3,w,5\n'.encode()
    columns = read_columns(contents, name)
    assert list(columns.numbers) == [name, "y"]
    table = columns.table(name)
    assert names(table) == ("y", name)
    for refused in (name + "?", "city"):
        with pytest.raises(TableError) as error:
            columns.table(refused)
        assert len(str(error.value)) < 900
        assert str(error.value).isprintable()
    assert all(len(text) < 900 and text.isprintable() for text in table.notices)


def test_a_nul_in_a_name_is_no_text() -> None:
    with pytest.raises(TableError, match="not a text file"):
        read_columns(b"x\x00,y\n1,2\n", "x")


START = datetime.datetime(1970, 1, 1)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), min_size=1),
        min_size=2,
        max_size=5,
        unique=True,
    ),
    st.data(),
    st.sampled_from(",;\t"),
)
def test_what_python_writes_is_read_back(
    head: list[str], data: st.DataObject, separator: str
) -> None:
    kinds = {
        "number": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "date": st.none() | st.datetimes(START.replace(year=1700), START.replace(year=2200)),
        "text": st.sampled_from(['a "word"', "two\nlines", "a;b", "a,b", "a\tb", "é"]),
    }  # fmt: skip
    kind = [data.draw(st.sampled_from([*kinds])) for _ in head]
    rows = data.draw(st.lists(st.tuples(*(kinds[k] for k in kind)), min_size=1, max_size=6))
    head = [f"{name}é" for name in head]  # never a number
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, quoting=csv.QUOTE_ALL)
    writer.writerows([head, *rows])
    columns = read_columns(out.getvalue().encode(), "x")
    assert columns.all_names == tuple(head)
    for i, (name, k) in enumerate(zip(head, kind, strict=True)):
        held = [row[i] for row in rows]
        if k == "text" or all(value is None for value in held):
            assert ("is empty" if k != "text" else "holds text") in columns.refused[name]
            continue
        if k == "date":
            held = [day and (day - START) / datetime.timedelta(days=1) for day in held]
            assert columns.units[name] == "days"
        expected = np.array(held, dtype=float)
        np.testing.assert_allclose(columns.numbers[name], expected, rtol=1e-14, atol=1e-10)


def test_refuses_a_file_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.csv"
    path.write_bytes(PLAIN.encode())
    monkeypatch.setattr(tables, "MAX_BYTES", len(PLAIN))
    assert read_csv(path).rows == 3
    path.write_bytes(PLAIN.encode() + b"\n")
    with pytest.raises(TableError, match=r"'big\.csv': larger than .* MB"):
        read_csv(path)


def test_more_rows_than_the_limit_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ROWS", 30)
    rows = [[i, i * i % 17] for i in range(100)]
    contents = ("i,y\n" + "".join(f"{i},{y}\n" for i, y in rows)).encode()
    kept = raw(parse_csv(contents, "x", seed=3)).round(9).tolist()
    assert len(kept) == len({i for i, _ in kept}) == 30
    assert kept == [row for row in rows if row in kept]  # rows of the file, in its order
    assert_told(parse_csv(contents, "x"), ("30 rows drawn at random of 100",))
    assert raw(parse_csv(contents, "x", seed=3)).round(9).tolist() == kept
    assert raw(parse_csv(contents, "x", seed=4)).round(9).tolist() != kept
    # Each row is as likely as any other: 30 of 100, within five standard deviations.
    drawn = np.concatenate([read_columns(contents, "x", s).numbers.i for s in range(200)])
    assert abs(np.bincount(drawn.astype(int), minlength=100) - 60).max() < 5 * math.sqrt(42)


def test_as_many_rows_as_the_limit_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ROWS", 3)
    for head in ("a,b,y\n", ""):
        table = parse_csv((head + PLAIN.partition("\n")[2]).encode(), "x")
        np.testing.assert_allclose(raw(table), ROWS, rtol=1e-15, atol=1e-14)


def test_the_limits_are_those_told() -> None:
    assert (tables.MAX_BYTES, tables.MAX_ROWS) == (50_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.csv", "'absent.csv': no such file"),
        ("folder", "'folder': is a folder"),
        ("a" * 300, f"'{'a' * 40}…': cannot be read"),
        ("nul\0.csv", "'nul.csv': no such file"),
        pytest.param(
            "pipe",
            "'pipe': no such file",
            marks=pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here"),
        ),
    ],
)
def test_refuses_what_is_not_a_file(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    if name == "pipe":
        os.mkfifo(tmp_path / name)  # opening it would wait for a writer
    with pytest.raises(TableError, match=f"{reason}.*; give the path of a CSV file"):
        read_csv(tmp_path / name)


def test_refuses_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(PLAIN.encode())

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # a superuser may read whatever its mode says
    with pytest.raises(TableError, match=r"'mine\.csv': cannot be read \(Permission denied\)"):
        read_csv(str(path))


def test_a_parser_that_gives_up_is_a_table_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: object, **__: object) -> None:
        raise pd.errors.ParserError("Error tokenizing data")

    monkeypatch.setattr(pd, "read_csv", give_up)
    with pytest.raises(TableError, match=r"'mine\.csv': Error tokenizing data"):
        parse_csv(PLAIN.encode(), "mine.csv")


LONG = "e\u202e\x1b[31m" + "x" * 5000


@pytest.mark.parametrize(
    ("contents", "name", "target"),
    [
        (PLAIN.encode(), "mine.csv", LONG),
        (b"", LONG, None),
        (f"{LONG},y\n1,2\n".replace("\x1b", "").encode(), "mine.csv", None),
        (f"x,y\n1,{LONG}\n".replace("\x1b", "").encode(), "mine.csv", None),
        (f"{LONG},{LONG}\n1,2\n".replace("\x1b", "").encode(), "mine.csv", None),
        (",".join(f"{i}{'x' * 50}" for i in range(900)).encode() + b"\n", "mine.csv", "z"),
        (
            b"\n".join(
                [b",".join(b"%d%s" % (i, b"x" * 50) for i in range(900)), *[b"1," * 899 + b"1"] * 3]
            ),
            "mine.csv",
            "z",
        ),
    ],
)
def test_messages_are_short_and_printable(contents: bytes, name: str, target: str | None) -> None:
    with pytest.raises(TableError) as error:
        parse_csv(contents, name, target)
    assert len(str(error.value)) < 900
    assert str(error.value).isprintable()


def assert_a_table_or_a_table_error(contents: bytes) -> None:
    try:
        table = parse_csv(contents, "any")
    except TableError:
        return
    for column in (*table.X.T, table.y):
        assert statistics.fmean(column.tolist()) == pytest.approx(0, abs=1e-3)
        assert statistics.pstdev(column.tolist()) == pytest.approx(1, rel=1e-3)


@given(
    st.binary(max_size=200)
    | st.text("0123456789.,;\t\n\r\"'eE-+xyéinfa ", max_size=80).map(str.encode)
)
@example(b'a,b\n"\n')
@example(b"1,2\n\r\n,\n")
@example(b"x,y\n" + b",\n" * 4)
@example("x,y\n1,١\n".encode())
def test_any_bytes_give_a_table_or_a_table_error(contents: bytes) -> None:
    assert_a_table_or_a_table_error(contents)


CELLS = st.sampled_from(["", "1", "-2.5", "1e99", "1e-80", "3,5", "True", "x", '"3"', "nan"])


@given(
    st.integers(2, 3).flatmap(
        lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=6)
    ),
    st.sampled_from(",;\t"),
)
def test_any_cells_give_a_table_or_a_table_error(rows: list[list[str]], separator: str) -> None:
    assert_a_table_or_a_table_error("\n".join(map(separator.join, rows)).encode())


@given(
    hnp.arrays(
        float,
        st.tuples(st.integers(3, 12), st.integers(2, 4)),
        elements=st.floats(-1e6, 1e6, allow_subnormal=False),
    )
)
def test_undoing_the_scaling_gives_the_numbers_of_the_file(values: np.ndarray) -> None:
    values[:2] = [[0] * values.shape[1], [1] * values.shape[1]]  # so that every column varies
    head = [*(f"in{i}" for i in range(values.shape[1] - 1)), "out"]
    text = "\n".join([",".join(head), *(",".join(map(repr, row)) for row in values.tolist())])
    table = parse_csv(text.encode(), "x")
    np.testing.assert_allclose(raw(table), values, rtol=0, atol=4e-16 * np.abs(values).max())
    for j, (mean, sd) in enumerate(
        zip([*table.x_mean, table.y_mean], [*table.x_scale, table.y_scale], strict=True)
    ):
        assert mean == pytest.approx(statistics.fmean(values[:, j]), rel=1e-12, abs=1e-9)
        assert sd == pytest.approx(statistics.pstdev(values[:, j].tolist()), rel=1e-9)
    assert table.input_bound == pytest.approx(max(math.hypot(*x) for x in table.X))


def test_the_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    for contents in (SAME["missing cells"][0], SAME["UTF-16"][0], REFUSED["text in a column"][0]):
        path.write_bytes(contents)
        path.chmod(0o444)
        before = path.stat()
        try:
            read_csv(path)
        except TableError:
            assert b"city" in contents
        assert path.read_bytes() == contents
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        assert list(tmp_path.iterdir()) == [path]
        path.chmod(0o644)


def test_a_million_rows(tmp_path: Path) -> None:
    path = tmp_path / "million.csv"
    values = np.random.default_rng(0).standard_normal((10**6, 2))
    path.write_text("a,b\n" + "".join(f"{a!r},{b!r}\n" for a, b in values.tolist()))
    table = read_csv(path)
    assert (table.rows, table.d) == (10**6, 1)
    np.testing.assert_allclose(raw(table), values, rtol=0, atol=2e-15)
    assert abs(table.X.mean()) < 1e-14


def test_arrays_cannot_be_changed() -> None:
    table = parse_csv(PLAIN.encode(), "x")
    for array in (table.X, table.y, table.x_mean, table.x_scale):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_scaling_is_undone_for_any_leading_axes() -> None:
    table = shipped("diabetes")
    stack = np.stack([table.X[:4], table.X[4:8]])
    assert np.array_equal(table.x_raw(stack)[1], table.x_raw(table.X[4:8]))
    assert np.array_equal(table.x_raw(table.X[0]), table.x_raw(table.X)[0])
    assert np.array_equal(
        table.y_raw(table.y[:6].reshape(2, 3)), table.y_raw(table.y)[:6].reshape(2, 3)
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_sets(name: str) -> None:
    rows, units = SHIPPED[name]
    table = shipped(name)
    assert (table.name, table.rows, table.d) == (name, rows, len(units) - 1)
    assert dict(zip(names(table), (*table.x_units, table.y_unit), strict=True)) == units
    assert all(math.isclose(column.mean(), 0, abs_tol=1e-12) for column in (*table.X.T, table.y))
    assert all(math.isclose(column.std(), 1, rel_tol=1e-12) for column in (*table.X.T, table.y))
    assert shipped(name) is table


def test_motorcycle_has_the_figures_r_prints_for_mass_mcycle() -> None:
    # Rows, sums, sums of squares and products, and ranges, by R 4.2.2 with MASS 7.3-58.2.
    table = shipped("motorcycle")
    time_ms, acceleration = raw(table).T
    assert table.rows == 133
    assert (time_ms.sum(), acceleration.sum()) == pytest.approx((3348.8, -3397.6))
    assert (time_ms**2).sum() == pytest.approx(107082.8, rel=1e-12)
    assert (acceleration**2).sum() == pytest.approx(395017.34, rel=1e-12)
    assert time_ms @ acceleration == pytest.approx(-60720.36, rel=1e-12)
    assert (time_ms.min(), time_ms.max()) == pytest.approx((2.4, 57.6))
    assert (acceleration.min(), acceleration.max()) == pytest.approx((-134, 75))


def test_co2_is_statsmodels_weeks() -> None:
    from statsmodels.datasets import co2

    weeks = pd.DataFrame(co2.load_pandas().data)["co2"].dropna()
    year, ppm = raw(shipped("co2")).T
    assert len(weeks) == 2225
    np.testing.assert_allclose(ppm, weeks.to_numpy(), rtol=1e-14)
    for decimal, day in zip(year, weeks.index, strict=True):
        start = datetime.date(int(decimal), 1, 1)
        length = (datetime.date(start.year + 1, 1, 1) - start).days
        found = start + datetime.timedelta(days=round((decimal - start.year) * length))
        assert found == day.date()


def test_diabetes_is_scikit_learns() -> None:
    plain: Any = sklearn.datasets.load_diabetes(scaled=False)
    expected = np.column_stack([plain.data, plain.target])
    assert expected.shape == (442, 11)
    np.testing.assert_allclose(raw(shipped("diabetes")), expected, rtol=1e-14)
    scaled: Any = sklearn.datasets.load_diabetes()  # mean 0, sum of squares 1
    np.testing.assert_allclose(shipped("diabetes").X, scaled.data * math.sqrt(442), atol=1e-12)


def test_shipped_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableError, match="'iris': not one of 'motorcycle', 'co2', 'diabetes'"):
        shipped("iris")
    monkeypatch.setattr(tables, "assets", lambda: tmp_path)
    fresh = shipped.__wrapped__
    with pytest.raises(TableError, match=r"'co2\.csv': no such file"):
        fresh("co2")
    good = (assets() / "datasets" / "co2.csv").read_bytes()
    (tmp_path / "datasets").mkdir()
    for damaged in (good[: len(good) // 2], good + b"\0", good.replace(b"co2", b"ppm"), b""):
        (tmp_path / "datasets" / "co2.csv").write_bytes(damaged)
        with pytest.raises(TableError, match=r"'co2\.csv'"):
            fresh("co2")


def test_assets_are_found_in_a_wheel_and_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "__file__", str(tmp_path / "krrviz" / "tables.py"))
    assert assets() == tmp_path / "assets"
    (tmp_path / "krrviz" / "assets").mkdir(parents=True)
    assert assets() == tmp_path / "krrviz" / "assets"


def test_the_readme_tells_each_shipped_file() -> None:
    text = (assets() / "datasets" / "README.md").read_text(encoding="utf-8")
    for name, (rows, units) in SHIPPED.items():
        section = text.partition(f"## {name}.csv")[2].partition("\n## ")[0]
        assert f"{rows} rows" in section
        assert [c for c in units if f"| `{c}` |" not in section] == []
        assert "Source:" in section
        assert "Licence:" in section


@pytest.mark.parametrize("year", ["0000", "1500", "9999"])
def test_a_year_beyond_the_calendar_is_a_column_of_text(year: str) -> None:
    rows = "".join(f"{year}-01-0{day},{day},{day * day}\n" for day in range(1, 6))
    columns = read_columns(f"when,x,y\n{rows}".encode(), "own.csv")
    held: Any = columns.numbers
    assert "when" in columns.refused or held["when"].notna().all()
    assert columns.table().rows == 5
