"""Bounds on the distance to kernel ridge regression: never beaten, and inverted as told."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from krrviz import Construction, Problem, Settings, SettingsError, build, predict, sample
from krrviz.construction.certificate import certify, construction_for, floor
from krrviz.trust import largest_factor

RULES = ("richardson", "chebyshev", "heavy_ball", "nesterov")
B_Y = 4.0

powers = lambda low, high: st.floats(low, high).map(lambda power: 10**power)  # noqa: E731


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], Problem]:
    """Weights, and a prompt within their bounds that is hard on them."""
    n, d = draw(st.integers(1, 96)), draw(st.integers(1, 5))
    ridge, bandwidth = draw(powers(-4, 1)), draw(powers(math.log10(0.05), 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    X = rng.uniform(-1, 1, (n, d))
    match draw(st.sampled_from(["uniform", "clumped", "shifted", "duplicated"])):
        case "clumped":
            X = X[rng.integers(min(n, 3), size=n)] + 0.01 * rng.standard_normal((n, d))
        case "shifted":
            X = X + 5
        case "duplicated":
            X = X[rng.integers(max(1, n // 4), size=n)]
    bound = float(np.linalg.norm(X, axis=1).max()) + 1
    queries = X[rng.integers(n, size=4)] + 0.3 * bandwidth * rng.standard_normal((4, d))
    queries *= np.minimum(1, bound / np.linalg.norm(queries, axis=1))[:, None]
    # Labels at their bound: at random, or along an eigenvector of the kernel.
    y = B_Y * rng.choice([-1.0, 1.0], n)
    match draw(st.sampled_from(["signs", "eigenvector", "normal"])):
        case "eigenvector":
            vectors = np.linalg.eigh(gram(X, X, bandwidth))[1]
            y = B_Y * np.sign(vectors[:, draw(st.sampled_from([0, n // 2, n - 1]))])
        case "normal":
            y = rng.standard_normal(n).clip(-B_Y, B_Y)
    chosen = {
        "d": d,
        "n_max": n + draw(st.sampled_from([0, 0, 1, 19])),
        "bandwidth": bandwidth,
        "ridge": ridge,
        "steps": draw(st.integers(1, 60)),
        "segments": draw(st.sampled_from([16, 64, 256, 1024])),
        "input_bound": bound,
        "label_bound": B_Y,
        "ridge_scale": draw(st.sampled_from(["absolute", "per_sample"])),
        "product": draw(st.sampled_from(["plain", "balanced"])),
        "update": draw(st.sampled_from(RULES)),
        "sink": draw(st.sampled_from([0.0, "ridge"]) | powers(-3, 4)),
    }
    X, y, queries = map(torch.from_numpy, (X, y, queries))
    problem = Problem(X, y, queries, torch.tensor(n), bandwidth, ridge, chosen["ridge_scale"])
    return chosen, problem


def gram(a: np.ndarray, b: np.ndarray, bandwidth: float) -> np.ndarray:
    return np.exp(-cdist(a, b, "sqeuclidean") / (2 * bandwidth**2))


def exact(problem: Problem) -> np.ndarray:
    """Kernel ridge regression at the queries of one prompt, by SciPy's Cholesky."""
    X, y = problem.X.numpy(), problem.y.numpy()
    r = problem.ridge * (len(y) if problem.ridge_scale == "per_sample" else 1)
    factor = cho_factor(gram(X, X, problem.bandwidth) + r * np.eye(len(y)))
    return gram(problem.x_query.numpy(), X, problem.bandwidth) @ cho_solve(factor, y)


def certified(chosen: dict[str, Any]) -> Construction | None:
    """Weights with a certified range, or None where that is refused, as it must be, by name."""
    message = ""
    try:
        return Construction(**chosen, alpha_range="certified")
    except SettingsError as error:
        message, fields = str(error), error.fields
    assert fields == ("alpha_range", "segments")
    assert message.startswith(f"segments={chosen['segments']} leaves no certified range")
    return None


# -- what is promised is kept -------------------------------------------------------------------


@given(cases())
@settings(max_examples=150)
def test_no_prompt_within_the_bounds_beats_its_certificate(
    case: tuple[dict[str, Any], Problem],
) -> None:
    chosen, problem = case
    c = certified(chosen)
    assume(c is not None)
    assert c is not None
    certificate = certify(c, problem)
    run = predict(build(c), problem)
    error = np.abs(run.predictions[-1].numpy() - exact(problem))
    assert error.max() <= certificate.a_priori + certificate.rounding
    assert certificate.post_hoc is not None
    assert (error <= certificate.post_hoc.numpy()).all()
    assert largest_factor(c, problem, run) <= c.r_alpha == certificate.alpha_range


CONSTRUCTION: dict[str, Any] = {
    "d": 2, "n_max": 64, "bandwidth": 0.5, "ridge": 0.1, "steps": 32, "input_bound": 2.0,
    "label_bound": B_Y, "alpha_range": "certified",
}  # fmt: skip


def changed(**chosen: Any) -> dict[str, Any]:
    return CONSTRUCTION | chosen


