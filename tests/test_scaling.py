"""Sweeps: their rows are worked out again without them, and their laws are the theory's."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from krrviz import Construction, Problem, Settings, build, predict, sample, solve
from krrviz.fan import relative_error
from krrviz.scaling import (
    RULES,
    SWEEPS,
    TUNED_STEPS,
    first_steps,
    power,
    product_gap,
    sizes,
    tail,
)

GP = Settings(data="gp", bandwidth=0.5, prompts=2, queries=6)


def swept(name: str, settings: Settings, only: int | None = None) -> Any:
    points = SWEEPS[name](settings, None)
    labels = [label for label, _ in points]
    assert len(labels) == len({*labels})
    return pd.DataFrame([row for _, point in points[:only] for row in point()])


def test_sizes_are_what_the_data_has() -> None:
    assert sizes(GP) == [16, 32, 64, 128, 256, 512, 1024]
    assert sizes(Settings()) == [16, 32, 64]  # of 133 rows 16 are queries
    assert sizes(Settings(data="diabetes", queries=8)) == [16, 32, 64, 128, 256]


@pytest.mark.parametrize("update", ["richardson", "chebyshev"])
def test_depth_needed_is_where_the_iteration_first_is_within_eps(update: str) -> None:
    rows = swept("depth", GP.but(update=update), only=1)
    assert set(rows.n) == {16}
    problem = sample(GP.but(n=16))
    X, Q = problem.X.numpy(), problem.x_query.numpy()
    for (scale, sink), part in rows.groupby(["ridge_scale", "sink"]):
        r = 0.1 * (16 if scale == "per_sample" else 1)
        s = r if sink == "ridge" else 0.0
        low = r / (16 + s) if sink == "ridge" or scale == "absolute" else 0.1
        high = 1.0 if sink == "ridge" else 1 + r
        found: list[np.ndarray] = []
        for p in range(2):
            K = np.exp(-((X[p, :, None] - X[p, None]) ** 2).sum(-1) / 0.5)
            k = np.exp(-((Q[p, :, None] - X[p, None]) ** 2).sum(-1) / 0.5)
            A, P, y = K + r * np.eye(16), K.sum(1) + s, problem.y[p].numpy()
            exact = k @ np.linalg.solve(A, y)
            errors, alpha, change = [1.0], np.zeros(16), np.zeros(16)
            theta, radius, omega = (high + low) / 2, (high - low) / 2, 0.0
            for _ in range(int(part.steps.max())):
                G = (y - A @ alpha) / P
                if update == "richardson":
                    alpha = alpha + G / theta
                else:
                    new = 1 / (2 * theta / radius - omega) if omega else radius / theta
                    gain = 2 * new / radius if omega else 1 / theta
                    change, omega = omega * new * change + gain * G, new
                    alpha = alpha + change
                errors.append(float(np.linalg.norm(k @ alpha - exact) / np.linalg.norm(exact)))
            found.append(np.array(errors))
        mean = np.mean(found, 0)
        for row in part.itertuples():
            assert row.steps == (mean <= row.eps).argmax()


def test_per_sample_ridge_with_its_sink_needs_one_depth_for_every_n() -> None:
    """Claim 3 where it holds: from N = 16 to 1024 within 20 %, and nowhere else."""

    def needed(n: int, scale: str, sink: float | str) -> int:
        settings = GP.but(n=n, queries=4, ridge_scale=scale, sink=sink)
        found = first_steps(Construction.from_settings(settings), sample(settings), (1e-3,))[1e-3]
        assert found is not None
        return found

    flat = [needed(n, "per_sample", "ridge") for n in (16, 64, 256, 1024)]
    assert max(flat) <= 1.2 * min(flat)
    for scale, sink in (("absolute", 0), ("absolute", "ridge"), ("per_sample", 0)):
        assert needed(64, scale, sink) > 1.5 * needed(16, scale, sink)


def test_width_falls_as_theory_says_and_balanced_needs_less() -> None:
    rows = swept("width", GP.but(n=16, steps=8, prompts=4))
    for product, ideal in (("plain", 0.5), ("balanced", 0.25)):
        part = rows[rows["product"] == product]
        assert (part.product_error <= part.bound * (1 + 1e-9)).all()
        assert (part.product_error >= 0.9 * part.bound).all()  # and the bound is met
        by_m, by_n = part[part.n == 16], part[part.segments == 128]
        slope = power(by_m.segments.to_numpy(), by_m.product_error.to_numpy())
        assert slope is not None
        assert -2.1 <= slope.exponent <= -1.9
        output = power(by_m.segments.to_numpy(), by_m.output.to_numpy())
        assert output is not None
        assert output.low <= -2 <= output.high
        width = power(by_n.n.to_numpy(), np.sqrt(by_n.product_error.to_numpy()))
        assert width is not None
        assert width.exponent == pytest.approx(ideal, abs=0.03)
    # For one product error at N = 256: width ∝ √error
    at = rows[(rows.n == 256) & (rows.segments == 128)].set_index("product").product_error
    assert math.sqrt(at["balanced"] / at["plain"]) <= 1 / 3


@pytest.mark.parametrize("update", RULES)
@pytest.mark.parametrize("scale", ["absolute", "per_sample"])
def test_product_gap_is_the_bound(update: str, scale: str) -> None:
    """The largest error that theory allows is met, and no larger one."""
    c = Construction.from_settings(GP.but(n=16, segments=8, update=update, ridge_scale=scale))
    measured = product_gap(c)
    assert 0.8 * c.product_error(c.r_alpha) <= measured <= c.product_error(c.r_alpha) * (1 + 1e-9)


def test_rules_rows_are_the_transformers_own_errors() -> None:
    settings = GP.but(n=16)
    points = dict(SWEEPS["rules"](settings, None))
    assert [*points] == [*RULES, "conjugate_gradient", "preconditioned_conjugate_gradient"]
    rows = pd.DataFrame(points["chebyshev"]() + points["conjugate_gradient"]())
    problem = sample(settings)
    dense = build(Construction.from_settings(settings.but(update="chebyshev", steps=20)))
    stream = dense(dense.embed(problem))
    last = relative_error(stream[None, :, 17:, dense.slots.index["f"]], problem.exact)
    found = rows.query("method == 'chebyshev' and step == 20").error.item()
    assert found == pytest.approx(float(last.mean()), rel=1e-6)
    cg = relative_error(solve(problem, "conjugate_gradient", 5).predictions, problem.exact)
    found = rows.query("method == 'conjugate_gradient' and step == 5").error.item()
    assert found == pytest.approx(float(cg[-1].mean()), rel=1e-9)


def test_one_tuned_step_serves_richardson_and_not_gradient_descent() -> None:
    rows = swept("transfer", GP.but(prompts=4))
    error = rows.set_index(["method", "n"]).error
    whole = GP.but(n=256, prompts=4, steps=TUNED_STEPS)
    problem = sample(whole).prefixes([64])
    model = build(Construction.from_settings(whole))
    stream = model(model.embed(problem))[..., 257:, model.slots.index["f"]]
    there = float(relative_error(stream[None], problem.exact).mean())
    assert error["transformer"][64] == pytest.approx(there, rel=1e-6)
    assert (error["preconditioned_richardson"] < 1).all()
    assert (error["transformer"] < 1).all()
    assert error["gradient_descent"][128] > 10
    step = float(rows[rows.method == "gradient_descent"].step_size.iloc[0])
    problem = sample(GP.but(n=64, prompts=4))
    X, Q = problem.X.numpy(), problem.x_query.numpy()
    errors = []
    for p in range(4):
        K = np.exp(-((X[p, :, None] - X[p, None]) ** 2).sum(-1) / 0.5)
        k = np.exp(-((Q[p, :, None] - X[p, None]) ** 2).sum(-1) / 0.5)
        A, alpha, y = K + 0.1 * np.eye(64), np.zeros(64), problem.y[p].numpy()
        for _ in range(TUNED_STEPS):
            alpha = alpha + step * (y - A @ alpha)
        exact = k @ np.linalg.solve(A, y)
        errors.append(np.linalg.norm(k @ alpha - exact) / np.linalg.norm(exact))
    assert error["gradient_descent"][64] == pytest.approx(np.mean(errors), rel=1e-6)


@pytest.mark.parametrize("scale", ["absolute", "per_sample"])
def test_the_sink_keeps_every_eigenvalue_in_its_interval(scale: str) -> None:
    rows = swept("sink", GP.but(n=24, ridge_scale=scale))
    assert (rows.certified_low <= rows.low * (1 + 1e-9)).all()
    assert (rows.high <= rows.certified_high * (1 + 1e-9)).all()
    ridge = rows[rows.named == "ridge"].iloc[0]
    assert ridge.sink == pytest.approx(0.1 * (24 if scale == "per_sample" else 1))
    assert ridge.certified_high == 1
    settings = GP.but(n=24, ridge_scale=scale, sink="ridge")
    problem = sample(settings)
    run = solve_rule(settings, problem)
    assert ridge.error == pytest.approx(
        float(relative_error(run[None], problem.exact).mean()), rel=1e-6
    )
    # A very large sink is Richardson on A, scaled: one condition number.
    last = rows.iloc[-1]
    values = torch.linalg.eigvalsh(sample(GP.but(n=24, ridge_scale=scale)).A)
    assert last.high * 1e6 == pytest.approx(float(values.max()), rel=1e-3)


def solve_rule(settings: Settings, problem: Problem) -> torch.Tensor:
    """Richardson with P = D + rI and the certified step, written out."""
    r = settings.ridge * (settings.n if settings.ridge_scale == "per_sample" else 1)
    low = r / (settings.n + r) if settings.ridge_scale == "absolute" else 0.1 / 1.1
    K, alpha = problem.K, torch.zeros_like(problem.y)
    for _ in range(settings.steps):
        image = (K @ alpha[..., None])[..., 0] + r * alpha
        alpha = alpha + 2 / (1 + low) * (problem.y - image) / (K.sum(-1) + r)
    return (problem.k_query @ alpha[..., None])[..., 0]


def test_each_precision_has_a_floor_of_its_own() -> None:
    floors = swept("precision", GP.but(n=16, ridge=1.0, prompts=1)).groupby("dtype").error.min()
    assert floors["float64"] < 1e-8  # the products' own
    assert 1e-8 < floors["float32"] < 1e-5
    assert 1e-4 < floors["float16"] < 3e-2
    assert 1e-3 < floors["bfloat16"] < 0.2
    # A kernel so narrow that float16 cannot mask a key: the others are still there.
    points = dict(SWEEPS["precision"](GP.but(n=4, prompts=1, bandwidth=0.005), None))
    assert points["float16"]() == []
    assert len(points["float32"]()) == 257


def test_bounds_are_never_below_what_is_measured() -> None:
    rows = swept("looseness", GP.but(n=32, steps=16, prompts=1))
    assert set(rows.data) == {"gp", "motorcycle", "co2", "diabetes"}
    assert (rows.measured <= rows.post_hoc).all()
    assert (rows.post_hoc <= rows.a_priori).all()


def test_looseness_at_the_defaults_is_within_the_goal() -> None:
    """Medians over data sets and prompts, of every rule that has a certificate."""
    rows = swept("looseness", Settings(data="gp", bandwidth=0.5, prompts=4))
    assert set(rows.data) == {"gp", "motorcycle", "co2", "diabetes"}
    for _, part in rows.groupby("update"):
        assert (part.a_priori / part.measured).median() <= 1e4
        assert (part.post_hoc / part.measured).median() <= 500
    one = sample(Settings(data="diabetes", queries=16, prompts=1))
    c = Construction.from_settings(Settings(data="diabetes", queries=16, prompts=1))
    largest = (predict(build(c), one).predictions[-1] - one.exact).abs().max()
    row = rows.query("data == 'diabetes' and update == 'richardson' and prompt == 0")
    assert row.measured.item() == pytest.approx(float(largest), rel=1e-6)


def test_a_fitted_power_law_has_its_interval() -> None:
    x = np.array([1.0, 2, 4, 8, 16])
    fit = power(x, 3 * x**1.5 * np.array([1.1, 0.95, 1, 1.02, 0.97]))
    assert fit is not None
    design = np.stack([np.ones(5), np.log(x)], 1)
    logs = np.log(3 * x**1.5 * np.array([1.1, 0.95, 1, 1.02, 0.97]))
    solution, residual, *_ = np.linalg.lstsq(design, logs)
    error = math.sqrt(residual[0] / 3 * np.linalg.inv(design.T @ design)[1, 1])
    assert fit.exponent == pytest.approx(solution[1])
    assert fit.high - fit.exponent == pytest.approx(3.182446305284263 * error)  # t, 3 degrees
    assert power(x[:2], x[:2]) is None


@pytest.mark.parametrize("update", RULES)
def test_the_tail_falls_as_its_spectrum_says(update: str) -> None:
    found = tail(GP.but(n=24, update=update))
    if update != "function_space":
        # Its query rows have modes of their own.
        assert (found.true <= found.certified * (1 + 1e-9)).all()
    assert found.errors[-1] < 1e-8
    assert found.slope == pytest.approx(found.expected, rel=0.15)


def test_chebyshev_needs_a_quarter_of_richardsons_depth() -> None:
    """N = 40, λ = .1, to 1e-6 relative: certified coefficients, depth measured."""
    steps = {}
    for update in ("richardson", "chebyshev"):
        settings = GP.but(n=40, update=update, prompts=4, queries=8)
        c = Construction.from_settings(settings)
        steps[update] = first_steps(c, sample(settings), (1e-6,))[1e-6]
    assert steps["chebyshev"] is not None
    assert steps["richardson"] is not None
    assert steps["chebyshev"] <= steps["richardson"] / 4
