"""The construction's own figures: gaps, depths, widths, looseness, floors; the page's times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from krrviz.bench.large import GP
from krrviz.bench.record import Row, interleaved
from krrviz.construction.certificate import construction_for
from krrviz.construction.predict import predict
from krrviz.construction.weights import Construction, build
from krrviz.fan import curve, fan, same_rule
from krrviz.scaling import first_steps, looseness, power, precision, width
from krrviz.settings import Settings
from krrviz.tasks import sample
from krrviz.trajectory import record
from krrviz.trust import trust

RUNS = 7

# N, product, hinges per side m, and the gaps once found by an independent implementation, in
# float64 and float32 (its float32 masked the sink less precisely than this one).
FIGURES = [
    (64, "plain", 128, 7.8e-3, 8.0e-3),
    (64, "plain", 512, 5.7e-4, 1.5e-3),
    (64, "balanced", 64, 2.6e-3, 3.3e-3),
    (64, "balanced", 128, 6.6e-4, 1.6e-3),
    (64, "balanced", 512, 3.0e-5, 1.5e-3),
    (256, "plain", 512, 2.8e-3, 3.4e-3),
    (256, "balanced", 128, 2.7e-3, 2.9e-3),
    (256, "balanced", 512, 1.5e-4, 1.8e-3),
]


def gap(settings: Settings) -> float:
    """max over queries |transformer − Richardson| at the last step, geometric mean of prompts."""
    problem, c = sample(settings), Construction.from_settings(settings)
    answer = predict(build(c), problem).predictions[-1].double()
    same = record("richardson", same_rule(c), problem, c.steps).predictions[-1]
    return float((answer - same).abs().amax(-1).log().mean().exp())


def figures() -> Iterator[Row]:
    """The construction's gap to Richardson after 24 steps, 16 prompts; of the expected figure."""
    for n, product, m, *expected in FIGURES:
        settings = GP.but(n=n, product=product, segments=m, steps=24)
        for dtype, want in zip(("float64", "float32"), expected, strict=True):
            found = gap(settings.but(dtype=dtype))
            name = f"gap to Richardson, N={n}, {product}, m={m}"
            yield Row(
                "figures", name, dtype, None, found / want, f"of {want:.1e}", difference=found
            )


def laws() -> Iterator[Row]:
    """What the guarantee page shows, in figures: depth, width, looseness, floors."""

    def row(name: str, at: str, value: float | None, unit: str = "") -> Row:
        return Row("laws", name, at, None, value, unit)

    def depth(eps: float, **changes: Any) -> int | None:
        settings = GP.but(**{"prompts": 4, **changes})
        return first_steps(Construction.from_settings(settings), sample(settings), (eps,))[eps]

    rules = ("richardson", "chebyshev", "heavy_ball", "nesterov")
    for rule in rules:
        yield row("depth to 1e-6, N=40, products exact", rule, depth(1e-6, n=40, update=rule))
    for sink in (0, "ridge"):
        for n in (16, 64, 256, 1024):
            found = depth(1e-3, n=n, ridge_scale="per_sample", sink=sink)
            yield row(f"depth to 1e-3, per-sample ridge, sink {sink}", f"N={n}", found)
    for scale, sink in (("absolute", 0), ("per_sample", "ridge")):
        for rule in rules:
            settings = GP.but(ridge_scale=scale, sink=sink, update=rule)
            c = construction_for(Construction.from_settings(settings), 1e-3)
            name = f"certified for 1e-3, N=64, {scale}, sink {sink}"
            yield row(name, rule, c.steps, "steps")
            yield row(name, rule, c.segments, "hinges per side")
    widths = [line for _, point in width(GP, None) for line in point()]
    for product in ("plain", "balanced"):
        mine = [line for line in widths if line["product"] == product]
        by_m = np.array([[r["segments"], r["product_error"], r["output"]] for r in mine[:7]])
        by_n = np.array([[r["n"], r["product_error"]] for r in mine if r["segments"] == 128])
        for at, fit in (
            ("product against m", power(by_m[:, 0], by_m[:, 1])),
            ("answer against m", power(by_m[:, 0], by_m[:, 2])),
            ("width against N", power(by_n[:, 0], by_n[:, 1] ** 0.5)),
        ):
            yield row(f"exponents, {product}", at, fit and fit.exponent)
    for label, point in looseness(GP.but(steps=32, queries=16), None):
        ratios = np.array(
            [[r["a_priori"], r["post_hoc"]] / np.array(r["measured"]) for r in point()]
        )
        a_priori, post_hoc = np.median(ratios, axis=0)
        yield row("looseness, median over prompts", f"{label}, a priori", float(a_priori))
        yield row("looseness, median over prompts", f"{label}, post hoc", float(post_hoc))
    for dtype, point in precision(GP, None):
        yield row("floor within 256 steps", dtype, min(float(r["error"]) for r in point()))


def page() -> Iterator[Row]:
    """What the first page computes, warm, at the default settings."""
    calls = {
        "fan": partial(fan, Settings(device="cpu")),
        "trust": partial(trust, Settings(device="cpu")),
        "curve": partial(curve, Settings(device="cpu"), "transformer"),
    }
    for name, times in interleaved(calls, RUNS).items():
        yield Row("page", "default page", name, times)
