"""Frames: results as tidy DataFrames, one row an observation."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from krrviz.fan import Curve, Fan, fan
from krrviz.forward import Walk, product_block, product_of, squares
from krrviz.settings import Settings
from krrviz.solvers import SOLVERS, Method
from krrviz.spectrum import certified
from krrviz.tables import Table

TITLES = {"transformer": "Transformer", **{key: entry.title for key, entry in SOLVERS.items()}}

REFERENCES = {"krr": "exact KRR", "noiseless": "the noiseless function", "labels": "the labels"}

# Steps that a chart holds; more of them could not be told apart.
DRAWN = 128

# Frames go into files and charts that know no infinity.
HUGE = 1e300


def fan_frame(settings: Settings, table: Table | None = None) -> pd.DataFrame:
    """The fan of ``settings``: columns method, step, n, error.

    ``error`` is the mean over prompts of ‖f_t − f‖/‖f‖ over the queries, f the reference.

    Raises
    ------
    SettingsError
        What the data, the device or the memory cannot give.
    """
    return fan_rows(fan(settings, table))


def fan_rows(result: Fan) -> pd.DataFrame:
    """A computed fan as columns method, step, n, error."""
    methods = list(result.errors)
    index = pd.MultiIndex.from_product(
        [methods, range(result.settings.steps + 1), result.counts], names=["method", "step", "n"]
    )
    errors = np.concatenate([result.errors[method].ravel() for method in methods])
    return pd.DataFrame({"error": errors.clip(0, HUGE)}, index=index).reset_index()


def step_rows(result: Fan) -> pd.DataFrame:
    """The errors at the full context length: columns method, step, error."""
    rows = fan_rows(result).query(f"n == {result.counts[-1]}")
    return rows.drop(columns="n").reset_index(drop=True)


def curve_rows(curve: Curve) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """A method's fitted curve by step, the exact answer, and the data.

    Columns: step, x, prediction; x, prediction; x, y. A value that has overflowed has no place
    in a picture and is left out.
    """
    predictions = curve.predictions
    rows = pd.DataFrame(
        {
            "step": np.repeat(np.arange(len(predictions)), len(curve.x)),
            "x": np.tile(curve.x, len(predictions)),
            "prediction": predictions.ravel(),
        }
    )
    return (
        rows.replace([np.inf, -np.inf], np.nan).dropna(ignore_index=True),
        pd.DataFrame({"x": curve.x, "prediction": curve.exact}),
        pd.DataFrame({"x": curve.data_x, "y": curve.data_y}),
    )


def thinned(rows: pd.DataFrame, kept: Collection[int] = (0,)) -> pd.DataFrame:
    """``rows`` of about ``DRAWN`` steps, evenly spaced, the last among them; and of those kept."""
    last = int(rows["step"].to_numpy().max(initial=0))
    every = math.ceil(last / DRAWN) or 1
    drawn = (rows["step"] % every == last % every) | rows["step"].isin([*kept])
    return rows.loc[drawn].reset_index(drop=True)


def conditions(result: Fan) -> pd.DataFrame:
    """What each curve is: one row a method, with its step policy, ridge, dtype and reference."""
    s = result.settings
    return pd.DataFrame(
        {
            "method": TITLES[method],
            "update": _solver(method).update,
            "step": _step(method, s),
            "solves": f"({system(s)})α = y",
            "computed in": f"{s.dtype} on {result.device}",
            "error against": REFERENCES[s.reference],
        }
        for method in s.methods
    )


def _solver(method: str) -> Method:
    """The method itself; the transformer carries out preconditioned Richardson."""
    return SOLVERS["preconditioned_richardson" if method == "transformer" else method]


def _step(method: str, s: Settings) -> str:
    """Which step a method takes, and where it is from."""
    entry = _solver(method)
    policy = "certified" if method == "transformer" else entry.policy(s.policy)
    sure = certified(entry.operator, s.n, s.ridge, s.ridge_scale)
    low, high = f"{float(sure.low):.3g}", f"{float(sure.high):.4g}"
    told = {
        (None, None): "none needed",
        ("step", "certified"): f"certified for N = {s.n}: η = {float(sure.best_step):.4g}, from "
        f"eigenvalues in [{low}, {high}]",
        ("step", "one_over_l"): "η = 1/L, each prompt's true L",
        ("step", "optimal"): "η = 2/(μ + L), each prompt's true μ and L",
        ("step", "manual"): f"manual: η = {s.step_size:g}",
        ("interval", "certified"): f"certified for N = {s.n}: μ = {low}, L = {high}",
        ("interval", "one_over_l"): f"certified μ = {low}, each prompt's true L",
        ("interval", "optimal"): "each prompt's true μ and L",
        ("interval", "manual"): f"manual: 1/L = {s.step_size:g}, "
        f"certified μ = {min(float(sure.low), 1 / s.step_size):.3g}",
    }
    return told[entry.takes, policy]


def system(settings: Settings) -> str:
    """The matrix that is solved, with the ridge's convention."""
    scale = "n · " if settings.ridge_scale == "per_sample" else ""
    return f"K + {scale}{settings.ridge:g} I"


