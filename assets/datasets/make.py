"""Regenerate the CSV files of this folder from the public packages they come from.

    python assets/datasets/make.py

Needs R with MASS on the path (motorcycle), statsmodels (co2) and scikit-learn (diabetes). The
library never runs this: it reads the files. Every number is written with the fewest digits that
read back as the same double, so the files hold the sources' own figures.
"""

import csv
import io
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import statsmodels.api as sm
from sklearn.datasets import load_diabetes

FOLDER = Path(__file__).resolve().parent


def write(name: str, header: Sequence[str], rows: Iterable[Iterable[float]]) -> None:
    """Write ``name``.csv: the header, then each number in its shortest exact form."""
    with (FOLDER / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([repr(float(v)).removesuffix(".0") for v in row] for row in rows)


def motorcycle() -> None:
    """MASS::mcycle, as R prints it at full precision."""
    code = "options(digits = 17); write.csv(MASS::mcycle, row.names = FALSE, quote = FALSE)"
    out = subprocess.run(["Rscript", "-e", code], check=True, capture_output=True, text=True)
    _, *rows = csv.reader(io.StringIO(out.stdout))
    write("motorcycle", ("time", "acceleration"), (map(float, row) for row in rows))


def co2() -> None:
    """Weekly means with a measurement; a date becomes year + (day of the year − 1) / days in it.

    Four decimals of a year are under an hour, enough to tell the weeks' dates apart.
    """
    weeks = sm.datasets.co2.load_pandas().data["co2"].dropna()
    days = weeks.index
    years = days.year + (days.day_of_year - 1) / (365 + days.is_leap_year)
    write("co2", ("year", "co2"), zip(years.to_numpy().round(4), weeks, strict=True))


def diabetes() -> None:
    """All ten inputs in their original units, and the progression of the disease."""
    data = load_diabetes(scaled=False)
    header = ("age", "sex", "bmi", "bp", "tc", "ldl", "hdl", "tch", "ltg", "glu", "progression")
    rows = zip(data.data, data.target, strict=True)
    write("diabetes", header, ((*x, y) for x, y in rows))


if __name__ == "__main__":
    motorcycle()
    co2()
    diabetes()
