"""Faults change what they say, where they say it, and nothing else."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from krrviz import Construction, Problem, Settings, Transformer, build, predict, run, sample
from krrviz.fan import fan
from krrviz.surgery import (
    MATRICES,
    Fault,
    Perturbed,
    Quantised,
    SwitchedOff,
    Ungated,
    Unmasked,
    broken,
    errors,
)

SMALL = Settings(data="gp", n=16, queries=6, prompts=3, steps=12, segments=64, ridge=0.5)
FAULTS: tuple[Fault, ...] = (
    SwitchedOff("block", 0),
    SwitchedOff("attention", 3),
    SwitchedOff("mlp", 3),
    Quantised("W_Q", 1, 8),
    Perturbed("W_1", 1, 0.1, 0),
    Ungated(),
    Unmasked(2),
)
each_layout = pytest.mark.parametrize("layout", ["paper", "fused"])


def model_of(settings: Settings) -> Transformer:
    return build(Construction.from_settings(settings))


def update(settings: Settings, step: int) -> list[int]:
    """The blocks of update ``step``, counted from 1."""
    per = 2 if settings.layout == "paper" else 1
    return list(range(1 + (step - 1) * per, 1 + step * per))


def richardson(problem: Problem, prompt: int, steps: int, n: int) -> np.ndarray:
    """Relative error to the direct solve by step, in NumPy."""
    X, y, queries = (v[prompt].numpy() for v in (problem.X, problem.y, problem.x_query))

    def kernel(a: np.ndarray) -> np.ndarray:
        return np.exp(-np.square(a[:, None] - X[None]).sum(-1) / (2 * problem.bandwidth**2))

    A, D = kernel(X) + problem.ridge * np.eye(len(X)), kernel(X).sum(1)
    step, alpha, found = 2 / (problem.ridge / n + 1 + problem.ridge), np.zeros(len(X)), []
    exact = kernel(queries) @ np.linalg.solve(A, y)
    for _ in range(steps + 1):
        found.append(np.linalg.norm(kernel(queries) @ alpha - exact) / np.linalg.norm(exact))
        alpha = alpha + step * (y - A @ alpha) / D
    return np.array(found)


def test_without_a_fault_the_errors_are_the_fans_and_richardsons() -> None:
    found = errors(SMALL)
    assert found.numpy() == pytest.approx(fan(SMALL).errors["transformer"][:, -1], rel=1e-9)
    problem = sample(SMALL)
    expected = np.mean([richardson(problem, p, SMALL.steps, SMALL.n) for p in range(3)], axis=0)
    assert found.numpy() == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@each_layout
def test_a_fault_leaves_the_model_as_it_was(layout: str, fault: Fault) -> None:
    settings = SMALL.but(layout=layout)
    model, problem = model_of(settings), sample(settings)
    weights, before = copy.deepcopy(model.state_dict()), predict(model, problem)
    changed = predict(broken(model, fault), problem)
    assert not torch.equal(changed.predictions, before.predictions)
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    assert broken(model, None) is model
    assert torch.equal(predict(model, problem).predictions, before.predictions)
    assert fault.sentence(model).endswith(".")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@each_layout
def test_a_broken_model_runs_as_its_own_dense_modules_say(layout: str, fault: Fault) -> None:
    settings = SMALL.but(layout=layout, steps=4)
    model, problem = broken(model_of(settings), fault), sample(settings)
    dense, fast = model(model.embed(problem)), run(model, problem).stream[-1]
    assert torch.allclose(dense, fast, rtol=1e-9, atol=1e-9 * float(dense.abs().max()))


def test_without_the_read_in_nothing_is_learnt() -> None:
    for part in ("block", "attention", "mlp"):
        assert errors(SMALL, SwitchedOff(part, 0)).tolist() == pytest.approx([1.0] * 13)


def test_without_the_read_out_there_is_no_answer() -> None:
    last = len(model_of(SMALL).blocks) - 1
    assert errors(SMALL, SwitchedOff("attention", last)).tolist() == pytest.approx([1.0] * 13)
    assert torch.equal(errors(SMALL, SwitchedOff("mlp", last)), errors(SMALL))


@each_layout
@pytest.mark.parametrize("step", [1, 7, 12])
def test_an_update_switched_off_is_one_step_fewer(layout: str, step: int) -> None:
    settings = SMALL.but(layout=layout)
    model, problem = model_of(settings), sample(settings)
    intact = predict(model, problem).predictions
    for block in update(settings, step):
        model = broken(model, SwitchedOff("block", block))
    short = predict(model, problem).predictions
    expected = torch.cat([intact[:step], intact[step - 1 : -1]])
    assert torch.allclose(short, expected, rtol=0, atol=1e-12)


def test_only_the_named_place_is_switched_off() -> None:
    model = model_of(SMALL)
    cut = broken(model, SwitchedOff("mlp", 3))
    same = [a is b for a, b in zip(model.blocks, cut.blocks, strict=True)]
    assert same == [index != 3 for index in range(len(same))]
    assert cut.blocks[3].attention is model.blocks[3].attention
    assert not cut.blocks[3].mlp.w_2.any()


@each_layout
def test_ungated_alpha_leaks_to_the_sink_and_the_read_out_explodes(layout: str) -> None:
    settings = SMALL.but(layout=layout)
    model, problem = model_of(settings), sample(settings)
    alpha = model.slots.index["alpha"]
    assert not run(model, problem).stream[-1][:, 0, alpha].any()
    leaking = broken(model, Ungated())
    assert run(leaking, problem).stream[-1][:, 0, alpha].abs().min() > 1e-6
    assert errors(settings, Ungated())[-1] > 1e6


def test_an_unmasked_query_adds_its_kernel_to_every_row_sum() -> None:
    model, problem = model_of(SMALL), sample(SMALL)
    u = model.slots.index["u"]
    found = run(broken(model, Unmasked(2)), problem).stream[1][:, 1:17, u]
    gap = problem.X - problem.x_query[:, 2:3]
    leak = (-gap.square().sum(-1) / (2 * problem.bandwidth**2)).exp()
    assert torch.allclose(1 / found, problem.degree + leak, rtol=1e-9)
    assert errors(SMALL, Unmasked(2))[-1] > errors(SMALL)[-1]


@pytest.mark.parametrize("matrix", MATRICES)
def test_finer_rounding_and_less_noise_do_less_harm(matrix: str) -> None:
    intact = errors(SMALL)

    def harm(fault: Fault) -> float:
        return float((errors(SMALL, fault) - intact).abs().amax())

    # Rounding to n bits moves an entry by at most 2⁻ⁿ of the largest; noise by its own size.
    rounding = [harm(Quantised(matrix, 1, bits)) for bits in (4, 16, 28, 40)]
    noise = [harm(Perturbed(matrix, 1, size, 0)) for size in (1e-2, 1e-5, 1e-8)]
    for harms in (rounding, noise):
        assert harms[-1] <= 1e-4
        assert all(b <= a * 1.01 + 1e-9 for a, b in itertools.pairwise(harms))
    assert harm(Perturbed(matrix, 1, 0.0, 0)) == 0


def test_rounding_keeps_as_many_values_as_the_bits_allow() -> None:
    model = broken(model_of(SMALL), Quantised("W_2", 1, 3))
    weight = model.blocks[1].mlp.w_2
    unit = weight.abs().max() / 3
    assert {round(float(v / unit)) for v in weight.flatten()} <= {-3, -2, -1, 0, 1, 2, 3}
    assert torch.allclose((weight / unit).round(), weight / unit)
    # Updates are one module in many places, and stay so.
    assert model.blocks[3] is model.blocks[1]
    assert model.blocks[2].mlp.w_2.unique().numel() > 1


def test_noise_follows_its_seed() -> None:
    model = model_of(SMALL)
    weights = [
        broken(model, Perturbed("W_K", 0, 0.1, seed)).blocks[0].attention.w_k for seed in (1, 1, 2)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(weights[0] == 0, model.blocks[0].attention.w_k == 0)


@pytest.mark.parametrize("steps", [12, 400])
def test_divergence_is_a_number_or_infinite_never_nan(steps: int) -> None:
    found = errors(SMALL.but(steps=steps), Perturbed("W_2", 2, 3.0, 1))
    assert not found.isnan().any()
    assert found[-1] > 10
    assert math.isfinite(float(found[0]))
