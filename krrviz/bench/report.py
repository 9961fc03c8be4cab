"""The bench's sections by name; their rows, printed as tables and written as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from krrviz.bench import ceilings, construction, fan, gpu, growth, large
from krrviz.bench.record import Row, machine
from krrviz.settings import SettingsError

# The GPU's table comes last.
SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "fan": fan.rows,
    "large": large.rows,
    "machine": ceilings.rows,
    "growth": growth.rows,
    "page": construction.page,
    "figures": construction.figures,
    "laws": construction.laws,
    "gpu": gpu.rows,
}
COMPARED, OTHERS = ("fan", "large"), ("sklearn", "gpytorch")  # with other libraries


def results() -> Path:
    """Where CSV files go unless told: the checkout's benchmarks/results, or this folder."""
    committed = Path(__file__).parents[2] / "benchmarks" / "results"
    return committed if committed.is_dir() else Path()


def bench(out: Path, only: Sequence[str] = ()) -> None:
    """Run the sections named, all by default; print each, and write ``out``/NAME.csv.

    Raises
    ------
    SettingsError
        A section's libraries are not installed.
    """
    names = [name for name in SECTIONS if not only or name in only]
    for name in names:
        missing = [other for other in OTHERS if find_spec(other) is None]
        if missing and name in COMPARED:
            raise SettingsError(
                f"bench {name} needs {' and '.join(missing)}: pip install 'krrviz[bench]'"
            )
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        rows = [*SECTIONS[name]()]
        # Now that its libraries are loaded, their threads are known.
        about = machine()
        print(f"\n{name}: " + "; ".join(f"{key} {value}" for key, value in about.items()))
        print(table([row.cells() for row in rows]), flush=True)
        if name == "gpu" and rows[0].name == "skipped":
            continue  # what was measured elsewhere stays
        write(out / f"{name}.csv", rows, about)


def write(path: Path, rows: Sequence[Row], about: dict[str, str]) -> None:
    """Rows as CSV, each with what it was measured on."""
    cells = [row.cells() | about for row in rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*cells[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)


def table(rows: Sequence[dict[str, str]]) -> str:
    """Rows as text in columns; a column that is empty throughout, and the section, left out."""
    columns = [c for c in rows[0] if c != "section" and any(row[c] for row in rows)]
    lines = [columns, *([row[c] for c in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
