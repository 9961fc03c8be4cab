"""Tasks: seeded prompts from Gaussian process draws, shipped data or a person's table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from krrviz.kernel import HELD_BYTES, gaussian_kernel
from krrviz.machine import room
from krrviz.problem import Problem
from krrviz.settings import DIGEST, Settings, SettingsError, check_rows
from krrviz.tables import Columns, Table, TableError, shipped

# Unequal clumps, so that row sums differ between crowds too.
CLUMP_SHARES, CLUMP_SPREAD = (8 / 15, 4 / 15, 2 / 15, 1 / 15), 0.05
# Added to the drawn function's covariance: it has no Cholesky factor in float64 otherwise.
JITTER = 1e-10
# Of long draws: rows a block, and the variance below which a row is explained by others.
BLOCK, SKIPPED = 512, 1e-9
CHOICES = 20  # columns of a file that are tried where its first choice cannot be used


def sample(settings: Settings, table: Table | None = None) -> Problem:
    """The prompts that ``settings`` describe: X (prompts, n, d), always float64 on the CPU.

    Prompt p depends on the seed and p alone, and a longer context only adds tokens (labels of
    Gaussian process draws too large for a matrix are those of shorter ones to 2e-2). ``table`` is
    needed for ``data=csv`` and ignored otherwise.

    Raises
    ------
    SettingsError
        More rows wanted than the table has, or ``data=csv`` without a table.
    """
    if settings.data == "gp":
        return _gp(settings)
    return _rows(settings, table_of(settings, table))


def table_of(settings: Settings, table: Table | None = None) -> Table:
    """The table behind ``settings``; ``table`` itself for ``data=csv``."""
    if settings.data != "csv":
        return shipped(settings.data)
    if table is None:
        raise SettingsError("data=csv needs a file: pass --csv FILE on the command line", "data")
    return table


def own_table(columns: Columns, settings: Settings) -> Table:
    """The table that ``data=csv`` stands for: a file's columns as ``settings`` choose them.

    Raises
    ------
    SettingsError
        Another file than the one that ``settings`` name, or a number beyond its columns.
    TableError
        Columns that cannot be used.
    """
    digest = columns.digest[:DIGEST]
    if settings.file not in ("none", digest):
        raise SettingsError(
            f"file={settings.file}: this file's SHA-256 begins with {digest}, so it is another; "
            "give the one that the link was made with",
            "file",
        )

    def name(key: str, number: int) -> str:
        if number > len(columns.all_names):
            raise SettingsError(
                f"{key}={number}: the file has {len(columns.all_names)} columns; allowed: 1 to "
                f"{len(columns.all_names)}",
                key,
            )
        return columns.all_names[number - 1]

    wanted = [] if settings.columns == "all" else settings.columns.split(",")
    return columns.table(
        None if isinstance(settings.target, str) else name("target", settings.target),
        [name("columns", int(number)) for number in wanted] or None,
    )


def usable(columns: Columns) -> tuple[dict[str, Any], Table]:
    """The first choice of target and inputs that can be used, as settings, and its table.

    The last column from all others, if it can be; else some other column from all others, or
    from one.

    Raises
    ------
    TableError
        Why the first of these cannot be used, where none of them can.
    """
    numbers = [columns.number(name) for name in reversed([*columns.numbers])][:CHOICES]
    choices: list[dict[str, Any]] = [{}, *({"target": y} for y in numbers)]
    choices += [{"target": y, "columns": str(x)} for y in numbers for x in numbers if x != y]
    refused = None
    for choice in choices:
        try:
            return choice, own_table(columns, Settings(data="csv", **choice))
        except TableError as error:
            refused = refused or error
    assert refused is not None, "the first choice is always tried"
    raise refused


def input_bound(settings: Settings, table: Table | None = None) -> float:
    """B: what ``settings`` say, or the largest ‖x‖ that the data set can give."""
    if not isinstance(settings.input_bound, str):
        return settings.input_bound
    if settings.data != "gp":
        return table_of(settings, table).input_bound
    # Inputs lie in [−1, 1]ᵈ, or are normal: then ‖x‖ > √d + 6 has probability below 2e-8.
    return math.sqrt(settings.d) + (6.0 if settings.inputs == "gaussian" else 0.0)


def dimension(settings: Settings, table: Table | None = None) -> int:
    """d of the prompts."""
    return settings.d if settings.data == "gp" else table_of(settings, table).d


def _problem(
    settings: Settings,
    X: np.ndarray,
    y: np.ndarray,
    noiseless: np.ndarray | None,
) -> Problem:
    """Rows (prompts, queries + n, ·), queries first, as a problem."""
    q = settings.queries

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values))

    return Problem(
        X=tensor(X[:, q:]),
        y=tensor(y[:, q:]),
        x_query=tensor(X[:, :q]),
        count=torch.full((settings.prompts,), settings.n),
        bandwidth=settings.bandwidth,
        ridge=settings.ridge,
        ridge_scale=settings.ridge_scale,
        noiseless=None if noiseless is None else tensor(noiseless[:, :q]),
        labels=tensor(y[:, :q]),
    )


def _rows(settings: Settings, table: Table) -> Problem:
    """Each prompt is a random subset of the rows; its queries are others."""
    wanted = settings.queries + settings.n
    check_rows(settings.n, settings.queries, table.rows, table.name)
    picked = np.stack(
        [
            np.random.default_rng([settings.seed, p]).permutation(table.rows)[:wanted]
            for p in range(settings.prompts)
        ]
    )
    return _problem(settings, table.X[picked], table.y[picked], None)


def _gp(settings: Settings) -> Problem:
    """f ~ GP(0, k), y = f + noise, both divided by √(1 + noise) so that labels have variance 1."""
    rows = settings.queries + settings.n
    inputs, functions, noises = [], [], []
    for p in range(settings.prompts):
        # One stream each, so that more rows leave the earlier ones as they are.
        place, value, error = (np.random.default_rng([settings.seed, p, k]) for k in range(3))
        X = _inputs(place, settings.inputs, rows, settings.d)
        inputs.append(X)
        functions.append(_draw(value, X, settings.bandwidth))
        noises.append(error.standard_normal(rows))
    scale = math.sqrt(1 + settings.noise)
    f = np.stack(functions)
    y = f + math.sqrt(settings.noise) * np.stack(noises)
    return _problem(settings, np.stack(inputs), y / scale, f / scale)


def _inputs(rng: np.random.Generator, kind: str, rows: int, d: int) -> Float[np.ndarray, "rows d"]:
    """``rows`` inputs: uniform on [−1, 1]ᵈ, clumped in it, or standard normal."""
    if kind == "gaussian":
        return rng.standard_normal((rows, d))
    if kind == "uniform":
        return rng.uniform(-1, 1, (rows, d))
    # Four tight clumps hold nine points in ten; the others stand anywhere.
    centres = rng.uniform(-1, 1, (len(CLUMP_SHARES), d))
    which, offset, alone = rng.spawn(3)
    clumped = centres[which.choice(len(CLUMP_SHARES), size=rows, p=CLUMP_SHARES)]
    clumped = clumped + CLUMP_SPREAD * offset.standard_normal((rows, d))
    loner = alone.random((rows, d + 1))
    return np.where(loner[:, :1] < 0.1, 2 * loner[:, 1:] - 1, clumped.clip(-1, 1))


def _draw(
    rng: np.random.Generator, X: Float[np.ndarray, "rows d"], bandwidth: float
) -> Float[np.ndarray, " rows"]:
    """A zero-mean Gaussian process with the Gaussian kernel, at the rows of X."""
    points, normal = torch.from_numpy(X), torch.from_numpy(rng.standard_normal(len(X)))
    if 8 * len(X) ** 2 > HELD_BYTES:
        return _long_draw(normal, points, bandwidth).numpy()
    K = gaussian_kernel(points, points, bandwidth)
    K.diagonal().add_(JITTER)
    return (torch.linalg.cholesky(K) @ normal).numpy()


def _long_draw(
    normal: Float[Tensor, " rows"], X: Float[Tensor, "rows d"], bandwidth: float
) -> Float[Tensor, " rows"]:
    """A draw whose covariance is the same to 1e-7, without the matrix: L, row by row in blocks.

    A row of L is k(x, X_S)L_S⁻ᵀ and, on the diagonal, what of its variance the rows before leave.
    Where they leave less than SKIPPED the row's own column is left out of later rows: S are those
    kept, a few hundred of a smooth kernel.

    Raises
    ------
    SettingsError
        So many are kept that their factor has no room.
    """
    kept, factor, weights = X[:0], X.new_zeros(0, 0), normal[:0]
    drawn = []
    for block, z in zip(X.split(BLOCK), normal.split(BLOCK), strict=True):
        known = gaussian_kernel(kept, block, bandwidth)
        rows = torch.linalg.solve_triangular(factor, known, upper=False).mT
        left = gaussian_kernel(block, block, bandwidth) - rows @ rows.mT
        left.diagonal().add_(JITTER)
        chosen: list[int] = []
        columns: list[Tensor] = []
        own = z.clone()
        for i in range(len(block)):
            variance = left[i, i].clamp_min(0)
            own[i] = variance.sqrt() * z[i]
            if float(variance) > SKIPPED:
                column = left[:, i] / variance.sqrt()
                column[:i] = 0
                left -= torch.outer(column, column)
                chosen.append(i)
                columns.append(column)
        new = torch.stack(columns, 1) if columns else block.new_zeros(len(block), 0)
        value = rows @ weights + new @ z[chosen]
        # A kept row's own term is in its column.
        skipped = torch.ones(len(block), dtype=torch.bool)
        skipped[chosen] = False
        drawn.append(value + own * skipped)
        size = len(kept) + len(chosen)
        room(4 * 8.0 * size**2, f"n={len(X)}: the function drawn on it", "n", "data")
        grown = factor.new_zeros(size, size)
        grown[: len(kept), : len(kept)] = factor
        grown[len(kept) :, : len(kept)] = rows[chosen]
        grown[len(kept) :, len(kept) :] = new[chosen]
        kept, factor = torch.cat([kept, block[chosen]]), grown
        weights = torch.cat([weights, z[chosen]])
    return torch.cat(drawn)
