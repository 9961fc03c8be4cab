"""Every solver against NumPy and SciPy: residual polynomials, plain loops, scipy's own CG."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as search
from hypothesis import strategies as st
from scipy.sparse.linalg import cg
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

from krrviz import SOLVERS, Problem, Settings, Trajectory, sample, solve
from krrviz.settings import METHODS
from krrviz.spectrum import POLICIES

SCALES = ("absolute", "per_sample")
CONJUGATE = ("conjugate_gradient", "preconditioned_conjugate_gradient")
STEPPED = [method for method in SOLVERS if method not in CONJUGATE]
COUNTS = (24, 17, 5)
MANUAL = 0.03  # a step that is safe for A too: its eigenvalues reach about 24


def drawn(
    batch: tuple[int, ...] = (3,),
    n: int = 24,
    count: tuple[int, ...] | None = None,
    ridge: float = 0.1,
    ridge_scale: str = "absolute",
    bandwidth: float = 0.5,
) -> Problem:
    """Prompts in the square with six queries each, and noisy labels of size 1."""
    rng = np.random.default_rng(4)
    X = torch.from_numpy(rng.uniform(-1, 1, (*batch, n, 2)))
    return Problem(
        X,
        torch.from_numpy(np.sin(3 * X.numpy()).sum(-1) + 0.3 * rng.standard_normal((*batch, n))),
        torch.from_numpy(rng.uniform(-1, 1, (*batch, 6, 2))),
        torch.full(batch, n) if count is None else torch.tensor(count),
        bandwidth,
        ridge,
        ridge_scale,
    )


# -- oracles: one prompt, unpadded, in NumPy ------------------------------------------------


@dataclass
class System:
    """K, k_*, D and A of one prompt, by scikit-learn's kernel, and what a policy would do."""

    problem: Problem
    at: int
    policy: str = "certified"
    n_max: int = 24

    def __post_init__(self) -> None:
        p, n = self.problem, int(self.problem.count[self.at])
        x, gamma = p.X[self.at, :n].numpy(), 1 / (2 * p.bandwidth**2)
        self.y = p.y[self.at, :n].numpy()
        self.n, self.K = n, rbf_kernel(x, x, gamma)
        self.k_query = rbf_kernel(p.x_query[self.at].numpy(), x, gamma)
        self.D = self.K.sum(1)
        self.r = p.ridge * (n if p.ridge_scale == "per_sample" else 1)
        self.A = self.K + self.r * np.eye(n)

    def scaling(self, preconditioned: bool) -> np.ndarray:
        return self.D if preconditioned else np.ones(self.n)

    def interval(self, preconditioned: bool, manual: bool) -> tuple[float, float]:
        """[μ, L] by the table in the docs of the certified interval, or by NumPy."""
        ridge, N = self.problem.ridge, self.n_max
        low, high = {
            ("absolute", False): (ridge, N + ridge),
            ("absolute", True): (ridge / N, 1 + ridge),
            ("per_sample", False): (ridge, N * (1 + ridge)),
            ("per_sample", True): (ridge, 1 + N * ridge),
        }[self.problem.ridge_scale, preconditioned]
        root = 1 / np.sqrt(self.scaling(preconditioned))
        true = np.linalg.eigvalsh(root[:, None] * self.A * root)
        if self.policy == "optimal":
            return true[0], true[-1]
        if self.policy == "one_over_l":
            return low, true[-1]
        if self.policy == "manual" and manual:
            return min(low, 1 / MANUAL), 1 / MANUAL
        return low, high

    def step(self, preconditioned: bool) -> float:
        low, high = self.interval(preconditioned, manual=True)
        return 1 / high if self.policy in ("one_over_l", "manual") else 2 / (low + high)

    def by_polynomial(
        self, preconditioned: bool, polynomial: Callable[[np.ndarray, int], np.ndarray], t: int
    ) -> np.ndarray:
        """α_t where the error is p_t(P⁻¹A) times the first one, in the eigenbasis."""
        root = 1 / np.sqrt(self.scaling(preconditioned))
        x, V = np.linalg.eigh(root[:, None] * self.A * root)
        return root * (V @ ((1 - polynomial(x, t)) / x * (V.T @ (root * self.y))))


