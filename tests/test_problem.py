"""Problem against scikit-learn's kernel and its two ridge solvers, and against 50 digits."""

from typing import Any

import jaxtyping
import mpmath
import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

from krrviz import Problem, Settings, sample

SCALES = ("absolute", "per_sample")


def drawn(
    batch: tuple[int, ...] = (),
    n: int = 12,
    d: int = 2,
    count: list[int] | int | None = None,
    bandwidth: float = 0.5,
    ridge: float = 0.1,
    ridge_scale: str = "absolute",
) -> Problem:
    """Prompts with five queries each, uniform on [−1, 1]ᵈ, labels normal."""
    generator = torch.Generator().manual_seed(1)
    return Problem(
        X=2 * torch.rand(*batch, n, d, generator=generator, dtype=torch.float64) - 1,
        y=torch.randn(*batch, n, generator=generator, dtype=torch.float64),
        x_query=2 * torch.rand(*batch, 5, d, generator=generator, dtype=torch.float64) - 1,
        count=torch.tensor(count) if count is not None else torch.full(batch, n),
        bandwidth=bandwidth,
        ridge=ridge,
        ridge_scale=ridge_scale,
        labels=torch.randn(*batch, 5, generator=generator, dtype=torch.float64),
    )


def unpadded(problem: Problem, prompt: int) -> Problem:
    """One prompt by itself, without the slots that it leaves unused."""
    n = int(problem.count[prompt])
    return Problem(
        problem.X[prompt, :n],
        problem.y[prompt, :n],
        problem.x_query[prompt],
        problem.count[prompt],
        problem.bandwidth,
        problem.ridge,
        problem.ridge_scale,
    )


def krr(x: torch.Tensor, y: torch.Tensor, alpha: Any, bandwidth: float = 0.5) -> KernelRidge:
    """scikit-learn's answer."""
    gamma = 1 / (2 * bandwidth**2)
    return KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha).fit(x.numpy(), y.numpy())


def largest_gap(got: torch.Tensor, wanted: np.ndarray) -> float:
    return float(np.abs(got.numpy() - wanted).max())


# -- the kernel -------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("bandwidth", [0.05, 0.5, 30.0])
def test_kernel_matrices_are_scikit_learns(d: int, bandwidth: float) -> None:
    problem = drawn((3,), d=d, bandwidth=bandwidth)
    for p in range(3):
        x, x_query = problem.X[p].numpy(), problem.x_query[p].numpy()
        gamma = 1 / (2 * bandwidth**2)
        # scikit-learn takes distances from dot products: ‖x‖²/σ² units in the last place.
        rounding = 1e-15 * (1 + d / bandwidth**2)
        assert largest_gap(problem.K[p], rbf_kernel(x, x, gamma)) <= rounding
        assert largest_gap(problem.k_query[p], rbf_kernel(x_query, x, gamma)) <= rounding


def test_kernel_does_not_cancel_far_from_the_origin() -> None:
    far = torch.tensor([[1e6 + 0.25], [1e6 + 0.5], [1e6 + 1.25]], dtype=torch.float64)
    problem = Problem(far, far[:, 0], far, torch.tensor(3), 0.5, 0.1)
    wanted = [float(mpmath.exp(-2 * mpmath.mpf(gap) ** 2)) for gap in (0.25, 0.75, 1.0)]
    got = [float(problem.K[i, j]) for i, j in ((0, 1), (1, 2), (0, 2))]
    assert got == pytest.approx(wanted, rel=1e-15)


def test_degree_is_the_row_sum_and_at_least_one() -> None:
    problem = drawn((3,), count=[12, 5, 1])
    for p, n in enumerate((12, 5, 1)):
        x = problem.X[p, :n].numpy()
        assert largest_gap(problem.degree[p, :n], rbf_kernel(x, x, 2.0).sum(1)) < 1e-13
    assert float(problem.degree.min()) >= 1


# -- padding ----------------------------------------------------------------------------------


def test_unused_slots_hold_no_label_identity_rows_and_no_query_kernel() -> None:
    problem = drawn((2,), count=[7, 12])
    assert problem.used.sum(-1).tolist() == [7, 12]
    assert problem.y[0, 7:].abs().max() == 0
    assert torch.equal(problem.K[0, 7:], torch.eye(12, dtype=torch.float64)[7:])
    assert torch.equal(problem.K[0, :, 7:], torch.eye(12, dtype=torch.float64)[:, 7:])
    assert problem.k_query[0, :, 7:].abs().max() == 0
    assert problem.alpha_star[0, 7:].abs().max() == 0


