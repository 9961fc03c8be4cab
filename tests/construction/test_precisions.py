"""What each precision keeps of the answer, and what it cannot hold."""

import numpy as np
import pytest
import torch

from krrviz import Construction, Settings, SettingsError, build, predict, run, sample
from krrviz.construction.certificate import product_bound
from krrviz.fan import same_rule
from krrviz.trajectory import record

RULES = ("richardson", "chebyshev", "heavy_ball", "nesterov", "function_space")
SCALES = ("absolute", "per_sample")
GP = Settings(data="gp", queries=8, prompts=4)
# The largest gap to Richardson at the defaults, of labels of variance 1.
HALF = {"bfloat16": 1e-1, "float16": 3e-2}
each_half = pytest.mark.parametrize("dtype", HALF)


@pytest.mark.parametrize("sink", [0.0, "ridge", 1e6])
@pytest.mark.parametrize("ridge_scale", SCALES)
@pytest.mark.parametrize("update", RULES)
def test_float32_is_within_its_bound(update: str, ridge_scale: str, sink: float | str) -> None:
    settings = GP.but(n=24, prompts=2, update=update, ridge_scale=ridge_scale, sink=sink)
    problem = sample(settings)
    c = Construction.from_settings(settings.but(dtype="float32"))
    found = predict(build(c), problem)
    assert found.predictions.dtype == torch.float32
    exact = record(update, same_rule(c), problem, c.steps)
    gap = (found.predictions.double() - exact.predictions).abs()
    assert (gap <= product_bound(c, problem, exact.states)).all()


def richardson(settings: Settings) -> np.ndarray:
    """Its last answers in float64 NumPy, with η = 2/(λ/N + 1 + λ)."""
    problem = sample(settings)
    answers = []
    for X, y, queries in zip(problem.X, problem.y, problem.x_query, strict=True):
        points = np.vstack([X, queries])
        squares = np.square(points[:, None] - X.numpy()).sum(-1)
        kernel = np.exp(-squares / (2 * settings.bandwidth**2))
        K, k, alpha = kernel[: settings.n], kernel[settings.n :], np.zeros(settings.n)
        step = 2 / (settings.ridge / settings.n + 1 + settings.ridge)
        for _ in range(settings.steps):
            alpha += step * (y.numpy() - K @ alpha - settings.ridge * alpha) / K.sum(1)
        answers.append(k @ alpha)
    return np.stack(answers)


@pytest.mark.parametrize("layout", ["paper", "fused"])
@each_half
def test_half_precision_keeps_the_answer_however_it_is_run(dtype: str, layout: str) -> None:
    settings = GP.but(dtype=dtype, layout=layout)
    model, problem = build(Construction.from_settings(settings)), sample(settings)
    forward, expected = run(model, problem), richardson(settings)
    dense = model(model.embed(problem))[..., 65:, model.slots.index["f"]]
    for answer in (forward.trajectory.predictions[-1], dense):
        assert str(answer.dtype) == f"torch.{dtype}"
        assert np.abs(answer.double().numpy() - expected).max() <= HALF[dtype]


@pytest.mark.parametrize("ridge_scale", SCALES)
@pytest.mark.parametrize("update", RULES)
@each_half
def test_half_precision_masks_exactly(dtype: str, update: str, ridge_scale: str) -> None:
    settings = GP.but(n=12, steps=4, dtype=dtype, update=update, ridge_scale=ridge_scale)
    model, problem = build(Construction.from_settings(settings)), sample(settings)
    forward = run(model, problem.prefixes([1, 5, 12]))
    state = forward.stream[..., model.slots.index[model.slots.state]]
    assert not state[..., 0].any()
    used = problem.prefixes([1, 5, 12]).used
    if update != "function_space":
        assert not state[..., 13:].any()
        assert not state[..., 1:13][:, ~used].any()
    hidden = ~torch.cat([torch.ones_like(used[..., :1]), used], -1)
    for pattern in forward.attention:
        if pattern is not None:
            assert not pattern[..., :13].transpose(-1, -2)[hidden].any()
            assert not pattern[..., 13:].any()
    assert torch.isfinite(forward.stream).all()


@each_half
def test_half_precision_has_no_plain_products(dtype: str) -> None:
    with pytest.raises(SettingsError, match=f"product=plain needs .*{dtype} holds balanced") as e:
        Construction.from_settings(GP.but(dtype=dtype, product="plain"))
    assert e.value.fields == ("product", "dtype")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"bandwidth": 5e-3}, "bandwidth=0.005"),
        ({"ridge": 1e-4}, "alpha_range=calibrated"),
        ({"alpha_range": 2e4}, "alpha_range=20000"),
    ],
)
def test_float16_ends_early_and_bfloat16_does_not(change: dict[str, float], named: str) -> None:
    with pytest.raises(SettingsError, match=rf"{named}.* but float16 ends at 6.6e\+04") as error:
        Construction.from_settings(GP.but(dtype="float16", **change))
    assert error.value.fields == (named.split("=")[0], "dtype")
    settings = GP.but(dtype="bfloat16", steps=2, **change)
    model = build(Construction.from_settings(settings))
    assert torch.isfinite(predict(model, sample(settings)).predictions).all()