@pytest.mark.parametrize("product", ["plain", "balanced"])
@pytest.mark.parametrize("update", RULES)
def test_no_certified_range_is_told_with_the_width(update: str, product: str) -> None:
    chosen: dict[str, Any] = changed(update=update, product=product)
    with pytest.raises(SettingsError, match="segments=8 leaves no certified range") as error:
        Construction(**chosen, segments=8)
    assert error.value.fields == ("alpha_range", "segments")
    # More segments have one, and the more they are the closer it comes to that of exact products.
    ranges = [Construction(**chosen, segments=m).r_alpha for m in (10**5, 10**6, 10**7)]
    assert ranges == sorted(ranges, reverse=True)
    assert ranges[-1] == pytest.approx(ranges[-2], rel=1e-3)


@pytest.mark.parametrize("update", RULES)
def test_a_certified_range_by_hand(update: str) -> None:
    # √λR = (1 + max h)√(N/λ)B_y + (1 − p)(N/λ)(λe_p(R) + e_b)√(N(N + λ)), three times for Nesterov;
    # e_p = R/4m², e_b = B_y/4m², p what is left of the slowest mode
    N, lam, m, T = 64, 0.1, 8192, 32
    kappa = (1 + lam) * N / lam
    root = math.sqrt(kappa)
    q, c, t = (root - 1) / (root + 1), 1 - 1 / root, np.arange(1, T + 1)
    h, p = {
        "richardson": 2 * [((kappa - 1) / (kappa + 1)) ** t],
        "chebyshev": 2 * [1 / np.cosh(t * np.arccosh((kappa + 1) / (kappa - 1)))],
        "heavy_ball": [q**t * (1 + t + q * t), q**t * (1 + t * (1 - q))],
        "nesterov": 2 * [c**t * (1 + t * (1 - c))],
    }[update]
    times = 3 if update == "nesterov" else 1
    gain = times * (1 - p[-1]) * N / lam * math.sqrt(N * (N + lam)) / (4 * m**2)
    by_hand = times * (1 + h.max()) * math.sqrt(N / lam) * B_Y + gain * B_Y
    by_hand /= math.sqrt(lam) - lam * gain
    found = Construction(**changed(update=update), segments=m).r_alpha
    assert found == pytest.approx(by_hand, rel=1e-9)


