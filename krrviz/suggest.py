"""Suggest: a bandwidth and a ridge that the data themselves speak for.

Three common rules: the median distance, cross-validation, generalised cross-validation. Each looks
at a random part of many rows, and says at how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial.distance import pdist

from krrviz.problem import Problem
from krrviz.settings import SettingsError

DISTANCE_ROWS = 1000  # half a million distances
FIT_ROWS = 400  # 125 systems of 320 rows; one spectrum of 400
FOLDS = 5
POINTS = 101  # of the distribution function
BANDWIDTHS = 25
RIDGES = np.logspace(-8, 2, 51)


@dataclass(frozen=True, eq=False)
class Median:
    """The median heuristic.

    bandwidth : the median of the distances ‖x_i − x_j‖ over all pairs of ``rows`` rows; of those
        above 0 where half of them are 0
    distance, share (points,) : the distances' distribution function, the share of pairs at most so
        far apart
    """

    bandwidth: float
    distance: Float[np.ndarray, " points"]
    share: Float[np.ndarray, " points"]
    rows: int


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Squared error at rows held out, by bandwidth.

    bandwidth : that of the least mean error; ``at_edge`` where it is the first or last of the grid
    bandwidths (grid,) : the grid, in standardised input units
    mean, standard_error (grid,) : of the folds' mean squared errors, in squared units of y
    index, fold (rows,) : the rows that were used, and the fold in which each is held out
    """

    bandwidth: float
    at_edge: bool
    bandwidths: Float[np.ndarray, " grid"]
    mean: Float[np.ndarray, " grid"]
    standard_error: Float[np.ndarray, " grid"]
    index: Int[np.ndarray, " rows"]
    fold: Int[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class GeneralisedCrossValidation:
    """GCV(λ) on a grid.

    ridge : that of the least score; ``at_edge`` where it is the first or last of the grid: the
        score then has no minimum inside it, as where it falls all the way to interpolation
    ridges, score (grid,) : the grid, and the scores in squared units of y
    index (rows,) : the rows that were used
    """

    ridge: float
    at_edge: bool
    ridges: Float[np.ndarray, " grid"]
    score: Float[np.ndarray, " grid"]
    index: Int[np.ndarray, " rows"]


def median_bandwidth(X: Float[np.ndarray, "rows d"], seed: int = 0) -> Median:
    """The median of the distances between at most 1000 rows, in the units of X (rows, d).

    Raises
    ------
    SettingsError
        Fewer than two rows, or all of them equal.
    """
    rows = _drawn(len(X), DISTANCE_ROWS, seed)
    distances = np.sort(pdist(X[rows]))
    if not distances[-1]:
        raise SettingsError(
            f"bandwidth: all distances between {len(rows)} rows are 0; two inputs must differ",
            "bandwidth",
        )
    median = float(np.median(distances)) or float(np.median(distances[distances > 0]))
    points = np.linspace(0, distances[-1], POINTS)
    share = np.searchsorted(distances, points, side="right") / len(distances)
    return Median(median, points, share, len(rows))


def cross_validated_bandwidth(
    X: Float[np.ndarray, "rows d"],
    y: Float[np.ndarray, " rows"],
    ridge: float,
    seed: int = 0,
    progress: Callable[[float], None] = lambda done: None,
) -> CrossValidation:
    """The bandwidth of the least error at held-out rows, (K + λI)α = y on the others.

    At most 400 rows in five folds (as many as there are rows, where that is fewer); 25 bandwidths,
    evenly on a log scale from a thirtieth of the median distance to ten times it.

    Parameters
    ----------
    X, y : (rows, d) inputs and (rows,) targets, standardised
    ridge : λ > 0, absolute
    progress : called with the share done

    Raises
    ------
    SettingsError
        Fewer than two rows, or all inputs equal.
    ValueError
        A value that is not finite, or a ridge that is not above 0.
    """
    middle = median_bandwidth(X, seed).bandwidth
    low, high = np.clip([middle / 30, 10 * middle], 1e-3, 1e3)  # where a bandwidth may be set
    grid = np.geomspace(low, high, BANDWIDTHS)

    index = _drawn(len(X), FIT_ROWS, seed)
    folds = min(FOLDS, len(index))
    fold = np.random.default_rng([seed, 1]).permutation(len(index)) % folds
    # One prompt for each fold: the others' rows first, its own as queries, padded to one shape.
    order = [np.argsort(fold == k, kind="stable") for k in range(folds)]
    held = np.bincount(fold)
    most = int((len(index) - held).max())
    context = torch.from_numpy(index[np.stack([rows[:most] for rows in order])])
    query = torch.from_numpy(index[np.stack([rows[-int(held.max()) :] for rows in order])])
    inputs, labels = torch.tensor(X), torch.tensor(y)
    problem = Problem(
        inputs[context],
        labels[context],
        inputs[query],
        torch.from_numpy(len(index) - held),
        1.0,
        ridge,
    )
    own = torch.arange(query.shape[1]) >= torch.from_numpy(held.max() - held)[:, None]
    errors = np.empty((BANDWIDTHS, folds))
    for i, bandwidth in enumerate(grid):
        squares = (replace(problem, bandwidth=float(bandwidth)).exact - labels[query]).square()
        errors[i] = ((squares * own).sum(-1) / own.sum(-1)).numpy()
        progress((i + 1) / BANDWIDTHS)
    mean = errors.mean(1)
    best = int(mean.argmin())
    return CrossValidation(
        bandwidth=float(grid[best]),
        at_edge=best in (0, BANDWIDTHS - 1),
        bandwidths=grid,
        mean=mean,
        standard_error=errors.std(1, ddof=1) / math.sqrt(folds),
        index=index,
        fold=fold,
    )


# Generalised cross-validation (Golub, Heath and Wahba 1979). Kernel ridge regression fits
# ŷ = Sy, S = K(K + λI)⁻¹. Leaving row i out changes its residual from e_i = y_i − ŷ_i to
# e_i/(1 − S_ii); with every S_ii replaced by their mean, the mean square of these is
#
#     GCV(λ) = (1/n)‖(I − S)y‖² / (1 − tr S/n)².
#
# I − S = λ(K + λI)⁻¹. With K = QΛQᵀ, c = Qᵀy and w_i = λ/(Λ_i + λ) it is Q diag(w) Qᵀ, so
#
#     GCV(λ) = (1/n) Σ (w_i c_i)² / ((1/n) Σ w_i)²:
#
# one spectrum serves every λ. As λ → 0 both 1 − tr S/n and the residual go to 0; a mean of
# positive w_i loses no digits on the way, as 1 − tr S/n would.


def gcv_ridge(
    X: Float[np.ndarray, "rows d"], y: Float[np.ndarray, " rows"], bandwidth: float, seed: int = 0
) -> GeneralisedCrossValidation:
    """The ridge of the least generalised cross-validation score, from 1e-8 to 1e2.

    Parameters
    ----------
    X, y : (rows, d) inputs and (rows,) targets, standardised; at most 400 rows are used
    bandwidth : σ > 0

    Raises
    ------
    SettingsError
        Fewer than two rows.
    ValueError
        A value that is not finite, or a bandwidth that is not above 0.
    """
    index = _drawn(len(X), FIT_ROWS, seed)
    inputs, labels = torch.tensor(X[index]), torch.tensor(y[index])
    problem = Problem(inputs, labels, inputs[:1], torch.tensor(len(index)), bandwidth, 1.0)
    values, vectors = np.linalg.eigh(problem.K.numpy())
    ridges = RIDGES[:, None]
    w = ridges / (values.clip(0) + ridges)  # K is positive semidefinite but for rounding
    score = np.square(w * (vectors.T @ y[index])).mean(1) / w.mean(1) ** 2
    best = int(score.argmin())
    return GeneralisedCrossValidation(
        ridge=float(RIDGES[best]),
        at_edge=best in (0, len(RIDGES) - 1),
        ridges=RIDGES,
        score=score,
        index=index,
    )


def _drawn(rows: int, most: int, seed: int) -> Int[np.ndarray, " drawn"]:
    """All rows' numbers, or ``most`` of them at random, in order."""
    if rows < 2:
        raise SettingsError(f"rows={rows} must be at least 2 to choose a bandwidth or ridge by")
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
