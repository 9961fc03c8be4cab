"""The decoder is PyTorch's own encoder layer by layer, and no bad file becomes a model."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from krrviz.trained.gpt import (
    ATTENTIONS,
    GPT,
    LAYOUTS,
    Attention,
    Block,
    CheckpointError,
    Shape,
    load,
    shape_card,
    write,
)

SMALL: dict[str, Any] = {"d": 2, "n": 5, "layers": 2, "width": 16, "heads": 4}


def model(**changes: Any) -> GPT:
    torch.manual_seed(0)
    made = GPT(Shape(**(SMALL | changes))).double()
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.5)
    return made


def prompt(batch: int = 3, n: int = 5, queries: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    X = torch.randn(batch, n + queries, 2, generator=draw, dtype=torch.float64)
    y = torch.randn(batch, n, generator=draw, dtype=torch.float64)
    return X[:, :n], y, X[:, n:]


def twin(block: Block, shape: Shape) -> nn.TransformerEncoderLayer:
    """PyTorch's own pre-norm layer with the same weights."""
    layer = nn.TransformerEncoderLayer(
        shape.width, shape.heads, 4 * shape.width, 0.0, nn.functional.gelu,
        batch_first=True, norm_first=True, dtype=torch.float64,
    )  # fmt: skip
    names = {
        "self_attn.in_proj_weight": "attention.qkv.weight",
        "self_attn.in_proj_bias": "attention.qkv.bias",
        "self_attn.out_proj.weight": "attention.out.weight",
        "self_attn.out_proj.bias": "attention.out.bias",
        "linear1.weight": "mlp.0.weight", "linear1.bias": "mlp.0.bias",
        "linear2.weight": "mlp.2.weight", "linear2.bias": "mlp.2.bias",
        "norm1.weight": "norm_1.weight", "norm1.bias": "norm_1.bias",
        "norm2.weight": "norm_2.weight", "norm2.bias": "norm_2.bias",
    }  # fmt: skip
    weights = block.state_dict()
    layer.load_state_dict({theirs: weights[ours] for theirs, ours in names.items()})
    return layer


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_blocks_are_pytorchs_own(layout: str) -> None:
    made, (X, y, queries) = model(layout=layout), prompt()
    stream = made.stream(X, y, queries)
    hidden = ~made.seen(5, 2)
    for block, before, after in zip(made.blocks, stream[:-1], stream[1:], strict=True):
        assert isinstance(block, Block)
        found = twin(block, made.shape)(before, src_mask=hidden)
        assert (found - after).abs().max() <= 1e-5 * after.abs().max()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_interleaved_answers_do_not_know_what_comes_later(attention: str) -> None:
    made, (X, y, queries) = model(attention=attention), prompt()
    whole = made(X, y, queries)
    assert whole.shape == (3, 7)
    for n in range(1, 5):
        cut = made(X[:, :n], y[:, :n], X[:, n : n + 1])
        assert torch.allclose(cut, whole[:, : n + 1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_pairs_have_no_order_and_queries_no_influence(attention: str) -> None:
    made, (X, y, queries) = model(layout="pairs", attention=attention), prompt()
    whole = made(X, y, queries)
    assert whole.shape == (3, 2)
    order = torch.tensor([3, 1, 4, 0, 2])
    assert torch.allclose(made(X[:, order], y[:, order], queries), whole, rtol=0, atol=1e-9)
    assert torch.allclose(made(X, y, queries[:, :1]), whole[:, :1], rtol=0, atol=1e-9)
    # and what lies beyond a prompt's own count is not seen
    counted = made(X, y, queries, torch.full((3,), 3))
    other = torch.cat([y[:, :3], y[:, 3:] + 1], 1)
    assert torch.allclose(made(X, other, queries, torch.full((3,), 3)), counted, rtol=0, atol=1e-9)
    if attention == "softmax":
        assert torch.allclose(made(X[:, :3], y[:, :3], queries), counted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_patterns_are_what_their_names_say(attention: str) -> None:
    made = model(attention=attention)
    X, y, queries = prompt()
    h, seen = made.stream(X, y, queries)[0], made.seen(5, 2)
    head = next(part for part in made.modules() if isinstance(part, Attention))
    pattern = head.pattern(h, seen)
    assert not pattern[..., ~seen].any()
    w, b = head.qkv.weight, head.qkv.bias
    for i, j in ((4, 2), (6, 6), (10, 3)):
        q = (w @ h[1, i] + b)[:4]
        k = (w @ h[1, j] + b)[16:20]
        score = (q @ k / 2).item()
        keys = [(w @ h[1, at] + b)[16:20] for at in seen[i].nonzero().flatten()]
        scores = torch.stack([q @ key / 2 for key in keys])
        expected = {
            "softmax": torch.tensor(score).exp().item() / scores.exp().sum().item(),
            "linear": score / len(keys),
            "kernel": torch.tensor(score).exp().item() / len(keys),
            "relu": max(score, 0) / len(keys),
        }[attention]
        assert pattern[1, 0, i, j].item() == pytest.approx(expected, rel=1e-6)


# -- checkpoints ----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    made = model().float()
    write(tmp_path / "small", made.state_dict(), {"shape": shape_card(made.shape), "steps": 1})
    return tmp_path / "small"


def test_a_checkpoint_brings_the_model_back(saved: Path) -> None:
    made, card = load(saved)
    assert card["steps"] == 1
    expected = model().float().state_dict()
    assert all(torch.equal(expected[k], v) for k, v in made.state_dict().items())
    assert not list(saved.parent.glob("*.partial"))


def truncated(path: Path) -> None:
    file = path.with_name("small.safetensors")
    file.write_bytes(file.read_bytes()[:-10])


def pickled(path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, ("raise SystemExit('a pickle was opened')",))

    path.with_name("small.safetensors").write_bytes(pickle.dumps(Evil()))


def edited(change: str) -> Any:
    def edit(path: Path) -> None:
        file = path.with_name("small.safetensors")
        weights = load_file(file)
        if change == "nan":
            weights["head.weight"][0, 0] = torch.nan
        if change == "missing":
            del weights["head.weight"]
        if change == "more":
            weights["tail.weight"] = torch.zeros(1)
        if change == "shape":
            weights["head.weight"] = torch.zeros(2, 16)
        if change == "half":
            weights = {name: value.bfloat16() for name, value in weights.items()}
        if change == "other":
            weights["head.weight"] += 1
        save_file(weights, file)

    return edit


def carded(**changes: Any) -> Any:
    def edit(path: Path) -> None:
        file = path.with_name("small.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return edit


BAD: dict[str, tuple[Any, str]] = {
    "truncated": (truncated, "the weights cannot be read"),
    "a pickle": (pickled, "the weights cannot be read"),
    "not finite": (edited("nan"), "head.weight holds values that are not finite"),
    "a key less": (edited("missing"), "head.weight has shape nothing but the card's"),
    "a key more": (edited("more"), "tail.weight has shape"),
    "another shape": (edited("shape"), r"head.weight has shape \(2, 16\)"),
    "another precision": (edited("half"), "is torch.bfloat16, and must be torch.float32"),
    "other weights": (edited("other"), "are not those that the card names"),
    "no weights": (lambda path: path.with_name("small.safetensors").unlink(), "is not there"),
    "no card": (lambda path: path.with_name("small.json").unlink(), "small.json is not there"),
    "a card of nonsense": (
        lambda path: path.with_name("small.json").write_text("[1"),
        "the card cannot be used",
    ),
    "a card without end": (
        lambda path: path.with_name("small.json").write_text("[" * 100_000),
        "the card cannot be used",
    ),
    "a card too wide": (carded(shape=SMALL | {"width": 10**9}), "width=1000000000 must be"),
    "a card too deep": (carded(shape=SMALL | {"layers": 10**9}), "layers=1000000000 must be"),
    "a card too large": (
        carded(shape=SMALL | {"layers": 128, "width": 1024}),
        r"1,612,\d+,\d+ parameters; at most 12,000,000 are allowed",
    ),
    "a card of another kind": (carded(shape={"d": 0}), "d=0 must be a whole number"),
    "a card with more": (carded(shape={"colour": 1}), "the card cannot be used"),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD.values(), ids=BAD)
def test_a_bad_checkpoint_is_refused_with_its_reason(saved: Path, spoil: Any, reason: str) -> None:
    spoil(saved)
    with pytest.raises(CheckpointError, match=f"^small: .*{reason}"):
        load(saved)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shape_knows_how_many_parameters_its_model_has(layout: str) -> None:
    made = model(layout=layout, d=3)
    assert made.shape.parameters == sum(weight.numel() for weight in made.parameters())


@pytest.mark.parametrize(
    "changes", [{"heads": 3}, {"d": 0}, {"layout": "heap"}, {"attention": "none"}]
)
def test_a_shape_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes)) + "="):
        Shape(**(SMALL | changes))
