"""Export: what a link gives as files is what its page draws, and its script gives the same."""

import ast
import csv
import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image
from streamlit.testing.v1 import AppTest

from krrviz import PRESETS, Settings, SettingsError, View, checkpoints, export, read_csv, scaling
from krrviz.charts import Figure
from krrviz.cli import main
from krrviz.fan import fan
from krrviz.maps import Map
from krrviz.settings import Choice
from krrviz.tables import assets, read_columns
from krrviz.tasks import own_table
from krrviz.trained import match
from krrviz.trained.gpt import GPT, CheckpointError, Shape, shape_card, write
from krrviz.trained.prompts import Task
from krrviz.trained.train import Recipe

ROOT = Path(__file__).parents[1]
SMALL = Settings(n=12, steps=4, prompts=2, queries=4, segments=8)
FOUR = {"settings.json", "trajectories.csv", "fan.csv", "summary.json"}

# Cheap links of every page, by what is looked at.
CHEAP = {
    "fan": View(floor=1e-6),
    "attention": View(block=2, pin=3),
    "forward": View(block=2, part="attention", fault="quantise", fault_block=2, fault_bits=4),
    "guarantee": View(topic="spectrum"),
    "map": View(map_x="ridge", map_y="n", map_eps=0.3),
    "trained": View(study="heads", model="full-0", layer=2),
    "ablations": View(ablation="constructed"),
    "own_data": View(),
    "tour": View(station=2, answers="-s------"),
}


def views() -> list[tuple[str, View, Settings]]:
    """Everything that a page can show."""
    several = {"guarantee": "topic", "trained": "study", "ablations": "ablation"}
    found = []
    for page, field in several.items():
        rule = View.table()[field].rule
        assert isinstance(rule, Choice)
        looks: list[dict[str, Any]] = [{field: option, "asked": 64} for option in rule.options]
        found += [(page, View(**look), SMALL) for look in looks]
    far = View(block=10**5, pin=500, pin_key=3, fault="unmask", fault_query=99, floor=1e-9)
    found += [(page, view, SMALL) for page, view in CHEAP.items() if page not in several]
    return [
        *found,
        ("fan", View(), SMALL.but(data="gp", d=2, methods=("chebyshev",), reference="noiseless")),
        ("attention", View(block=1), SMALL.but(layout="fused", sink="ridge")),
        ("attention", far, SMALL),
        ("forward", far, SMALL),
        ("forward", View(part="prompt"), SMALL.but(update="function_space")),
        ("guarantee", View(topic="sink"), SMALL.but(sink=2.5, ridge_scale="per_sample")),
        ("trained", View(study="heads", layer=128), SMALL),
        ("trained", View(asked=64), SMALL.but(methods=("transformer",))),
        (
            "trained",
            View(study="match", asked=64, metric="operator", readout="untrained krr"),
            SMALL,
        ),
        ("ablations", View(ablation="constructed", floor=1e-9), SMALL),
    ]


