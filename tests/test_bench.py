"""The bench: contenders give the same numbers at small sizes, goals are told, CSV files hold it."""

import csv
import importlib.util
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from krrviz.bench import ceilings, fan, gpu, growth, large, peers, report
from krrviz.bench.record import Goal, Row, Times, interleaved
from krrviz.cli import main
from krrviz.settings import Settings

ROOT = Path(__file__).parents[1]
COLUMNS = [
    "section",
    "name",
    "contender",
    "seconds_median",
    "seconds_min",
    "runs",
    "value",
    "unit",
    "goal",
    "met",
    "difference",
    "cpu",
    "cores",
    "threads",
    "gpu",
    "versions",
]


def test_every_contender_of_the_fan_gives_the_same_numbers() -> None:
    settings = Settings(device="cpu", n=12, queries=4, prompts=2, steps=12, bandwidth=0.5)
    rows = [*fan.rows(settings, runs=1)]
    beside = [row for row in rows if row.goal]
    assert [row.goal.limit for row in beside if row.goal] == [10, 4, 10, 10, 5]
    for row in beside:
        allowed = 1e-4 if "GPyTorch" in row.contender else 1e-6
        assert row.difference is not None
        assert 0 <= row.difference <= allowed
        assert row.met is (row.value is not None and row.goal is not None
                           and row.value >= row.goal.limit)  # fmt: skip


def test_every_contender_of_the_large_solve_gives_the_same_answers() -> None:
    rows = [*large.rows(sizes=(96,), runs=1, tolerance=1e-10)]
    differences = {row.contender: row.difference for row in rows if row.goal}
    assert len(differences) == 5
    for contender, difference in differences.items():
        assert difference is not None
        assert difference <= (1e-4 if "GPyTorch" in contender else 1e-6), contender


def test_the_steps_of_a_large_solve_are_the_first_that_meet_the_tolerance() -> None:
    problem = large.prompts(64)
    (system,) = peers.systems(problem)
    steps = large.steps_to(problem, 1e-6)
    states = peers._conjugate(system.matrix(), system.y, np.ones(64))
    alphas = [next(states) for _ in range(steps + 1)]
    left = [np.linalg.norm(system.y - system.matrix() @ a) for a in alphas]
    assert left[-1] <= 1e-6 * left[0] < left[-2]


def test_every_kind_of_row_is_made_at_small_sizes() -> None:
    shares = [row for row in ceilings.rows(attention=32, matrix=48, runs=1) if row.goal]
    assert [row.unit for row in shares] == ["of the ceiling"] * 3
    sizes = (64, 512) if sys.platform == "linux" else ()
    grown = [*growth.rows((16, 32), (2, 4), (1, 2), memory=sizes, runs=1)]
    limits = [str(row.goal) for row in grown if row.goal]
    assert limits == ["<= 2.1"] * 2 + ["<= 1.05"] * 4 + ["<= 1.1"] * (len(sizes) // 2)
    peaks = [row.value for row in grown if "MiB" in row.unit]
    assert [(peak or 0) > 0 for peak in peaks] == [True] * len(sizes)
    assert len([row for row in gpu.rows(sizes=(32,), runs=1, device="cpu") if row.times]) == 6


def test_an_exponent_is_the_slope_in_log_log() -> None:
    assert growth.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


def test_contenders_run_in_turns_after_a_warm_up() -> None:
    order: list[str] = []
    times = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, 3)
    assert order == [*"ab"] * 4
    assert [len(each.seconds) for each in times.values()] == [3, 3]


def test_goals_are_met_at_their_limit_and_not_beyond() -> None:
    for value, at_least, met in ((2.0, True, True), (1.9, True, False), (2.1, False, False)):
        row = Row("s", "n", "c", Times((3.0, 1.0, 2.0), None), value, "", Goal(2, at_least))
        cells = row.cells()
        assert row.met is met
        assert cells["met"] == ("yes" if met else "no")
        assert (cells["seconds_median"], cells["seconds_min"], cells["runs"]) == ("2", "1", "3")
    assert Row("s", "n", "c").cells()["met"] == ""


def test_a_section_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("page", "one", "krrviz", value=0.25, unit="of it", goal=Goal(0.5))
    monkeypatch.setitem(report.SECTIONS, "page", lambda: iter([row]))
    assert main(["bench", "--only", "page", "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.csv"]
    with (tmp_path / "page.csv").open(encoding="utf-8") as file:
        (written,) = csv.DictReader(file)
    assert [*written] == COLUMNS
    assert (written["value"], written["goal"], written["met"]) == ("0.25", ">= 0.5", "no")
    assert "torch" in written["versions"]
    assert "one" in capsys.readouterr().out


def test_a_missing_extra_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> ModuleSpec | None:
        return None if name == "gpytorch" else importlib.util.find_spec(name)

    monkeypatch.setattr(report, "find_spec", found)
    assert main(["bench", "--only", "fan", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told == "krrviz: bench fan needs gpytorch: pip install 'krrviz[bench]'\n"


def test_the_readmes_table_is_made_from_the_committed_files() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "table.py"))
    text = (ROOT / "README.md").read_text("utf-8")
    held = text[text.index(made["START"]) + len(made["START"]) : text.index(made["END"])]
    assert held.strip() == made["table"](ROOT / "benchmarks" / "results")
