"""The guarantee of an ε: what is built keeps it, and its figures are those of direct solves."""

import math
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from krrviz import Settings, SettingsError, build, sample
from krrviz.construction.weights import Construction
from krrviz.fan import same_rule
from krrviz.guarantee import guarantee, rule_gaps, size
from krrviz.trajectory import iterate

SMALL = Settings(data="gp", bandwidth=0.5, n=12, queries=5, prompts=3, segments=16)
RULES = ["richardson", "chebyshev", "heavy_ball", "nesterov"]
each_scale = pytest.mark.parametrize("scale", ["absolute", "per_sample"])
each_sink = pytest.mark.parametrize("sink", [0, "ridge", 2.5])


@pytest.mark.parametrize("update", RULES)
@each_scale
@each_sink
def test_a_guarantee_is_kept(update: str, scale: str, sink: Any) -> None:
    found = guarantee(SMALL.but(update=update, ridge_scale=scale, sink=sink, n=8), 0.3)
    proof, measured = found.certificate, found.measured
    assert proof.a_priori <= 0.3
    assert measured is not None
    assert measured.error <= measured.post_hoc <= proof.a_priori
    assert measured.error <= measured.iteration + measured.product + 1e-12
    assert measured.factor <= proof.alpha_range
    assert found.needed is not None
    assert found.needed <= found.construction.steps


def test_its_measured_error_is_that_of_a_direct_solve() -> None:
    s = SMALL.but(update="chebyshev")
    found = guarantee(s, 0.01)
    problem = sample(s.but(prompts=3))
    X, Q, y = (value.numpy() for value in (problem.X, problem.x_query, problem.y))
    model = build(found.construction)
    stream = model(model.embed(problem))
    answers = stream[:, 1 + 12 :, model.slots.index["f"]].numpy()
    c, worst, product, relative, gaps = found.construction, 0.0, 0.0, [], []
    for p in range(3):
        K = np.exp(-((X[p, :, None] - X[p, None]) ** 2).sum(-1) / 0.5)
        k = np.exp(-((Q[p, :, None] - X[p, None]) ** 2).sum(-1) / 0.5)
        exact = k @ np.linalg.solve(K + 0.1 * np.eye(12), y[p])
        worst = max(worst, np.abs(answers[p] - exact).max())
        relative.append(np.linalg.norm(answers[p] - exact) / np.linalg.norm(exact))
        # The rule itself, on D⁻¹A with eigenvalues certified in [λ/N, 1 + λ]
        alpha, change = np.zeros(12), np.zeros(12)
        theta, radius, omega = 1.1 / 2 + 0.1 / 24, 1.1 / 2 - 0.1 / 24, 0.0
        gaps.append([np.abs(exact).max()])
        for _ in range(c.steps):
            G = (y[p] - K @ alpha - 0.1 * alpha) / K.sum(1)
            new = 1 / (2 * theta / radius - omega) if omega else radius / theta
            change = omega * new * change + (2 * new / radius if omega else 1 / theta) * G
            omega, alpha = new, alpha + change
            gaps[-1].append(np.abs(k @ alpha - exact).max())
        product = max(product, np.abs(answers[p] - k @ alpha).max())
    measured = found.measured
    assert measured is not None
    assert measured.error == pytest.approx(worst, rel=1e-6)
    assert measured.relative == pytest.approx(np.mean(relative), rel=1e-6)
    assert measured.product == pytest.approx(product, rel=1e-5)
    each = np.array(gaps).max(0)
    assert measured.iteration == pytest.approx(each[-1], rel=1e-4)
    assert found.needed == (each <= 0.01).argmax()


@pytest.mark.parametrize("update", [*RULES, "function_space"])
@each_scale
@each_sink
def test_rule_gaps_are_those_of_the_iteration(update: str, scale: str, sink: Any) -> None:
    c = Construction.from_settings(SMALL.but(update=update, ridge_scale=scale, sink=sink))
    problem = sample(SMALL.but(ridge_scale=scale))
    steps = islice(iterate(same_rule(c), problem), 40)
    for step, gap in zip(steps, rule_gaps(c, problem), strict=False):
        answer = problem.predict(step.state) if step.prediction is None else step.prediction
        assert torch.allclose(gap, answer - problem.exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("update", ["richardson", "nesterov", "function_space"])
@pytest.mark.parametrize("layout", ["paper", "fused"])
@each_scale
def test_size_counts_the_weights_there_are(update: str, layout: str, scale: str) -> None:
    s = SMALL.but(update=update, layout=layout, ridge_scale=scale, segments=7, steps=5)
    c = Construction.from_settings(s)
    blocks = build(c).blocks
    parameters, operations = size(c, 18)
    assert parameters == sum(w.numel() for block in blocks for w in block.parameters())
    heads = sum(b.attention.w_q.shape[0] + b.attention.w_v.shape[0] for b in blocks)
    assert operations == 2 * (18 * parameters + 18**2 * heads)
    assert c.blocks == len(blocks)


def test_what_would_take_too_long_is_not_measured_but_told() -> None:
    found = guarantee(SMALL.but(ridge=1e-3), 0.01)
    assert found.measured is None
    assert found.seconds > 6
    near = guarantee(SMALL.but(ridge=1e-3), found.affordable)
    assert near.measured is not None
    assert near.seconds <= 6
    assert guarantee(SMALL.but(ridge=1e-3), found.affordable / 1.25).measured is None


def test_weights_beyond_memory_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = SMALL.but(update="chebyshev", layout="fused", n=32)
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "0.5")
    found = guarantee(fused, 1e-3)  # 92 layers of 4 · 9000 hinges
    assert found.measured is None
    assert found.seconds == math.inf
    assert guarantee(fused.but(layout="paper"), 1e-3).measured is not None


@pytest.mark.parametrize(
    ("changes", "eps", "told"),
    [
        ({}, 0.0, "eps=0.0 must be a finite number above 0"),
        ({}, float("nan"), "eps=nan must be"),
        ({}, 1e-14, "eps=1e-14 is below what can be certified here: float64 reaches"),
        ({"dtype": "float32"}, 1e-7, "float32 reaches .*, float64 reaches"),
        ({"dtype": "bfloat16"}, 1e-2, "bfloat16 reaches .*, float64 reaches"),
        ({"update": "function_space"}, 1.0, "update=function_space has no certificate"),
    ],
)
def test_what_cannot_be_certified_is_refused(
    changes: dict[str, Any], eps: float, told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        guarantee(SMALL.but(**changes), eps)
