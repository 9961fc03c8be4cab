"""predict against run, which forms every pattern of every prefix, on all settings can build."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import krrviz.construction.predict as module
from krrviz import Construction, Problem, Settings, SettingsError, Transformer, build, run, sample
from krrviz.construction.predict import dense, predict
from krrviz.trajectory import Trajectory
from krrviz.trust import RULES

SMALL = Settings(data="gp", d=2, n=12, queries=5, prompts=3, steps=6, segments=16)


def made(settings: Settings) -> tuple[Transformer, Problem]:
    model = build(Construction.from_settings(settings))
    return model, sample(settings).prefixes([1, 2, 7, settings.n])


def assert_same(found: Trajectory, expected: Trajectory, tolerance: float) -> None:
    """Answers and states, beside the largest of each."""
    for name in ("predictions", "states"):
        mine, wanted = getattr(found, name), getattr(expected, name)
        assert mine.shape == wanted.shape
        gap = (mine - wanted).abs().max() / wanted.abs().max().clamp_min(1e-300)
        assert float(gap) <= tolerance


@pytest.fixture
def sparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense pass may not be taken."""

    def refused(*given: object) -> None:
        raise AssertionError("the dense pass was taken")

    monkeypatch.setattr(module, "dense", refused)


@pytest.mark.usefixtures("sparing")
@pytest.mark.parametrize("layout", ["paper", "fused"])
@pytest.mark.parametrize("sink", [0, 0.5, "ridge"])
@pytest.mark.parametrize("ridge_scale", ["absolute", "per_sample"])
@pytest.mark.parametrize("update", RULES)
def test_predict_is_run(update: str, ridge_scale: str, sink: float | str, layout: str) -> None:
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-4)):
        model, problem = made(
            SMALL.but(update=update, ridge_scale=ridge_scale, sink=sink, layout=layout, dtype=dtype)
        )
        assert_same(predict(model, problem), run(model, problem).trajectory, tolerance)


@pytest.mark.usefixtures("sparing")
@pytest.mark.parametrize("changes", [{"steps": 0}, {"data": "motorcycle"}, {"prompts": 1, "d": 1}])
def test_predict_is_run_on_other_prompts(changes: dict) -> None:
    model, problem = made(SMALL.but(**changes))
    assert_same(predict(model, problem), run(model, problem).trajectory, 1e-12)
    assert problem.whole is not None
    uncut = problem.whole
    assert_same(predict(model, uncut), run(model, uncut).trajectory, 1e-12)
    one = problem.pick((torch.tensor(2), torch.tensor(0)))  # seven of twelve slots, no batch
    assert_same(predict(model, one), run(model, one).trajectory, 1e-12)


@pytest.mark.usefixtures("sparing")
@pytest.mark.parametrize("update", RULES)
def test_tiles_give_the_same_and_hold_no_matrix(
    update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SMALL.but(n=200, prompts=1, steps=3, update=update)
    model, problem = made(settings)
    whole = run(model, problem).trajectory
    monkeypatch.setattr(module, "CHUNK_BYTES", 0)
    monkeypatch.setattr(module, "TILE_BYTES", 8 * 200 * 7)
    with Largest() as seen:
        found = predict(model, problem)
    assert_same(found, whole, 1e-10)
    # Four prefixes of a stream of two dozen channels are the largest there is.
    assert seen.values <= 4 * 206 * len(model.slots)
    assert seen.values < 200**2 / 1.5


class Largest(TorchDispatchMode):
    """The most values of any tensor that an operation made."""

    values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, torch.Tensor):
                self.values = max(self.values, made.untyped_storage().nbytes() // 8)
        return out


def test_keys_that_are_not_hidden_are_read() -> None:
    model, problem = made(SMALL)
    intact = predict(model, problem)
    open_ = copy.deepcopy(model)
    mask = open_.slots.index["mask"]
    for block in open_.blocks:
        block.attention.w_k[:, mask] = 0
    found = predict(open_, problem)
    assert_same(found, run(open_, problem).trajectory, 1e-12)
    assert float((found.predictions - intact.predictions).abs().max()) > 0.1


def test_a_pattern_that_blocks_write_is_formed_anew() -> None:
    model, problem = made(SMALL)
    moving = copy.deepcopy(model)
    block = moving.blocks[moving.updates.start + 1]
    block.attention.w_q[0, moving.slots.index["alpha"]] = 0.5
    found = predict(moving, problem)
    assert_same(found, run(moving, problem).trajectory, 1e-12)
    assert float((found.predictions - predict(model, problem).predictions).abs().max()) > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_takes_every_pattern(dtype: str) -> None:
    model, problem = made(SMALL.but(dtype=dtype))
    assert torch.equal(predict(model, problem).predictions, dense(model, problem).predictions)


def test_every_pattern_may_be_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    model, problem = made(SMALL.but(dtype="float16"))
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "1e-6")
    with pytest.raises(SettingsError, match=r"n=12 .* would need about .* GiB"):
        predict(model, problem)


def test_far_prompts_whose_exponentials_vanish_are_right() -> None:
    # In units of σ tokens lie hundreds apart: only exp(−‖x − x′‖²/2σ²) of a token with itself is
    # not 0.
    model, problem = made(SMALL.but(bandwidth=0.003))
    assert_same(predict(model, problem), run(model, problem).trajectory, 1e-12)
