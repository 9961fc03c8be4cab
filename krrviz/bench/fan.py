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
        return replace(drawn).prefixes(counts).exact.numpy()  # no kernel kept from an earlier run

    def theirs_exact() -> np.ndarray:
        return np.stack([peers.kernel_ridge(s) for s in flat]).reshape(shape)

    def ours_cg() -> np.ndarray:
        problem = replace(drawn).prefixes(counts)
        return solvers.solve(problem, "conjugate_gradient", steps).predictions.numpy()

    def scipy_cg(labels: float = 1.0) -> np.ndarray:
        moved = [replace(s, y=s.y * labels) for s in flat]
        taken = np.stack([peers.scipy_trajectory(s, steps) for s in moved], 1)
        return taken.reshape(-1, *shape)

    def last(call: Any) -> np.ndarray:
        return np.stack([call(s, tolerance=peers.GONE, steps=steps) for s in flat]).reshape(shape)

    def ours_all() -> dict[str, np.ndarray]:
        return fan(settings).errors

    def numpy_all(labels: float = 1.0) -> dict[str, np.ndarray]:
        errors = {method: np.empty((steps + 1, len(flat))) for method in CLASSICAL}
        for at, s in enumerate(flat):
            taken = peers.trajectories(replace(s, y=s.y * labels), settings.n, steps)
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
                "loop over GPyTorch, CG forced (last step)": (
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
        yield from beside("fan", name, interleaved(calls, runs), goals, apart)
    # Theirs beside itself, the labels moved by two roundings, is what no two programs can beat.
    moved = 1 + 4e-16
    exact, theirs, theirs_moved = ours_cg(), scipy_cg(), scipy_cg(moved)
    errors, numpy, numpy_moved = ours_all(), numpy_all(), numpy_all(moved)
    for contender, difference in (
        ("conjugate_gradient: SciPy from ours", np.abs(exact - theirs).max()),
        ("conjugate_gradient: SciPy from itself", np.abs(theirs_moved - theirs).max()),
        *(
            (f"{m}: {name}, mean errors", np.abs(other[m] - numpy[m]).max())
            for m in CLASSICAL
            if "conjugate" in m
            for name, other in (("NumPy from ours", errors), ("NumPy from itself", numpy_moved))
        ),
    ):
        yield Row("fan", "rounding at any step", contender, difference=float(difference))


def apart(ours: Any, theirs: Any) -> float:
    """The largest absolute difference: of answers; of errors, at every step and prefix.

    Conjugate gradients amplify rounding on their way: of their answers (steps+1, prefixes, prompts,
    Q) the last are compared, and their errors are left to the rows on rounding.
    """
    if isinstance(ours, dict):
        return max(float(np.abs(ours[m] - theirs[m]).max()) for m in ours if "conjugate" not in m)
    ours, theirs = (a[-1] if a.ndim == 4 else a for a in (ours, theirs))
    return float(np.abs(ours - theirs).max())
