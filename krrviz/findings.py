"""Findings: what probing a trained model gives, as tidy DataFrames, one row an observation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from krrviz.frames import TITLES
from krrviz.spectrum import POLICIES
from krrviz.trained.abroad import Live
from krrviz.trained.inside import Patched
from krrviz.trained.match import (
    METRICS,
    Alignment,
    Fan,
    Match,
    Matched,
    Route,
    Variant,
    interval,
    pooled,
    variant,
)
from krrviz.trained.probe import READOUTS, TARGETS, Probed
from krrviz.trained.prompts import answers

Frame = Any  # a DataFrame, of which pandas' stubs cannot tell a column from a table

# Readouts and their controls, as curves are titled.
CURVES = {
    "lens": "Trained, its own head",
    "labels": "Trained, probe to labels",
    "krr": "Trained, probe to KRR",
    "shuffled krr": "Trained, probe to shuffled KRR",
    "untrained labels": "Untrained, probe to labels",
    "untrained krr": "Untrained, probe to KRR",
}

POLICY_WORDS = {policy: "1/L" if policy == "one_over_l" else policy for policy in POLICIES}
# How what is matched with solvers is read, in a sentence.
READ_BY = {
    **READOUTS,
    "untrained krr": "a probe fitted to exact KRR, on random weights: a control",
}

DIRECTIONS = {
    "probe": "the probe's own direction",
    "pattern": "the stream's pattern of that reading",
    "random": "a random direction as long as the pattern",
}


def layer_rows(probed: Probed) -> pd.DataFrame:
    """Error by layer and n of every readout: columns method, title, step, n, error, noiseless.

    ``step`` is the layer, 0 before the first block. Errors are relative and pooled over prompts:
    to exact KRR, and to the noiseless function.
    """
    return pd.concat(
        [
            _by_step(pooled(found, probed.krr), pooled(found, probed.noiseless)).assign(
                method=name, title=CURVES[name]
            )
            for name, found in probed.answers.items()
        ],
        ignore_index=True,
    )


def exact_rows(probed: Probed) -> pd.DataFrame:
    """Exact KRR's own error to the noiseless function at n = N, the same at every layer."""
    layers = len(probed.defect)
    error = float(pooled(probed.krr, probed.noiseless)[-1])
    n = probed.krr.shape[-1]
    return pd.DataFrame(
        {"method": "exact", "title": "Exact KRR", "step": range(layers), "n": n, "error": error}
    )


def solver_rows(fans: Mapping[Variant, Fan]) -> pd.DataFrame:
    """The same of solvers by step: columns method, title, step, n, error, noiseless."""
    return pd.concat(
        [
            _by_step(fan.to_krr, fan.to_noiseless).assign(
                method=v.method,
                title=TITLES[v.method],
                policy=v.policy,
                ridge_scale=v.ridge_scale,
            )
            for v, fan in fans.items()
        ],
        ignore_index=True,
    )


def _by_step(to_krr: Tensor, to_noiseless: Tensor) -> pd.DataFrame:
    times, n = to_krr.shape
    return pd.DataFrame(
        {
            "step": np.repeat(np.arange(times), n),
            "n": np.tile(np.arange(1, n + 1), times),
            "error": to_krr.flatten().numpy(),
            "noiseless": to_noiseless.flatten().numpy(),
        }
    )


def ranking_rows(matches: Iterable[Match]) -> pd.DataFrame:
    """Every match's score, free and at a fixed rate, with its interval and steps."""
    rows = []
    for m in matches:
        for path, route in (("free", m.free), ("fixed", m.fixed)):
            low, high = route.interval
            rows.append(
                {
                    "readout": m.readout,
                    "metric": m.metric,
                    "ridge_scale": m.variant.ridge_scale,
                    "policy": m.variant.policy,
                    "method": m.variant.method,
                    "path": path,
                    "score": route.score,
                    "low": low,
                    "high": high,
                    "steps": " ".join(map(str, route.steps)),
                }
            )
    return pd.DataFrame(rows)


def ranked(rows: Frame, metric: str, policy: str) -> Frame:
    """One metric's rows under one policy, best first; methods without it stand with their own."""
    same = rows[(rows.metric == metric) & rows.policy.isin([policy, "certified"])]
    # A method that a policy changes has a row of its own.
    own = same.assign(other=same.policy != policy).sort_values("other", kind="stable")
    kept = own.drop_duplicates(["readout", "ridge_scale", "path", "method"])
    return kept.drop(columns="other").sort_values(
        "score", ascending=not METRICS[metric].most, ignore_index=True
    )