@pytest.fixture
def small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that have learnt nothing in place of the shipped ones, and fewer steps."""
    folder = tmp_path / "checkpoints"
    for name, kernel in {"main-0": "gaussian", "laplacian-0": "laplacian"}.items():
        torch.manual_seed(0)
        shape = Shape(d=1, n=4, layers=2, width=16, heads=2)
        recipe = Recipe(shape=shape, task=Task(d=1, n=4, kernel=kernel), warm_up=2, steps=20)
        figures = {"loss": 1.0, "gap_to_krr": 0.9, "excess_error": 0.1}
        card = {"shape": shape_card(shape), "recipe": recipe.card(), "steps": 20}
        write(folder / name, GPT(shape).state_dict(), {**card, "figures": figures})
    shutil.copy(assets() / "checkpoints" / "main-0.csv", folder)
    monkeypatch.setattr(checkpoints, "assets", lambda: tmp_path)
    monkeypatch.setattr(match, "STEPS", 8)
    for name, value in {"SIZES": (16, 32), "WIDTHS": (4, 8, 16), "FAR": 8, "WIDE": 64}.items():
        monkeypatch.setattr(scaling, name, value)


def drawn(
    page: str, view: View, settings: Settings, patch: pytest.MonkeyPatch, **more: Any
) -> dict[str, Any]:
    """What a page hands to its browser components, by name; of maps with moments, the one shown."""
    seen: dict[str, Any] = {}

    def take_figures(shown: dict[str, Figure], **_: Any) -> None:
        seen.update(shown)

    def take_maps(maps: list[Any], frames: Any = None, **_: Any) -> None:
        again = {m.name for m in maps} & {*seen}
        for shown in maps:
            name = f"row_{shown.name}" if shown.name in again else shown.name
            seen[name] = replace(shown, values=shown.values[frames.at]) if frames else shown

    for module in ("figures", "guarantee", "map", "trained", "ablations", "own_data", "tour"):
        patch.setattr(f"krrviz.ui.{module}.figures", take_figures)
    for module in ("heatmaps", "trained", "ablations", "tour"):
        patch.setattr(f"krrviz.ui.{module}.heatmaps", take_maps)
    test = AppTest.from_file(str(ROOT / "pages" / f"{page}.py"), default_timeout=60)
    state = {"settings": settings, "view": view, "problems": (), "completed": settings, **more}
    for name, value in state.items():
        test.session_state[name] = value
    test.run()
    assert not test.exception
    assert not test.error
    session = test.session_state  # which has no get
    told = session["pictures"] if "pictures" in session else {}  # noqa: SIM401
    return seen | {name: it for name, it in told.items() if isinstance(it, pd.DataFrame)}


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize(("page", "view", "settings"), views())
def test_what_is_exported_is_what_the_page_draws(
    page: str, view: View, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, wanted = export.shown(page, settings, view), drawn(page, view, settings, monkeypatch)
    assert [*found] == [*wanted]
    for name, picture in found.items():
        pd.testing.assert_frame_equal(export.rows(picture), export.rows(wanted[name]))
        if isinstance(picture, Figure):
            assert (picture.spec, picture.alt) == (wanted[name].spec, wanted[name].alt)
        elif isinstance(picture, Map):
            assert (picture.title, picture.note) == (wanted[name].title, wanted[name].note)


@pytest.mark.parametrize("d", [1, 2])
def test_a_persons_page_is_exported_as_it_is_drawn(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ",".join([*("ab"[:d]), "y"])
    lines = [",".join(str((i * k) % 31) for k in (3, 7, 11)[: d + 1]) for i in range(40)]
    columns = read_columns("\n".join([names, *lines]).encode(), "own.csv")
    settings = SMALL.but(data="csv", file=columns.digest[:16])
    table = own_table(columns, settings)
    found = export.shown("own_data", settings, View(), table)
    wanted = drawn("own_data", View(), settings, monkeypatch, **{"own columns": columns})
    ends = ("steps", "prediction") if d == 1 else ("residuals",)
    assert [*found] == [*wanted] == ["median", "cross_validation", "gcv", *ends, "held_out"]
    for name, picture in found.items():
        pd.testing.assert_frame_equal(export.rows(picture), export.rows(wanted[name]))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command line writes of each page's link; of one page, pictures too."""
    out = tmp_path_factory.mktemp("written")
    for page, view in CHEAP.items():
        link = "http://localhost:8501" + export.link(page, SMALL, view)
        pictures = ["--pictures"] if page == "attention" else []
        assert main(["run", link, "--out", str(out / page), *pictures]) == 0
    return out


