"""Layers that are a solver's steps are matched with that solver and with those steps.

The planted layers are NumPy's and SciPy's: loops over matrices, Chebyshev polynomials at their
eigenvalues, and scipy.sparse.linalg.cg; ∂f/∂y from unit labels, or central differences.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev as polynomials
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from sklearn.gaussian_process.kernels import RBF, Matern
from torch import Tensor

from krrviz.trained import match as matching
from krrviz.trained.match import (
    METRICS,
    RATES,
    RESAMPLES,
    STEPS,
    Match,
    Systems,
    Variant,
    align,
    difference,
    match,
    profile,
    resampled,
    routes,
    similarity,
    variants,
)
from krrviz.trained.probe import FEW, OPERATOR_AT, Probed, ProbeError, additivity, split
from krrviz.trained.prompts import Prompts, Task, answers, draw

Array = NDArray[np.float64]
N, RIDGE, WIDTH = 6, 0.1, 0.5
MANUAL = 0.2  # small enough for gradient descent: λ_max < 6.1
SHORT = 27  # steps where the test is not about them
CUTS = [n for n in OPERATOR_AT if n <= N]
ALL = [v for scale in ("absolute", "per_sample") for v in variants(scale)]


def drawn(batch: int = 5, n: int = N, kernel: str = "gaussian", seed: int = 7) -> Prompts:
    task = Task(n=n, kernel=kernel, bandwidth=(WIDTH, WIDTH), ridge=(RIDGE, RIDGE))
    return draw(task, batch, torch.Generator().manual_seed(seed))


def gram(kernel: Any, a: Array, b: Array) -> Array:
    """scikit-learn's kernel matrix."""
    return kernel(a, b)


# -- the solvers again ---------------------------------------------------------------------------


def interval(v: Variant, M: Array, n_max: int) -> tuple[float, float]:
    """[μ, L] of D⁻¹A or A, as the policy has it."""
    values = np.sort(np.linalg.eigvals(M).real)
    plain = v.method in ("gradient_descent", "nesterov", "heavy_ball")
    if v.ridge_scale == "absolute":
        low, high = (RIDGE, n_max + RIDGE) if plain else (RIDGE / n_max, 1 + RIDGE)
    else:  # λ/N · n on the diagonal
        low, high = (RIDGE / n_max, n_max + RIDGE) if plain else (RIDGE / n_max, 1 + RIDGE)
    if v.policy == "optimal":
        return values[0], values[-1]
    if v.policy == "one_over_l":
        return min(low, values[-1]), values[-1]
    if v.policy == "manual":
        return min(low, 1 / MANUAL), 1 / MANUAL
    return low, high


