"""The command line: the files that a run writes, held to the library and to a direct solve."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import pytest
import torch

from krrviz import Construction, Settings, cli, fan_frame, load_construction, tables, tasks
from krrviz.cli import main
from krrviz.guarantee import guarantee
from krrviz.scaling import SWEEPS
from krrviz.solvers import SOLVERS
from krrviz.trained import match as matching
from krrviz.trained.gpt import GPT, Shape, load, shape_card, write
from krrviz.trained.prompts import Task
from krrviz.trained.train import Recipe

LINK = "data=gp&n=12&queries=5&prompts=3&steps=6&segments=16"
FILES = {"settings.json", "trajectories.csv", "fan.csv", "summary.json"}
ROWS = [f"{i},{(i * 7) % 11},{i % 5}" for i in range(30)]
CSV = "\n".join(["age,mass,speed", *ROWS, ",,", "1,2,"])


def refused(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def loaded(path: Path) -> dict[str, Any]:
    """JSON as the standard has it, which knows neither NaN nor Infinity."""
    return json.loads(path.read_text("utf-8"), parse_constant=refused)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run of LINK has written."""
    folder = tmp_path_factory.mktemp("run") / "new" / "folder"
    assert main(["run", LINK, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A person's CSV file of 30 complete rows."""
    path = tmp_path / "own.csv"
    path.write_text(CSV, "utf-8")
    return str(path)


# -- what is written ----------------------------------------------------------------------------


def test_a_run_writes_its_four_files(out: Path) -> None:
    assert {path.name for path in out.iterdir()} >= FILES


def test_fan_csv_is_the_librarys_frame_to_the_last_digit(out: Path) -> None:
    header, *rows = (out / "fan.csv").read_text("utf-8").splitlines()
    assert header == "method,step,n,error"
    got = [
        (m, int(step), int(n), float(error)) for m, step, n, error in (r.split(",") for r in rows)
    ]
    assert got == [*fan_frame(Settings.from_query(LINK)).itertuples(index=False, name=None)]


def test_trajectories_are_the_fan_at_the_full_context(out: Path) -> None:
    got, fan = pd.read_csv(out / "trajectories.csv"), pd.read_csv(out / "fan.csv")
    assert list(got.columns) == ["method", "step", "error"]
    assert got.to_dict("records") == fan.query("n == 12").drop(columns="n").to_dict("records")
    assert len(got) == 7 * len(Settings().methods)


def test_settings_json_holds_every_field(out: Path) -> None:
    held = loaded(out / "settings.json")
    held["methods"] = tuple(held["methods"])
    assert Settings(**held) == Settings.from_query(LINK)


def test_the_summary_holds_link_errors_checks_device_and_versions(out: Path) -> None:
    summary, steps = loaded(out / "summary.json"), pd.read_csv(out / "trajectories.csv")
    assert Settings.from_query(summary["link"]) == Settings.from_query(LINK)
    final = steps[steps.step == 6].set_index("method").error.to_dict()
    assert summary["final_error"] == pytest.approx(final, rel=1e-15)
    assert summary["reference"] == "krr"
    assert summary["dtype"] == "float64"
    assert summary["device"] in ("cpu", "cuda")
    assert summary["seconds"] >= 0
    assert set(summary["versions"]) == {"python", "krrviz", "torch", "numpy", "pandas"}
    assert summary["versions"]["numpy"] == np.__version__


def test_the_checks_of_a_run_hold_and_say_how_well(out: Path) -> None:
    checks = {check["name"]: check for check in loaded(out / "summary.json")["checks"]}
    assert set(checks) >= {"direct solve", "transformer = Richardson", "attention = D⁻¹K"}
    for check in checks.values():
        assert check["passed"]
        assert 0 <= check["value"] <= check["tolerance"]
        assert check["meaning"]
    # ‖y − Aα‖/‖y‖ of a Cholesky solve with condition number about 100
    assert 0 < checks["direct solve"]["value"] < 1e-14
    assert checks["direct solve"]["tolerance"] == 1e-10


def test_the_summary_is_told_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["run", LINK + "&methods=nesterov", "--out", str(tmp_path)]) == 0
    told, summary = capsys.readouterr().out, loaded(tmp_path / "summary.json")
    assert f"{summary['final_error']['nesterov']:.3e}" in told
    for check in summary["checks"]:
        assert check["name"] in told
        assert f"{check['value']:.2e}" in told
    assert "cpu, float64" in told or "cuda, float64" in told


@pytest.mark.parametrize(
    "odd",
    [
        {"policy": "manual", "step_size": 1000, "steps": 200},
        {"ridge_scale": "per_sample", "methods": "gradient_descent"},
        {"dtype": "float32"},
        {"ridge": 1e-12},
        {"ridge": 1e6},
        {"bandwidth": 1e3},
        {"bandwidth": 1e-3},
        {"alpha_range": 1e-6},
        {"steps": 0},
        {"reference": "noiseless"},
        {"segments": 1, "label_bound": 1e-6},
    ],
    ids=urlencode,
)
def test_odd_settings_still_give_figures_that_json_and_csv_can_hold(
    odd: dict[str, Any], tmp_path: Path
) -> None:
    link = {"data": "gp", "n": 6, "queries": 3, "prompts": 2, "steps": 4, "segments": 16} | odd
    assert main(["run", urlencode(link), "--out", str(tmp_path)]) == 0
    assert loaded(tmp_path / "summary.json")["checks"]
    assert np.isfinite(pd.read_csv(tmp_path / "fan.csv").error).all()


def test_a_run_writes_over_an_earlier_one(out: Path, tmp_path: Path) -> None:
    for link in (LINK + "&seed=1", LINK):
        assert main(["run", link, "--out", str(tmp_path)]) == 0
    for name in ("fan.csv", "trajectories.csv", "settings.json"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_a_whole_link_is_taken(out: Path, tmp_path: Path) -> None:
    link = f"http://localhost:8501/?{Settings.from_query(LINK).to_query()}&step=3"
    assert main(["run", link, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "fan.csv").read_bytes() == (out / "fan.csv").read_bytes()


def test_weights_are_written_with_a_card(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["weights", LINK, "--out", str(tmp_path)]) == 0
    _, c = load_construction(tmp_path / "transformer")
    assert c == Construction.from_settings(Settings.from_query(LINK))
    assert loaded(tmp_path / "transformer.json")["sha256"] in capsys.readouterr().out


# -- certify and scaling -------------------------------------------------------------------------


def test_certify_prints_the_librarys_guarantee(capsys: pytest.CaptureFixture) -> None:
    link = LINK + "&update=chebyshev"
    assert main(["certify", link, "--eps", "0.1"]) == 0
    told = capsys.readouterr().out
    found = guarantee(Settings.from_query(link), 0.1)
    assert found.measured is not None
    for words in (
        f"steps         {found.construction.steps}",
        f"segments      {found.construction.segments}",
        f"a priori      {found.certificate.a_priori:.3e}",
        f"post hoc      {found.measured.post_hoc:.3e}",
        f"measured      {found.measured.error:.3e}",
    ):
        assert words in told


def test_certify_tells_the_cost_of_what_it_does_not_measure(capsys: pytest.CaptureFixture) -> None:
    assert main(["certify", LINK + "&ridge=1e-3", "--eps", "1e-3"]) == 0
    told = capsys.readouterr().out
    assert "not measured, would cost about" in told
    assert "is measured" in told


@pytest.mark.parametrize(
    ("link", "eps", "message"),
    [
        (LINK, "0", "eps=0.0 must be a finite number above 0"),
        (LINK, "-1e-3", "eps=-0.001 must be"),
        (LINK, "inf", "eps=inf must be"),
        (LINK, "1e-15", "float64 reaches"),
        (LINK + "&update=function_space", "1", "update=function_space has no certificate"),
        ("ridge=0", "1", "ridge=0 must be"),
    ],
)
def test_what_certify_cannot_do_is_one_line(
    link: str, eps: str, message: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["certify", link, f"--eps={eps}"]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert not told.out


def test_scaling_writes_the_sweeps_rows(tmp_path: Path) -> None:
    link = LINK + "&seed=3"
    assert (
        main(["scaling", link, "--only", "sink", "--only", "transfer", "--out", str(tmp_path)]) == 0
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "sink.csv", "transfer.csv", "settings.json"
    }  # fmt: skip
    settings = Settings.from_query(link)
    rows = pd.DataFrame([row for _, point in SWEEPS["sink"](settings, None) for row in point()])
    written = pd.read_csv(tmp_path / "sink.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(written, rows)


# -- train ----------------------------------------------------------------------------------------


def test_train_goes_on_where_it_stopped_and_says_how_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    tiny = Recipe(
        shape=Shape(n=4, layers=1, width=8, heads=2), task=Task(n=4), steps=4, batch=4,
        warm_up=1, every=2,
    )  # fmt: skip
    monkeypatch.setitem(cli.RECIPES, "main-0", tiny)
    assert main(["train", "main-0", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "step 2 of 4: loss" in told.err
    assert "step 4 of 4: loss" in told.err
    assert told.out.startswith("main-0: 4 steps on cpu; loss")
    assert load(tmp_path / "main-0")[1]["steps"] == 4
    assert main(["train", "main-0", "--out", str(tmp_path)]) == 0
    assert "were taken before" in capsys.readouterr().out
    assert main(["train", "main-0", "--steps", "6", "--out", str(tmp_path)]) == 2
    assert "holds the training of another recipe" in capsys.readouterr().err


def test_train_takes_a_recipe_file_and_names_the_checkpoint_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    tiny = Recipe(
        shape=Shape(n=4, layers=1, width=8, heads=2), task=Task(n=4, kernel="matern32"), steps=4,
        batch=4, warm_up=1, every=2,
    )  # fmt: skip
    file, out = tmp_path / "mine.json", tmp_path / "out"
    file.write_text(json.dumps(tiny.card()), "utf-8")
    assert main(["train", "--recipe", str(file), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("mine: 4 steps on cpu; loss")
    assert Recipe.from_card(load(out / "mine")[1]["recipe"]) == tiny
    assert main(["train", "--recipe", str(file), "--out", str(tmp_path)]) == 2
    assert "would write the card over" in capsys.readouterr().err
    assert json.loads(file.read_text("utf-8")) == loaded(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mine.json"),
        ("{", "mine.json is no recipe: Expecting property name"),
        ("\xff", "mine.json is no recipe: "),
        ("[" * 100_000, "mine.json is no recipe: "),
        ("[]", "mine.json is no recipe: the recipe is [] and must be an object of shape, task"),
    ],
    ids=["missing", "no JSON", "no UTF-8", "no end", "no object"],
)
def test_a_recipe_file_of_no_use_is_one_line(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "mine.json"
    if content is not None:
        file.write_text(content, "latin-1")
    assert main(["train", "--recipe", str(file), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert main(["train", "main-0", "--steps", "0", "--out", str(tmp_path / "out")]) == 2
    assert "steps=0 must be a whole number from 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_terminal_shows_a_bar_with_loss_and_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    tiny = Recipe(
        shape=Shape(n=4, layers=1, width=8, heads=2), task=Task(n=4), steps=4, batch=4, every=2
    )
    monkeypatch.setitem(cli.RECIPES, "main-0", tiny)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["train", "main-0", "--out", str(tmp_path)]) == 0
    bars = capsys.readouterr().err.split("\r")[1:]
    assert [bar[:26] for bar in bars] == [f"[{'#' * 12}{' ' * 12}]", f"[{'#' * 24}]"]
    assert all("loss" in bar and "gap to KRR" in bar for bar in bars)
    assert [bar.endswith("\n") for bar in bars] == [False, True]


@pytest.mark.parametrize(
    ("steps", "message"), [("0", "a whole number from 1"), ("9000000", "to 1000000")]
)
def test_steps_that_cannot_be_taken_are_one_line(
    steps: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["train", "main-0", "--steps", steps, "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"krrviz: steps={steps} must be")
    assert message in told
    assert told.count("\n") == 1


# -- probe ----------------------------------------------------------------------------------------

TINY = Shape(n=4, layers=1, width=8, heads=2)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A model that was never trained, as a checkpoint."""
    path = tmp_path / "tiny"
    torch.manual_seed(0)
    recipe = Recipe(shape=TINY, task=Task(n=4))
    write(path, GPT(TINY).state_dict(), {"shape": shape_card(TINY), "recipe": recipe.card()})
    return path


def test_probe_writes_its_files_and_prints_the_ranking(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(matching, "RESAMPLES", 4)
    monkeypatch.setattr(matching, "STEPS", 8)
    out = checkpoint.parent / "new" / "out"
    assert main(["probe", str(checkpoint), "--prompts", "9", "--out", str(out)]) == 0
    key = ["readout", "metric", "ridge_scale", "policy", "method"]
    columns = {
        "ranking": [*key, "path", "score", "low", "high", "steps"],
        "heatmaps": [*key, "layer", *map(str, range(matching.STEPS + 1))],
        "layers": ["step", "n", "error", "noiseless", "method", "title"],
        "solvers": ["step", "n", "error", "noiseless", "method", "title", "policy", "ridge_scale"],
        "probes": ["target", "title", "layer", "network", "r2"],
        "additivity": ["method", "title", "step", "defect"],
    }
    assert {path.name for path in out.iterdir()} == {
        "summary.json", *(f"{name}.csv" for name in columns)
    }  # fmt: skip
    for name, wanted in columns.items():
        rows = pd.read_csv(out / f"{name}.csv")
        assert list(rows.columns) == wanted
        assert len(rows)
        assert not rows.isna().any().any(), name
    summary = loaded(out / "summary.json")
    assert (summary["checkpoint"], summary["prompts"]) == ("tiny", 9)
    assert summary["card"]["shape"] == shape_card(TINY)
    told = capsys.readouterr().out
    ranking = pd.read_csv(out / "ranking.csv").query(
        "readout == 'lens' and metric == 'similarity' and path == 'free' and "
        "ridge_scale == 'absolute' and policy == 'certified'"
    )
    block = told.split("the model's own head:\n")[1].splitlines()[:8]
    best = sorted(ranking.score, reverse=True)
    assert [float(line.split()[1]) for line in block] == pytest.approx(best, abs=1e-4)
    assert {line.split()[0] for line in block} == set(SOLVERS)


def pickled(path: Path) -> None:
    path.with_suffix(".safetensors").write_bytes(pickle.dumps({"read.weight": [1.0]}))


def cut(path: Path) -> None:
    file = path.with_suffix(".safetensors")
    file.write_bytes(file.read_bytes()[:-50])


def without_weights(path: Path) -> None:
    path.with_suffix(".safetensors").unlink()


def rewritten(path: Path, card: dict[str, Any] | None = None, fill: float | None = None) -> None:
    weights, held = GPT(TINY).state_dict(), loaded(path.with_suffix(".json"))
    if fill is not None:
        weights["head.bias"].fill_(fill)
    write(path, weights, held if card is None else {"shape": held["shape"], **card})


SPOILT = {
    "no weights": (without_weights, "tiny.safetensors is not there"),
    "truncated": (cut, "the weights cannot be read"),
    "a pickle": (pickled, "the weights cannot be read"),
    "not finite": (lambda path: rewritten(path, fill=float("nan")), "that are not finite"),
    "other shape": (lambda path: rewritten(path, {"shape": shape_card(replace(TINY, width=16))}),
                    "has shape"),
    "no recipe": (lambda path: rewritten(path, {}), "the card names no task"),
    "other task": (lambda path: rewritten(path, {"recipe": {"task": {"n": 9}}}), "d and n (2, 9)"),
    "linear kernel": (
        lambda path: rewritten(path, {"recipe": {"task": {"n": 4, "kernel": "linear"}}}),
        "linear kernel",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_a_checkpoint_that_cannot_be_probed_exits_2_with_one_line(
    spoil: Callable[[Path], None], message: str, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    spoil(checkpoint)
    out = checkpoint.parent / "out"
    assert main(["probe", str(checkpoint), "--prompts", "9", "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.startswith("krrviz: ")
    assert told.err.count("\n") == 1
    assert not told.out
    assert not out.exists()


@pytest.mark.parametrize("prompts", ["8", "0", "-1"])
def test_too_few_prompts_say_how_many_they_must_be(
    prompts: str, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    out = str(checkpoint.parent / "out")
    assert main(["probe", str(checkpoint), f"--prompts={prompts}", "--out", out]) == 2
    assert "need at least 9\n" in capsys.readouterr().err  # 4 · (8 + 1) samples, 4 a prompt


def test_probe_keeps_a_file_where_the_folder_should_be(
    checkpoint: Path, own: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["probe", str(checkpoint), "--out", own]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
    assert Path(own).read_text("utf-8") == CSV


# -- a person's own file --------------------------------------------------------------------------

OWN = "n=12&queries=5&prompts=2&steps=3&methods=nesterov"


def test_a_csv_is_read_with_its_last_column_as_target(own: str, tmp_path: Path) -> None:
    assert main(["run", OWN, "--csv", own, "--out", str(tmp_path)]) == 0
    assert loaded(tmp_path / "settings.json")["data"] == "csv"
    (notice,) = loaded(tmp_path / "summary.json")["notices"]
    assert "2 of 32" in notice


def test_the_target_may_be_any_column(own: str, tmp_path: Path) -> None:
    figures = []
    for target in ("speed", "age"):
        out = tmp_path / target
        assert main(["run", OWN, "--csv", own, "--target", target, "--out", str(out)]) == 0
        figures.append(loaded(out / "summary.json")["final_error"]["nesterov"])
    assert figures[0] != figures[1]


def test_the_inputs_may_be_chosen(own: str, tmp_path: Path) -> None:
    alone = tmp_path / "alone.csv"
    alone.write_text("\n".join(f"{line.partition(',')[2]}" for line in CSV.splitlines()), "utf-8")
    for name, arguments in (
        ("chosen", ["--csv", own, "--input", "mass"]),
        ("all", ["--csv", own, "--input", "mass", "--input", "age"]),
        ("alone", ["--csv", str(alone)]),
    ):
        assert main(["run", OWN, *arguments, "--out", str(tmp_path / name)]) == 0
    chosen, every, expected = (
        (tmp_path / name / "fan.csv").read_bytes() for name in ("chosen", "all", "alone")
    )
    assert chosen == expected != every


def test_the_seed_samples_the_rows_of_a_long_file(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_ROWS", 20)
    seen = list[tables.Table]()

    def kept(*arguments: Any) -> tables.Table:
        seen.append(tasks.own_table(*arguments))
        return seen[-1]

    monkeypatch.setattr(cli, "own_table", kept)
    assert main(["run", OWN + "&seed=5", "--csv", own, "--out", str(tmp_path)]) == 0
    np.testing.assert_array_equal(seen[0].X, tables.read_csv(own, seed=5).X)
    assert "20 rows drawn at random of 32" in loaded(tmp_path / "summary.json")["notices"][0]


# -- what is refused ------------------------------------------------------------------------------

BAD = {
    "bad value": (["n=1"], "n=1 must be a whole number 2 to 16384"),
    "unknown key": (["colour=red"], "colour is not a setting"),
    "two bad values": (["n=1&ridge=0"], "ridge=0 must be 1e-12 to 1000000"),
    "more rows than there are": (["n=1000"], "n=1000 with queries=32 needs 1032 rows"),
    "no such rule": (["update=conjugate_gradient"], "update=conjugate_gradient must be one of"),
    "too much memory": (["data=gp&n=8000&steps=1"], "but 1.0 GiB are allowed"),
    "too much time": (["data=gp&n=1024&prompts=256&steps=200"], "600 s are allowed"),
    "csv named in the link": (["data=csv"], "data=csv needs a file"),
    "no such file": (["", "--csv", "nowhere.csv"], "nowhere.csv"),
    "folder for a file": (["", "--csv", "."], "is a folder"),
    "target without a file": (["", "--target", "y"], "--target names a column of --csv FILE"),
    "input without a file": (["", "--input", "y"], "--input names a column of --csv FILE"),
    "no such input": ([OWN, "--csv", "OWN", "--input", "width"], "no column 'width'"),
    "too few rows": (["n=40", "--csv", "OWN"], "n=40 with queries=32 needs 72 rows but own.csv"),
    "no such column": ([OWN, "--csv", "OWN", "--target", "width"], "no column 'width'"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_run_exits_2_with_one_line_that_names_it(
    arguments: list[str],
    message: str,
    own: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "1")
    given = [own if argument == "OWN" else argument for argument in arguments]
    assert main(["run", *given, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.startswith("krrviz: ")
    assert told.err.count("\n") == 1
    assert not told.out
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_file_where_the_folder_should_be_exits_2_and_stays(
    own: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["run", LINK, "--out", own]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"krrviz: --out {own[:39]}")
    assert "is a file" in told
    assert Path(own).read_text("utf-8") == CSV


@pytest.mark.parametrize("arguments", [[], ["run"], ["run", "n=9"], ["fly"], ["run", "a", "b"]])
def test_a_command_that_is_not_one_exits_2_with_its_usage(
    arguments: list[str], capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: krrviz" in capsys.readouterr().err


def test_help_tells_every_setting_with_range_and_default(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--help"])
    assert caught.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    for name, about in Settings.table().items():
        default = getattr(Settings(), name)
        words = {"bandwidth": "the data set's own", "methods": " and ".join(Settings().methods)}
        assert f"{name}: {about.rule.allowed}; {words.get(name, default)}" in told


def test_python_m_krrviz_is_the_same_program(out: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "krrviz", "run"]

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *arguments, "--out", str(tmp_path)],
            capture_output=True, text=True, check=False, timeout=120,
            env=os.environ | {"PYTHONWARNINGS": "error"},
        )  # fmt: skip

    done = call(LINK)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "fan.csv").read_bytes() == (out / "fan.csv").read_bytes()
    bad = call("n=1")
    assert bad.returncode == 2
    assert bad.stderr.startswith("krrviz: n=1 ")
    assert "Traceback" not in bad.stderr


def test_a_pipe_without_greek_letters_still_gets_the_summary(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "krrviz", "run", LINK, "--out", str(tmp_path)],
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"direct solve" in done.stdout


def test_a_limit_that_is_no_number_is_told_and_left_aside() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import krrviz.settings as s; print(s.MAX_N)"],
        env=os.environ | {"KRRVIZ_MAX_N": "abc"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "16384\n"
    assert "KRRVIZ_MAX_N=abc must be a whole number from 2" in done.stderr
