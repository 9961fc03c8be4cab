"""The fan of the default page beside loops over prompts with other libraries: same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from krrviz import solvers
from krrviz.bench import peers
from krrviz.bench.record import Goal, Row, beside, interleaved
from krrviz.fan import context_lengths, fan
from krrviz.settings import METHODS, Settings
from krrviz.tasks import sample

RUNS = 9
TOLERANCE = 1e-6
GPYTORCH, COARSE = "loop over GPyTorch, CG forced (last step)", 1e-4  # peers.gpytorch_cg says why
DEFAULT = Settings(device="cpu")
CLASSICAL = METHODS[1:]


def rows(settings: Settings = DEFAULT, runs: int = RUNS) -> Iterator[Row]:
    """Exact answers, trajectories of conjugate gradients, all methods' errors; (prefix, prompt).

    The prompts are drawn beforehand for all but ours of all methods, which draws them itself.
    """
    settings = settings.but(methods=CLASSICAL)
    counts, steps, drawn = context_lengths(settings.n), settings.steps, sample(settings)
    flat = [
        s for n in counts for s in peers.systems(replace(drawn, count=drawn.count.clamp(max=n)))
    ]
    shape = (len(counts), settings.prompts, settings.queries)

    def ours_exact() -> np.ndarray:
        return drawn.prefixes(counts).exact.numpy()

    def theirs_exact() -> np.ndarray:
        return np.stack([peers.kernel_ridge(s) for s in flat]).reshape(shape)

    def ours_cg() -> np.ndarray:
        problem = drawn.prefixes(counts)
        return solvers.solve(problem, "conjugate_gradient", steps).predictions.numpy()

    def scipy_cg(labels: float = 1.0) -> np.ndarray:
        moved = [replace(s, y=s.y * labels) for s in flat]
        taken = np.stack([peers.scipy_trajectory(s, steps) for s in moved], 1)
        return taken.reshape(-1, *shape)

    def last(call: Any) -> np.ndarray:
        return np.stack([call(s, tolerance=peers.GONE, steps=steps) for s in flat]).reshape(shape)

    def ours_all() -> dict[str, np.ndarray]:
        return fan(settings).errors

    def numpy_all() -> dict[str, np.ndarray]:
        errors = {method: np.empty((steps + 1, len(flat))) for method in CLASSICAL}
        for at, s in enumerate(flat):
            taken = peers.trajectories(s, settings.n, steps)
            exact = taken.pop("exact")
            size = np.linalg.norm(exact)
            for method, predictions in taken.items():
                errors[method][:, at] = np.linalg.norm(predictions - exact, axis=1) / size
        return {m: e.reshape(-1, *shape[:2]).mean(-1) for m, e in errors.items()}

    for name, ours, others in (
        (
            "exact answers",
            ("krrviz exact", ours_exact),
            {"loop over sklearn KernelRidge": (theirs_exact, 10)},
        ),
        (
            "conjugate gradients, every step",
            ("krrviz conjugate_gradient", ours_cg),
            {
                "loop over scipy.sparse.linalg.cg": (scipy_cg, 4),
                GPYTORCH: (
                    partial(last, peers.gpytorch_cg),
                    10,
                ),
                "loop over linear_operator linear_cg (last step)": (
                    partial(last, peers.linear_cg),
                    10,
                ),
            },
        ),
        (
            "all classical methods",
            ("krrviz fan", ours_all),
            {"loop in NumPy": (numpy_all, 5)},
        ),
    ):
        calls = dict([ours]) | {other: call for other, (call, _) in others.items()}
        goals = {other: Goal(limit) for other, (_, limit) in others.items()}
        for row in beside("fan", name, interleaved(calls, runs), goals, apart):
            allowed = COARSE if row.contender == GPYTORCH else TOLERANCE
            assert row.difference is None or row.difference <= allowed, (
                f"{row.contender}: {row.difference:.1e} from ours, {allowed:g} is allowed"
            )
            yield row
    between = "conjugate gradients, any step in between"
    for contender, other in (
        ("krrviz conjugate_gradient beside SciPy", ours_cg()),
        ("SciPy beside itself, labels times 1 + 4e-16", scipy_cg(1 + 4e-16)),
    ):
        yield Row("fan", between, contender, difference=float(np.abs(other - scipy_cg()).max()))


def apart(ours: Any, theirs: Any) -> float:
    """The largest absolute difference of answers, or of errors; of conjugate gradients' the last.

    Their steps in between follow rounding: a label's last digit moves them as far as another
    library does (the row on rounding). Arrays with steps are (steps+1, prefixes, prompts, Q).
    """
    if isinstance(ours, dict):
        return max(
            float(np.abs(ours[m] - theirs[m])[-1 if "conjugate" in m else slice(None)].max())
            for m in ours
        )
    ours, theirs = (a[-1] if a.ndim == 4 else a for a in (ours, theirs))
    return float(np.abs(ours - theirs).max())