def richardson(system: System, t: int, preconditioned: bool) -> np.ndarray:
    step = system.step(preconditioned)
    return system.by_polynomial(preconditioned, lambda x, t: (1 - step * x) ** t, t)


def chebyshev(system: System, t: int) -> np.ndarray:
    low, high = system.interval(True, manual=False)
    middle, half = (high + low) / 2, (high - low) / 2

    def polynomial(x: np.ndarray, t: int) -> np.ndarray:
        # T_t(s) = cosh(t arcosh s), or cos(t arccos s) inside [−1, 1]
        s = np.clip((middle - x) / half, -1, None)
        inside = np.cos(t * np.arccos(s.clip(-1, 1)))
        return np.where(s > 1, np.cosh(t * np.arccosh(s.clip(1))), inside) / np.cosh(
            t * np.arccosh(middle / half)
        )

    return system.by_polynomial(True, polynomial, t)


def two_term(a: Callable[[np.ndarray], np.ndarray], b: Callable[[np.ndarray], np.ndarray]):
    """p_{t+1} = a(x) p_t + b(x) p_{t−1} from p_0 = p_{−1} = 1, as powers of 2×2 companions."""

    def polynomial(x: np.ndarray, t: int) -> np.ndarray:
        ones = np.ones_like(x)
        companion = np.moveaxis(np.array([[a(x), b(x)], [ones, 0 * x]]), -1, 0)
        return (np.linalg.matrix_power(companion, t) @ np.ones(2))[:, 0]

    return polynomial


def heavy_ball(system: System, t: int) -> np.ndarray:
    low, high = np.sqrt(system.interval(False, manual=False))
    step, momentum = (2 / (high + low)) ** 2, ((high - low) / (high + low)) ** 2
    polynomial = two_term(lambda x: 1 + momentum - step * x, lambda x: -momentum + 0 * x)
    return system.by_polynomial(False, polynomial, t)


def nesterov(system: System, t: int) -> np.ndarray:
    low, high = system.interval(False, manual=True)
    momentum = (np.sqrt(high / low) - 1) / (np.sqrt(high / low) + 1)
    polynomial = two_term(
        lambda x: (1 + momentum) * (1 - x / high), lambda x: -momentum * (1 - x / high)
    )
    return system.by_polynomial(False, polynomial, t)


def in_dual(
    solution: Callable[[System, int], np.ndarray],
) -> Callable[[System, int], tuple[np.ndarray, np.ndarray]]:
    def both(system: System, t: int) -> tuple[np.ndarray, np.ndarray]:
        alpha = solution(system, t)
        return alpha, system.k_query @ alpha

    return both


