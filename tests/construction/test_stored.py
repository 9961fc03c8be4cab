"""Stored constructions: read again they answer the same to the last bit; others are refused."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from krrviz import Construction, Settings, SettingsError, build, certify, predict, sample
from krrviz.construction.stored import StoredError, load_construction, save_construction

SMALL = Settings(data="gp", d=2, n=8, queries=3, prompts=2, steps=3, segments=8)
CASES: list[dict[str, Any]] = [
    {},
    {"layout": "fused", "update": "chebyshev", "dtype": "float32"},
    {"update": "chebyshev", "ridge_scale": "per_sample", "sink": "ridge"},
    {"update": "heavy_ball", "layout": "fused", "alpha_range": "certified", "segments": 512},
    {"update": "nesterov", "product": "plain", "sink": 2.5, "alpha_range": 7.25},
    {"update": "function_space", "dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "float16", "bandwidth": 1.0, "ridge": 1.0},
    {"steps": 0, "layout": "fused"},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_round_trip_keeps_every_bit(case: dict[str, Any], tmp_path: Path) -> None:
    settings = SMALL.but(**case)
    c = Construction.from_settings(settings)
    card = save_construction(tmp_path / "t", c)
    model, again = load_construction(tmp_path / "t")
    assert again == c
    problem, built = sample(settings), build(c)
    assert torch.equal(
        predict(model, problem).predictions.view(torch.uint8),
        predict(built, problem).predictions.view(torch.uint8),
    )
    assert (model.updates, model.n_max) == (built.updates, built.n_max)
    # Blocks that were one module are one again, and each layer is in the file once.
    same = [[a is b for b in built.blocks] for a in built.blocks]
    assert [[a is b for b in model.blocks] for a in model.blocks] == same
    layers = {layer for block in built.blocks for layer in (block.attention, block.mlp)}
    with safe_open(tmp_path / "t.safetensors", "pt") as file:
        assert {*file.keys()} == {*card["tensors"]}
        assert len({name.partition(".")[0] for name in file.keys()}) == len(layers)  # noqa: SIM118


def test_the_card_says_what_the_file_holds(tmp_path: Path) -> None:
    c = Construction.from_settings(SMALL)
    save_construction(tmp_path / "new" / "t", c)
    card = json.loads((tmp_path / "new" / "t.json").read_text("utf-8"))
    content = (tmp_path / "new" / "t.safetensors").read_bytes()
    assert card["sha256"] == hashlib.sha256(content).hexdigest()
    assert card["a_priori"] == certify(c).a_priori
    assert len(card["blocks"]) == c.blocks
    assert card["construction"]["bandwidth"] == c.bandwidth
    assert card["construction"]["dtype"] == "float64"
    with safe_open(tmp_path / "new" / "t.safetensors", "pt") as file:
        for name, told in card["tensors"].items():
            assert file.get_slice(name).get_shape() == told["shape"]
            assert told["dtype"] == "float64"


def test_a_rule_without_a_certificate_has_no_bound(tmp_path: Path) -> None:
    c = Construction.from_settings(SMALL.but(update="function_space"))
    assert save_construction(tmp_path / "t", c)["a_priori"] is None


def _changed(**fields: Any) -> Any:
    def change(folder: Path) -> None:
        card = json.loads((folder / "t.json").read_text("utf-8"))
        (folder / "t.json").write_text(json.dumps(card | fields), "utf-8")

    return change


def _flip(folder: Path) -> None:
    content = bytearray((folder / "t.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "t.safetensors").write_bytes(content)


def _deeper(folder: Path) -> None:
    card = json.loads((folder / "t.json").read_text("utf-8"))
    _changed(construction=card["construction"] | {"steps": 4})(folder)


DAMAGES = {
    "a bit flipped": (_flip, "not those that the card names"),
    "weights missing": (lambda f: (f / "t.safetensors").unlink(), "t.safetensors cannot be read"),
    "card missing": (lambda f: (f / "t.json").unlink(), "t.json cannot be read"),
    "no JSON": (lambda f: (f / "t.json").write_text("{"), "no construction can be read"),
    "nested": (lambda f: (f / "t.json").write_text("[" * 10**5), "no construction can be read"),
    "another kind of card": (lambda f: (f / "t.json").write_text('{"shape": {}}'), "format"),
    "another format": (_changed(format=2), "this version reads 1"),
    "odd blocks": (_changed(blocks=[["attention_9", "mlp_0"]]), "attention_9"),
    "blocks left out": (_changed(blocks=[["attention_0", "mlp_0"]]), "1 blocks where"),
    "another depth": (_deeper, "blocks where the construction has"),
    "other tensors": (_changed(tensors={}), "the tensors are not those"),
    "no construction": (_changed(construction={"d": 1, "dtype": "float64"}), "missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_foreign_files_are_refused_by_name(damage: str, tmp_path: Path) -> None:
    save_construction(tmp_path / "t", Construction.from_settings(SMALL))
    change, message = DAMAGES[damage]
    change(tmp_path)
    with pytest.raises(StoredError, match=message):
        load_construction(tmp_path / "t")


def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Construction.from_settings(SMALL)
    save_construction(tmp_path / "t", c)
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", str(1e3 / 2**30))
    with pytest.raises(SettingsError, match="segments=8, steps=3 in these weights would need"):
        save_construction(tmp_path / "t", c)
    with pytest.raises(SettingsError, match=r"t\.safetensors would need about"):
        load_construction(tmp_path / "t")
    assert math.isfinite(c.r_alpha)
