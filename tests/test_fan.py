"""The fan against a plain loop over prompts and prefixes, and the curve against scikit-learn."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

import krrviz.fan as module
from krrviz import Construction, Problem, Settings, build, fan_frame, predict, sample, solve
from krrviz.fan import GRID, Curve, context_lengths, curve, fan, relative_error
from krrviz.frames import DRAWN, conditions, curve_rows, fan_rows, step_rows, thinned, titled
from krrviz.settings import METHODS
from krrviz.spectrum import POLICIES
from krrviz.tables import Table, assets, parse_csv

SOLVERS = METHODS[1:]
SMALL = Settings(data="gp", n=13, queries=5, prompts=3, steps=6, segments=16, methods=SOLVERS)
OWN = parse_csv(b"x,y\n" + b"".join(b"%d,%f\n" % (i, math.sin(i / 5)) for i in range(40)), "own")


def by_loop(settings: Settings, counts: tuple[int, ...], answers: dict) -> dict[str, np.ndarray]:
    """Errors of every method, (steps + 1, counts), one short prompt after the other."""
    full = sample(settings, OWN)
    errors = {m: np.zeros((settings.steps + 1, len(counts))) for m in settings.methods}
    model = build(Construction.from_settings(settings)) if "transformer" in errors else None
    for p in range(settings.prompts):
        for i, n in enumerate(counts):
            prompt = Problem(
                full.X[p, :n],
                full.y[p, :n],
                full.x_query[p],
                torch.tensor(n),
                settings.bandwidth,
                settings.ridge,
                settings.ridge_scale,
            )
            for method in settings.methods:
                if method == "transformer":
                    assert model is not None
                    run = predict(model, prompt)
                else:
                    how = (settings.policy, settings.step_size, settings.n)
                    run = solve(prompt, method, settings.steps, *how)
                answer = answers[p, n]
                gap = np.linalg.norm(run.predictions.numpy() - answer, axis=-1)
                errors[method][:, i] += gap / np.linalg.norm(answer) / settings.prompts
    return errors


def krr_answers(settings: Settings, counts: tuple[int, ...]) -> dict:
    """scikit-learn's answer at the queries of each prompt p cut to n tokens."""
    full, found = sample(settings, OWN), {}
    for p in range(settings.prompts):
        for n in counts:
            alpha = settings.ridge * (n if settings.ridge_scale == "per_sample" else 1)
            gamma = 1 / (2 * settings.bandwidth**2)
            krr = KernelRidge(kernel="rbf", gamma=gamma, alpha=np.float64(alpha))  # pyright: ignore
            krr.fit(full.X[p, :n].numpy(), full.y[p, :n].numpy())
            found[p, n] = krr.predict(full.x_query[p].numpy())
    return found


