"""Trust checks: they hold on every picture that ships, and each of them can fail."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from krrviz import PRESETS, Settings, Transformer, build, solvers
from krrviz.settings import DATASETS
from krrviz.solvers import richardson
from krrviz.tables import parse_csv
from krrviz.trust import RULES, Check, trust

TRANSFORMER, ATTENTION, DIRECT, RANGE = (
    "transformer = Richardson",
    "attention = D⁻¹K",
    "direct solve",
    "range of α",
)
SMALL = Settings(n=24, queries=8, prompts=2, steps=12, segments=64)


def failing(settings: Settings) -> list[str]:
    """The checks that do not pass."""
    return [check.name for check in trust(settings) if not check.passed]


def sabotage(monkeypatch: pytest.MonkeyPatch, edit: Callable[[Transformer], object]) -> None:
    """Have every model that is checked edited first."""

    def built(*given: Any) -> Transformer:
        model = build(*given)
        edit(model)
        return model

    monkeypatch.setattr("krrviz.trust.build", built)


# -- they hold ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PRESETS)
def test_presets_pass(name: str, dtype: str) -> None:
    assert failing(PRESETS[name].settings.but(dtype=dtype, prompts=2)) == []


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [name for name in DATASETS if name != "csv"])
def test_data_sets_pass(name: str, dtype: str) -> None:
    assert failing(Settings(data=name, dtype=dtype, prompts=2)) == []


@pytest.mark.parametrize("layout", ["paper", "fused"])
@pytest.mark.parametrize("product", ["plain", "balanced"])
def test_every_form_of_the_transformer_passes(layout: str, product: str) -> None:
    assert failing(SMALL.but(layout=layout, product=product)) == []


@pytest.mark.parametrize("change", [{"n": 2}, {"bandwidth": 1e-3, "queries": 64}])
def test_the_edges_pass(change: dict[str, Any]) -> None:
    assert failing(SMALL.but(**change)) == []


def test_the_transformer_is_checked_even_where_it_is_not_drawn() -> None:
    names = [check.name for check in trust(SMALL.but(methods=("nesterov",)))]
    assert names == [TRANSFORMER, ATTENTION, DIRECT, RANGE, "range of y", "range of x"]


def test_without_an_update_there_is_none_to_check() -> None:
    names = [check.name for check in trust(SMALL.but(steps=0))]
    assert names == [DIRECT, RANGE, "range of y", "range of x"]


@pytest.mark.parametrize("sink", [0.0, "ridge", 3.0, 1e6])
@pytest.mark.parametrize("ridge_scale", ["absolute", "per_sample"])
@pytest.mark.parametrize("update", RULES)
def test_every_rule_is_checked_against_its_own(
    update: str, ridge_scale: str, sink: float | str
) -> None:
    checks = trust(SMALL.but(update=update, ridge_scale=ridge_scale, sink=sink))
    assert [check.name for check in checks if not check.passed] == []
    count = "n" if ridge_scale == "per_sample" else ""
    named = {"function_space": "g", "nesterov": count + "a"}
    factor = named.get(update, count + "α")
    assert [check.name for check in checks][::3] == [
        f"transformer = {RULES[update]}", f"range of {factor}",
    ]  # fmt: skip
    assert checks[1].name == ("attention = P⁻¹K" if sink else ATTENTION)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_passes(dtype: str) -> None:
    assert failing(SMALL.but(data="gp", dtype=dtype)) == []


# -- each can fail ------------------------------------------------------------------------------


def test_a_check_at_its_tolerance_passes_and_nothing_known_does_not() -> None:
    assert Check("", 1.0, 1.0, "").passed
    assert not Check("", 1.0 + 1e-15, 1.0, "").passed
    assert not Check("", math.nan, 1.0, "").passed


def test_another_step_size_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(problem: Any, operator: Any, step: torch.Tensor, sink: Any) -> Any:
        return richardson(problem, operator, step * 0.9, sink)

    monkeypatch.setattr(solvers, "richardson", slower)
    assert failing(SMALL) == [TRANSFORMER]


def test_a_missing_preconditioner_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpreconditioned(problem: Any, operator: Any, step: torch.Tensor, sink: Any) -> Any:
        return richardson(problem, "plain", step / problem.n_max)

    monkeypatch.setattr(solvers, "richardson", unpreconditioned)
    assert failing(SMALL) == [TRANSFORMER]


def too_far(model: Transformer) -> None:
    """Have α move a fifth too far."""
    model.blocks[2].mlp.w_2[model.slots.index["alpha"]] *= 1.2


def test_a_weight_that_moves_alpha_too_far_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch, too_far)
    assert failing(SMALL) == [TRANSFORMER]


def test_a_rule_checked_against_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "chebyshev", solvers.heavy_ball)
    assert failing(SMALL.but(update="chebyshev")) == ["transformer = Chebyshev"]


def test_another_sink_level_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(model: Transformer) -> None:
        sink = model.slots.index["sink"]
        model.blocks[1].attention.w_k[-1, sink] *= 1 + 1e-9

    sabotage(monkeypatch, another)
    assert failing(SMALL.but(sink=3.0)) == ["attention = P⁻¹K"]


@pytest.mark.parametrize("scale", [1 - 1e-9, 1 + 1e-9])
def test_another_bandwidth_in_the_attention_is_seen(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch, lambda model: model.blocks[1].attention.w_q.mul_(scale))
    assert failing(SMALL) == [ATTENTION]


def test_a_wrong_attention_in_one_late_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(model: Transformer) -> None:
        late = model.blocks[-3]
        late.attention = copy.deepcopy(late.attention)
        late.attention.w_q.mul_(1 + 1e-9)

    sabotage(monkeypatch, edit)
    assert failing(SMALL) == [ATTENTION]


def test_keys_that_lose_their_mask_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(model: Transformer) -> None:
        model.blocks[1].attention.w_k[:, model.slots.index["mask"]] = 0

    sabotage(monkeypatch, edit)
    assert ATTENTION in failing(SMALL)


def test_a_block_that_writes_what_attention_reads_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def edit(model: Transformer) -> None:
        model.blocks[1].mlp.w_2[model.slots.index["x1"], 0] = 1e-12

    sabotage(monkeypatch, edit)
    assert failing(SMALL) == [ATTENTION]


def test_a_model_of_nans_fails_all_that_is_checked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch, lambda model: model.blocks[1].attention.w_q.fill_(math.nan))
    assert failing(SMALL) == [TRANSFORMER, ATTENTION, RANGE]


def test_a_query_far_from_all_data_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its gap and its bound are both exactly 0.
    settings = SMALL.but(data="gp", inputs="gaussian", d=1, bandwidth=0.02, queries=256)
    assert failing(settings) == []
    sabotage(monkeypatch, too_far)
    assert TRANSFORMER in failing(settings)


def test_a_ridge_below_rounding_fails_the_direct_solve() -> None:
    assert failing(SMALL.but(ridge=1e-12)) == [DIRECT]


def test_the_pictures_own_residual_is_what_is_told() -> None:
    assert [check.value for check in trust(SMALL, residual=0.5) if not check.passed] == [0.5]


def test_a_label_beyond_its_bound_is_seen_where_no_query_is_near() -> None:
    # The product u·y is then wrong, and with it α at that point and any curve drawn past it.
    rows = [f"{x / 100},{math.sin(x)}" for x in range(100)] + ["9,50"]
    table = parse_csv("\n".join(["x,y", *rows]).encode(), "outlier.csv")
    assert table.y[-1] > 2 * SMALL.label_bound
    settings = SMALL.but(data="csv", bandwidth=0.3, n=93)
    assert "range of y" in [check.name for check in trust(settings, table) if not check.passed]


def test_an_input_beyond_its_bound_is_seen() -> None:
    assert failing(SMALL.but(input_bound=0.1)) == ["range of x"]


def test_a_tolerance_wider_than_the_answer_is_said_to_tell_nothing() -> None:
    coarse = trust(SMALL.but(segments=1, product="plain"))
    assert [check.name for check in coarse if not check.telling] == [TRANSFORMER]
    assert all(check.telling for check in trust(SMALL))


def test_an_iterate_beyond_the_range_is_seen() -> None:
    assert RANGE in failing(SMALL.but(alpha_range=0.1))