def answered(v: Variant, X: Array, y: Array, query: Array, steps: tuple[int, ...]) -> Array:
    """f_t at the query for each step, of one prompt."""
    n = len(y)
    K, k = gram(RBF(WIDTH), X, X), gram(RBF(WIDTH), query, X)[0]
    r = RIDGE if v.ridge_scale == "absolute" else RIDGE / N * n
    A, D = K + r * np.eye(n), K.sum(1)
    if v.method == "conjugate_gradient" or v.method == "preconditioned_conjugate_gradient":
        M = np.diag(1 / D) if v.method.startswith("pre") else np.eye(n)
        # n steps are all there are.
        found = [cg(A, y, rtol=0, maxiter=min(t, n), M=LinearOperator((n, n), M.__matmul__))[0]
                 if t else np.zeros(n) for t in steps]  # fmt: skip
        return np.array(found) @ k
    plain = v.method in ("gradient_descent", "nesterov", "heavy_ball")
    P = np.ones(n) if plain else D
    M = A / P[:, None]
    low, high = interval(v, M, N)
    if v.method == "chebyshev":
        # α_t = (I − p_t(D⁻¹A))A⁻¹y, p_t(x) = T_t((θ − x)/δ)/T_t(θ/δ)
        centre = (high + low) / 2
        radius = max((high - low) / 2, 1e-9 * centre)  # one point has one eigenvalue
        values, vectors = np.linalg.eigh(A / np.sqrt(np.outer(D, D)))
        exact = vectors.T @ (np.sqrt(D) * np.linalg.solve(A, y))
        found = []
        for t in steps:
            one = np.zeros(t + 1)
            one[t] = 1
            left = polynomials.chebval((centre - values) / radius, one)
            left = left / polynomials.chebval(centre / radius, one)
            found.append(vectors @ ((1 - left) * exact) / np.sqrt(D))
        return np.array(found) @ k
    eta = 1 / high if v.policy in ("one_over_l", "manual") else 2 / (low + high)
    q = (math.sqrt(high / low) - 1) / (math.sqrt(high / low) + 1)
    alpha = before = u = np.zeros(n)
    f, path = 0.0, []
    for _ in range(max(steps) + 1):
        path.append(f if v.method.startswith("function") else k @ alpha)
        if v.method.startswith("function"):
            f += eta * (k @ (y - u) - r * f) / (k.sum() + r)
            u = u + eta * (K @ (y - u) - r * u) / D
        elif v.method == "nesterov":
            ahead = alpha + q * (alpha - before)
            before, alpha = alpha, ahead + (y - A @ ahead) / high
        elif v.method == "heavy_ball":
            pull = 4 / (math.sqrt(low) + math.sqrt(high)) ** 2 * (y - A @ alpha)
            before, alpha = alpha, alpha + pull + q**2 * (alpha - before)
        else:
            alpha = alpha + eta * (y - A @ alpha) / P
    return np.array(path)[list(steps)]


def mapped(v: Variant, X: Array, y: Array, query: Array, steps: tuple[int, ...]) -> Array:
    """∂f_t/∂y of one prompt: (steps, n)."""
    columns = []
    for unit in np.eye(len(y)):
        if "conjugate" in v.method:
            ends = [answered(v, X, y + h * unit, query, steps) for h in (1e-6, -1e-6)]
            columns.append((ends[0] - ends[1]) / 2e-6)
        else:
            columns.append(answered(v, X, unit, query, steps))
    return np.stack(columns, -1)


def planted(prompts: Prompts, chosen: dict[str, tuple[Variant, tuple[int, ...]]]) -> Probed:
    """A model of one readout for each of ``chosen``, whose layers are these steps."""
    X, y = prompts.X.numpy(), prompts.y.numpy()
    found, slopes = {}, {}
    for name, (v, steps) in chosen.items():
        by_prompt = [
            [answered(v, X[p, :n], y[p, :n], X[p, n : n + 1], steps) for n in range(1, N + 1)]
            for p in range(len(y))
        ]
        found[name] = torch.tensor(np.array(by_prompt)).permute(2, 0, 1)
        slopes[name] = torch.tensor(
            np.array(
                [
                    np.concatenate(
                        [mapped(v, X[p, :n], y[p, :n], X[p, n : n + 1], steps) for n in CUTS], -1
                    )
                    for p in range(min(len(y), FEW))
                ]
            )
        ).transpose(0, 1)
    return Probed(
        prompts=prompts,
        answers=found,
        krr=answers(prompts)[:, 1:],
        noiseless=prompts.noiseless[:, 1:],
        labels=prompts.y[:, 1:],
        explained={},
        untrained={},
        defect=torch.zeros(len(next(iter(found.values())))),
        split=split(prompts, torch.Generator().manual_seed(1)),
        operators=slopes,
    )


def best(matches: list[Match], metric: str, path: str) -> list[Match]:
    return sorted(
        (m for m in matches if m.metric == metric),
        key=lambda m: getattr(m, path).score * (-1 if METRICS[metric].most else 1),
    )


# -- whom a layer is like ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def every() -> tuple[dict[str, tuple[Variant, tuple[int, ...]]], list[Match]]:
    """A model that is every solver under every policy and ridge at once, and its matches."""
    chosen = {
        f"{v.method} {v.policy} {v.ridge_scale}": (
            v, (0, 1, 2, 3) if "conjugate" in v.method else (0, 3, 6, 9)
        )
        for v in ALL
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "RESAMPLES", 2)
        patch.setattr(matching, "STEPS", SHORT)
        return chosen, match(planted(drawn(), chosen), MANUAL).matches


