"""Sweeps: rows held to the fan itself, and nothing lost or doubled whatever dies on the way."""

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from krrviz import Settings, SettingsError, View, cli, fan_frame, sweeping, tables, tasks
from krrviz.cli import main
from krrviz.fan import fan
from krrviz.pictures import map as pictures
from krrviz.sweep import Course, cell_course, course_rows, mapped, read_grid

BASE = "data=gp&d=1&prompts=2&queries=4&steps=12&segments=16"
GRID = f"""
link = "{BASE}"
[settings]
seed = 3
[sweep]
ridge = {{from=0.1, to=10, count=3, scale="log"}}
n = [8, 12]
"""


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def written(folder: Path, text: str = GRID) -> str:
    """The grid's file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grid.toml").write_text(text, "utf-8")
    return str(folder / "grid.toml")


def untimed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: row[name] for name in row if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one sweep of GRID by two processes has written."""
    folder = tmp_path_factory.mktemp("sweep")
    arguments = ["sweep", written(folder), "--out", str(folder / "out"), "--eps", "0.01"]
    assert main([*arguments, "--jobs", "2"]) == 0
    return folder / "out"


# -- what is written ----------------------------------------------------------------------------


def test_rows_are_the_fans_in_the_order_of_the_grid(whole: Path) -> None:
    rows, base = iter(read(whole / "sweep.csv")), Settings.from_query(BASE + "&seed=3")
    for ridge, n in itertools.product([0.1, 1.0, 10.0], [8, 12]):
        frame = fan_frame(base.but(ridge=ridge, n=n)).query(f"n == {n}")
        reached, last = {}, {}
        for method in base.methods:
            errors = frame[frame.method == method].set_index("step").error
            there = [step for step, error in errors.items() if error <= 0.01]
            reached[method], last[method] = there[0] if there else 99, errors[12]
        best = min(base.methods, key=lambda m: (reached[m], last[m]))
        for method in base.methods:
            row = next(rows)
            assert [float(row["ridge"]), int(row["n"])] == [ridge, n]
            assert row["method"] == method
            assert row["steps_to_eps"] == ("" if reached[method] == 99 else str(reached[method]))
            assert float(row["final_error"]) == pytest.approx(last[method], rel=1e-9)
            assert (row["winner"], row["dtype"], row["refusal"]) == (best, "float64", "")
            assert row["device"] in ("cpu", "cuda")
            assert float(row["seconds"]) > 0
    assert next(rows, None) is None


def course(**errors: list[float]) -> Course:
    return Course({name: np.array(e) for name, e in errors.items()}, 1e-15, "cpu", "float64", 0.1)


@pytest.mark.parametrize(
    ("errors", "winner", "steps"),
    [
        ({"a": [1, 0.1, 0.01], "b": [1, 0.5, 0.001]}, "a", [1, 2]),  # the fewest steps
        ({"a": [1, 0.1, 0.01], "b": [1, 0.1, 0.001]}, "b", [1, 1]),  # of these the lower error
        ({"a": [1, 0.9, 0.8], "b": [1, 0.7, 0.7]}, "b", [None, None]),  # nobody gets there
        ({"a": [1, 0.1, 5], "b": [1, 0.2, 0.2]}, "a", [1, None]),  # and may leave again
        ({"a": [1, 1e300, 1e300], "b": [1, 2, 1e300]}, "", [None, None]),  # overflow wins nothing
    ],
)
def test_the_winner_has_the_fewest_steps_then_the_lowest_error(
    errors: dict[str, list[float]], winner: str, steps: list[int | None]
) -> None:
    rows = course_rows(course(**errors), 0.1)
    assert [row["steps_to_eps"] for row in rows] == steps
    assert {row["winner"] for row in rows} == {winner}


def test_a_map_tells_refused_never_and_reached_cells_apart() -> None:
    settings = Settings(data="gp", d=1, n=12, queries=1024, steps=100_000)
    grid = mapped(settings, View())
    refused = cell_course(grid, 0)
    there, never = (
        Course(
            {m: np.array([1, 0.5, last]) for m in settings.methods}, 1e-15, "cpu", "float64", 0.1
        )
        for last in (0.001, 0.5)
    )
    rows = pictures.rows(grid, {0: refused, 1: there, 5: never})
    shown = pictures.figures(rows, grid, settings, View())["map"]
    cells = shown.tables["cells"]
    assert [*cells.state] == ["refused", "reached", "never"]
    assert [*cells.label] == ["✕", "2", "never"]
    assert [*cells.cell] == [0, 1, 5]
    assert "would take about" in cells.told[0]
    assert "would take about" in shown.alt


