"""What the machine could do at the most, and the share of it that this code gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from krrviz.bench.large import GP, prompts
from krrviz.bench.record import Goal, Row, interleaved
from krrviz.construction.predict import Packed
from krrviz.construction.weights import Construction, build

ATTENTION, MATRIX = 2048, 4096
RUNS = 5
IN_CACHE = 2**15  # float64 numbers a thread


@torch.no_grad()
def rows(attention: int = ATTENTION, matrix: int = MATRIX, runs: int = RUNS) -> Iterator[Row]:
    """Attention's exponentials beside torch.exp, Aα's bytes beside a copy's, Cholesky beside mm.

    Attention is one head's sums as the streaming pass forms them: N² exponentials, with the dot
    products before and the sums after them. Aα reads N² numbers; a copy reads and writes. A
    factorisation is n³/3 operations, a product 2n³.
    """
    problem = prompts(attention)
    packed = Packed(build(Construction.from_settings(GP.but(n=attention))), problem)
    head = next(iter(packed.heads.values()))
    head.E = None  # so that its exponentials are formed tile by tile, as those of long prompts are
    small = torch.rand(IN_CACHE * torch.get_num_threads(), dtype=torch.float64)
    out = torch.empty_like(small)
    yield from share(
        f"exponentials/s of attention, N={attention}",
        ("krrviz attention", lambda: head.summed(problem.y), attention**2),
        ("torch.exp in cache", lambda: torch.exp(small, out=out), len(small)),
        runs,
    )

    problem = prompts(matrix)
    big = problem.K[0]
    target = torch.empty_like(big)
    yield from share(
        f"bytes/s of Problem.apply, N={matrix}",
        ("krrviz apply", lambda: problem.apply(problem.y), 8 * matrix**2),
        ("copy", lambda: target.copy_(big), 2 * 8 * matrix**2),
        runs,
    )

    ready = [replace(problem) for _ in range(runs + 1)]
    for each in ready:
        each.__dict__["K"] = problem.K  # made beforehand, and once
    waiting = iter(ready)
    yield from share(
        f"operations/s of alpha_star, N={matrix}",
        ("krrviz alpha_star", lambda: next(waiting).alpha_star, matrix**3 / 3),
        ("torch.mm", lambda: torch.mm(big, big, out=target), 2 * matrix**3),
        runs,
    )


Work = tuple[str, Callable[[], Any], float]


def share(name: str, ours: Work, ceiling: Work, runs: int) -> Iterator[Row]:
    """Work per second of ours and of the ceiling, and the share."""
    times = interleaved({who: call for who, call, _ in (ours, ceiling)}, runs)
    rates = {who: work / times[who].median for who, _, work in (ours, ceiling)}
    for who, rate in rates.items():
        yield Row("machine", name, who, times[who], rate, "1/s")
    part = rates[ours[0]] / rates[ceiling[0]]
    yield Row("machine", name, "share", None, part, "of the ceiling", Goal(0.5))