def function_space(system: System, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Equation 14 entry by entry; query rows divide by D_* + r."""
    step, u, f = system.step(True), [0.0] * system.n, [0.0] * len(system.k_query)

    def moved(value: float, kernel: np.ndarray, degree: float) -> float:
        pull = sum(k * (y - now) for k, y, now in zip(kernel, system.y, u, strict=True))
        return value - step * system.r * value / degree + step * pull / degree

    for _ in range(t):
        f = [moved(v, k, k.sum() + system.r) for v, k in zip(f, system.k_query, strict=True)]
        u = [moved(v, k, k.sum()) for v, k in zip(u, system.K, strict=True)]
    return np.array(u), np.array(f)


def scipy_cg(system: System, t: int, preconditioned: bool) -> np.ndarray:
    iterates = [np.zeros(system.n)]
    M = np.diag(1 / system.D) if preconditioned else None
    cg(
        system.A, system.y, rtol=0, atol=0, maxiter=t, M=M,
        callback=lambda x: iterates.append(x.copy()),
    )  # fmt: skip
    return iterates[t]


ORACLES: dict[str, Callable[[System, int], tuple[np.ndarray, np.ndarray]]] = {
    "preconditioned_richardson": in_dual(lambda s, t: richardson(s, t, True)),
    "function_space_richardson": function_space,
    "gradient_descent": in_dual(lambda s, t: richardson(s, t, False)),
    "nesterov": in_dual(nesterov),
    "heavy_ball": in_dual(heavy_ball),
    "chebyshev": in_dual(chebyshev),
    "conjugate_gradient": in_dual(lambda s, t: scipy_cg(s, t, False)),
    "preconditioned_conjugate_gradient": in_dual(lambda s, t: scipy_cg(s, t, True)),
}


def relative(got: torch.Tensor, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got.double().numpy() - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("ridge_scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", SOLVERS)
def test_iterates_are_the_oracles(
    method: str, policy: str, dtype: torch.dtype, ridge_scale: str
) -> None:
    problem = drawn(count=COUNTS, ridge_scale=ridge_scale)
    # Two correct CGs part by rounding after a dozen steps, and at the solution of five tokens.
    at = (1, 2, 3, 4, 5, 6) if method in CONJUGATE else (1, 2, 5, 50)
    run = solve(problem.to("cpu", dtype), method, at[-1], policy, MANUAL)
    assert run.states.dtype == run.predictions.dtype == dtype
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3 if method in CONJUGATE else 2e-5
    for t in at:
        for p, n in enumerate(COUNTS):
            if method in CONJUGATE and t > n:
                continue
            state, prediction = ORACLES[method](System(problem, p, policy), t)
            assert relative(run.states[t, p, :n], state) <= tolerance
            assert relative(run.predictions[t, p], prediction) <= tolerance
            assert not run.states[t, p, n:].any()


@pytest.mark.parametrize("method", STEPPED)
def test_the_certified_step_is_that_of_the_largest_prompt_named(method: str) -> None:
    problem = drawn()
    run = solve(problem, method, 5, n_max=100)
    wanted, _ = ORACLES[method](System(problem, 0, n_max=100), 5)
    assert relative(run.states[5, 0], wanted) <= 1e-10
    assert relative(solve(problem, method, 5).states[5, 0], wanted) > 1e-3


# -- what holds of every solver ---------------------------------------------------------------


def test_the_registry_and_the_settings_name_the_same_methods() -> None:
    assert ("transformer", *SOLVERS) == METHODS
    assert set(ORACLES) == set(SOLVERS)
    for entry in SOLVERS.values():
        assert entry.title
        assert entry.update


@pytest.mark.parametrize("method", SOLVERS)
def test_a_run_starts_at_zero_and_keeps_every_step(method: str) -> None:
    problem = drawn(count=COUNTS)
    run = solve(problem, method, 7)
    assert (run.name, run.steps) == (method, 7)
    assert run.states.shape == (8, 3, 24)
    assert run.predictions.shape == (8, 3, 6)
    assert not run.states[0].any()
    assert not run.predictions[0].any()
    assert run.states[1].abs().sum(-1).min() > 0
    assert solve(problem, method, 0).steps == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", SOLVERS)
def test_labels_that_are_zero_give_zero(method: str, policy: str) -> None:
    problem = drawn()
    silent = Problem(problem.X, 0 * problem.y, problem.x_query, problem.count, 0.5, 0.1)
    run = solve(silent, method, 20, policy, MANUAL)
    assert not run.states.any()
    assert not run.predictions.any()


@pytest.mark.parametrize("method", SOLVERS)
def test_a_multiple_of_the_identity_is_solved_in_one_step_and_stays_solved(method: str) -> None:
    X = 100.0 * torch.arange(8, dtype=torch.float64)[:, None]
    y = torch.linspace(-1, 2, 8, dtype=torch.float64)
    run = solve(Problem(X, y, X[:2] + 0.3, torch.tensor(8), 0.5, 0.25), method, 5, "optimal")
    torch.testing.assert_close(run.states[1:], (y / 1.25).expand(5, 8), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("method", [m for m in SOLVERS if SOLVERS[m].operator == "plain"])
def test_a_ridge_that_outweighs_the_kernel_needs_one_step(method: str) -> None:
    problem = drawn(ridge=1e8)
    run = solve(problem, method, 1, "optimal")
    torch.testing.assert_close(run.states[1], problem.alpha_star, rtol=1e-6, atol=0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", STEPPED)
def test_every_stepped_method_is_linear_in_the_labels(method: str, policy: str) -> None:
    assert additivity_defect(method, policy) <= 1e-14


@pytest.mark.parametrize("method", CONJUGATE)
def test_conjugate_gradients_are_not_linear_in_the_labels(method: str) -> None:
    assert additivity_defect(method, "certified") > 0.05


def additivity_defect(method: str, policy: str) -> float:
    """‖F(y₁+y₂) − F(y₁) − F(y₂)‖/‖F(y₁+y₂)‖ of the predictions at step 4."""
    problem = drawn(())
    one = torch.from_numpy(np.random.default_rng(5).standard_normal(24))

    def answer(y: torch.Tensor) -> torch.Tensor:
        asked = Problem(problem.X, y, problem.x_query, problem.count, 0.5, 0.1)
        return solve(asked, method, 4, policy, MANUAL).predictions[4]

    both = answer(one + problem.y)
    return float((both - answer(one) - answer(problem.y)).norm() / both.norm())


# Conjugate gradients lose orthogonality, which makes much of a processor's rounding: up to 4.9e-10
# and 1.4e-11 were seen with other vector instructions.
ROUNDING = {"conjugate_gradient": 2e-9, "preconditioned_conjugate_gradient": 1e-10}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", SOLVERS)
def test_a_padded_prefix_runs_like_the_shorter_prompt(method: str, policy: str) -> None:
    problem = drawn()
    padded = solve(problem.prefixes([2, 9, 24]), method, 9, policy, MANUAL)
    for i, n in enumerate((2, 9, 24)):
        short = Problem(
            problem.X[:, :n], problem.y[:, :n], problem.x_query, torch.full((3,), n), 0.5, 0.1
        )
        alone = solve(short, method, 9, policy, MANUAL, n_max=24)
        gap = (padded.predictions[:, i] - alone.predictions).abs().max()
        most = ROUNDING.get(method, 1e-12)
        assert float(gap) <= most
        assert float((padded.states[:, i, :, :n] - alone.states).abs().max()) <= max(most, 1e-11)


@pytest.mark.parametrize("method", SOLVERS)
def test_a_problem_without_a_batch_runs_alike(method: str) -> None:
    batched, p = drawn(), 1
    alone = Problem(batched.X[p], batched.y[p], batched.x_query[p], batched.count[p], 0.5, 0.1)
    got, wanted = solve(alone, method, 5), solve(batched, method, 5)
    torch.testing.assert_close(got.predictions, wanted.predictions[:, p], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("method", SOLVERS)
def test_every_method_reaches_kernel_ridge_regression(method: str) -> None:
    problem = drawn(count=COUNTS, ridge=1.0)
    last = solve(problem, method, 500).predictions[-1]
    krr = KernelRidge(kernel="rbf", gamma=2, alpha=1)
    for p, n in enumerate(COUNTS):
        krr.fit(problem.X[p, :n].numpy(), problem.y[p, :n].numpy())
        assert relative(last[p], krr.predict(problem.x_query[p].numpy())) <= 1e-8


# -- the certified step ----------------------------------------------------------------------------


def residual_bound(method: str, kappa: float, t: int) -> float:
    """max |p_t| on [μ, L], κ = L/μ: what t steps may leave of the A-norm of the error."""
    root = np.sqrt(kappa)
    if method == "chebyshev":
        return 1 / np.cosh(t * np.arccosh((kappa + 1) / (kappa - 1)))
    if method == "heavy_ball":
        q = (root - 1) / (root + 1)
        return q**t * (1 + t + q * t)
    if method == "nesterov":
        c = 1 - 1 / root
        return c**t * (1 + t + c * t)
    return ((kappa - 1) / (kappa + 1)) ** t


@st.composite
def places(draw: st.DrawFn) -> np.ndarray:
    """2 to 16 points on a line, in crowds, apart, or repeated."""
    n = draw(st.integers(2, 16))
    centres = draw(st.lists(st.floats(-3, 3), min_size=1, max_size=n))
    which = draw(st.lists(st.sampled_from(centres), min_size=n, max_size=n))
    offset = draw(st.lists(st.sampled_from([0, 1e-6, 0.1]), min_size=n, max_size=n))
    return (np.array(which) + offset)[:, None]


@pytest.mark.parametrize("ridge_scale", SCALES)
@pytest.mark.parametrize("method", STEPPED)
@search(max_examples=25)
@given(places(), st.floats(-4, 1), st.integers(0, 16), st.integers(0, 99))
def test_the_certified_error_stays_below_its_bound(
    method: str, ridge_scale: str, x: np.ndarray, log_ridge: float, room: int, seed: int
) -> None:
    n, ridge, N = len(x), 10**log_ridge, len(x) + room
    y = np.random.default_rng(seed).standard_normal(n)
    X = torch.from_numpy(x)
    problem = Problem(X, torch.from_numpy(y), X, torch.tensor(n), 0.5, ridge, ridge_scale)
    run = solve(problem, method, 60, n_max=N)
    K = rbf_kernel(x, x, 2.0)
    A = K + ridge * (n if ridge_scale == "per_sample" else 1) * np.eye(n)
    limit = np.linalg.solve(A, K @ y if method == "function_space_richardson" else y)
    error = run.states.numpy() - limit
    size = np.sqrt(np.einsum("ti,ij,tj->t", error, A, error).clip(0))
    preconditioned = SOLVERS[method].operator == "preconditioned"
    kappa = {
        ("absolute", False): (N + ridge) / ridge,
        ("absolute", True): (1 + ridge) * N / ridge,
        ("per_sample", False): N * (1 + ridge) / ridge,
        ("per_sample", True): (1 + N * ridge) / ridge,
    }[ridge_scale, preconditioned]
    bound = np.array([residual_bound(method, kappa, t) for t in range(61)])
    assert (size <= size[0] * (bound + 1e-9)).all()


@pytest.mark.parametrize("method", [m for m in SOLVERS if SOLVERS[m].manual])
def test_a_manual_step_of_four_over_l_diverges_and_one_over_l_does_not(method: str) -> None:
    problem = drawn((1,))
    preconditioned = SOLVERS[method].operator == "preconditioned"
    _, largest = System(problem, 0, "optimal").interval(preconditioned, manual=True)
    safe, wild = (solve(problem, method, 40, "manual", c / largest).predictions for c in (1, 4))
    assert float((safe[-1] - problem.exact).norm()) < float(problem.exact.norm())
    assert float(wild[-1].norm()) > 1e6 * float(problem.exact.norm())


# -- conjugate gradients ---------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.1, 1e-4])
@pytest.mark.parametrize("method", CONJUGATE)
def test_the_a_norm_of_the_error_never_rises(method: str, ridge: float) -> None:
    problem = drawn(count=COUNTS, ridge=ridge)
    run = solve(problem, method, 4 * 24)
    for p, n in enumerate(COUNTS):
        A = System(problem, p).A
        error = run.states[:, p, :n].numpy() - np.linalg.solve(A, problem.y[p, :n].numpy())
        size = np.sqrt(np.einsum("ti,ij,tj->t", error, A, error).clip(0))
        floor = 1e-12 * size[0] * np.linalg.cond(A) ** 0.5
        assert (size[1:] <= size[:-1] + floor).all()


@pytest.mark.parametrize("ridge", [0.1, 1e-4])
@pytest.mark.parametrize("method", CONJUGATE)
def test_four_n_steps_of_conjugate_gradients_are_the_direct_solve(
    method: str, ridge: float
) -> None:
    problem = drawn(count=COUNTS, ridge=ridge)
    run = solve(problem, method, 4 * 24)
    for p, n in enumerate(COUNTS):
        wanted = np.linalg.solve(System(problem, p).A, problem.y[p, :n].numpy())
        assert relative(run.states[-1, p, :n], wanted) <= 1e-8


@pytest.mark.parametrize("method", CONJUGATE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_conjugate_gradients_hold_the_solution_once_there(method: str, dtype: torch.dtype) -> None:
    problem = drawn(count=(24, 2, 1)).to("cpu", dtype)
    run = solve(problem, method, 500)
    assert bool(run.states.isfinite().all())
    assert torch.equal(run.states[-1, 1:], run.states[-100, 1:])


# -- traps in comparing them -----------------------------------------------------------------------


def errors(run: Trajectory, problem: Problem) -> list[float]:
    """Mean relative error to the direct answer, step by step."""
    gap = (run.predictions - problem.exact).norm(dim=-1) / problem.exact.norm(dim=-1)
    return gap.mean(-1).tolist()


def test_dual_and_function_space_share_the_limit_but_not_the_path() -> None:
    problem = drawn((8,), n=40, ridge=0.5)
    dual, function = (
        solve(problem, m, 1000).predictions
        for m in ("preconditioned_richardson", "function_space_richardson")
    )
    apart = (dual - function).square().mean((-2, -1)).sqrt() / problem.exact.square().mean().sqrt()
    assert float(apart[1:9].max()) > 0.05
    assert float(apart[-1]) < 1e-8


def test_function_space_queries_far_from_all_data_stay_bounded() -> None:
    problem = drawn(())
    far = Problem(problem.X, problem.y, problem.x_query + 50, problem.count, 0.5, 0.1)
    run = solve(far, "function_space_richardson", 500)
    assert float(run.predictions.abs().max()) <= 1e-12


def test_row_sums_scarcely_change_the_condition_number() -> None:
    # The gain is one step that is safe for every prompt, not a smaller condition number.
    for p in range(3):
        system = System(drawn(n=40), p, "optimal")
        plain, preconditioned = (system.interval(side, manual=True) for side in (False, True))
        ratio = (plain[1] / plain[0]) / (preconditioned[1] / preconditioned[0])
        assert 0.6 < ratio < 1.1


def test_one_preconditioned_step_serves_prompts_that_a_tuned_plain_step_does_not() -> None:
    short, long = drawn((8,), n=32), drawn((8,), n=128)
    largest = (System(short, p, "optimal").interval(False, manual=True)[1] for p in range(8))
    tuned = 2 / (0.1 + max(largest))
    assert errors(solve(short, "gradient_descent", 10, "manual", tuned), short)[10] < 0.5
    assert errors(solve(long, "gradient_descent", 10, "manual", tuned), long)[10] > 100
    for problem in (short, long):
        run = solve(problem, "preconditioned_richardson", 10, "manual", 1.0)
        assert errors(run, problem)[10] < 0.5


def test_chebyshev_loses_early_and_wins_late() -> None:
    problem = drawn((16,), n=40)
    first, second = (
        errors(solve(problem, method, 128), problem)
        for method in ("preconditioned_richardson", "chebyshev")
    )
    assert first[8] < second[8]
    assert second[128] < 0.01 * first[128]


def test_the_ranking_turns_on_the_step_convention() -> None:
    problem = drawn((16,), n=40)

    def after(method: str, policy: str, step_size: float | None = None) -> float:
        return errors(solve(problem, method, 8, policy, step_size), problem)[8]

    by_n = after("gradient_descent", "manual", 1 / 40)
    assert after("gradient_descent", "one_over_l") < 1.5 * after(
        "preconditioned_richardson", "one_over_l"
    )
    assert by_n > 1.3 * after("gradient_descent", "one_over_l")


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("jacobi", 3), "method='jacobi' must be one of preconditioned_richardson, "),
        (("nesterov", -1), "steps=-1 must be 0 or more"),
        (("nesterov", 3, "best"), "policy='best' must be one of certified, one_over_l, optimal"),
        (("nesterov", 3, "manual"), "step_size=None must be a finite number above 0"),
        (("gradient_descent", 3, "manual", 0.0), "step_size=0.0 must be a finite number above 0"),
        (
            ("gradient_descent", 3, "manual", float("nan")),
            "step_size=nan must be a finite number above 0",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_name(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(drawn(), *arguments)


@pytest.mark.parametrize("method", [m for m in SOLVERS if not SOLVERS[m].manual])
def test_methods_without_a_step_size_need_none(method: str) -> None:
    problem = drawn()
    manual, certified = solve(problem, method, 5, "manual"), solve(problem, method, 5)
    assert torch.equal(manual.predictions, certified.predictions)
    assert SOLVERS[method].policy("manual") == (None if method in CONJUGATE else "certified")


@pytest.mark.parametrize("method", ["conjugate_gradient", "preconditioned_conjugate_gradient"])
def test_conjugate_gradients_never_leave_the_solution_again(method: str) -> None:
    # Thousands of steps on, the recurrences would be made of numbers below the smallest normal one.
    problem = sample(Settings(n=64, ridge=1.0)).prefixes([20, 40, 64])
    late = solve(problem, method, 2048).predictions[256:]
    assert float((late - problem.exact).abs().max()) < 1e-12