def test_at_n_alone_the_fan_is_the_same() -> None:
    settings = Settings(prompts=3, n=20, steps=5)
    full, alone = fan(settings), fan(settings, counts=[20])
    for method in settings.methods:
        np.testing.assert_allclose(
            alone.errors[method][:, 0], full.errors[method][:, -1], rtol=1e-9
        )


def test_a_bandwidth_that_nobody_names_is_the_data_sets_own(tmp_path: Path) -> None:
    grid = read_grid(Path(written(tmp_path, '[sweep]\ndata = ["gp", "diabetes", "co2"]')))
    assert [grid.settings(i).bandwidth for i in range(3)] == [0.5, 3.0, 0.5]


def test_ranges_keep_their_ends_and_whole_numbers_stand_once(tmp_path: Path) -> None:
    text = (
        "[sweep]\nn = {from=2, to=6, count=9}\nsegments = {from=1, to=64, count=7, scale='log'}\n"
        "ridge = {from=1e-3, to=0.3, count=5, scale='log'}"
    )
    axes = read_grid(Path(written(tmp_path, text))).axes
    assert axes["n"] == (2, 3, 4, 5, 6)  # 2, 2.5, ... rounded
    assert axes["segments"] == (1, 2, 4, 8, 16, 32, 64)
    assert axes["ridge"][0] == 1e-3
    assert axes["ridge"][-1] == 0.3
    steps = np.diff(np.log(axes["ridge"]))
    np.testing.assert_allclose(steps, np.log(300) / 4)


def test_a_refused_cell_is_told_others_go_on_and_it_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    text = "[settings]\nprompts = 2\nsteps = 3\n[sweep]\nn = [120, 8]\n"
    text += 'methods = [["nesterov", "transformer"], ["chebyshev"]]\ndtype = ["float64", "float32"]'
    arguments = ["sweep", written(tmp_path, text), "--out", str(tmp_path / "out"), "--jobs", "1"]
    for computed in (4, 0):
        assert main(arguments) == 0
        assert f"8 cells, {computed} of them computed now, 4 refused" in capsys.readouterr().out
        rows = read(tmp_path / "out" / "sweep.csv")
        assert len(rows) == 2 * 2 * (2 + 1)
        for row in rows:
            told = row["refusal"]
            assert ("n=120 with queries=32 needs 152 rows but motorcycle has 133" in told) == (
                row["n"] == "120"
            )
            assert (row["final_error"] == "") == bool(told)
            assert row["asked_dtype"] == (row["dtype"] or row["asked_dtype"])
    assert len([*(tmp_path / "out" / "cells").iterdir()]) == 4


def test_a_persons_file_is_swept(tmp_path: Path) -> None:
    lines = ["a,b,c", *(f"{i},{(i * 7) % 11},{(i * 5) % 13}" for i in range(30))]
    (tmp_path / "own.csv").write_text("\n".join(lines), "utf-8")
    text = "[settings]\nn = 8\nqueries = 4\nprompts = 2\nsteps = 3\n[sweep]\ntarget = [1, 2]"
    arguments = ["sweep", written(tmp_path, text), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert main([*arguments, "--csv", str(tmp_path / "own.csv")]) == 0
    rows = read(tmp_path / "out" / "sweep.csv")
    assert {row["target"] for row in rows} == {"1", "2"}
    assert {row["refusal"] for row in rows} == {""}
    assert len({row["final_error"] for row in rows}) == 10


def test_rows_that_a_seed_draws_are_those_of_the_link_and_the_seed_is_not_swept(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cli, tables):
        monkeypatch.setattr(module, "MAX_ROWS", 30)
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["a,b", *(f"{i},{(i * 7) % 11}" for i in range(60))]), "utf-8")
    rest = "n = 8\nqueries = 4\nprompts = 2\nsteps = 3\n"
    more = ["--out", str(tmp_path / "out"), "--jobs", "1", "--csv", str(own)]
    text = f"[settings]\nseed = 3\n{rest}[sweep]\nridge = [0.1]"
    assert main(["sweep", written(tmp_path, text), *more]) == 0
    (row, *_) = read(tmp_path / "out" / "sweep.csv")
    table = tasks.own_table(tables.open_csv(own, 3), Settings(data="csv"))
    settings = Settings.from_query("", data="csv", seed=3, n=8, queries=4, prompts=2, steps=3,
                                   ridge=0.1)  # fmt: skip
    wanted = float(fan(settings, table).errors[row["method"]][-1, -1])
    assert float(row["final_error"]) == pytest.approx(wanted, rel=1e-9)
    text = f"[settings]\n{rest}[sweep]\nseed = [1, 2]"
    capsys.readouterr()
    assert main(["sweep", written(tmp_path, text), *more]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"krrviz: seed draws the rows of --csv {own}, which has 30 or more; it cannot be swept, "
        "too\n"
    )