@dataclass(frozen=True, eq=False)
class Standing:
    """Which solvers a model is like by one metric, readout, step policy and ridge convention.

    ranking : all metrics and policies; free, fixed : this one's, best first, with each layer's best
    step and at a fixed rate; drawn : the matches of ``free``, in its order
    """

    metric: str
    ranking: Frame
    free: Frame
    fixed: Frame
    drawn: list[Match]


def standing(
    matched: Matched, metric: str, readout: str, policy: str, ridge_scale: str
) -> Standing:
    """How solvers stand; ``free`` and ``drawn`` are empty where the metric has no such readout."""
    mine = [
        m for m in matched.matches
        if m.readout == readout and m.variant.ridge_scale == ridge_scale
    ]  # fmt: skip
    ranking: Frame = ranking_rows(mine)
    ranking["title"] = ranking.method.map(TITLES)
    free, fixed = (
        ranked(ranking[ranking.path == way], metric, policy) for way in ("free", "fixed")
    )
    drawn = [
        m
        for method in free.method
        for m in mine
        if m.metric == metric and m.variant == variant(method, policy, ridge_scale)
    ]
    return Standing(metric, ranking, free, fixed, drawn)


def match_rows(m: Match, worst: float) -> pd.DataFrame:
    """A match cell by cell: columns layer, step, until (the next step drawn), value.

    Late steps are thinned; ``worst`` stands where there is no number.
    """
    layers, times = m.grid.shape
    steps = [t for t in range(times) if t <= 16 or t % (2 if t <= 64 else 4) == 0]
    values = m.grid.nan_to_num(nan=worst, posinf=worst)
    return pd.DataFrame(
        {
            "layer": np.repeat(np.arange(layers), len(steps)),
            "step": np.tile(steps, layers),
            "until": np.tile([*steps[1:], times], layers),
            "value": values[:, steps].flatten().numpy(),
        }
    )


def path_rows(m: Match) -> pd.DataFrame:
    """A match's best step of each layer: columns layer, step, value."""
    return pd.DataFrame(
        {
            "layer": range(1, len(m.grid)),
            "step": m.free.steps,
            "value": [float(m.grid[at + 1, t]) for at, t in enumerate(m.free.steps)],
        }
    )


def nearest_rows(matched: Matched, policy: str, ridge_scale: str) -> Frame:
    """Each method's least operator distance by layer, of the model's own head.

    Columns series, layer, value.
    """
    parts = []
    for m in matched.matches:
        if (m.metric, m.readout) != ("operator", "lens"):
            continue
        if m.variant == variant(m.variant.method, policy, ridge_scale):
            least = m.grid.nan_to_num(nan=np.inf).amin(-1).numpy()
            title = TITLES[m.variant.method]
            layer = np.arange(len(least))
            parts.append(pd.DataFrame({"series": title, "layer": layer, "value": least}))
    frame: Frame = pd.concat(parts, ignore_index=True)
    return frame[frame.layer > 0]


def patch_rows(moved: Iterable[Patched]) -> pd.DataFrame:
    """What moving α does: columns series (the direction), layer, slope, correlation."""
    return pd.DataFrame(
        [
            {"series": DIRECTIONS[p.direction], "layer": p.layer, "slope": p.slope,
             "correlation": p.correlation}
            for p in moved
        ]
    )  # fmt: skip


def live_rows(found: Live) -> pd.DataFrame:
    """A model's error by layer and n on given prompts: columns method, title, step, n, error."""
    layers, counts = found.errors.shape
    return pd.DataFrame(
        {
            "method": "lens",
            "title": CURVES["lens"],
            "step": np.repeat(np.arange(layers), counts),
            "n": np.tile(found.counts, layers),
            "error": found.errors.flatten().numpy(),
        }
    )


