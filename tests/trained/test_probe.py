"""Probes are scikit-learn's ridge regressions, streams are the model's, derivatives are slopes."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from torch import nn

from krrviz.settings import SettingsError
from krrviz.trained import probe as probing
from krrviz.trained.gpt import GPT, LAYOUTS, Shape, shape_card
from krrviz.trained.probe import (
    LEAST,
    PENALTY,
    READOUTS,
    TARGETS,
    Probed,
    ProbeError,
    enough,
    explained,
    fitted,
    fixed_task,
    lens,
    operators,
    probe,
    read,
    stream,
    targets,
    untrained,
)
from krrviz.trained.prompts import Prompts, Task, coefficients, draw
from krrviz.trained.train import Recipe, Training, batch_of

N, LAYERS, WIDTH = 8, 2, 16
TASK = Task(n=N)
ENOUGH = math.ceil(LEAST * (WIDTH + 1) / N)


def model(layout: str = "interleaved", attention: str = "softmax") -> GPT:
    """Weights large enough that every layer matters, in float64."""
    shape = Shape(n=N, layers=LAYERS, width=WIDTH, heads=2, layout=layout, attention=attention)
    torch.manual_seed(1)
    made = GPT(shape).double()
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.4)
    return made.eval()


def asked(batch: int = 5, seed: int = 3, task: Task = TASK) -> Prompts:
    return draw(task, batch, torch.Generator().manual_seed(seed))


# -- fits ----------------------------------------------------------------------------------------


def test_probes_are_scikit_learns_ridge_regressions() -> None:
    rng = np.random.default_rng(0)
    H, wanted = rng.normal(size=(3, 20, 4, 5)), rng.normal(size=(20, 4, 2))
    H[..., -1] = 1
    found = fitted(torch.tensor(H), torch.tensor(wanted))
    for layer in range(3):
        flat, goal = H[layer].reshape(80, 5), wanted.reshape(80, 2)
        penalty = PENALTY * (flat**2).sum() / 5  # of the features' mean square, times samples
        ridge = Ridge(alpha=penalty, fit_intercept=False, solver="svd").fit(flat, goal)
        np.testing.assert_allclose(found[layer], ridge.coef_.T, rtol=1e-10)
        extended = np.vstack([flat, np.sqrt(penalty) * np.eye(5)])
        least, *_ = np.linalg.lstsq(extended, np.vstack([goal, np.zeros((5, 2))]), rcond=None)
        np.testing.assert_allclose(found[layer], least, rtol=1e-10)
        np.testing.assert_allclose(
            read(torch.tensor(H), found[..., 0])[layer], H[layer] @ least[:, 0], rtol=1e-9
        )


def test_the_share_explained_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    target = rng.normal(size=(4, 6))
    found = np.stack([target, target + 0.3 * rng.normal(size=(4, 6)), -target])
    r2 = explained(torch.tensor(found), torch.tensor(target))
    expected = [r2_score(target.ravel(), layer.ravel()) for layer in found]
    np.testing.assert_allclose(r2, expected, rtol=1e-12)
    # Mean 2 and variance 1; squared errors 0, 4: 1 − 2/1.
    by_hand = explained(torch.tensor([[[1.0, 1.0]]]), torch.tensor([[1.0, 3.0]]))
    assert by_hand.tolist() == [-1.0]


def test_what_stands_in_one_layer_alone_is_found_there() -> None:
    """A target that is a line through one layer's features has R² ≈ 1 at that layer alone."""
    net, prompts = untrained(Shape(n=N, layers=3, width=WIDTH, heads=2)).double(), asked(60)
    with torch.no_grad():
        features = net.norm(stream(net, prompts)[0][..., 1:, :])
    features = torch.cat([features, torch.ones_like(features[..., :1])], -1)
    # What layer 3 holds and no line through the layers before it reads.
    direction = torch.linspace(-1, 1, WIDTH + 1, dtype=torch.float64)
    target = features[3] @ direction
    probes = fitted(features[:, :30], target[:30, :, None])[..., 0]
    r2 = explained(read(features[:, 30:], probes), target[30:])
    assert float(r2[3]) > 0.9999
    assert float(r2[:3].max()) < 0.99


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streams_are_the_models_own_and_the_last_is_what_it_answers(layout: str) -> None:
    net, prompts = model(layout), asked()
    with torch.no_grad():
        answering, reading = stream(net, prompts)
        assert answering.shape == (LAYERS + 1, 5, N + 1, WIDTH)
        assert reading.shape == (LAYERS + 1, 5, N, WIDTH)
        X, y = prompts.X, prompts.y
        for n in range(N + 1):
            # The model is given the first n points and nothing else.
            if n or layout == "interleaved":
                own = net(X[:, :n], y[:, :n], X[:, n : n + 1])[:, -1]
                torch.testing.assert_close(net.answer(answering[-1, :, n]), own)
                torch.testing.assert_close(lens(net, prompts)[-1, :, n], own)
        kept = net.stream(X[:, :-1], y[:, :-1], X[:, -1:])
        for layer, h in enumerate(kept):
            labels = h[:, 1:-1:2] if layout == "interleaved" else h[:, :-1]
            torch.testing.assert_close(reading[layer], labels)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_answer_knows_of_later_labels(layout: str) -> None:
    net, prompts = model(layout), asked()
    before = lens(net, prompts)
    for n in (0, 3, N):
        y = prompts.y.clone()
        y[:, n:] += 1
        after = lens(net, replace(prompts, y=y))
        torch.testing.assert_close(after[..., : n + 1], before[..., : n + 1])
        if n < N:
            assert float((after - before)[1:, :, n + 1 :].abs().min()) > 0


