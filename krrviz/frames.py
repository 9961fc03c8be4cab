"""Frames: results as tidy DataFrames, one row an observation."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from krrviz.fan import HUGE, Curve, Fan, fan
from krrviz.forward import Product, Walk, squares
from krrviz.heldout import EXACT, SKLEARN, HeldOut
from krrviz.settings import Settings
from krrviz.solvers import SOLVERS
from krrviz.spectrum import certified
from krrviz.tables import Table
from krrviz.trust import RULES

TITLES = {"transformer": "Transformer", **{key: entry.title for key, entry in SOLVERS.items()}}

# Update rule of the transformer -> the classical method of its name.
RULE_METHODS = {
    "richardson": "preconditioned_richardson",
    "chebyshev": "chebyshev",
    "heavy_ball": "heavy_ball",
    "nesterov": "nesterov",
    "function_space": "function_space_richardson",
}

REFERENCES = {"krr": "exact KRR", "noiseless": "the noiseless function", "labels": "the labels"}

# Steps that a chart holds; more of them could not be told apart.
DRAWN = 128


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
    rows = fan_rows(result)
    rows = rows.loc[rows["n"] == result.counts[-1]]
    return rows.drop(columns="n").reset_index(drop=True)


HELD_OUT = {
    **TITLES,
    EXACT: "Exact KRR, direct solve",
    SKLEARN: "scikit-learn KernelRidge",
}


def held_out_rows(result: HeldOut) -> pd.DataFrame:
    """How near the answers come to the labels held out: method, title, rmse, mae, r2, to_exact.

    rmse and mae are in the target's unit; r2 = 1 − Σ(y − f)²/Σ(y − ȳ)² over all prompts together,
    and to_exact is the largest |f − f_KRR|, f_KRR the direct solve's.
    """
    labels, exact = result.labels, result.answers[EXACT]
    spread = np.square(labels - labels.mean()).sum()
    rows = []
    for method, answer in result.answers.items():
        gap = answer - labels
        rows.append(
            {
                "method": method,
                "title": HELD_OUT[method],
                "rmse": np.sqrt(np.square(gap).mean()),
                "mae": np.abs(gap).mean(),
                "r2": 1 - np.square(gap).sum() / spread if spread > 0 else np.nan,
                "to_exact": np.abs(answer - exact).max(),
            }
        )
    return pd.DataFrame(rows)


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
            "update": _update(method, s),
            "step": _step(method, s),
            "solves": f"({system(s)})α = y",
            "computed in": f"{s.dtype} on {result.device}",
            "error against": REFERENCES[s.reference],
        }
        for method in s.methods
    )


def _update(method: str, s: Settings) -> str:
    """A method's update in symbols; the transformer's rule runs on P⁻¹A."""
    if method != "transformer":
        return SOLVERS[method].update
    update = {
        "richardson": "α ← α + ηP⁻¹(y − Aα)",
        "chebyshev": "Chebyshev semi-iteration on P⁻¹A",
        "heavy_ball": "α ← α + ηP⁻¹(y − Aα) + β(α − α₋)",
        "nesterov": "v = α + β(α − α₋), α ← v + P⁻¹(y − Av)/L",
        "function_space": "u ← u + ηP⁻¹(K(y − u) − ru), at the queries too",
    }[s.update]
    sink = {0: "", "ridge": " + rI"}.get(s.sink, f" + {s.sink} I")
    return f"{update}, P = D{sink}"


def _step(method: str, s: Settings) -> str:
    """Which step a method takes, and where it is from."""
    entry = SOLVERS[RULE_METHODS[s.update] if method == "transformer" else method]
    policy, operator, sink = entry.policy(s.policy), entry.operator, 0.0
    if method == "transformer":
        policy, operator, sink = "certified", "preconditioned", s.sink
    sure = certified(operator, s.n, s.ridge, s.ridge_scale, sink)
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


def rule_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors by step of the transformer's rules and of methods: their titles, a rule's method."""
    titles = {rule: f"Transformer, {name}" for rule, name in RULES.items()}
    return rows.assign(
        title=rows.method.map({**TITLES, **titles}), method=rows.method.replace(RULE_METHODS)
    )


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


def state_rows(walk: Walk, token: int) -> pd.DataFrame:
    """One token's state by step, in the channel and in the solver: method, title, step, state.

    The dual rules' solver has no α off the context.
    """
    rows = [("transformer", f"{walk.symbol} channel", walk.state[:, token])]
    solver = walk.solver_states(token)
    if solver is not None:
        rule = walk.construction.update
        rows.append((RULE_METHODS[rule], f"{RULES[rule]}'s {walk.symbol}", solver))
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "method": method,
                    "title": title,
                    "step": np.arange(len(state)),
                    "state": state.double().numpy(),
                }
            )
            for method, title, state in rows
        ],
        ignore_index=True,
    )


def square_rows(walk: Walk, product: Product, token: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The hinges' square near one token's operands, and these by step.

    Columns: step, sign, s, square of the operands s₊ and s₋ as the stream holds them after each
    step; s, made, exact of the curve.
    """
    first, second = walk.construction.scales(product.r)
    # Nothing writes u after the read-in.
    read_in = walk.moment_of(walk.model.updates.start)
    u = walk.value(read_in, token, product.u)
    if product.v == "y":
        v = np.full(len(walk.state), walk.value(0, token, "y"))
    else:
        v = walk.source[:, token].double().numpy()
    operands = {"s₊": first * u + v / second, "s₋": first * u - v / second}
    finite = np.abs(np.concatenate(list(operands.values())))
    s, curve = (
        values.numpy()
        for values in squares(walk, product, float(finite[np.isfinite(finite)].max(initial=0)))
    )
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
