"""What is packed comes back as it was, and no bad upload becomes a model."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from krrviz.trained import parcel
from krrviz.trained.gpt import CheckpointError, Shape
from krrviz.trained.parcel import opened, packed, read
from krrviz.trained.prompts import Task
from krrviz.trained.train import Recipe, train

TINY = Recipe(
    shape=Shape(n=4, layers=1, width=8, heads=2), task=Task(n=4), steps=4, batch=4, every=2
)
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trained") / "own"
    train(TINY, made, torch.device("cpu"))
    return made


@pytest.fixture
def files(path: Path) -> Files:
    return dict(read(path).files)


def zipped(files: Files, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, file in files.items():
            archive.writestr(name, file)
    return content.getvalue()


def test_a_packed_checkpoint_comes_back_whole(path: Path) -> None:
    first = read(path)
    again = opened({"own.zip": packed(first)})
    assert packed(again) == packed(first)
    assert again.files == first.files == {
        file.name: file.read_bytes() for file in path.parent.iterdir() if ".state." not in file.name
    }  # fmt: skip
    assert again.recipe == TINY
    assert [row["step"] for row in again.log] == [2, 4]
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])


def test_files_side_by_side_need_no_log_and_their_state_is_left_aside(
    path: Path, files: Files
) -> None:
    files["own.state.safetensors"] = path.with_name("own.state.safetensors").read_bytes()
    del files["own.csv"]
    found = opened(files)
    assert found.log == []
    assert "own.state.safetensors" not in found.files
    folder = {f"a folder/{name}": content for name, content in files.items()}
    assert opened({"x.zip": zipped(folder)}).name == "own"


def carded(change: Any) -> Any:
    def edit(files: Files) -> Files:
        card = json.loads(files["own.json"])
        change(card)
        return files | {"own.json": json.dumps(card).encode()}

    return edit


BAD: dict[str, tuple[Any, str]] = {
    "nothing": (lambda files: {}, "a checkpoint is one .safetensors file and its .json card, .* "
                "given: nothing"),
    "no card": (lambda files: {"own.safetensors": files["own.safetensors"]},
                "given: own.safetensors"),
    "two of them": (lambda files: files | {"other.json": b"{}"}, "given: own.safetensors, own.jso"),
    "a zip and a card": (
        lambda files: {"own.zip": zipped(files), "own.json": files["own.json"]},
        "given: own.zip, own.json",
    ),
    "a zip of nothing": (lambda files: {"a.zip": zipped({})}, "given: nothing"),
    "no zip": (lambda files: {"a.zip": b"PK"}, "a.zip cannot be unpacked: "),
    "half a zip": (lambda files: {"a.zip": zipped(files)[:-300]}, "a.zip cannot be unpacked: "),
    "a spoilt zip": (
        lambda files: {"a.zip": zipped(files)[:200] + bytes(300) + zipped(files)[500:]},
        "a.zip cannot be unpacked: ",
    ),
    "an odd zip": (lambda files: {"a.zip": zipped(files, zipfile.ZIP_LZMA)}, "is compressed in a"),
    "a zip bomb": (
        lambda files: {"a.zip": zipped(files | {"b.csv": bytes(51 * 10**6)})},
        "a.zip cannot be unpacked: it holds more than 50 MB or 100 files",
    ),
    "many files": (
        lambda files: {"a.zip": zipped({f"{i}.txt": b"" for i in range(101)})},
        "it holds more than 50 MB or 100 files",
    ),
    "too much": (lambda files: files | {"b.txt": bytes(51 * 10**6)}, "the files have more than 50"),
    "half the weights": (
        lambda files: files | {"own.safetensors": files["own.safetensors"][:-9]},
        "own: the weights cannot be read",
    ),
    "no recipe": (carded(lambda card: card.pop("recipe")), "own: the card cannot be used: the rec"),
    "another's recipe": (
        carded(lambda card: card["recipe"]["shape"].update(layers=2)),
        "own: the card cannot be used: the recipe's shape is not the model's",
    ),
    "no steps": (carded(lambda card: card.pop("steps")), "steps=None must be a whole number"),
    "figures of no use": (carded(lambda card: card.update(figures=None)), "figures=None must hold"),
    "a figure of words": (
        carded(lambda card: card["figures"].update(excess_error="x")), "the number excess_error"
    ),
    "a log of something": (lambda files: files | {"own.csv": b"a,b\n1,2\n"}, "the .csv is no log"),
    "a log of words": (
        lambda files: files | {"own.csv": b"step,loss,gap_to_krr\n1,x\n"}, "the .csv is no log"
    ),
    "a log of bytes": (lambda files: files | {"own.csv": b"\xff\xfe"}, "the .csv is no log"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "reason"), BAD.values(), ids=BAD)
def test_a_bad_upload_is_refused_with_its_reason(files: Files, spoil: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        opened(spoil(files))


def test_a_member_cannot_unpack_to_more_than_it_declares(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = bytearray(zipped({"b.csv": bytes(10**7)}))
    honest, lie = (10**7).to_bytes(4, "little"), (10).to_bytes(4, "little")
    lying = bytes(bomb).replace(honest, lie)
    monkeypatch.setattr(parcel, "LIMIT", 1)
    with pytest.raises(CheckpointError, match=r"a\.zip cannot be unpacked: Bad CRC"):
        opened({"a.zip": lying})


def test_the_checkpoint_of_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"own\.safetensors cannot be read"):
        read(tmp_path / "own")