# -- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_targets_are_numpys(layout: str) -> None:
    prompts = asked(3, task=Task(n=N, bandwidth=(0.4, 0.9), ridge=(0.05, 0.3)))
    found = targets(prompts, layout)
    assert found.keys() == TARGETS.keys()
    for p in range(3):
        X, y = prompts.X[p].numpy(), prompts.y[p].numpy()
        s, r = float(prompts.bandwidth[p]), float(prompts.ridge[p])
        K = np.exp(-((X[:, None] - X) ** 2).sum(-1) / (2 * s**2))
        for n in range(1, N + 1):
            alpha = np.linalg.solve(K[:n, :n] + r * np.eye(n), y[:n])
            assert float(found["labels"][p, n - 1]) == y[n]
            assert float(found["krr"][p, n - 1]) == pytest.approx(K[n, :n] @ alpha, abs=1e-10)
            assert float(coefficients(prompts)[p, n - 1]) == pytest.approx(alpha[-1], abs=1e-9)
            if layout == "interleaved":
                assert float(found["alpha"][p, n - 1]) == pytest.approx(alpha[-1], abs=1e-9)
                own = K[n - 1, :n].sum()
            else:
                whole = np.linalg.solve(K[:N, :N] + r * np.eye(N), y[:N])
                assert float(found["alpha"][p, n - 1]) == pytest.approx(whole[n - 1], abs=1e-9)
                own = K[n - 1, :N].sum()
            assert float(found["degree"][p, n - 1]) == pytest.approx(1 / own, rel=1e-12)


# -- derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operators_are_central_differences(layout: str) -> None:
    net, prompts = model(layout), asked()
    own = torch.cat([net.head.weight[0], net.head.bias]).detach().expand(LAYERS + 1, -1)
    other = torch.randn(own.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = operators(net, prompts, {"lens": own, "other": other})
    at, h = 0, 1e-6
    for n in (2, 4, 8):
        for j in range(n):
            ends = []
            for sign in (1, -1):
                y = prompts.y.clone()
                y[:, j] += sign * h
                moved = replace(prompts, y=y)
                with torch.no_grad():
                    normed = net.norm(stream(net, moved)[0][:, :, n])
                    line = (normed * other[:, None, :-1]).sum(-1) + other[:, None, -1]
                ends.append((lens(net, moved)[..., n], line))
            for name, up, down in zip(("lens", "other"), *ends, strict=True):
                slope = (up - down) / (2 * h)
                torch.testing.assert_close(found[name][..., at + j], slope, rtol=0, atol=1e-7)
        at += n
    assert found["lens"].shape == (LAYERS + 1, 5, at)
    assert float(found["lens"][0].abs().max()) == 0  # nothing has been read yet
    assert float(found["lens"][1:].abs().max()) > 1e-3


def test_only_the_first_few_prompts_get_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "FEW", 2)
    found = probe(model(), TASK, ENOUGH)
    assert found.operators["lens"].shape == (LAYERS + 1, 2, 2 + 4 + 8)
    assert torch.equal(found.few.y, found.prompts.y[:2])
    whole, one, two = found.split
    torch.testing.assert_close(whole.y, one.y + two.y)
    torch.testing.assert_close(whole.X, found.prompts.X[:2])


# -- all of it, and its controls -----------------------------------------------------------------