def winners(ranking: Frame) -> str:
    """A table in Markdown: by metric and path the best method and the next under each policy.

    “>” where their intervals lie apart, “≈” where they meet. ``ranking`` is of one readout and one
    ridge convention.
    """
    ranking = ranking.assign(title=ranking.method.map(TITLES))
    lines = [
        "| | " + " | ".join(POLICY_WORDS[policy] for policy in POLICIES) + " |",
        "|---" * (1 + len(POLICIES)) + "|",
    ]
    for key, metric in METRICS.items():
        for way, name in (("free", "best steps"), ("fixed", "fixed rate")):
            rows = ranking[(ranking.metric == key) & (ranking.path == way)]
            if rows.empty:
                continue
            cells = []
            for policy in POLICIES:
                one, two = ranked(rows, key, policy).iloc[0], ranked(rows, key, policy).iloc[1]
                sign = ">" if apart(one, two) else "≈"
                cells.append(f"**{one.title}** {one.score:.3f} {sign} {two.title} {two.score:.3f}")
            lines.append(f"| {metric.title}, {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def apart(one: Any, two: Any) -> bool:
    """Whether two rows of a ranking have intervals that do not meet."""
    return bool(one.low > two.high or one.high < two.low)


def route_rows(routes: Mapping[str, Route]) -> Frame:
    """Methods by score, most alike first: columns method, title, score, low, high, steps."""
    rows = []
    for method, route in routes.items():
        low, high = route.interval
        rows.append(
            {
                "method": method,
                "title": TITLES[method],
                "score": route.score,
                "low": low,
                "high": high,
                "steps": route.steps,
            }
        )
    return pd.DataFrame(rows).sort_values("score", ascending=False, ignore_index=True)


def alignment_rows(found: Iterable[Alignment]) -> Frame:
    """A model's gap and similarity under kernels: columns measure, reference, score, low, high.

    Numbers are NaN where a kernel has no row-sum preconditioner, and so no similarity.
    """
    rows = []
    for one in found:
        alike = (math.nan, math.nan, math.nan)
        if one.similarity is not None:
            alike = (one.similarity.score, *one.similarity.interval)
        for measure, values in (("gap", (one.gap, *interval(one.gaps))), ("similarity", alike)):
            numbers = dict(zip(("score", "low", "high"), values, strict=True))
            rows.append({"measure": measure, "reference": one.kernel, **numbers})
    return pd.DataFrame(rows)


def kernel_rows(models: Mapping[str, tuple[Probed, list[Alignment]]]) -> Frame:
    """Models beside kernels: columns measure, model, own, reference, score, low, high.

    ``own`` is the kernel of the prompts. The measure ``yardstick`` is how far exact answers under
    it are from those under the reference, relative.
    """
    parts = [pd.DataFrame(columns=["measure", "model", "own", "reference", "score", "low", "high"])]
    for name, (found, alignments) in models.items():
        apart = []
        for one in alignments:
            exact = answers(found.prompts, one.kernel)[:, 1:]
            score = float((found.krr - exact).norm() / exact.norm())
            apart.append({"measure": "yardstick", "reference": one.kernel, "score": score})
        rows = pd.concat([alignment_rows(alignments), pd.DataFrame(apart)])
        parts.append(rows.assign(model=name, own=found.prompts.task.kernel))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def contest(rows: Frame, *, most: bool) -> Frame:
    """Rows of score, low and high, the best first; those that have no score left out.

    A column ``apart`` tells of each whether its interval lies apart from the best one's.
    """
    order = rows.dropna(subset=["score"]).sort_values(
        "score", ascending=not most, kind="stable", ignore_index=True
    )
    if not len(order):
        return order.assign(apart=False)
    best = order.iloc[0]
    return order.assign(apart=(order.low > best.high) | (order.high < best.low))


def passed(log: Frame, gap: float) -> tuple[int, int] | None:
    """Between which steps of a training the gap to KRR first came down to ``gap``.

    The log's last step before it (0 where there is none) and its first from then on; None where
    the training never came so far.
    """
    order = log.sort_values("step")
    there = order.step[order.gap_to_krr <= gap]
    if not len(there):
        return None
    before = order.step[order.step < there.iloc[0]]
    return int(before.max()) if len(before) else 0, int(there.iloc[0])


def grid_rows(matches: Iterable[Match]) -> pd.DataFrame:
    """Every layer beside every step: readout, metric, ridge_scale, policy, method, layer, and a
    column for each step."""
    parts = []
    for m in matches:
        rows = pd.DataFrame(m.grid.numpy()).rename_axis("layer").reset_index()
        named = {"readout": m.readout, "metric": m.metric, "ridge_scale": m.variant.ridge_scale,
                 "policy": m.variant.policy, "method": m.variant.method}  # fmt: skip
        for at, (name, value) in enumerate(named.items()):
            rows.insert(at, name, value)
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def probe_rows(probed: Probed) -> pd.DataFrame:
    """R² of the linear probes: columns target, title, layer, network, r2."""
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "target": target,
                    "title": TARGETS[target],
                    "layer": np.arange(len(values[target])),
                    "network": network,
                    "r2": values[target].numpy(),
                }
            )
            for network, values in (("trained", probed.explained), ("untrained", probed.untrained))
            for target in TARGETS
        ],
        ignore_index=True,
    )


def defect_rows(probed: Probed, matched: Matched) -> pd.DataFrame:
    """Additivity defect by layer, and by a solver's step: columns method, title, step, defect."""
    curves = [("lens", CURVES["lens"], probed.defect)]
    curves += [(method, TITLES[method], values) for method, values in matched.defects.items()]
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "method": method,
                    "title": title,
                    "step": np.arange(len(values)),
                    "defect": values.numpy(),
                }
            )
            for method, title, values in curves
        ],
        ignore_index=True,
    )