@pytest.mark.parametrize("ridge_scale", SCALES)
def test_a_padded_prompt_is_the_smaller_problem(ridge_scale: str) -> None:
    padded = drawn((4,), count=[12, 7, 2, 1], ridge_scale=ridge_scale)
    for p in range(4):
        small, n = unpadded(padded, p), int(padded.count[p])
        assert torch.equal(padded.K[p, :n, :n], small.K)
        assert torch.equal(padded.k_query[p, :, :n], small.k_query)
        assert torch.equal(padded.r[p], small.r)
        torch.testing.assert_close(padded.degree[p, :n], small.degree, rtol=1e-14, atol=0)
        torch.testing.assert_close(padded.alpha_star[p, :n], small.alpha_star, rtol=0, atol=1e-13)
        torch.testing.assert_close(padded.exact[p], small.exact, rtol=0, atol=1e-13)


def test_what_stands_in_an_unused_slot_does_not_matter() -> None:
    problem = drawn(count=7)
    other = Problem(
        problem.X.clone().index_fill_(0, torch.arange(7, 12), 1e3),
        problem.y + 5 * (~problem.used),
        problem.x_query,
        problem.count,
        problem.bandwidth,
        problem.ridge,
    )
    assert torch.equal(other.exact, problem.exact)
    assert torch.equal(other.residual, problem.residual)


# -- the exact answer ---------------------------------------------------------------------------


@pytest.mark.parametrize("ridge_scale", SCALES)
@pytest.mark.parametrize(
    ("data", "n"), [("motorcycle", 64), ("co2", 64), ("co2", 400), ("diabetes", 64)]
)
def test_exact_answers_on_real_data_are_scikit_learns(data: str, n: int, ridge_scale: str) -> None:
    settings = Settings(
        data=data, n=n, prompts=3, ridge_scale=ridge_scale, methods=("gradient_descent",)
    )
    problem = sample(settings)
    alpha = settings.ridge * (n if ridge_scale == "per_sample" else 1)
    kernel = RBF(settings.bandwidth, length_scale_bounds="fixed")
    for p in range(settings.prompts):
        x, y, x_query = problem.X[p], problem.y[p], problem.x_query[p].numpy()
        ridge = krr(x, y, alpha, settings.bandwidth)
        gp = GaussianProcessRegressor(kernel, alpha=alpha).fit(x.numpy(), y.numpy())
        assert largest_gap(problem.exact[p], ridge.predict(x_query)) <= 1e-9
        assert largest_gap(problem.exact[p], np.asarray(gp.predict(x_query))) <= 1e-9
    assert float(problem.residual.max()) <= 1e-12


@pytest.mark.parametrize("ridge_scale", SCALES)
def test_exact_answers_of_prefixes_are_scikit_learns(ridge_scale: str) -> None:
    problem = drawn((3,), count=[12, 7, 1], ridge_scale=ridge_scale)
    for p, n in enumerate((12, 7, 1)):
        alpha = 0.1 * n if ridge_scale == "per_sample" else 0.1
        wanted = krr(problem.X[p, :n], problem.y[p, :n], alpha)
        assert largest_gap(problem.exact[p], wanted.predict(problem.x_query[p].numpy())) <= 1e-12
        assert largest_gap(problem.alpha_star[p, :n], wanted.dual_coef_) <= 1e-12


def in_fifty_digits(problem: Problem) -> tuple[np.ndarray, np.ndarray, float]:
    """α*, the answers, and the condition number of A, with K's entries taken from X itself."""
    with mpmath.workdps(50):
        X, x_query = problem.X.tolist(), problem.x_query.tolist()

        def kernel(a: list[float], b: list[float]) -> Any:
            square = sum((mpmath.mpf(s) - mpmath.mpf(t)) ** 2 for s, t in zip(a, b, strict=True))
            return mpmath.exp(-square / (2 * mpmath.mpf(problem.bandwidth) ** 2))

        K = mpmath.matrix([[kernel(a, b) for b in X] for a in X])
        A = K + mpmath.mpf(problem.ridge) * mpmath.eye(len(X))
        alpha = mpmath.lu_solve(A, mpmath.matrix(problem.y.tolist()))
        answers = mpmath.matrix([[kernel(q, a) for a in X] for q in x_query]) * alpha
        spread = mpmath.eigsy(A, eigvals_only=True)
        return (
            np.array(alpha.apply(float).tolist(), float)[:, 0],
            np.array(answers.apply(float).tolist(), float)[:, 0],
            float(max(spread) / min(spread)),
        )


