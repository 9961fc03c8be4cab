"""Guarantee: each topic's figures, from a guarantee, a tail or a sweep's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from krrviz import charts, laws
from krrviz.charts import STYLES, Figure
from krrviz.frames import TITLES, rule_rows
from krrviz.guarantee import Guarantee
from krrviz.laws import Axis, Frame
from krrviz.scaling import TUNED_STEPS, Tail
from krrviz.settings import Settings
from krrviz.trust import RULES


def budget(found: Guarantee) -> dict[str, Figure]:
    """What an error bound is made of, and what happens."""
    proof = found.certificate
    rows = [("proved", term, getattr(proof, term)) for term in ("iteration", "product", "sink")]
    rows.append(("allowed", "rounding", proof.rounding))
    if found.measured is not None:
        rows += [
            ("measured", "iteration", found.measured.iteration),
            ("measured", "product", found.measured.product),
        ]
    frame = pd.DataFrame(rows, columns=["bar", "term", "value"])
    return {"budget": laws.budget(frame, eps=found.eps)}


def spectrum(found: Tail, settings: Settings) -> dict[str, Figure]:
    """Eigenvalues within the certified interval, and the tail that they make."""
    matrix = "D⁻¹A" if settings.sink == 0 else "P⁻¹A"
    looks = {
        "measured, first prompt": (found.errors, STYLES["transformer"]),
        "its own spectrum, max |p_t|": (found.true, STYLES["gradient_descent"]),
        "certified, h_t": (found.certified, STYLES["preconditioned_richardson"]),
    }
    every = max(1, len(found.errors) // 256)
    rows = pd.DataFrame(
        [
            {"series": name, "step": t, "error": float(curve[t])}
            for name, (curve, _) in looks.items()
            for t in range(0, len(curve), every)
        ]
    )
    return {
        "spectrum": _eigenvalues(found, matrix),
        "tail": laws.lines(
            rows[rows.error > 1e-14],
            Axis("step", "step t", log=False),
            Axis("error", "relative error, or what is left of a mode"),
            title=f"Error by step, {RULES[settings.update]}, products exact",
            looks={name: look for name, (_, look) in looks.items()},
        ),
    }


def _eigenvalues(found: Tail, matrix: str) -> Figure:
    prompts, each = found.eigenvalues.shape
    rows = pd.DataFrame(
        {
            "prompt": np.repeat(np.arange(prompts) + 1, each),
            "value": found.eigenvalues.ravel(),
        }
    )
    low, high = found.interval
    return laws.eigenvalues(rows, low=low, high=high, matrix=matrix)


def depth(rows: Frame, settings: Settings) -> dict[str, Figure]:
    """Steps needed against ε, a figure for each scale of the ridge and each sink."""
    rows = rows.assign(series="N = " + rows["n"].astype(str))
    shown = {}
    for (scale, sink), part in rows.groupby(["ridge_scale", "sink"], sort=False):
        name = f"{'per-sample' if scale == 'per_sample' else 'absolute'} ridge, sink " + (
            "0 (the paper's)" if sink == "0" else "= ridge"
        )
        shown[f"depth_{scale}_{sink}"] = laws.lines(
            part,
            Axis("eps", "relative error ε to reach", reverse=True),
            Axis("steps", "steps needed", log=False),
            title=name.capitalize(),
        )
    return shown


def width(rows: Frame, settings: Settings) -> dict[str, Figure]:
    """Error against hinges, and the width that one error needs against N."""
    by_m = rows[rows.n == settings.n].sort_values("segments")
    by_n = rows[rows.segments == 128].sort_values("n")
    drawn = [
        pd.DataFrame(
            {"series": f"{product}: {what}", "segments": m["segments"], "error": m[column]}
        )
        for product in rows["product"].unique()
        for what, column in (("product error", "product_error"), ("answer", "output"))
        for m in (by_m[by_m["product"] == product],)
    ]
    need = by_n.assign(
        series=by_n["product"] + ": product error",
        width=4 * 128 * np.sqrt(by_n["product_error"] / 1e-3),
    )
    return {
        "width_error": laws.lines(
            pd.concat(drawn),
            Axis("segments", "hinges per side m"),
            Axis("error", "largest error"),
            title=f"Error against width, N = {settings.n}",
        ),
        "width_n": laws.lines(
            need[["series", "n", "width"]],
            Axis("n", "context length N"),
            Axis("width", "MLP width 4m"),
            title="Width for a product error of 1e-3",
        ),
    }


def rules(rows: Frame, settings: Settings) -> dict[str, Figure]:
    """Error by step of every rule."""
    return {"rules": charts.steps(rule_rows(rows[rows.step % 2 == 0]), domain=(1e-6, 2.0))}


def transfer(rows: Frame, settings: Settings) -> dict[str, Figure]:
    """Error against N with one step size for all prompts."""
    titles = rows["method"].map(TITLES) + rows["step_size"].map(lambda eta: f", η = {eta:.3g}")
    return {
        "transfer": laws.lines(
            rows.assign(series=titles)[["series", "n", "error"]],
            Axis("n", "context length N"),
            Axis("error", f"mean relative error after {TUNED_STEPS} steps", domain=(0.05, 5)),
            title="One step size for all prompts",
            looks={
                title: STYLES[method] for title, method in zip(titles, rows["method"], strict=True)
            },
        )
    }


def sink(found: Tail, rows: Frame, settings: Settings) -> dict[str, Figure]:
    """The settings' own spectrum, and what the sink's level does to spectrum and error."""
    ridge = settings.ridge * (settings.n if settings.ridge_scale == "per_sample" else 1)
    here, told = (
        (ridge, "ridge")
        if isinstance(settings.sink, str)
        else (settings.sink, f"{settings.sink:g}")
    )
    shown = {"sink_now": _eigenvalues(found, f"P⁻¹A, s = {told}")}
    lifted = rows[rows.sink > 0] if len(rows) else rows
    if not len(lifted):
        return shown
    ends = {
        "smallest met": "low",
        "largest met": "high",
        "certified smallest": "certified_low",
        "certified largest": "certified_high",
    }
    spread = [
        pd.DataFrame({"series": name, "sink": lifted["sink"], "value": lifted[column]})
        for name, column in ends.items()
    ]
    base = float(rows.loc[rows.sink == 0, "error"].iloc[0])
    errors = [
        pd.DataFrame({"series": "sink s", "sink": lifted["sink"], "error": lifted["error"]}),
        pd.DataFrame({"series": "s = 0, the paper's", "sink": lifted["sink"], "error": base}),
    ]
    if here > 0:  # zero has no place on a logarithmic axis
        mark = {"series": [f"now: s = {told}"] * 2, "sink": [here] * 2}
        spread.append(pd.DataFrame({**mark, "value": found.interval}))
        top = [lifted["error"].min(), lifted["error"].max()]
        errors.append(pd.DataFrame({**mark, "error": top}))
    shown["sink_spectrum"] = laws.lines(
        pd.concat(spread),
        Axis("sink", "sink level s"),
        Axis("value", "eigenvalue of P⁻¹A"),
        title="Spectrum of P⁻¹A, P = D + sI",
    )
    shown["sink_error"] = laws.lines(
        pd.concat(errors),
        Axis("sink", "sink level s"),
        Axis("error", "mean relative error"),
        title=f"Error after {settings.steps} steps, certified coefficients",
    )
    return shown


def precision(rows: Frame, settings: Settings) -> dict[str, Figure]:
    """Error by step in each precision."""
    return {
        "precision": laws.lines(
            rows[rows.step % 2 == 0].rename(columns={"dtype": "series"}),
            Axis("step", "step t", log=False),
            Axis("error", "mean relative error to exact KRR"),
            title="Error by step in each precision",
        )
    }


# Topics that a sweep's rows alone are enough for; that of looseness is a table.
SWEPT: Mapping[str, Callable[[Frame, Settings], dict[str, Figure]]] = {
    "depth": depth,
    "width": width,
    "rules": rules,
    "transfer": transfer,
    "precision": precision,
    "looseness": lambda rows, settings: {},
}