@pytest.mark.parametrize("page", export.PAGES)
def test_a_run_writes_the_pages_pictures_beside_its_four_files(page: str, written: Path) -> None:
    shown = export.shown(page, SMALL, CHEAP[page])
    kinds = ("csv", "svg", "png") if page == "attention" else ("csv",)
    files = [f"{name}.{kind}" for name in shown for kind in kinds]
    assert {path.name for path in (written / page).iterdir()} == FOUR | {*files}
    summary = json.loads((written / page / "summary.json").read_text("utf-8"))
    assert (summary["page"], summary["files"]) == (page, files)
    assert export.page_of(summary["link"]) == page
    assert View.from_query(summary["link"]) == CHEAP[page]
    for name, picture in shown.items():
        rows = export.rows(picture)
        with (written / page / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            head, *lines = csv.reader(file)
        assert head == [*rows]
        for line, row in zip(lines, rows.itertuples(index=False), strict=True):
            for cell, value in zip(line, row, strict=True):
                assert cell == ("" if pd.isna(value) else str(value))


def test_pictures_are_pictures(written: Path) -> None:
    for svg in (written / "attention").glob("*.svg"):
        assert ET.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        with Image.open(svg.with_suffix(".png")) as picture:
            assert min(picture.size) > 50


def test_scripts_write_the_same_files_alone(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for page, view in CHEAP.items():
        assert main(["script", export.link(page, SMALL, view)]) == 0
        (tmp_path / f"{page}.py").write_text(capsys.readouterr().out, "utf-8")
    # One interpreter for all of them: it takes longer to start than they run.
    runs = "import runpy, sys\nfor page in sys.argv[1:]:\n    sys.argv[1:] = [page]\n"
    runs += "    runpy.run_path(page + '.py', run_name='__main__')\n"
    done = subprocess.run(
        [sys.executable, "-c", runs, *CHEAP], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for page in CHEAP:
        files = {path.name for path in (written / page).glob("*.csv")} - FOUR
        assert {path.name for path in (tmp_path / page).glob("*.csv")} == files
        for name in files:
            assert (tmp_path / page / name).read_bytes() == (written / page / name).read_bytes()
            if name != "map_rows.csv":  # a table
                ET.parse((tmp_path / page / name).with_suffix(".svg"))


def test_a_script_of_a_persons_file_takes_its_path(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["a,b", *(f"{i},{(i * 7) % 11}" for i in range(20))]), "utf-8")
    settings = SMALL.but(data="csv", target=1, columns="2")
    (tmp_path / "it.py").write_text(export.script("attention", settings, View()), "utf-8")
    command = [sys.executable, "it.py", "own.csv", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    export.write(
        export.shown("attention", settings, View(), read_csv(own, "a")), tmp_path / "here", ["csv"]
    )
    for file in (tmp_path / "here").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("page", export.PAGES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_script_spells_out_every_field_and_holds_nothing_else(page: str, preset: str) -> None:
    settings, view = PRESETS[preset].settings, View(step=3, fault_noise=1e-17)
    program = ast.parse(export.script(page, settings, view))
    held = {
        node.targets[0].id: node.value
        for node in program.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for name, record in {"settings": settings, "view": view}.items():
        call = held[name]
        assert isinstance(call, ast.Call)
        fields = {key.arg: ast.literal_eval(key.value) for key in call.keywords}
        assert fields == {field: getattr(record, field) for field in record.table()}
    told = ast.get_docstring(program) or ""
    assert export.page_of(told.split("\n")[-1]) == page
    assert Settings.from_query(told.split("\n")[-1]) == settings


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ("", "fan"), ("data=gp", "fan"), ("?n=3", "fan"), ("http://h:8501", "fan"),
        ("http://h:8501/?n=3", "fan"), ("http://h/forward?n=3#x", "forward"),
        ("https://h/base/ablations?x=/fan", "ablations"), ("/trained?n=3", "trained"),
        (" guarantee?n=3", "guarantee"), ("seed=1&data=/forward?n=2", "fan"),
    ],
)  # fmt: skip
def test_a_links_path_names_its_page(link: str, page: str) -> None:
    assert export.page_of(link) == page


@pytest.mark.parametrize(
    "link", ["http://h/workshop?n=3", "/../etc/passwd?n=3", '/"""\nimport os?n=3', "/Fan", "x?n=3"]
)
def test_a_path_of_no_page_is_refused_by_name(
    link: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SettingsError, match="must be one of fan, attention, forward, guarantee"):
        export.page_of(link)
    for command in (["run", link, "--out", str(tmp_path / "out")], ["script", link]):
        assert main(command) == 2
        assert capsys.readouterr().err.startswith("krrviz: ")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SettingsError, match=r"page=.* must be one of"):
        export.script(link, SMALL, View())


def test_a_sessions_own_model_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="model=own was trained or loaded in a session"):
        export.shown("trained", SMALL, View(model="own"))


def test_a_model_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoints, "assets", lambda: tmp_path)
    with pytest.raises(CheckpointError, match="main-1: this checkpoint is not shipped"):
        export.shown("trained", SMALL, View(model="main-1"))


def test_a_fan_that_is_there_is_not_computed_again() -> None:
    result = fan(SMALL.but(seed=1))  # of other settings, to be known again
    shown = export.shown("fan", SMALL, View(), result=result)
    other = export.shown("fan", SMALL.but(seed=1), View())
    pd.testing.assert_frame_equal(export.rows(shown["steps"]), export.rows(other["steps"]))