@pytest.mark.parametrize("ridge", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("bandwidth", [0.5, 3.0])
def test_ill_conditioned_answers_lose_no_more_than_the_condition_number(
    ridge: float, bandwidth: float
) -> None:
    problem = drawn(n=7, d=1, ridge=ridge, bandwidth=bandwidth)
    alpha, answers, condition = in_fifty_digits(problem)
    loss = 1e-15 * condition
    assert largest_gap(problem.alpha_star, alpha) <= loss * np.linalg.norm(alpha)
    assert largest_gap(problem.exact, answers) <= loss * np.linalg.norm(alpha)
    assert float(problem.residual) <= 1e-15 * np.linalg.norm(alpha)


def repeated(ridge: float) -> Problem:
    """Five places, four labels that disagree at each of them."""
    start = drawn(n=5)
    X = start.X.repeat_interleave(4, 0)
    y = torch.linspace(-1, 1, 20, dtype=torch.float64)
    return Problem(X, y, start.x_query, torch.tensor(20), 0.5, ridge)


@pytest.mark.parametrize("ridge", [1e-3, 1e-6])
def test_repeated_rows_are_answered_as_their_mean_with_a_quarter_of_the_ridge(
    ridge: float,
) -> None:
    problem = repeated(ridge)
    wanted = krr(problem.X[::4], problem.y.reshape(5, 4).mean(1), ridge / 4)
    assert largest_gap(problem.exact, wanted.predict(problem.x_query.numpy())) <= 1e-14 / ridge


@pytest.mark.parametrize("ridge", [1e-12, 1e-15, 1e-18])
def test_repeated_rows_under_a_tiny_ridge_are_solved_or_reported(ridge: float) -> None:
    problem = repeated(ridge)
    alpha = problem.alpha_star.numpy()
    K = rbf_kernel(problem.X.numpy(), problem.X.numpy(), 2.0)
    error = float(np.linalg.norm(problem.y.numpy() - K @ alpha - ridge * alpha))
    size, length = float(problem.y.norm()), float(problem.alpha_star.norm())
    assert np.isfinite(problem.exact.numpy()).all()
    assert length <= 1.01 * size / ridge
    # Kα is a sum of numbers as large as ‖α‖: neither side knows it better than that.
    assert float(problem.residual) == pytest.approx(error / size, abs=1e-14 * length / size)


@pytest.mark.parametrize("ridge", [1e-3, 1e-18])
def test_a_label_never_pulls_its_own_coefficient_below_zero(ridge: float) -> None:
    # α_i = (A⁻¹)_ii for the labels e_i, and A is positive definite, whatever rounding makes of it.
    start = repeated(ridge)
    labels = torch.eye(20, dtype=torch.float64)
    X, x_query = start.X.expand(20, 20, 2), start.x_query.expand(20, 5, 2)
    problem = Problem(X, labels, x_query, torch.full((20,), 20), 0.5, ridge)
    assert float(problem.alpha_star.diagonal().min()) > 0


def test_residual_is_zero_where_all_labels_are() -> None:
    problem = drawn((2,))
    silent = Problem(problem.X, 0 * problem.y, problem.x_query, problem.count, 0.5, 0.1)
    assert silent.residual.tolist() == [0, 0]
    assert silent.exact.abs().max() == 0


@pytest.mark.parametrize("ridge_scale", SCALES)
def test_apply_and_predict_are_products_with_scikit_learns_kernel(ridge_scale: str) -> None:
    problem = drawn((2,), ridge=0.3, ridge_scale=ridge_scale)
    alpha = torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(2, 12)
    r = 0.3 * (12 if ridge_scale == "per_sample" else 1)
    for p in range(2):
        x, x_query, a = (t[p].numpy() for t in (problem.X, problem.x_query, alpha))
        assert largest_gap(problem.apply(alpha)[p], rbf_kernel(x, x, 2.0) @ a + r * a) < 1e-13
        assert largest_gap(problem.predict(alpha)[p], rbf_kernel(x_query, x, 2.0) @ a) < 1e-13


# -- what is refused ----------------------------------------------------------------------------

X, Y, Q = torch.zeros(2, 4, 3).double(), torch.zeros(2, 4).double(), torch.zeros(2, 5, 3).double()
COUNT = torch.tensor([4, 2])
INF = torch.full((2, 4), torch.inf).double()
BAD = {
    "y too short": ({"y": Y[:, :3]}, r"y has shape \(2, 3\).*expected \(2, 4\)"),
    "y of another batch": ({"y": Y[:1]}, r"y has shape \(1, 4\).*expected \(2, 4\)"),
    "queries of another d": ({"x_query": Q[..., :2]}, r"x_query has shape .*expected \(2, 5, 3\)"),
    "counts of another batch": ({"count": COUNT[:1]}, r"count has shape \(1,\).*expected \(2,\)"),
    "infinite label": ({"y": INF}, "y holds values that are not finite"),
    "NaN input": ({"X": X * torch.nan}, "X holds values that are not finite"),
    "NaN query": ({"x_query": Q * torch.nan}, "x_query holds values that are not finite"),
    "no count": ({"count": torch.tensor([4, 0])}, "count must be 1 to 4"),
    "count beyond N": ({"count": torch.tensor([5, 2])}, "count must be 1 to 4"),
    "bandwidth 0": ({"bandwidth": 0.0}, "bandwidth=0.0 must be a finite number above 0"),
    "bandwidth NaN": ({"bandwidth": np.nan}, "bandwidth=nan must be a finite number above 0"),
    "ridge 0": ({"ridge": 0.0}, "ridge=0.0 must be a finite number above 0"),
    "ridge negative": ({"ridge": -0.1}, "ridge=-0.1 must be a finite number above 0"),
    "ridge infinite": ({"ridge": np.inf}, "ridge=inf must be a finite number above 0"),
    "ridge scale": ({"ridge_scale": "n"}, "ridge_scale='n' must be one of absolute, per_sample"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_a_bad_problem_is_refused_by_name(
    change: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As it runs outside the tests, where nobody checks shapes on the way in.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    good = {"X": X, "y": Y, "x_query": Q, "count": COUNT, "bandwidth": 0.5, "ridge": 0.1}
    Problem(**good)
    with pytest.raises(ValueError, match=message):
        Problem(**good | change)


# -- copies -------------------------------------------------------------------------------------


def test_to_gives_the_problem_itself_where_nothing_changes() -> None:
    problem = drawn((2,))
    assert problem.to("cpu", torch.float64) is problem
    assert problem.to(torch.device("cpu"), torch.float64) is problem


def test_to_float32_rounds_the_numbers_and_keeps_the_rest() -> None:
    problem = drawn((2,), count=[12, 7], ridge_scale="per_sample")
    copy = problem.to("cpu", torch.float32)
    assert torch.equal(copy.X, problem.X.float())
    assert torch.equal(copy.count, problem.count)
    assert copy.count.dtype == problem.count.dtype
    assert copy.labels is not None
    assert {t.dtype for t in (copy.K, copy.r, copy.exact, copy.labels)} == {torch.float32}
    assert copy.noiseless is None
    torch.testing.assert_close(copy.exact.double(), problem.exact, rtol=0, atol=1e-5)


def test_prefixes_cut_every_prompt_to_each_count() -> None:
    problem = drawn((2,), count=[12, 4])
    cut = problem.prefixes([3, 9])
    assert cut.count.tolist() == [[3, 3], [9, 4]]
    for i, p in np.ndindex(2, 2):
        n = int(cut.count[i, p])
        wanted = krr(problem.X[p, :n], problem.y[p, :n], 0.1)
        assert largest_gap(cut.exact[i, p], wanted.predict(problem.x_query[p].numpy())) < 1e-12
    assert cut.labels is not None
    assert problem.labels is not None
    assert torch.equal(cut.labels[1], problem.labels)


def test_pick_takes_prompts_by_index() -> None:
    problem = drawn((3,), count=[12, 4, 2])
    picked = problem.prefixes([2, 12]).pick((torch.tensor([1, 0, 1]), torch.tensor([2, 1, 0])))
    assert picked.count.tolist() == [2, 2, 12]
    assert torch.equal(picked.X, problem.X[[2, 1, 0]])
    assert picked.labels is not None
    assert problem.labels is not None
    assert torch.equal(picked.labels, problem.labels[[2, 1, 0]])
    torch.testing.assert_close(picked.exact[2], problem.exact[0], rtol=0, atol=1e-13)
