"""In the eigenbasis every solver takes the steps that it takes on the matrices."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from krrviz.problem import Problem
from krrviz.solvers import SOLVERS, solve, tuned
from krrviz.trained.match import variants
from krrviz.trained.modes import linear_map, modes, solver
from krrviz.trained.prompts import KernelProblem, Task, draw
from krrviz.trajectory import record

N, STEPS, STEP_SIZE = 6, 12, 0.2
CASES = [v for scale in ("absolute", "per_sample") for v in variants(scale)]
IDS = [f"{v.method}-{v.policy}-{v.ridge_scale}" for v in CASES]


def problem(ridge_scale: str = "absolute", kernel: str = "gaussian", n: int = N) -> Problem:
    task = Task(n=N, kernel=kernel, bandwidth=(0.7, 0.7), ridge=(0.2, 0.2))
    return draw(task, 3, torch.Generator().manual_seed(4)).problem(n, ridge_scale=ridge_scale)


def relabelled(given: Problem, y: Tensor) -> Problem:
    """One prompt of a problem with other labels; its eigenvalues are not worked out anew."""
    made = object.__new__(KernelProblem)
    made.__dict__.update(given.__dict__)
    object.__setattr__(made, "y", y)
    return made


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "matern32"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_method_takes_the_same_steps_on_modes_and_on_matrices(case, kernel: str) -> None:
    whole = problem(case.ridge_scale, kernel)
    run = solver([whole], case.method, case.policy, STEP_SIZE, 2 * N)
    held = modes([whole], SOLVERS[case.method].operator)
    steps = 6 if "conjugate" in case.method else 128
    found = record("", run, held, steps).predictions
    expected = solve(whole, case.method, steps, case.policy, STEP_SIZE, 2 * N).predictions
    assert float((found - expected).abs().max()) <= 1e-10 * float(expected.abs().max())
    if steps == 6:
        late = record("", run, held, 2 * N)
        torch.testing.assert_close(late.predictions[-1], whole.exact, rtol=0, atol=1e-10)
        # eᵀAe of the error e = β − β*, which never rises
        gap = late.states - held.y / held.values
        energy = (held.values * gap.square()).sum(-1)
        assert bool((energy[1:] <= energy[:-1] * (1 + 1e-9) + 1e-20).all())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_linear_map_is_the_derivative_of_every_step(case) -> None:
    whole = problem(case.ridge_scale)
    run = solver([whole], case.method, case.policy, STEP_SIZE, 2 * N)
    steps = 4 if "conjugate" in case.method else STEPS
    found = linear_map(modes([whole], SOLVERS[case.method].operator), case.method, run, steps)

    matrices = SOLVERS[case.method].bind(*tuned(whole, case.method, case.policy, STEP_SIZE, 2 * N))

    def answered(y: Tensor) -> Tensor:
        made = record("", matrices, relabelled(whole, y), steps)
        return made.predictions[..., 0].sum(1)  # prompts do not mix

    # The solver's own recurrence on the matrices, through PyTorch's reverse mode.
    y = whole.y.clone().requires_grad_()
    slopes = [torch.autograd.grad(f, y, retain_graph=True, allow_unused=True)[0]
              for f in list(answered(y))]  # fmt: skip
    for t, slope in enumerate(slopes):
        expected = torch.zeros_like(y) if slope is None else slope
        torch.testing.assert_close(found[t], expected, rtol=0, atol=1e-10)
    # Central differences of solve: exact for what is linear in y.
    width = 1e-5 if "conjugate" in case.method else 1.0
    for j in range(N):
        ends = []
        for sign in (1, -1):
            moved = whole.y.clone()
            moved[:, j] += sign * width
            ends.append(
                solve(
                    relabelled(whole, moved), case.method, steps, case.policy, STEP_SIZE, 2 * N
                ).predictions[..., 0]
            )
        difference = (ends[0] - ends[1]) / (2 * width)
        atol = 1e-7 if "conjugate" in case.method else 1e-10
        torch.testing.assert_close(found[..., j], difference, rtol=0, atol=atol)
    if "conjugate" not in case.method:
        path = solve(whole, case.method, steps, case.policy, STEP_SIZE, 2 * N).predictions
        torch.testing.assert_close((found * whole.y).sum(-1), path[..., 0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["conjugate_gradient", "preconditioned_conjugate_gradient"])
def test_the_map_of_conjugate_gradients_ends_as_the_exact_answers(method: str) -> None:
    whole = problem()
    run = solver([whole], method, "certified", STEP_SIZE, N)
    found = linear_map(modes([whole], SOLVERS[method].operator), method, run, 128)
    expected = np.linalg.solve(whole.A.numpy(), whole.k_query.numpy()[:, 0, :, None])[..., 0]
    for t in (2 * N, 128):
        np.testing.assert_allclose(found[t].numpy(), expected, atol=1e-9)


def test_a_prompt_of_one_point_has_one_mode() -> None:
    whole = problem(n=1)
    held = modes([whole], "preconditioned")  # D = K = 1, so x = 1 + λ
    assert held.values.flatten().tolist() == pytest.approx([1.2] * 3, rel=1e-14)
    run = solver([whole], "preconditioned_richardson", "manual", 1 / 1.2, N)
    exact = whole.k_query[:, 0] * whole.y / 1.2
    torch.testing.assert_close(record("", run, held, 1).predictions[1], exact)


def test_a_step_that_is_too_long_grows_as_its_largest_mode_says() -> None:
    whole = problem()
    found = record(
        "", solver([whole], "gradient_descent", "manual", 1.0, N), modes([whole], "plain"), 128
    )
    largest = np.linalg.eigvalsh(whole.A.numpy()).max(-1)
    grown = (found.states[-1] / found.states[-2]).abs().amax(-1)
    assert grown.numpy() == pytest.approx(largest - 1, rel=1e-6)
    assert math.isfinite(float(found.predictions.abs().max()))
