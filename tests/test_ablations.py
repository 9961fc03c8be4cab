"""What the page on ablations says is what its numbers say, on cases made by hand."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from krrviz import checkpoints, findings
from krrviz.trained.gpt import CheckpointError
from krrviz.trained.match import Alignment, Route
from krrviz.ui.checkpoints import chosen, told


def rows(*given: tuple[str, float, float, float]) -> findings.Frame:
    return pd.DataFrame(given, columns=["reference", "score", "low", "high"])


def test_a_contest_orders_and_tells_who_overlaps_the_best() -> None:
    given = rows(
        ("far", 0.5, 0.4, 0.6), ("best", 0.9, 0.85, 0.95), ("near", 0.8, 0.7, 0.86),
        ("none", math.nan, math.nan, math.nan),
    )  # fmt: skip
    most = findings.contest(given, most=True)
    assert most.reference.tolist() == ["best", "near", "far"]
    assert most.apart.tolist() == [False, False, True]
    least = findings.contest(given, most=False)
    assert least.reference.tolist() == ["far", "near", "best"]
    assert least.apart.tolist() == [False, True, True]
    assert findings.contest(given[given.reference == "none"], most=True).empty


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(0.9, (0, 250)), (0.6, (250, 500)), (0.5, (250, 500)), (0.4, (500, 750)), (0.1, None)],
)
def test_when_a_gap_was_passed(gap: float, expected: tuple[int, int] | None) -> None:
    # It rises once and is unsorted: the first time counts.
    log = pd.DataFrame({"step": [750.0, 250.0, 500.0, 1000.0], "gap_to_krr": [0.3, 0.8, 0.5, 0.45]})
    assert findings.passed(log, gap) == expected


def test_alignments_become_rows_and_none_a_gap_in_them() -> None:
    gaps = torch.tensor([0.5, *[0.4] * 100, *[0.6] * 100], dtype=torch.float64)
    route = Route((1, 2), torch.tensor([0.9, *[0.8] * 100, *[1.0] * 100], dtype=torch.float64))
    found = findings.alignment_rows(
        [Alignment("gaussian", gaps, route), Alignment("linear", gaps, None)]
    )
    told = found.set_index(["measure", "reference"])
    assert told.loc[("gap", "linear")].tolist() == [0.5, 0.4, 0.6]
    assert told.loc[("similarity", "gaussian")].tolist() == pytest.approx([0.9, 0.8, 1.0])
    assert told.loc[("similarity", "linear")].isna().all()


def test_methods_stand_most_alike_first() -> None:
    route = {
        "nesterov": Route((1,), torch.tensor([0.2, 0.1, 0.3], dtype=torch.float64)),
        "chebyshev": Route((4,), torch.tensor([0.7, 0.6, 0.8], dtype=torch.float64)),
    }
    found = findings.route_rows(route)
    assert found.method.tolist() == ["chebyshev", "nesterov"]
    assert found.steps.tolist() == [(4,), (1,)]


def test_logs_and_snapshots_are_found_and_bad_ones_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    monkeypatch.setattr(checkpoints, "assets", lambda: tmp_path)
    assert checkpoints.log("main-0") is None
    assert checkpoints.snapshots("main-0") == []
    header = "step,loss,gap_to_krr,excess_error\n"
    for name, text in {"good": header + "250,1,.5,.2\n", "other": "a,b\n1,2\n", "bad": ""}.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "words.csv").write_text(header + "250,many,.5,.2\n")
    good = checkpoints.log("good")
    assert good is not None
    assert good.iloc[0].tolist() == [250, 1, 0.5, 0.2]
    assert [checkpoints.log(name) for name in ("other", "bad", "words")] == [None] * 3
    for name, card in {"early": {"of": "main-0"}, "else": {"of": "x"}, "list": [1]}.items():
        (folder / f"{name}.json").write_text(json.dumps(card))
        (folder / f"{name}.safetensors").touch()
    (folder / "broken.json").write_text("{")
    (folder / "weightless.json").write_text('{"of": "main-0"}')
    assert checkpoints.snapshots("main-0") == ["early"]


def test_a_checkpoint_that_is_replaced_is_read_again_and_a_broken_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = checkpoints.assets() / "checkpoints"
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    monkeypatch.setattr(checkpoints, "assets", lambda: tmp_path)
    for ending in (".json", ".safetensors"):
        shutil.copy(shipped / f"main-0{ending}", folder)
    _, card = chosen("main-0")
    assert "trained " in told(card)
    (folder / "main-0.json").write_text(json.dumps({**card, "steps": "many"}))
    with pytest.raises(CheckpointError, match="steps='many' must be a whole number"):
        chosen("main-0")
    (folder / "main-0.json").unlink()
    with pytest.raises(CheckpointError, match=r"main-0\.json is not there"):
        chosen("main-0")
    for ending in (".json", ".safetensors"):
        shutil.copy(shipped / f"linear-0{ending}", folder / f"main-0{ending}")
    assert chosen("main-0")[0].shape.attention == "linear"