def titled(rows: pd.DataFrame) -> pd.DataFrame:
    """``rows`` with the methods' titles as a column of their own."""
    return rows.assign(title=rows.method.map(TITLES))


def fault_rows(
    intact: Float[Tensor, " times"], faulty: Float[Tensor, " times"] | None
) -> pd.DataFrame:
    """Error by step of the transformer and of its broken copy: method, title, step, error."""
    curves = [("transformer", "intact", intact)]
    if faulty is not None:
        curves.append(("broken", "broken", faulty))
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "method": method,
                    "title": title,
                    "step": np.arange(len(errors)),
                    "error": errors.double().numpy().clip(0, HUGE),
                }
            )
            for method, title, errors in curves
        ],
        ignore_index=True,
    )


def alpha_rows(walk: Walk, token: int) -> pd.DataFrame:
    """One token's α by step, in the channel and in the solver: method, title, step, alpha.

    The solver has no α off the context.
    """
    rows = [("transformer", "α channel", walk.alpha[:, token])]
    if 1 <= token <= walk.problem.n_max:
        rows.append(
            ("preconditioned_richardson", "Richardson's α", walk.solver.states[:, token - 1])
        )
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "method": method,
                    "title": title,
                    "step": np.arange(len(alpha)),
                    "alpha": alpha.double().numpy(),
                }
            )
            for method, title, alpha in rows
        ],
        ignore_index=True,
    )


def square_rows(walk: Walk, block: int, token: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The hinges' square near one token's operands, and these by step.

    Columns: step, sign, s, square of the operands s₊ and s₋; s, made, exact of the curve.
    ``block`` is any block: its product's, or that of the update it belongs to.
    """
    block = product_block(walk, block)
    made = product_of(walk, block)
    assert made is not None
    _, factor, r, _, _ = made
    g = walk.construction.balance(r)
    u = walk.value(1, token, "u")  # after the read-in's attention; nothing writes it later
    if factor == "y":
        v = np.full(len(walk.alpha), walk.value(0, token, "y"))
    else:
        v = walk.alpha[:, token].double().numpy()
    operands = {"s₊": g * u + v / g, "s₋": g * u - v / g}
    finite = np.abs(np.concatenate(list(operands.values())))
    square = squares(walk, block, float(finite[np.isfinite(finite)].max(initial=0)))
    s, curve = square.s.numpy(), square.made.numpy()
    marks = pd.concat(
        [
            pd.DataFrame(
                {
                    "step": np.arange(len(at)),
                    "sign": sign,
                    "s": at,
                    "square": np.interp(at, s, curve),
                }
            )
            for sign, at in operands.items()
        ],
        ignore_index=True,
    )
    return marks.query(f"abs(s) <= {s[-1]}").reset_index(drop=True), pd.DataFrame(
        {"s": s, "made": curve, "exact": s**2}
    )