@pytest.fixture(scope="module")
def learned() -> Probed:
    """A model after a few seconds of training, probed."""
    task = Task(d=1, n=N, bandwidth=(1, 1))
    shape = Shape(d=1, n=N, layers=LAYERS, width=WIDTH, heads=2)
    recipe = Recipe(shape=shape, task=task, steps=500, batch=32, rate=5e-3, warm_up=20)
    training = Training(recipe, torch.device("cpu"))
    for _ in range(recipe.steps):
        training.advance()
    return probe(training.averaged(), task, 200)


def test_controls_are_far_below_what_training_brings(learned: Probed) -> None:
    trained, random = learned.explained["krr"], learned.untrained["krr"]
    assert float(trained[-1]) > 0.6
    assert float(random.max()) < float(trained[-1]) - 0.1
    assert float(trained[-1]) > float(trained[0]) + 0.4
    shuffled = explained(learned.answers["shuffled krr"], learned.krr)
    assert float(shuffled.max()) < 0.1
    assert float(shuffled.min()) > -0.3  # nothing is learnt, and little made up


def test_answers_are_those_of_the_readouts_and_the_r2_theirs(learned: Probed) -> None:
    assert set(READOUTS) < set(learned.answers)
    assert {"untrained krr", "untrained labels", "shuffled krr"} < set(learned.answers)
    for found in learned.answers.values():
        assert found.shape == (LAYERS + 1, 200, N)
    for name, held in (("", learned.explained), ("untrained ", learned.untrained)):
        for target, goal in (("krr", learned.krr), ("labels", learned.labels)):
            expected = [
                r2_score(goal.ravel(), f.ravel()) for f in learned.answers[name + target].numpy()
            ]
            np.testing.assert_allclose(held[target], expected, rtol=1e-9)
    assert learned.defect.shape == (LAYERS + 1,)
    assert float(learned.defect[0]) == pytest.approx(1)  # a constant c: |c − c − c|/|c|


def test_a_probe_is_the_same_for_a_seed_and_another_for_another() -> None:
    net = model()
    one, same, other = (probe(net, TASK, ENOUGH, seed) for seed in (0, 0, 1))
    for name, found in one.answers.items():
        assert torch.equal(found, same.answers[name])
    assert torch.equal(one.defect, same.defect)
    assert not torch.equal(one.prompts.X, other.prompts.X)


def test_prompts_are_not_those_of_training() -> None:
    probed = probe(model(), TASK, ENOUGH)
    for seed in (0, 1):
        for step in range(3):
            recipe = Recipe(shape=Shape(n=N), task=TASK, seed=seed)
            assert not torch.equal(batch_of(recipe, step).X[0, 0], probed.prompts.X[0, 0])


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("few", [ENOUGH - 1, 1, 0, -3])
def test_too_few_prompts_say_how_many_are_needed_and_so_many_do(few: int) -> None:
    with pytest.raises(ProbeError, match=f"prompts={few} of {N} points .* at least {ENOUGH}$"):
        probe(model(), TASK, few)
    assert len(probe(model(), TASK, ENOUGH).prompts.y) == ENOUGH


def test_more_prompts_than_the_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "1")
    shape = Shape(n=128, layers=127, width=80, heads=2)
    with pytest.raises(SettingsError, match=r"prompts=2048 .* 1 GiB are allowed; ask for fewer"):
        enough(shape, Task(n=128), 2048)
    enough(Shape(), Task(), 512)


def test_prompts_of_one_point_are_refused() -> None:
    with pytest.raises(ProbeError, match="n=1 hold too few points"):
        probe(GPT(Shape(n=1, width=WIDTH)), Task(n=1), 500)


def card(**task: Any) -> dict[str, Any]:
    given = {"d": 2, "n": N, "bandwidth": [0.25, 1.0], "ridge": [0.01, 0.04]} | task
    return {"shape": shape_card(Shape(n=N)), "recipe": {"task": given}}


def test_a_cards_ranges_are_probed_at_their_geometric_mean() -> None:
    task = fixed_task(card())
    assert task.bandwidth == pytest.approx((0.5, 0.5), rel=1e-15)
    assert task.ridge == pytest.approx((0.02, 0.02), rel=1e-15)
    assert fixed_task(card(kernel="laplacian")).kernel == "laplacian"


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"recipe": None},
        {"recipe": {"task": {}}},
        {"recipe": [1]},
        card(kernel="cubic"),
        card(bandwidth=[1.0, 0.5]),
        card(ridge=3),
        card(ridge=["a", "b"]),
        card(colour="red"),
        card(n=N + 1),
        card(n="8"),
        card(d=3),
        {"recipe": card()["recipe"]},
    ],
    ids=str,
)
def test_a_card_without_a_task_its_model_reads_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ProbeError, match="the card"):
        fixed_task(bad)