def test_what_nobody_foresaw_in_a_cell_is_one_line_and_the_cells_there_are_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = sweeping.cell_course

    def broken(grid: Any, number: int, own: Any) -> Any:
        if number == 2:
            raise RuntimeError("no such\nkernel")
        return wrapped(grid, number, own)

    monkeypatch.setattr(sweeping, "cell_course", broken)
    out = tmp_path / "out"
    assert main(["sweep", written(tmp_path), "--out", str(out), "--jobs", "1"]) == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert told == (
        "krrviz: a process failed: RuntimeError: no such kernel; 2 of 6 cells are kept in "
        f"{out}: the same command goes on from there"
    )


# -- going on -----------------------------------------------------------------------------------


def test_a_sweep_goes_on_where_it_was_and_a_torn_file_is_no_cell(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ["sweep", written(tmp_path), "--out", str(out), "--eps", "0.01", "--jobs", "1"]
    asked: list[int] = []
    wrapped = sweeping.cell_course

    def counted(grid: Any, number: int, own: Any) -> Any:
        asked.append(number)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return wrapped(grid, number, own)

    monkeypatch.setattr(sweeping, "cell_course", counted)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 130
    assert len(os.listdir(out / "cells")) == 3
    assert not (out / "sweep.csv").exists()

    one, two, three = sorted((out / "cells").iterdir())
    (out / "cells" / f".{two.name}.1.tmp").write_text("torn", "utf-8")
    # No work of ours: half a file, one without its last newline, one that is empty.
    one.write_text(one.read_text("utf-8")[:-70], "utf-8")
    two.write_text(two.read_text("utf-8")[:-1], "utf-8")
    three.write_text("", "utf-8")
    asked[:] = [-1] * 4
    assert main(arguments) == 0
    assert len(asked) == 4 + 6  # three it lacked, and those
    assert untimed(read(out / "sweep.csv")) == untimed(read(whole / "sweep.csv"))
    asked.clear()
    assert main(arguments) == 0
    assert not asked


def test_a_folder_of_another_sweep_is_refused_by_both_names(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    held = json.loads((whole / "grid.json").read_text("utf-8"))["digest"]
    before = (whole / "sweep.csv").read_bytes()
    for eps, text in (("0.02", GRID), ("0.01", GRID.replace("seed = 3", "seed = 4"))):
        assert main(["sweep", written(tmp_path, text), "--out", str(whole), "--eps", eps]) == 2
        told = capsys.readouterr().err
        assert f"holds the sweep {held}, and this one is " in told
        assert told.count("\n") == 1
    assert (whole / "sweep.csv").read_bytes() == before


# -- what cannot be used ------------------------------------------------------------------------

BAD = {
    "nonsense =": "is no TOML file",
    "[sweep]": r"\[sweep\] is empty; allowed: one setting or more",
    "[settings]\nn = 3": r"\[sweep\] is empty",
    "[swep]\nn = [3]": "swep is not known; allowed: link, settings, sweep",
    "[sweep]\nnn = [3]": r"\[sweep\]: nn is not known; allowed: data, file",
    "[settings]\nnn = 3\n[sweep]\nn = [3]": r"\[settings\]: nn is not known; allowed: data",
    "[settings]\nridge = -1\n[sweep]\nn = [3]": "ridge=-1 must be 1e-12 to 1000000",
    "[settings]\nn = 4\n[sweep]\nn = [3]": r"n is both in \[settings\] and in \[sweep\]",
    "settings = 3\n[sweep]\nn = [3]": "settings=3 must be a table",
    "link = 3\n[sweep]\nn = [3]": "link=3 must be a link",
    "link = 'n=x'\n[sweep]\nn = [3]": "n=x must be a whole number 2 to",
    "[sweep]\nn = []": r"n=\[\] is empty; allowed: one value or more",
    "[sweep]\nn = 3": "n=3 must be a list of values, or from, to",
    "[sweep]\nn = [3, 1]": "n=1 must be a whole number 2 to",
    "[sweep]\nn = [3, 2.5]": "n=2.5 must be a whole number",
    "[sweep]\nridge = [nan]": "ridge=nan must be 1e-12 to",
    "[sweep]\nmethods = [[{a = 1}]]": "must be one or more of transformer",
    "[sweep]\nn = [3, 4, 3]": "n=3 stands twice; once is allowed",
    "[sweep]\nridge = [1, 1.0]": "ridge=1.0 stands twice",
    "[sweep]\nridge = {from=1, to=2}": "ridge lacks count; a range has from, to and count",
    "[sweep]\nridge = {from=1, to=2, count=0}": "ridge: count=0 must be a whole number 1 to 10000",
    "[sweep]\nridge = {from=1, to=2, count=2.5}": "ridge: count=2.5 must be a whole number",
    "[sweep]\nridge = {from=1, to=2, count=true}": "ridge: count=True must be a whole number",
    "[sweep]\nridge = {from=1, to=2, count=1}": "ridge: count=1 has no room for both",
    "[sweep]\nridge = {from=1, to=1, count=2}": "are all the same; allowed: 1",
    "[sweep]\nridge = {from=1, to=1e9, count=2}": "ridge: to=1000000000.0 must be 1e-12 to 1000000",
    "[sweep]\nn = {from=1, to=9, count=2}": "n: from=1 must be a whole number 2 to",
    "[sweep]\nnoise = {from=0, to=9, count=2, scale='log'}": "noise: from=0 must be above 0",
    "[sweep]\nnoise = {from=0, to=9, count=2, scale='cubic'}": "scale=cubic must be linear or log",
    "[sweep]\nnoise = {from=0, to=9, count=2, by=3}": "noise: by is not known; allowed: from, to",
    "[sweep]\nsink = {from='ridge', to=9, count=2}": "sink: from=ridge must be a number",
    "[sweep]\ndata = {from=0, to=9, count=2}": "data is no number: list its values; allowed: one",
    "[sweep]\nseed = {from=0, to=100, count=101}\nridge = {from=1, to=2, count=100}":
        r"\[sweep\] has 101 × 100 = 10100 cells; allowed: 1 to 10000",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_used_is_named_with_what_is_allowed(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=BAD[text]) as refused:
        read_grid(Path(written(tmp_path, text)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--jobs", "0"], "--jobs 0 must be 1 or more"),
        (["--eps", "0"], "eps=0.0 must be 1e-15 to 1000"),
        (["--eps", "nan"], "eps=nan must be 1e-15 to 1000"),
        (["--dask", "host"], "--dask host must be an address, as in tcp://host:8786"),
    ],
)
def test_what_the_command_cannot_use_is_named(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["sweep", written(tmp_path), "--out", str(tmp_path / "out"), *arguments]) == 2
    assert capsys.readouterr().err == f"krrviz: {told}\n"
    assert main(["sweep", str(tmp_path / "none.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_packages_that_are_missing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, more in (("joblib", []), ("distributed", ["--dask", "tcp://127.0.0.1:9"])):
        monkeypatch.setitem(sys.modules, package, None)
        assert main(["sweep", written(tmp_path), "--out", str(tmp_path / "out"), *more]) == 2
        told = "krrviz: a sweep needs more packages: pip install 'krrviz[sweep]'\n"
        assert capsys.readouterr().err == told


# -- other machines -----------------------------------------------------------------------------

# Enough cells that something can die among them.
LONG = GRID.replace("count=3", "count=40")
Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs of Dask; what still runs at the end is killed."""
    running: list[subprocess.Popen] = []

    def program(module: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, "--no-dashboard"]
        pipe = subprocess.PIPE if module == "dask_scheduler" else subprocess.DEVNULL
        running.append(subprocess.Popen(command, stderr=pipe, text=True))
        return running[-1]

    yield program
    for process in running:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


@pytest.fixture
def cluster(start: Start) -> tuple[str, subprocess.Popen, list[subprocess.Popen]]:
    """A scheduler's address, the scheduler, and its two workers, each a process."""
    scheduler = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    assert scheduler.stderr is not None
    for line in scheduler.stderr:
        if "Scheduler at:" in line:
            address = line.split()[-1]
            break
    else:
        pytest.fail("the scheduler did not start")
    arguments = (address, "--nthreads", "1", "--no-nanny")
    return address, scheduler, [start("dask_worker", *arguments) for _ in range(2)]


def sweep_until(cells: int, folder: Path, address: str, act: Callable[[], None]) -> tuple[int, str]:
    """Sweep LONG in a process of its own, act when so many cells are there; its end and stderr."""
    command = [sys.executable, "-m", "krrviz", "sweep", written(folder, LONG)]
    command += ["--out", str(folder / "out"), "--dask", address]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        while len([*folder.glob("out/cells/*.csv")]) < cells:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        act()
        told = process.communicate(timeout=60)[1]
        return process.returncode, told
    finally:
        process.kill()


def test_a_worker_that_is_killed_loses_and_doubles_nothing(
    cluster: tuple[str, subprocess.Popen, list[subprocess.Popen]], tmp_path: Path
) -> None:
    address, _, workers = cluster
    code, told = sweep_until(10, tmp_path, address, workers[0].kill)
    assert code == 0, told
    assert workers[0].wait() == -signal.SIGKILL
    rows = read(tmp_path / "out" / "sweep.csv")
    found = [(float(row["ridge"]), int(row["n"]), row["method"]) for row in rows]
    ridges = list(dict.fromkeys(ridge for ridge, _, _ in found))
    assert len(ridges) == 40
    assert found == [*itertools.product(ridges, [8, 12], Settings().methods)]
    assert {row["refusal"] for row in rows} == {""}
    base = Settings.from_query(BASE + "&seed=3")
    for ridge, n in ((ridges[0], 8), (ridges[-1], 12), (ridges[20], 8)):
        last = fan_frame(base.but(ridge=ridge, n=n)).query(f"n == {n} and step == 12")
        held = [float(row["final_error"]) for row in rows
                if (float(row["ridge"]), int(row["n"])) == (ridge, n)]  # fmt: skip
        np.testing.assert_allclose(held, last.error, rtol=1e-9, atol=1e-12)


def test_a_scheduler_that_dies_leaves_the_cells_there_are(
    cluster: tuple[str, subprocess.Popen, list[subprocess.Popen]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    address, scheduler, _ = cluster
    code, told = sweep_until(10, tmp_path, address, scheduler.kill)
    assert code == 2
    *_, last = told.splitlines()
    assert last.startswith(f"krrviz: --dask {address}: the scheduler answers no longer; ")
    assert "Traceback" not in told
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").iterdir()}
    assert 10 <= len(cells) < 80
    assert f"{len(cells)} of 80 cells are kept" in last
    assert not (tmp_path / "out" / "sweep.csv").exists()

    arguments = ["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--jobs", "1"]) == 0
    assert f"{80 - len(cells)} of them computed now" in capsys.readouterr().out
    assert len(read(tmp_path / "out" / "sweep.csv")) == 80 * 5
    assert all(path.stat().st_mtime_ns == at for path, at in cells.items())


def test_a_persons_file_goes_to_the_workers_whose_own_errors_are_not_the_schedulers(
    cluster: tuple[str, subprocess.Popen, list[subprocess.Popen]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["a,b", *(f"{i},{(i * 7) % 11}" for i in range(30))]), "utf-8")
    text = "[settings]\nn = 8\nqueries = 4\nprompts = 2\nsteps = 3\n[sweep]\nridge = [0.1, 1]"
    arguments = ["sweep", written(tmp_path, text), "--csv", str(own)]
    far = [*arguments, "--dask", cluster[0], "--out"]
    assert main([*far, str(tmp_path / "far")]) == 0
    assert main([*arguments, "--jobs", "1", "--out", str(tmp_path / "near")]) == 0
    held = [
        [float(row["final_error"]) for row in read(tmp_path / name / "sweep.csv")]
        for name in ("near", "far")
    ]
    np.testing.assert_allclose(*held, rtol=1e-9, atol=1e-12)
    for error in (FileNotFoundError("cell's own"), TimeoutError("cell's own")):

        def failing(*asked: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(sweeping, "_far", failing)
        capsys.readouterr()
        assert main([*far, str(tmp_path / type(error).__name__)]) == 2
        *_, told = capsys.readouterr().err.splitlines()
        assert f"a worker of {cluster[0]} failed: {type(error).__name__}: cell's own; 0 of" in told


def test_a_scheduler_that_is_not_there_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "PATIENCE", 1)
    address = "tcp://127.0.0.1:9"
    assert main(["sweep", written(tmp_path), "--out", str(tmp_path), "--dask", address]) == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert told.startswith(f"krrviz: --dask {address}: no scheduler answers there")
    assert "0 of 6 cells are kept" in told
