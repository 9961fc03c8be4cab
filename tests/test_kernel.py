"""What is done without the kernel matrix, against the matrix of scikit-learn and SciPy."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

import krrviz.kernel as kernel
import krrviz.problem as problem_module
import krrviz.tasks as tasks
from krrviz import Settings, sample, solve
from krrviz.kernel import partial_cholesky, tiled, times
from krrviz.solvers import SOLVERS
from krrviz.tasks import JITTER


def points(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).uniform(-1, 1, shape))


def test_leading_dimensions_are_columns_of_one_product() -> None:
    matrix, v = points(3, 5, 7), points(2, 4, 3, 7)
    expected = np.einsum("bmn,ijbn->ijbm", matrix.numpy(), v.numpy())
    np.testing.assert_allclose(times(matrix, v).numpy(), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(times(matrix, v[0, 0]).numpy(), expected[0, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_tiles_are_the_product(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, v = points(2, 30, 3), points(2, 40, 3), points(5, 2, 40)
    monkeypatch.setattr(kernel, "TILE_BYTES", 8 * 2 * 40 * rows)
    matrix = np.stack([rbf_kernel(x, z, 1 / (2 * 0.4**2)) for x, z in zip(a, b, strict=True)])
    expected = np.einsum("bmn,ibn->ibm", matrix, v.numpy())
    np.testing.assert_allclose(tiled(a, b, 0.4, v).numpy(), expected, rtol=0, atol=1e-13)


def test_a_partial_factor_leaves_no_more_than_rounding_or_its_rank() -> None:
    X = points(2, 120, 2)
    K = np.stack([rbf_kernel(x, gamma=1 / (2 * 0.5**2)) for x in X.numpy()])
    L = partial_cholesky(X, 0.5, 120)
    assert L.shape[-1] < 120  # K has no more digits
    np.testing.assert_allclose((L @ L.mT).numpy(), K, rtol=0, atol=1e-12)
    short = partial_cholesky(X, 0.5, 20).numpy()
    assert short.shape == (2, 120, 20)
    for k, low in zip(K, short, strict=True):
        # What is left is positive semidefinite and, as pivoting promises, near the best there is.
        left = scipy.linalg.eigvalsh(k - low @ low.T)
        assert left[0] > -1e-12
        assert left.sum() < 100 * scipy.linalg.eigvalsh(k)[:-20].sum()


@pytest.mark.parametrize("ridge_scale", ["absolute", "per_sample"])
def test_without_the_matrix_everything_is_the_same(
    ridge_scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        data="gp", n=150, prompts=2, queries=6, ridge=0.01, ridge_scale=ridge_scale, bandwidth=0.2
    )
    held, unheld = (sample(settings).prefixes([1, 40, 150]) for _ in range(2))
    expected = {method: solve(held, method, 12) for method in SOLVERS}
    with monkeypatch.context() as patched:
        patched.setattr(problem_module, "HELD_BYTES", 0)
        patched.setattr(kernel, "TILE_BYTES", 8 * 2 * 150 * 7)  # seven rows
        patched.setattr(problem_module, "RANK", 30)  # so that iterating is needed
        found = {method: solve(unheld, method, 12) for method in SOLVERS}
        exact, residual = unheld.exact, unheld.residual
        alone = sample(settings).exact
        assert "K" not in unheld.__dict__
        assert unheld.whole is not None
        assert "K" not in unheld.whole.__dict__
    for method, run in expected.items():
        # Conjugate gradients carry rounding on: 2e-13 was seen.
        loose = 1e-11 if "conjugate" in method else 1e-12
        size = float(run.predictions.abs().max())
        gap = (found[method].predictions - run.predictions).abs().max()
        assert float(gap) <= loose * size
    assert float(residual.max()) < 1e-12
    for i, n in enumerate((1, 40, 150)):
        for p in range(2):
            level = settings.ridge * (n if ridge_scale == "per_sample" else 1)
            krr = KernelRidge(kernel="rbf", gamma=12.5, alpha=np.float64(level))  # pyright: ignore
            krr.fit(held.X[i, p, :n].numpy(), held.y[i, p, :n].numpy())
            wanted = krr.predict(held.x_query[i, p].numpy())
            np.testing.assert_allclose(exact[i, p].numpy(), wanted, rtol=0, atol=1e-9)
    np.testing.assert_allclose(alone.numpy(), exact[-1].numpy(), rtol=0, atol=1e-10)


def test_iterations_that_do_not_suffice_are_told_and_never_leave_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(data="gp", n=200, prompts=2, ridge=1e-10, bandwidth=0.3)
    monkeypatch.setattr(problem_module, "HELD_BYTES", 0)
    monkeypatch.setattr(problem_module, "RANK", 8)
    left = []
    for iterations in (0, 1, 5, 20, 60):
        monkeypatch.setattr(problem_module, "ITERATIONS", iterations)
        problem = sample(settings)
        A = [rbf_kernel(x, gamma=1 / (2 * 0.3**2)) + 1e-10 * np.eye(200) for x in problem.X.numpy()]
        y, alpha = problem.y.numpy(), problem.alpha_star.numpy()
        image = np.einsum("bij,bj->bi", np.stack(A), alpha)
        gone = np.linalg.norm(y - image, axis=1) / np.linalg.norm(y, axis=1)
        np.testing.assert_allclose(problem.residual.numpy(), gone, rtol=1e-4, atol=1e-12)
        left.append(gone)
    assert (np.stack(left) <= 1 + 1e-12).all()
    assert (np.diff(left, axis=0) <= 1e-9).all()
    assert (left[-1] > 1e-10).all()


def test_a_long_draw_is_near_the_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data="gp", n=400, queries=20, prompts=2, noise=0.0, bandwidth=0.5)
    expected = sample(settings)
    monkeypatch.setattr(tasks, "HELD_BYTES", 0)
    found = sample(settings)
    np.testing.assert_allclose(found.y.numpy(), expected.y.numpy(), rtol=0, atol=2e-2)
    assert bool((found.X == expected.X).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whether_a_matrix_is_held_does_not_depend_on_the_precision(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = sample(Settings(data="gp", n=20, prompts=1))
    for limit, held in ((8 * 400, True), (8 * 400 - 1, False)):
        monkeypatch.setattr(problem_module, "HELD_BYTES", limit)
        assert problem.held is held
        assert problem.to("cpu", dtype).held is held


def test_a_long_draw_has_the_kernel_as_its_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    X = points(90, 2)
    monkeypatch.setattr(tasks, "BLOCK", 32)
    # Of a unit vector in the normal numbers' place a draw is a column of its factor.
    columns = [tasks._long_draw(unit, X, 0.5) for unit in torch.eye(90, dtype=torch.float64)]
    L = torch.stack(columns, 1).numpy()
    expected = rbf_kernel(X.numpy(), gamma=2.0) + JITTER * np.eye(90)
    np.testing.assert_allclose(L @ L.T, expected, rtol=0, atol=1e-7)
    assert np.abs(np.triu(L, 1)).max() == 0  # a longer context only adds tokens


def test_a_prefix_of_other_inputs_is_refused() -> None:
    cut = sample(Settings(data="gp", n=8, prompts=2)).prefixes([2, 8])
    with pytest.raises(ValueError, match="whole has other inputs"):
        replace(cut, X=cut.X + 1)
    for other in ({"bandwidth": 2.0}, {"ridge": 5.0}, {"ridge_scale": "per_sample"}):
        with pytest.raises(ValueError, match="whole has other inputs, another bandwidth or ridge"):
            replace(cut, **other)
