"""Frames of findings have a row for each observation, and rankings put the best first."""

import numpy as np
import pytest
import torch
from torch import Tensor

from krrviz import findings
from krrviz.solvers import SOLVERS
from krrviz.trained import match as matching
from krrviz.trained.gpt import GPT, Shape
from krrviz.trained.match import METRICS, STEPS, Match, Matched, Route, Variant, match, variants
from krrviz.trained.probe import READOUTS, TARGETS, Probed, probe
from krrviz.trained.prompts import Task

N, LAYERS = 3, 2
CONTROLS = {"untrained krr", "untrained labels", "shuffled krr"}
KEY = ["readout", "metric", "ridge_scale", "policy", "method"]


@pytest.fixture(scope="module")
def found() -> tuple[Probed, Matched]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "RESAMPLES", 4)
        patch.setattr(matching, "STEPS", 16)
        torch.manual_seed(0)
        probed = probe(GPT(Shape(n=N, layers=LAYERS, width=4, heads=1)).eval(), Task(n=N), 7)
        return probed, match(probed)


def errors(f: Tensor, answer: Tensor, n: int) -> float:
    """‖f − answer‖/‖answer‖ over prompts at one n."""
    gap, size = (f - answer)[:, n - 1].numpy(), answer[:, n - 1].numpy()
    return float(np.sqrt((gap**2).sum() / (size**2).sum()))


def test_errors_by_layer_are_those_of_the_answers(found) -> None:
    probed, _ = found
    rows: findings.Frame = findings.layer_rows(probed)
    assert set(rows.columns) == {"method", "title", "step", "n", "error", "noiseless"}
    assert set(rows.method) == set(READOUTS) | CONTROLS
    assert len(rows) == len(probed.answers) * (LAYERS + 1) * N
    for row in rows.itertuples():
        f = probed.answers[row.method][row.step]
        assert row.error == pytest.approx(errors(f, probed.krr, row.n), rel=1e-9)
        assert row.noiseless == pytest.approx(errors(f, probed.noiseless, row.n), rel=1e-9)
        assert row.title == findings.CURVES[row.method]


def test_errors_by_step_are_the_fans_of_the_variants_asked_for(found) -> None:
    _, matched = found
    chosen = [variants("absolute")[0], variants("per_sample")[-1]]
    rows: findings.Frame = findings.solver_rows({v: matched.fans[v] for v in chosen})
    assert set(rows.columns) >= {"method", "title", "step", "n", "error", "noiseless"}
    assert len(rows) == 2 * 17 * N
    for row in rows.itertuples():
        fan = matched.fans[Variant(row.method, row.policy, row.ridge_scale)]
        assert row.error == float(fan.to_krr[row.step, row.n - 1])
        assert row.noiseless == float(fan.to_noiseless[row.step, row.n - 1])


def test_every_match_is_two_rows_of_the_ranking(found) -> None:
    _, matched = found
    rows: findings.Frame = findings.ranking_rows(matched.matches)
    assert list(rows.columns) == [*KEY, "path", "score", "low", "high", "steps"]
    assert len(rows) == 2 * len(matched.matches)
    assert not rows.duplicated([*KEY, "path"]).any()
    # The one control that is matched has no operator.
    assert len(matched.matches) == 2 * len(variants("absolute")) * (
        len(READOUTS) * len(METRICS) + len(METRICS) - 1
    )
    first = matched.matches[0]
    free, fixed = rows[:2].itertuples()
    assert (free.score, fixed.score) == (first.free.score, first.fixed.score)
    assert (free.low, free.high) == first.free.interval
    assert [int(step) for step in free.steps.split()] == list(first.free.steps)
    assert not rows.isna().any().any()


def made(method: str, policy: str, metric: str, score: float) -> Match:
    route = Route((1,), torch.full((3,), score, dtype=torch.float64))
    grid = torch.full((2, STEPS + 1), score)
    return Match("lens", metric, Variant(method, policy, "absolute"), grid, route, route, 1.0)


