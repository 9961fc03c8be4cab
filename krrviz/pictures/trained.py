"""Trained: each study's figures and maps, from what was found in a trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from krrviz import charts, findings, laws
from krrviz.charts import LAYER, READ_STYLES, STYLES, Figure
from krrviz.fan import Fan
from krrviz.findings import CURVES, Frame, Standing
from krrviz.frames import REFERENCES, TITLES, thinned
from krrviz.laws import Axis
from krrviz.maps import Map
from krrviz.pictures import fan
from krrviz.settings import Settings
from krrviz.solvers import SOLVERS
from krrviz.trained.abroad import Beyond, Live
from krrviz.trained.gpt import Shape
from krrviz.trained.inside import Heads, Patched
from krrviz.trained.match import METRICS, Match, Matched, Variant, variant
from krrviz.trained.match import Fan as SolverFan
from krrviz.trained.probe import Probed

NEAR = (0.02, 2.0)  # layers come no nearer than this


# -- fans ---------------------------------------------------------------------------------------


def layers(found: Probed) -> dict[str, Figure]:
    """The layers' errors by context length, and at the last by layer."""
    rows: Frame = findings.layer_rows(found)
    kept = ["lens", "labels", "krr", "untrained krr"]
    shown = {
        f"layers_{name.replace(' ', '_')}": charts.fan(
            rows[rows.method == name], against="exact KRR", domain=NEAR, each=LAYER
        )
        for name in kept
    }
    n = int(rows.n.max())
    ends = rows[(rows.n == n) & rows.method.isin(kept)]
    shown["by_layer"] = charts.steps(ends, against=f"exact KRR, n = {n}", domain=NEAR, each=LAYER)
    shown["by_layer_noiseless"] = charts.steps(
        pd.concat(
            [ends.assign(error=ends.noiseless), findings.exact_rows(found)], ignore_index=True
        ),
        against=f"the noiseless function, n = {n}",
        domain=NEAR,
        each=LAYER,
    )
    return shown


def step_size(settings: Settings) -> float:
    """The step of the policy ``manual``: the settings' where they have that policy, or 1."""
    return settings.step_size if settings.policy == "manual" else 1.0


def asked(settings: Settings) -> tuple[Variant, ...]:
    """The settings' solvers, under their policy where it touches them."""
    return tuple(
        variant(method, settings.policy, settings.ridge_scale)
        for method in settings.methods
        if method in SOLVERS
    )


def solvers(fans: Mapping[Variant, SolverFan], settings: Settings) -> dict[str, Figure]:
    """The solvers' fans on the same prompts, as deep as the settings say."""
    if not fans:
        return {}
    rows: Frame = findings.solver_rows(fans)
    rows = rows[rows.step <= max(1, settings.steps)]
    return {
        f"solver_{method}": charts.fan(thinned(part), against="exact KRR", domain=NEAR)
        for method, part in rows.groupby("method", sort=False)
    }


# -- the match ----------------------------------------------------------------------------------


def rankings(found: Standing, layers: int) -> dict[str, Figure]:
    """Solvers by how alike they are, with each layer's best step and at a fixed rate."""
    return {
        f"ranking_{way}": laws.ranking(
            rows, title=f"Layers 1 to {layers}, {name}", metric=METRICS[found.metric].title
        )
        for way, name, rows in (
            ("free", "each layer's best step", found.free),
            ("fixed", "a fixed rate of steps a layer", found.fixed),
        )
    }


def grids(found: Standing) -> dict[str, Figure]:
    """Every layer beside every step, a figure for each solver, the most alike first."""
    metric, domain = METRICS[found.metric], span(found.drawn)
    worst = domain[0] if metric.most else domain[1]
    return {
        f"match_{m.variant.method}": laws.matches(
            findings.match_rows(m, worst),
            findings.path_rows(m),
            title=TITLES[m.variant.method],
            metric=metric.title,
            most=metric.most,
            domain=domain,
        )
        for m in found.drawn
    }


def span(matches: Sequence[Match]) -> tuple[float, float]:
    """The values that colours span in all maps: but for the far tenth, which clamps."""
    values = np.concatenate([m.grid[1:].flatten().numpy() for m in matches])
    values = values[np.isfinite(values) & (values < 1e6)]
    low, high = np.quantile(values, [0.1, 1.0] if METRICS[matches[0].metric].most else [0.0, 0.9])
    return float(low), float(max(high, low + 1e-9))


# -- operator, additivity, probes ---------------------------------------------------------------


def operator(found: Probed, result: Matched, settings: Settings) -> dict[str, Figure]:
    """How additive in y the layers are, which operator they are near, and what probes find."""
    defects: Frame = findings.defect_rows(found, result)
    linear = [m for m, entry in SOLVERS.items() if entry.takes is not None]
    drawn = defects[~defects.method.isin(linear) & (defects.step <= 32)].assign(
        series=lambda rows: rows.title, value=lambda rows: rows.defect
    )
    looks = {TITLES[m]: STYLES[m] for m in TITLES}
    shown = {
        "additivity": laws.lines(
            drawn[["series", "step", "value"]],
            Axis("step", "layer ℓ of the model, step t of a solver", log=False),
            Axis("value", "additivity defect", log=False),
            title="Additivity defect in y",
            looks={CURVES["lens"]: READ_STYLES["lens"], **looks},
        ),
        "operator": laws.lines(
            findings.nearest_rows(result, settings.policy, settings.ridge_scale),
            Axis("layer", "layer ℓ", log=False),
            Axis("value", "least ‖∂f_ℓ/∂y − S_t‖/‖S_t‖ over steps t", log=False),
            title="Operator distance, by the model's own head",
            looks=looks,
        ),
    }
    probes: Frame = findings.probe_rows(found)
    for network in ("trained", "untrained"):
        rows = probes[probes.network == network].assign(series=lambda part: part.title)
        shown[f"probes_{network}"] = laws.lines(
            rows[["series", "layer", "r2"]],
            Axis("layer", "layer ℓ", log=False),
            Axis("r2", "R² of linear probes", log=False, domain=(-0.1, 1.02)),
            title=f"What linear probes find: {network} network",
        )
    return shown