def test_a_certificate_by_hand() -> None:
    N, lam, m, T = 64, 0.1, 512, 300
    c = Construction(**changed(alpha_range=500.0, steps=T), segments=m)
    found = certify(c)
    rho = (1 + lam - lam / N) / (1 + lam + lam / N)
    reach = math.sqrt(N / (N + lam))  # ‖k_*‖ in the norm of A⁻¹
    assert found.iteration == pytest.approx(rho**T * B_Y * math.sqrt(N / lam) * reach)
    gain = (1 - rho**T) * N / lam * math.sqrt(N * (N + lam)) * reach
    assert found.product == pytest.approx(gain * (lam * 500 + B_Y) / (4 * m**2))
    assert found.a_priori == pytest.approx(found.iteration + found.product + found.sink)
    assert found.post_hoc is None
    assert (found.steps, found.segments, found.alpha_range) == (T, m, 500.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sink_and_rounding_by_hand(dtype: torch.dtype) -> None:
    """What δ takes from u, what S takes from f, and units in the last place of what is summed."""
    N, lam, m, T, R, B = 64, 0.1, 512, 30, 500.0, 2.0
    chosen = changed(alpha_range=R, steps=T, dtype=dtype)
    delta, level = (1e-15, 1e15) if dtype == torch.float64 else (1e-9, 1e9)
    found = certify(Construction(**chosen, segments=m))
    rho = (1 + lam - lam / N) / (1 + lam + lam / N)
    gain = (1 - rho**T) * N / lam * N
    start = B_Y * math.sqrt(N / lam * N / (N + lam))
    read_in = gain * delta * (B_Y + lam * R)
    answer = start + found.iteration + found.product + read_in
    assert found.sink == pytest.approx(read_in + answer * N / level)
    assert certify(Construction(**chosen, segments=m, sink=0.5)).sink < found.sink / 10
    eps = torch.finfo(dtype).eps
    ulp = eps * (100 + (B / 0.5) ** 2)
    # a balanced product of u ≤ 1 and v ≤ r adds up to (√r + √r)²/4 = r
    rounding = gain * (ulp * R + 4 * eps * (lam * R + B_Y)) + ulp * answer
    assert found.rounding == pytest.approx(rounding)


def test_a_per_sample_range_by_hand() -> None:
    # √λR = (1 + ρ)√(N/λ)B_y + Γ√(N(1 + λ))(λe_p(R) + e_b): N(1 + λ), not N(N + λ)
    N, lam, m, T = 64, 0.1, 2048, 30
    found = Construction(
        **changed(ridge_scale="per_sample", steps=T), segments=m, sink="ridge"
    ).r_alpha
    low, v = lam / (1 + lam), N / (1 + N * lam)
    rho = (1 - low) / (1 + low)
    gain = (1 - rho**T) / low * math.sqrt(N * (1 + lam)) * v / (4 * m**2)
    by_hand = (1 + rho) * math.sqrt(N / lam) * B_Y + gain * B_Y
    assert found == pytest.approx(by_hand / (math.sqrt(lam) - lam * gain), rel=1e-9)


def test_per_sample_terms_by_hand() -> None:
    # N has left the product term: (1 − ρᵀ)/μ·(λe_p + e_b), v = nP⁻¹1 ≤ N/(1 + Nλ) and nα ≤ R.
    N, lam, m, T = 64, 0.1, 512, 30
    chosen: dict[str, Any] = changed(
        alpha_range=500.0,
        steps=T,
        ridge_scale="per_sample",
    )
    found = certify(Construction(**chosen, segments=m, sink="ridge"))
    low, high = lam / (1 + lam), 1.0
    rho, v = (high - low) / (high + low), N / (1 + N * lam)
    assert found.iteration == pytest.approx(rho**T * B_Y / math.sqrt(lam * (1 + lam)))
    product = (1 - rho**T) / low * v * (lam * 500 + B_Y) / (4 * m**2)
    assert found.product == pytest.approx(product)


# -- the inverse --------------------------------------------------------------------------------


@pytest.mark.parametrize(("update", "steps"), [("richardson", 4301), ("chebyshev", 172)])
def test_known_depths(update: str, steps: int) -> None:
    c = construction_for(Construction(**changed(update=update), segments=10**5), 1e-3)
    assert c.steps == pytest.approx(steps, rel=0.01 if update == "richardson" else 0.006)
    assert c.alpha_range == "certified"


@pytest.mark.parametrize("sink", [0.0, "ridge", 3.0])
@pytest.mark.parametrize("ridge_scale", ["absolute", "per_sample"])
@pytest.mark.parametrize("update", RULES)
def test_no_shallower_or_narrower_one_is_certified(
    update: str, ridge_scale: str, sink: float | str
) -> None:
    chosen: dict[str, Any] = changed(
        update=update,
        ridge_scale=ridge_scale,
        sink=sink,
    )
    for eps in (1.0, 1e-2, 1e-3):
        c = construction_for(Construction(**{**chosen, "alpha_range": "calibrated"}), eps)
        found = certify(c)
        assert found.a_priori + found.rounding <= eps
        # Half for the iteration, half for what the width decides: neither has any to spare.
        assert found.iteration <= eps / 2
        assert found.product + found.sink + found.rounding <= eps / 2
        assert certify(replace(c, steps=c.steps - 1)).iteration > eps / 2
        try:
            narrower = certify(replace(c, segments=c.segments - 1))
        except SettingsError:
            continue  # no certified range at all
        assert narrower.product + narrower.sink + narrower.rounding > eps / 2


@pytest.mark.parametrize("ridge_scale", ["absolute", "per_sample"])
@pytest.mark.parametrize(("update", "eps"), [("chebyshev", 1e-3), ("richardson", 1e-2)])
def test_the_error_asked_for_is_measured(update: str, ridge_scale: str, eps: float) -> None:
    drawn = Settings(data="gp", n=12, queries=6, prompts=3, steps=1, ridge_scale=ridge_scale)
    drawn = drawn.but(update=update)
    c = construction_for(Construction.from_settings(drawn), eps)
    problem = sample(drawn)
    found = predict(build(c), problem).predictions[-1].numpy()
    for prompt in range(3):
        one = problem.pick((torch.tensor(prompt),))
        assert np.abs(found[prompt] - exact(one)).max() <= eps


def test_an_eps_that_no_step_is_needed_for() -> None:
    c = construction_for(Construction(**CONSTRUCTION, segments=10**5), 1e3)
    assert c.steps == 0
    assert c.segments >= 1


@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan, math.inf])
def test_an_eps_that_is_no_number_above_zero_is_refused(eps: float) -> None:
    with pytest.raises(SettingsError, match=f"eps={eps} must be a finite number above 0"):
        construction_for(Construction(**CONSTRUCTION, segments=10**5), eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("update", RULES)
def test_an_eps_below_the_floor_is_refused_with_what_is_reachable(
    update: str, dtype: torch.dtype
) -> None:
    chosen: dict[str, Any] = {"update": update, "dtype": dtype, "alpha_range": 100.0}
    c = Construction(**changed(**chosen), segments=16)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(SettingsError, match=f"certified here: {name} reaches ") as error:
        construction_for(c, min(0.99 * floor(c), 1e3))
    reachable = str(error.value).split("reaches ")[1].split(", ")[0]
    if dtype in (torch.bfloat16, torch.float16):  # δ alone costs more than any range allows
        assert reachable == "no ε at all"
    else:
        assert certify(construction_for(c, float(reachable))).a_priori <= float(reachable)


def test_function_space_has_no_certificate() -> None:
    c = Construction(**changed(update="function_space", alpha_range="calibrated"))
    for wanted in (certify, floor, lambda c: construction_for(c, 1e-3)):
        with pytest.raises(SettingsError, match="update=function_space has no certificate"):
            wanted(c)
    with pytest.raises(SettingsError, match="alpha_range=certified has no bound for"):
        replace(c, alpha_range="certified")