@pytest.mark.parametrize("metric", METRICS)
def test_a_ranking_has_each_method_once_with_the_best_first(metric: str) -> None:
    # Under "manual": the first two have rows of their own, CG and heavy ball have not.
    given = [
        made("gradient_descent", "certified", metric, 0.9),
        made("gradient_descent", "manual", metric, 0.1),
        made("preconditioned_richardson", "manual", metric, 0.3),
        made("preconditioned_richardson", "certified", metric, 0.2),
        made("preconditioned_richardson", "optimal", metric, 0.95),
        made("heavy_ball", "certified", metric, 0.4),
        made("conjugate_gradient", "certified", metric, 0.2),
    ]
    strange = [made("nesterov", "manual", other, 0.99) for other in METRICS if other != metric]
    rows: findings.Frame = findings.ranking_rows(given + strange)
    ranked = findings.ranked(rows[rows.path == "free"], metric, "manual")
    expected = [
        ("gradient_descent", 0.1), ("conjugate_gradient", 0.2),
        ("preconditioned_richardson", 0.3), ("heavy_ball", 0.4),
    ]  # fmt: skip
    order = expected[::-1] if metric == "similarity" else expected
    assert [*zip(ranked.method, ranked.score, strict=True)] == order
    certified = findings.ranked(rows, metric, "certified")
    assert len(certified) == 2 * 4  # free and fixed
    assert set(certified.policy) == {"certified"}


def test_a_ranking_of_a_whole_match_has_every_method_once(found) -> None:
    rows: findings.Frame = findings.ranking_rows(found[1].matches)
    for policy in ("certified", "one_over_l", "optimal", "manual"):
        for metric in METRICS:
            ranked = findings.ranked(rows, metric, policy)
            for _, group in ranked.groupby(["readout", "ridge_scale", "path"]):
                assert sorted(group.method) == sorted(SOLVERS)
                scores = group.score if METRICS[metric].most else -group.score
                assert scores.is_monotonic_decreasing


def test_grids_come_back_from_their_rows(found) -> None:
    _, matched = found
    rows: findings.Frame = findings.grid_rows(matched.matches)
    assert list(rows.columns) == [*KEY, "layer", *range(17)]
    assert len(rows) == len(matched.matches) * (LAYERS + 1)
    grids = np.concatenate([m.grid.numpy() for m in matched.matches])
    np.testing.assert_array_equal(rows[[*range(17)]].to_numpy(), grids)
    assert [*rows.layer] == [*range(LAYERS + 1)] * len(matched.matches)
    keys = [
        (m.readout, m.metric, m.variant.ridge_scale, m.variant.policy, m.variant.method)
        for m in matched.matches
        for _ in range(LAYERS + 1)
    ]
    assert [*rows[KEY].itertuples(index=False, name=None)] == keys


def test_probes_have_a_row_for_each_target_layer_and_network(found) -> None:
    probed, _ = found
    rows: findings.Frame = findings.probe_rows(probed)
    assert list(rows.columns) == ["target", "title", "layer", "network", "r2"]
    assert len(rows) == 2 * len(TARGETS) * (LAYERS + 1)
    for row in rows.itertuples():
        held = {"trained": probed.explained, "untrained": probed.untrained}[row.network]
        assert row.r2 == float(held[row.target][row.layer])
        assert row.title == TARGETS[row.target]


def test_defects_are_the_layers_and_every_solvers(found) -> None:
    probed, matched = found
    rows: findings.Frame = findings.defect_rows(probed, matched)
    assert list(rows.columns) == ["method", "title", "step", "defect"]
    assert set(rows.method) == {"lens", *SOLVERS}
    assert len(rows) == LAYERS + 1 + 17 * len(SOLVERS)
    for method, group in rows.groupby("method"):
        held = probed.defect if method == "lens" else matched.defects[method]
        assert [*group.defect] == held.tolist()
        assert [*group.step] == [*range(len(held))]