@pytest.mark.parametrize("path", ["free", "fixed"])
@pytest.mark.parametrize("metric", METRICS)
def test_a_model_that_is_a_solver_is_matched_with_its_very_steps(every, metric, path) -> None:
    chosen, matches = every
    for name, (variant, steps) in chosen.items():
        first, second, *_ = best([m for m in matches if m.readout == name], metric, path)
        assert (first.variant, getattr(first, path).steps) == (variant, steps[1:]), name
        assert first.rate == steps[1]
        exact = 1.0 if METRICS[metric].most else 0.0
        assert getattr(first, path).score == pytest.approx(exact, abs=1e-6)
        # Nobody else is as near by a hair.
        assert abs(getattr(second, path).score - exact) > 1e-6


def test_every_readout_meets_every_variant_by_every_metric_once(every) -> None:
    chosen, matches = every
    met = [(m.readout, m.variant, m.metric) for m in matches]
    assert sorted(map(str, met)) == sorted(map(str, product(chosen, ALL, METRICS)))
    for m in matches:
        assert m.grid.shape == (4, SHORT + 1)
        assert m.grid.untyped_storage().nbytes() == 8 * m.grid.numel()  # no resample is held
        assert not m.grid.isnan().any()
        assert not torch.cat([m.free.scores, m.fixed.scores]).isnan().any()


def test_a_solver_that_diverges_is_last_and_nothing_is_nan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "RESAMPLES", 2)
    right = Variant("preconditioned_richardson", "certified", "absolute")
    found = match(planted(drawn(3), {"lens": (right, (0, 8, 16, 24))}), 1.0)
    for metric in METRICS:
        order = best(
            [m for m in found.matches
             if m.variant.policy == "manual" and m.variant.ridge_scale == "absolute"],
            metric, "free",
        )  # fmt: skip
        # Under η = 1 these grow without end: λ_max is beyond 2.
        assert {m.variant.method for m in order[-2:]} == {"gradient_descent", "nesterov"}
    for m in found.matches:
        assert not m.grid.isnan().any()
    for fan in found.fans.values():
        assert bool(torch.isfinite(fan.to_krr).all() and torch.isfinite(fan.to_noiseless).all())