VARIANTS: dict[str, Settings] = {
    "motorcycle": SMALL.but(data="motorcycle", bandwidth=0.3),
    "diabetes": SMALL.but(data="diabetes", bandwidth=3.0),
    "csv": SMALL.but(data="csv", bandwidth=1.0),
    "per_sample": SMALL.but(ridge_scale="per_sample"),
    "few tokens": SMALL.but(n=4),
    "no steps": SMALL.but(steps=0),
    **{policy: SMALL.but(policy=policy, step_size=0.05) for policy in POLICIES},
    "transformer": SMALL.but(methods=("transformer",), data="motorcycle", bandwidth=0.3),
    "fused transformer": SMALL.but(methods=("transformer",), layout="fused"),
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_the_fan_is_a_plain_loop_over_short_prompts(settings: Settings) -> None:
    result = fan(settings, OWN)
    wanted = by_loop(settings, result.counts, krr_answers(settings, result.counts))
    assert set(result.errors) == set(settings.methods)
    for method, errors in result.errors.items():
        np.testing.assert_allclose(errors, wanted[method], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reference", ["labels", "noiseless"])
def test_errors_are_against_the_reference_that_is_named(reference: str) -> None:
    settings = SMALL.but(reference=reference)
    result, full = fan(settings), sample(settings)
    truth = full.labels if reference == "labels" else full.noiseless
    assert truth is not None
    answers = {(p, n): truth[p].numpy() for p in range(3) for n in result.counts}
    wanted = by_loop(settings, result.counts, answers)
    for method, errors in result.errors.items():
        np.testing.assert_allclose(errors, wanted[method], rtol=1e-10)
    assert result.scale == pytest.approx(float(truth.square().mean().sqrt()))


def test_the_frame_is_the_fan_row_by_row() -> None:
    settings = SMALL.but(methods=("gradient_descent", "conjugate_gradient"))
    result, frame = fan(settings), fan_frame(settings)
    assert list(frame.columns) == ["method", "step", "n", "error"]
    assert len(frame) == 2 * 7 * len(result.counts)
    for row in frame.to_dict("records"):
        at = result.counts.index(row["n"])
        assert row["error"] == result.errors[row["method"]][row["step"], at]
    pd.testing.assert_frame_equal(frame, fan_rows(result))
    assert not frame.duplicated(["method", "step", "n"]).any()


def test_the_error_at_step_zero_is_one() -> None:
    frame = fan_frame(SMALL.but(methods=METHODS))
    assert (frame.error[frame.step == 0] == 1).all()


def test_step_rows_are_the_full_context() -> None:
    result = fan(SMALL)
    rows = step_rows(result)
    assert list(rows.columns) == ["method", "step", "error"]
    for method, errors in result.errors.items():
        assert rows.error[rows.method == method].tolist() == errors[:, -1].tolist()


def test_the_same_settings_give_the_same_numbers_to_the_last_digit() -> None:
    settings = SMALL.but(methods=METHODS)
    pd.testing.assert_frame_equal(fan_frame(settings), fan_frame(settings), check_exact=True)


def test_small_pieces_give_the_same_fan(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SMALL.but(methods=METHODS)
    whole = fan(settings)
    for size in (1, 2 * module.prompt_bytes(settings, module.PREFIXES)):
        monkeypatch.setattr(module, "CHUNK_BYTES", size)
        pieces = fan(settings)
        assert pieces.scale == pytest.approx(whole.scale, rel=1e-12)
        for method, errors in whole.errors.items():
            np.testing.assert_allclose(pieces.errors[method], errors, rtol=1e-9, atol=1e-12)


def test_progress_rises_from_zero_and_stays_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(module, "CHUNK_BYTES", module.prompt_bytes(SMALL, module.PREFIXES))
    fan(SMALL, progress=shares.append)
    assert shares[0] == 0
    assert shares == sorted(set(shares))
    assert shares[-1] < 1
    assert len(shares) > len(SMALL.methods)


def test_what_progress_raises_stops_the_fan() -> None:
    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan(SMALL, progress=stop)


def test_a_device_without_the_memory_is_told_and_the_cpu_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def full(settings: Settings, table: Table | None, device: torch.device) -> None:
        tried.append(device.type)
        if device.type == "cuda":
            raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "compiled", full)
    result = fan(SMALL)
    assert tried == ["cuda", "cpu"]
    assert result.device == "cpu"
    (notice,) = result.notices
    assert "device=cuda ran out of memory" in notice
    monkeypatch.undo()
    assert fan(SMALL.but(device="cpu")).notices == ()


def test_the_scale_is_the_size_of_the_answers_at_n() -> None:
    answers = krr_answers(SMALL, (SMALL.n,))
    wanted = np.sqrt(np.mean(np.square([*answers.values()])))
    assert fan(SMALL).scale == pytest.approx(wanted, rel=1e-9)


def test_float32_is_near_float64_and_says_so() -> None:
    settings = SMALL.but(methods=("preconditioned_richardson", "chebyshev"))
    double, single = fan(settings), fan(settings.but(dtype="float32"))
    for method in settings.methods:
        np.testing.assert_allclose(single.errors[method], double.errors[method], atol=1e-4)
        assert not np.array_equal(single.errors[method], double.errors[method])


@pytest.mark.parametrize("n", [*range(2, 40), 64, 100, 1000, 16384])
def test_context_lengths_rise_to_n_and_are_about_twelve(n: int) -> None:
    counts = context_lengths(n)
    assert counts == sorted(set(counts))
    assert counts[0] >= 1
    assert counts[-1] == n
    assert min(n, 10) <= len(counts) <= 12


# -- divergence -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_divergence_is_a_large_number_and_never_nan(dtype: str) -> None:
    settings = SMALL.but(
        methods=METHODS, policy="manual", step_size=1e3, steps=200, n=5, dtype=dtype
    )
    frame = fan_frame(settings)
    assert np.isfinite(frame.error).all()
    last = frame[(frame.step == 200) & (frame.n == 5)].set_index("method").error
    for method in METHODS:
        follows = method in ("preconditioned_richardson", "function_space_richardson")
        follows |= method in ("gradient_descent", "nesterov")
        assert (last[method] > 1e30) == follows


def test_an_overflow_is_infinitely_wrong() -> None:
    predictions = torch.tensor([[0.0, 0], [torch.nan, 1], [torch.inf, 1], [3e200, 4e200], [1, 1]])
    got = relative_error(predictions.double(), torch.tensor([3.0, 4]).double())
    assert got[[0, 4]].tolist() == pytest.approx([1, math.hypot(2, 3) / 5])
    assert bool((got[1:4] > 1e199).all())
    assert not bool(got.isnan().any())


def test_a_prompt_whose_answer_is_zero_has_no_relative_error() -> None:
    got = relative_error(torch.tensor([[0.0, 0], [1, 0]]).double(), torch.zeros(2).double())
    assert bool(got.isnan().all())


def test_prompts_without_a_relative_error_are_left_out_of_the_mean() -> None:
    # Some prompts have all queries too far from their two points for any kernel value but 0.
    frame = fan_frame(Settings(bandwidth=1e-3, methods=("nesterov",), steps=1))
    assert frame[frame.step == 0].error.isin([0, 1]).all()
    assert frame[(frame.step == 0) & (frame.n == 2)].error.item() == 1


# -- the fitted curve ---------------------------------------------------------------------------


def in_own_units(name: str, result: Curve, bandwidth: float, ridge: float) -> np.ndarray:
    """scikit-learn's fit of the curve's own points, in the units of the file."""
    raw = np.loadtxt(assets() / "datasets" / f"{name}.csv", delimiter=",", skiprows=1)
    (_, mean), (spread, _) = raw.mean(0), raw.std(0)
    gamma = 1 / (2 * (bandwidth * spread) ** 2)
    krr = KernelRidge(kernel="rbf", gamma=gamma, alpha=np.float64(ridge))  # pyright: ignore
    krr.fit(result.data_x[:, None], result.data_y - mean)
    return krr.predict(result.x[:, None]) + mean


@pytest.mark.parametrize("name", ["motorcycle", "co2"])
def test_the_curve_is_scikit_learns_in_the_datas_own_units(name: str) -> None:
    settings = Settings(data=name, n=40, steps=200)
    result = curve(settings, "conjugate_gradient")
    wanted = in_own_units(name, result, settings.bandwidth, settings.ridge)
    size = np.abs(wanted - wanted.mean()).max()
    np.testing.assert_allclose(result.exact, wanted, atol=1e-9 * size)
    got = result.predictions
    assert got.shape == (201, GRID)
    np.testing.assert_allclose(got[-1], wanted, atol=1e-6 * size)


@pytest.mark.parametrize("name", ["motorcycle", "co2"])
def test_the_curve_shows_points_of_the_file(name: str) -> None:
    result = curve(Settings(data=name, n=40, steps=1), "nesterov")
    raw = np.loadtxt(assets() / "datasets" / f"{name}.csv", delimiter=",", skiprows=1)
    for x, y in zip(result.data_x, result.data_y, strict=True):
        assert np.isclose(raw, [x, y], rtol=1e-12, atol=1e-9).all(1).any()
    assert result.x.min() == pytest.approx(result.data_x.min())
    assert result.x.max() == pytest.approx(result.data_x.max())
    assert np.ptp(np.diff(result.x)) < 1e-9 * np.ptp(result.x)


def test_the_curve_starts_from_the_mean_label() -> None:
    result = curve(Settings(n=10, steps=1), "nesterov")
    raw = np.loadtxt(assets() / "datasets" / "motorcycle.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(result.predictions[0], raw[:, 1].mean(), rtol=1e-12)


def test_the_curve_names_its_axes_with_units() -> None:
    for data, x_label, y_label in (
        ("motorcycle", "time (ms)", "acceleration (g)"),
        ("co2", "year", "co2 (ppm)"),
        ("gp", "input x", "label y (standardised)"),
        ("csv", "x", "y"),
    ):
        result = curve(Settings(data=data, d=1, n=5, steps=1), "nesterov", OWN)
        assert (result.x_label, result.y_label) == (x_label, y_label)


def test_the_transformers_curve_follows_its_solvers() -> None:
    settings = Settings(n=20, steps=8, segments=4096)
    first, second = (
        curve(settings, method).predictions
        for method in ("transformer", "preconditioned_richardson")
    )
    assert np.abs(first - second).max() < 1e-3 * np.abs(second).max()


def test_more_inputs_than_one_have_no_curve() -> None:
    with pytest.raises(ValueError, match="d=10: a curve needs one input"):
        curve(Settings(data="diabetes"), "nesterov")


def test_curve_rows_leave_out_what_has_overflowed() -> None:
    settings = Settings(n=8, steps=400, policy="manual", step_size=1e3)
    result = curve(settings, "nesterov")
    rows, exact, data = curve_rows(result)
    assert np.isfinite(rows.prediction).all()
    assert len(rows) == np.isfinite(result.predictions).sum() < 401 * GRID
    assert rows[rows.step == 3].prediction.tolist() == result.predictions[3].tolist()
    assert exact.prediction.tolist() == result.exact.tolist()
    assert (data.x.tolist(), data.y.tolist()) == (result.data_x.tolist(), result.data_y.tolist())


# -- what is said beside it -----------------------------------------------------------------------


def test_conditions_name_policy_ridge_precision_and_reference() -> None:
    settings = SMALL.but(
        methods=METHODS, policy="manual", step_size=0.25, ridge=0.5, dtype="float32"
    )
    result = fan(settings)
    rows = conditions(result).to_dict("records")
    step = {row["method"]: row["step"] for row in rows}
    assert len(step) == len(rows) == len(METHODS)
    assert step["Gradient descent"] == step["Preconditioned Richardson"] == "manual: η = 0.25"
    assert "1/L = 0.25" in step["Nesterov"]
    assert step["Conjugate gradient"] == step["Preconditioned CG"] == "none needed"
    # Of A: [λ, N + λ]; of D⁻¹A: [λ/N, 1 + λ]. The transformer takes 2/(μ + L) of the latter.
    assert step["Heavy ball"] == "certified for N = 13: μ = 0.5, L = 13.5"
    assert step["Chebyshev"] == f"certified for N = 13: μ = {0.5 / 13:.3g}, L = 1.5"
    certified = f"η = {2 / (0.5 / 13 + 1.5):.4g}, from eigenvalues in [{0.5 / 13:.3g}, 1.5]"
    assert step["Transformer"] == f"certified for N = 13: {certified}"
    for row in rows:
        assert row["solves"] == "(K + 0.5 I)α = y"
        assert row["computed in"] == f"float32 on {result.device}"
        assert row["error against"] == "exact KRR"


@pytest.mark.parametrize("policy", POLICIES)
def test_conditions_follow_the_settings(policy: str) -> None:
    settings = SMALL.but(
        methods=("gradient_descent",), policy=policy, ridge_scale="per_sample", reference="labels"
    )
    (told,) = conditions(fan(settings)).to_dict("records")
    words = {
        "certified": "certified",
        "one_over_l": "1/L",
        "optimal": "μ and L",
        "manual": "manual",
    }
    assert words[policy] in told["step"]
    assert told["solves"] == "(K + n · 0.1 I)α = y"
    assert "labels" in told["error against"]


def test_every_method_has_a_title_of_its_own() -> None:
    rows = titled(fan_frame(SMALL.but(methods=METHODS, steps=1)))
    assert rows.title.notna().all()
    assert rows.groupby("method").title.nunique().eq(1).all()
    assert rows.title.nunique() == len(METHODS)


@pytest.mark.parametrize("steps", [0, 1, 128, 129, 1000])
def test_thinning_keeps_the_first_and_the_last_step(steps: int) -> None:
    rows = pd.DataFrame({"step": np.repeat(np.arange(steps + 1), 2)})
    kept = thinned(rows).step.unique().tolist()
    assert kept[0] == 0
    assert kept[-1] == steps
    assert len(kept) <= DRAWN + 2
    assert kept == list(range(steps + 1)) or steps > DRAWN
    wanted = {steps // 2, steps // 3}
    assert wanted <= {*thinned(rows, wanted).step}
    assert thinned(rows.query("step < 0")).empty
