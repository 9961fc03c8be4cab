"""Bench: the construction's figures and this machine's times, printed as plain tables."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

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
GP = Settings(data="gp", d=2, bandwidth=0.5, ridge=0.1, device="cpu", queries=8)


def main() -> None:
    """Print everything; about a minute on two cores."""
    # Measured first, while this process is small: a child's peak starts at its parent's size.
    alone = "from krrviz.bench import large; large()"
    last = subprocess.check_output([sys.executable, "-c", alone], text=True)
    for line in (*machine(), "", *figures(), "", *laws(), "", *page(), "", *growth(), "", last):
        print(line, flush=True)


def machine() -> list[str]:
    """What these times were taken on."""
    names = ", ".join(f"{name} {version(name)}" for name in ("krrviz", "torch", "numpy", "scipy"))
    return [
        f"{platform.processor() or platform.machine()}, {platform.system()}, "
        f"{os.cpu_count()} CPUs, {torch.get_num_threads()} threads",
        f"python {platform.python_version()}, {names}",
    ]


# -- figures ----------------------------------------------------------------------------------


def gap(settings: Settings) -> float:
    """max over queries |transformer − Richardson| at the last step, geometric mean of prompts."""
    problem, c = sample(settings), Construction.from_settings(settings)
    answer = predict(build(c), problem).predictions[-1].double()
    same = record("richardson", same_rule(c), problem, c.steps).predictions[-1]
    return float((answer - same).abs().amax(-1).log().mean().exp())


def figures() -> Iterator[str]:
    """The construction's gap to Richardson, and its ratio to the expected figure."""
    yield "gap to Richardson after 24 steps, 16 prompts (expected; ratio)"
    yield f"{'N':>5} {'product':>9} {'m':>4} {'float64':^27} {'float32':^27}"
    for n, product, m, *expected in FIGURES:
        settings = GP.but(n=n, product=product, segments=m, steps=24)
        cells = [
            f"{found:.2e} ({want:.1e}; {found / want:5.2f})"
            for dtype, want in zip(("float64", "float32"), expected, strict=True)
            for found in [gap(settings.but(dtype=dtype))]
        ]
        yield f"{n:>5} {product:>9} {m:>4} " + " ".join(f"{cell:^27}" for cell in cells)


# -- laws -------------------------------------------------------------------------------------


def laws() -> Iterator[str]:
    """What the guarantee page shows, in figures: depth, width, looseness, floors."""

    def depth(eps: float, **changes: Any) -> int | None:
        settings = GP.but(**{"prompts": 4, **changes})
        return first_steps(Construction.from_settings(settings), sample(settings), (eps,))[eps]

    yield "depth needed, certified coefficients, products exact"
    for rule in ("richardson", "chebyshev", "heavy_ball", "nesterov"):
        yield f"{rule:>12}, N=40, to 1e-6 relative: {depth(1e-6, n=40, update=rule)}"
    for sink in (0, "ridge"):
        found = [depth(1e-3, n=n, ridge_scale="per_sample", sink=sink) for n in (16, 64, 256, 1024)]
        yield f"per-sample ridge, sink {sink}, to 1e-3, N = 16, 64, 256, 1024: {found}"
    yield "steps and hinges certified for ε = 1e-3, N = 64"
    for scale, sink in (("absolute", 0), ("per_sample", "ridge")):
        for rule in ("richardson", "chebyshev", "heavy_ball", "nesterov"):
            settings = GP.but(ridge_scale=scale, sink=sink, update=rule)
            c = construction_for(Construction.from_settings(settings), 1e-3)
            yield f"{scale:>12}, sink {sink}, {rule}: {c.steps} steps, m = {c.segments}"
    rows = [row for _, point in width(GP, None) for row in point()]
    for product in ("plain", "balanced"):
        mine = [row for row in rows if row["product"] == product]
        by_m = np.array([[r["segments"], r["product_error"], r["output"]] for r in mine[:7]])
        by_n = np.array([[r["n"], r["product_error"]] for r in mine if r["segments"] == 128])
        fits = (
            power(by_m[:, 0], by_m[:, 1]),
            power(by_m[:, 0], by_m[:, 2]),
            power(by_n[:, 0], by_n[:, 1] ** 0.5),
        )
        told = [f"{fit.exponent:.3f}" for fit in fits if fit]
        yield f"{product}: product, answer against m, width against N: exponents {', '.join(told)}"
    yield "looseness at the defaults, median over prompts: a priori, post hoc"
    for label, point in looseness(GP.but(steps=32, queries=16), None):
        ratios = np.array(
            [[r["a_priori"], r["post_hoc"]] / np.array(r["measured"]) for r in point()]
        )
        a_priori, post_hoc = np.median(ratios, axis=0)
        yield f"{label:>24}: {a_priori:8.0f} {post_hoc:8.0f}"
    for dtype, point in precision(GP, None):
        yield f"floor within 256 steps, {dtype}: {min(r['error'] for r in point()):.1e}"


# -- times ------------------------------------------------------------------------------------


def warm(call: Callable[[], object], runs: int = RUNS) -> float:
    """Seconds of one call: the median of ``runs``, after one that does not count."""
    call()
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def page() -> Iterator[str]:
    """What the first page computes."""
    yield f"first page, default settings, median of {RUNS} warm runs"
    calls = {
        "fan": fan,
        "trust": trust,
        "curve": lambda settings: curve(settings, "transformer"),
    }
    for name, call in calls.items():
        yield f"{name:>8} {1e3 * warm(partial(call, Settings())):8.1f} ms"


def growth() -> Iterator[str]:
    """How the transformer's time grows with N and with the steps: t ∝ x^exponent."""
    for title, change, values in (
        ("N (one prompt, 32 steps)", lambda n: {"n": n}, [128, 256, 512, 1024, 2048]),
        ("steps (one prompt, N=256)", lambda t: {"n": 256, "steps": t}, [16, 32, 64, 128, 256]),
    ):
        yield f"time against {title}"
        times = [warm(forward(**change(value)), runs=3) for value in values]
        yield "".join(f"{value:>10}" for value in values)
        yield "".join(f"{1e3 * t:>7.1f} ms" for t in times)
        exponent = np.polyfit(np.log(values), np.log(times), 1)[0]
        yield f"   exponent {exponent:.2f}"


def forward(n: int, steps: int = 32) -> Callable[[], object]:
    """``predict`` on one prompt, everything else made beforehand."""
    settings = GP.but(prompts=1, n=n, steps=steps)
    return partial(predict, build(Construction.from_settings(settings)), sample(settings))


def large() -> None:
    """Print seconds and peak memory of a large prompt; run in a process of its own."""
    before = peak()
    call = forward(n=2048, steps=64)
    started = time.perf_counter()
    call()
    print(
        f"N=2048, one prompt, 64 steps: {time.perf_counter() - started:.2f} s cold, peak "
        f"{peak() - before:.0f} MiB beyond the interpreter and its imports (the draw included)"
    )


def peak() -> float:
    """The most memory that this process has held, in MiB; Windows keeps no such figure."""
    if sys.platform == "win32":
        return np.nan
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