def test_the_search_reaches_steps_that_do_not_saturate() -> None:
    assert STEPS >= 128
    for layers in (1, 2, 8, 12):
        grid = torch.zeros(1, layers + 1, STEPS + 1, dtype=torch.float64)
        for layer in range(1, layers + 1):
            grid[0, layer, layer * (STEPS // layers)] = 1
        free, fixed, _ = routes(grid, True)
        assert max(free.steps) == layers * (STEPS // layers)
        assert len(fixed.steps) == layers


def test_a_fan_is_the_error_of_numpys_steps_pooled_over_prompts(every) -> None:
    prompts = drawn()
    variant = Variant("preconditioned_richardson", "optimal", "per_sample")
    steps = tuple(range(5))
    probed = planted(prompts, {"lens": (variant, steps)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "variants", lambda scale: [replace(variant, ridge_scale=scale)])
        found = match(probed)
    f = probed.answers["lens"].numpy()
    for fan, against in (
        (found.fans[variant].to_krr, probed.krr.numpy()),
        (found.fans[variant].to_noiseless, probed.noiseless.numpy()),
    ):
        expected = np.sqrt(((f - against) ** 2).sum(1) / (against**2).sum(0))
        np.testing.assert_allclose(fan[:5].numpy(), expected, rtol=1e-9)
    for method, defect in found.defects.items():
        # After 4 steps conjugate gradients are done, and exact answers are linear.
        early = float(defect[1:3].min())
        assert (early > 1e-3) if "conjugate" in method else (float(defect.max()) < 1e-10)


# -- metrics, weights and routes -----------------------------------------------------------------


def some(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def looped(a: Array, b: Array, one: Callable[[Array, Array], Any]) -> Array:
    """(batch, layers, times) of what ``one`` makes of two vectors."""
    return np.array(
        [
            [[one(a[i, p], b[t, p]) for t in range(len(b))] for i in range(len(a))]
            for p in range(a.shape[1])
        ]
    )


def test_metrics_are_numpys() -> None:
    layers, steps, labels = some(3, 2, 5), some(40, 2, 5, seed=1), some(2, 5, seed=2)
    a, b = torch.tensor(layers), torch.tensor(steps)
    expected = looped(
        layers - labels, steps - labels,
        lambda x, z: x @ z / np.sqrt((x @ x) * (z @ z)),
    )  # fmt: skip
    np.testing.assert_allclose(similarity(a, b, torch.tensor(labels)), expected, rtol=1e-12)
    expected = looped(layers, steps, lambda x, z: sum((x - z) ** 2) / 5)
    np.testing.assert_allclose(difference(a, b), expected, rtol=1e-12)
    assert float(difference(b, b).diagonal(dim1=1, dim2=2).abs().max()) == 0

    def logs(x: Array, z: Array) -> float:
        errors = [[max(math.sqrt(s), 1e-3) for s in squares] for squares in (x, z)]
        return math.sqrt(sum(math.log10(p / q) ** 2 for p, q in zip(*errors, strict=True)) / 5)

    x, z = 10 ** (3 * layers - 3), 10 ** (3 * steps - 3)
    found = profile(torch.tensor(x).transpose(0, 1), torch.tensor(z).transpose(0, 1))
    np.testing.assert_allclose(found, looped(x, z, logs), rtol=1e-10)


def test_weights_of_resamples_are_counts_that_sum_to_one() -> None:
    weights = resampled(7)
    assert weights.shape == (RESAMPLES + 1, 7)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(weights * 7, (weights * 7).round(), atol=1e-12)
    assert len(weights[1:].unique(dim=0)) > RESAMPLES / 2
    assert resampled(1).tolist() == [[1.0]] * (RESAMPLES + 1)


def test_routes_on_a_grid_by_hand() -> None:
    # Layer 0 is left out; the best of layer 1 is step 2, of layer 2 step 7. Rate 1¾, the first to
    # make (2, 4), scores ½(1 + 2); rate 3½, which makes (4, 7), ½(9 + 1).
    near = torch.full((1, 3, STEPS + 1), 9.0, dtype=torch.float64)
    near[0, 0, 0] = 0
    near[0, 1, 1], near[0, 1, 2] = 5, 1
    near[0, 2, 7], near[0, 2, 4] = 1, 2
    for most, sign in ((False, 1), (True, -1)):
        free, fixed, rate = routes(sign * near, most)
        assert (free.steps, fixed.steps, rate) == ((2, 7), (2, 4), 1.75)
        assert (free.score, fixed.score) == (sign * 1.0, sign * 1.5)
    assert RATES[0] == 0.25
    assert RATES[-1] == 16


def test_intervals_hold_the_score_and_narrow_with_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = Variant("preconditioned_richardson", "certified", "absolute")
    monkeypatch.setattr(matching, "variants", lambda scale: [variant] * (scale == "absolute"))
    wide = {}
    for batch in (6, 96):
        probed = planted(drawn(batch, seed=8), {"lens": (variant, (0, 4, 8))})
        noise = torch.randn(3, batch, N, generator=torch.Generator().manual_seed(2)).double()
        probed.answers["lens"].add_(0.3 * noise)
        for m in match(probed).matches:
            if m.metric == "operator":
                continue
            for path, route in (("free", m.free), ("fixed", m.fixed)):
                low, high = route.interval
                assert low <= route.score <= high
                assert low == pytest.approx(np.quantile(route.scores[1:].numpy(), 0.025))
                wide[batch, m.metric, path] = high - low
    for metric in ("similarity", "difference", "profile"):
        for path in ("free", "fixed"):
            assert 0 < wide[96, metric, path] < wide[6, metric, path]


# -- sizes, kernels and what is refused ----------------------------------------------------------


@pytest.mark.parametrize(("batch", "layers"), [(1, 1), (2, 12)])
def test_few_points_prompts_and_layers_are_matched_too(
    batch: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = Variant("gradient_descent", "certified", "absolute")
    monkeypatch.setattr(matching, "variants", lambda scale: [variant] * (scale == "absolute"))
    prompts = drawn(batch, n=2)
    systems = Systems.of(prompts, (1, 2))
    probed = Probed(
        prompts, {"lens": systems.answers(variant)[: layers + 1]}, answers(prompts)[:, 1:],
        prompts.noiseless[:, 1:], prompts.y[:, 1:], {}, {}, torch.zeros(layers + 1),
        split(prompts, torch.Generator()),
        {"lens": Systems.of(prompts, (2,)).operators(variant)[: layers + 1]},
    )  # fmt: skip
    for m in match(probed).matches:
        assert not m.grid.isnan().any()
        if m.metric == "difference":  # all two-point answers of the last steps are much alike
            assert m.free.steps == m.fixed.steps == tuple(range(1, layers + 1))


def test_prompts_of_several_ridges_and_row_sums_below_zero_are_refused() -> None:
    variant = Variant("gradient_descent", "certified", "absolute")
    probed = planted(drawn(2), {"lens": (variant, (0, 1))})
    several = draw(Task(n=N, ridge=(0.1, 0.3)), 2, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="more than one ridge"):
        match(replace(probed, prompts=several))
    with pytest.raises(ProbeError, match="linear kernel"):
        match(replace(probed, prompts=drawn(2, kernel="linear")))
    with pytest.raises(ProbeError, match="linear kernel"):
        Systems.of(drawn(2), range(1, N + 1), kernel="linear")


def test_laplacian_answers_align_with_the_laplacian_kernel_alone() -> None:
    prompts = drawn(4)
    X, y = prompts.X.numpy(), prompts.y.numpy()
    k = Matern(WIDTH, nu=0.5)
    path: list[list[Array]] = []
    for p in range(4):
        path.append([])
        for n in range(1, N + 1):
            K, one = gram(k, X[p, :n], X[p, :n]), gram(k, X[p, n : n + 1], X[p, :n])[0]
            alpha, f = np.zeros(n), []
            for _ in range(3):  # layers 0 to 2 are steps of η = 2/(λ/N + 1 + λ)
                f.append(one @ alpha)
                pull = (y[p, :n] - K @ alpha - RIDGE * alpha) / K.sum(1)
                alpha = alpha + 2 / (RIDGE / N + 1 + RIDGE) * pull
            path[-1].append(np.array([*f, one @ np.linalg.solve(K + RIDGE * np.eye(n), y[p, :n])]))
    found = torch.tensor(np.array(path)).permute(2, 0, 1)
    probed = planted(
        prompts, {"lens": (Variant("gradient_descent", "certified", "absolute"), (0,))}
    )
    probed.answers["lens"] = found
    gaps = {
        kernel: align(probed, "lens", kernel) for kernel in ("laplacian", "gaussian", "matern32")
    }
    own = gaps["laplacian"]
    assert own.gap < 1e-12
    assert own.similarity is not None
    assert own.similarity.steps[:2] == (1, 2)
    for kernel in ("gaussian", "matern32"):
        other = gaps[kernel]
        assert other.gap > 0.02
        assert other.similarity is not None
        assert other.similarity.score < own.similarity.score
    linear = align(probed, "lens", "linear")
    assert linear.similarity is None
    assert linear.gap > 0.1


def test_the_additivity_defect_of_a_line_is_0_and_of_a_square_known() -> None:
    one, two = torch.tensor([[[3.0]]]).double(), torch.tensor([[[1.0]]]).double()
    assert additivity(one + two, one, two).tolist() == [0]
    square: Callable[[Tensor], Tensor] = torch.square  # (4² − 3² − 1²)/4² = 6/16
    assert additivity(square(one + two), square(one), square(two)).tolist() == [6 / 16]
    assert additivity(one * 0, one * 0, one * 0).tolist() == [0]