# -- heads --------------------------------------------------------------------------------------


def heads(found: Heads, shape: Shape, layer: int) -> list[Map]:
    """D⁻¹K and each head of a layer, for one prompt."""
    n = found.kernel.shape[-1]
    names = [str(i) for i in range(1, n + 1)]
    common: dict[str, Any] = {
        "rows": names, "cols": names, "row_title": "query: point i", "col_title": "key: point j",
        "row_names": [f"i = {k}" for k in names], "col_names": [f"j = {k}" for k in names],
    }  # fmt: skip
    top = float(found.kernel[0].max())
    return [
        Map(
            name="kernel", title="D⁻¹K", values=found.kernel[0].numpy(), limit=top,
            note="earlier points only" if shape.layout == "interleaved" else "all points",
            **common,
        ),
        *(
            Map(
                name=f"head_{h + 1}", title=f"head {h + 1}",
                values=found.attention[layer - 1, h, 0].numpy(), limit=top,
                kind="diverging" if shape.attention == "linear" else "sequential",
                note=f"correlation with D⁻¹K {float(found.alike[layer - 1, h]):.2f}; "
                f"{float(found.share[layer - 1, h]):.0%} of it goes to labelled points",
                **common,
            )
            for h in range(shape.heads)
        ),
    ]  # fmt: skip


def alike(found: Heads) -> Map:
    """How alike every head and D⁻¹K are."""
    layers, heads = (range(1, size + 1) for size in found.alike.shape)
    return Map(
        name="alike",
        title="Correlation of every head with D⁻¹K",
        values=found.alike.numpy(),
        kind="diverging",
        limit=1.0,
        rows=[str(k) for k in layers],
        cols=[str(k) for k in heads],
        row_title="layer",
        col_title="head",
        row_names=[f"layer {k}" for k in layers],
        col_names=[f"head {k}" for k in heads],
        note=f"Mean over rows of three points or more and over {len(found.kernel)} prompts.",
    )


# -- controls -----------------------------------------------------------------------------------


def controls(found: Probed) -> dict[str, Figure]:
    """Every readout by layer at n = N, those of the controls among them."""
    rows: Frame = findings.layer_rows(found)
    last = rows[rows.n == rows.n.max()]
    return {"controls": charts.steps(last, against="exact KRR", domain=NEAR, each=LAYER)}


def patches(moved: Sequence[Patched]) -> dict[str, Figure]:
    """Whether answers follow α where it was moved; nothing where no layer comes after."""
    if not moved:
        return {}
    rows = findings.patch_rows(moved)
    return {
        "patch_correlation": laws.lines(
            rows,
            Axis("layer", "layer ℓ", log=False),
            Axis("correlation", "correlation with Δα·k(x_*, x_j)", log=False),
            title="Moving α: does the change of the answers look like the kernel?",
        ),
        "patch_slope": laws.lines(
            rows,
            Axis("layer", "layer ℓ", log=False),
            Axis("slope", "slope on Δα·k(x_*, x_j)", log=False),
            title="Moving α: how much of it arrives (1 were all of it)",
        ),
    }


# -- beyond training, and the settings' own prompts ---------------------------------------------


def beyond(found: Beyond, n: int) -> dict[str, Figure]:
    """Error by context length with one step size, beyond the ``n`` of training."""
    named = {
        "lens": ("Trained, last layer", READ_STYLES["lens"]),
        "preconditioned_richardson": (
            "Preconditioned Richardson, certified", STYLES["preconditioned_richardson"]
        ),
        "gradient_descent": ("Gradient descent, certified", STYLES["gradient_descent"]),
        "tuned": ("Gradient descent, tuned", STYLES["nesterov"]),
    }  # fmt: skip
    rows = pd.DataFrame(
        [
            {"series": title, "n": length, "error": min(error, 1e300)}
            for name, (title, _) in named.items()
            for length, error in zip(found.lengths, found.curves[name], strict=True)
        ]
    )
    return {
        "beyond": laws.lines(
            rows,
            Axis("n", "context length n", log=False),
            Axis("error", "relative error to exact KRR", domain=(1e-2, 5)),
            title=f"One step size for all prompts, trained up to n = {n}",
            looks=dict(named.values()),
        )
    }


def yours(found: Live, settings: Settings, floor: float) -> dict[str, Figure]:
    """The model's layers on the settings' own prompts."""
    rows: Frame = findings.live_rows(found)
    look: dict[str, Any] = {"against": REFERENCES[settings.reference], "domain": (floor, 2.0)}
    return {
        "yours": charts.fan(rows, each=LAYER, **look),
        "yours_by_layer": charts.steps(rows[rows.n == rows.n.max()], each=LAYER, **look),
    }


def yours_solvers(result: Fan, settings: Settings, floor: float) -> dict[str, Figure]:
    """The settings' methods on the same prompts."""
    return fan.errors(result, settings, floor, "yours_", "yours_steps")
