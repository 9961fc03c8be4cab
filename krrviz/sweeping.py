"""Sweeping: a grid's cells computed by several processes, and kept in a folder as they come.

Whoever computes returns rows; this process alone writes. A cell's file stands whole or not at all,
so a sweep that was stopped, however rudely, goes on where it was.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from krrviz.settings import SettingsError, shown
from krrviz.sweep import (
    Course,
    Grid,
    Own,
    Rows,
    cell_course,
    cell_digest,
    cell_rows,
    shown_error,
)

# Given cells' numbers, it yields each with its rows, in any order.
Work = Callable[[Grid, Sequence[int], Own | None], Iterator[tuple[int, Rows]]]
# Called with the cells there are, and how many of them were refused.
Told = Callable[[int, int], None]

MISSING = "a sweep needs more packages: pip install 'krrviz[sweep]'"
PATIENCE = 10  # seconds a scheduler has to answer at first


class SweepError(RuntimeError):
    """Why a sweep could not go on; what it has is kept."""


# ---------------------------------------------------------------------------------------------
# The folder


def sweep(
    grid: Grid, folder: Path, work: Work, told: Told, own: Own | None = None
) -> tuple[int, int]:
    """Compute the cells that ``folder`` lacks, then write sweep.csv in the grid's order.

    ``cells/DIGEST.csv`` holds a cell, ``grid.json`` says which grid the folder is of. Refused cells
    have no file: the next sweep tries them again. Returns how many cells were computed now, and how
    many of all were refused.

    Raises
    ------
    SettingsError
        The folder holds another grid.
    SweepError, KeyboardInterrupt
        Nobody is there to compute, or it was stopped; their message says what is kept.
    OSError
        The folder cannot be written.
    """
    _claim(grid, folder)
    files = {number: _file(grid, number, folder) for number in range(len(grid))}
    texts = {number: text for number, file in files.items() if (text := _kept(grid, number, file))}
    before, refused = len(texts), 0
    told(len(texts), refused)
    try:
        left = [number for number in files if number not in texts]
        for number, rows in work(grid, left, own) if left else ():
            texts[number] = _csv(grid.header, rows)
            file = files[number]
            if file is None or rows[0]["refusal"]:
                refused += 1
            else:
                _write(file, texts[number])
            told(len(texts), refused)
    except (SweepError, KeyboardInterrupt) as error:
        why = f"{error}" or "stopped"
        raise type(error)(
            f"{why}; {len(texts) - refused} of {len(grid)} cells are kept in {folder}: the same "
            "command goes on from there"
        ) from None
    head = _csv(grid.header, [])
    lines = (texts[number].removeprefix(head) for number in files)
    _write(folder / "sweep.csv", head + "".join(lines))
    return len(texts) - before - refused, refused


def _claim(grid: Grid, folder: Path) -> None:
    """Make the folder this grid's, unless it is another's."""
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    path = folder / "grid.json"
    if path.exists():
        try:
            held = json.loads(path.read_text("utf-8"))["digest"]
        except (ValueError, KeyError, TypeError):
            held = "unreadable"
        if held != grid.digest:
            raise SettingsError(
                f"--out {folder} holds the sweep {shown(held)}, and this one is {grid.digest}; "
                "name another folder"
            )
        return
    card = {
        "digest": grid.digest,
        "cells": len(grid),
        "eps": grid.eps,
        "link": grid.link,
        "settings": dict(grid.fixed),
        "sweep": dict(grid.axes),
    }
    _write(path, json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def _file(grid: Grid, number: int, folder: Path) -> Path | None:
    """Where a cell is kept; None of one whose settings do not go together."""
    try:
        settings = grid.settings(number)
    except SettingsError:
        return None
    return folder / "cells" / f"{cell_digest(settings, grid.eps)}.csv"


def _kept(grid: Grid, number: int, file: Path | None) -> str:
    """A cell's file, "" where there is none or where it has other rows than it should."""
    if file is None or not file.exists():
        return ""
    text = file.read_bytes().decode("utf-8", errors="replace")
    rows = [*csv.reader(io.StringIO(text, newline=""))]
    there = tuple(row[len(grid.axes)] for row in rows[1:] if len(row) == len(grid.header))
    whole = text.endswith("\n") and rows[0] == grid.header and there == grid.methods(number)
    return text if whole else ""


def _csv(header: Sequence[str], rows: Rows) -> str:
    made = io.StringIO(newline="")
    writer = csv.DictWriter(made, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return made.getvalue()


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    torn = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with torn.open("w", encoding="utf-8", newline="") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    torn.replace(file)


# ---------------------------------------------------------------------------------------------
# This machine's cores


def local(jobs: int | None = None) -> Work:
    """Processes on this machine, as many as cores unless ``jobs`` says otherwise.

    joblib shares the cores out among them.

    Raises
    ------
    SettingsError
        ``jobs`` is not 1 or more.
    SweepError
        joblib is not installed.
    """
    if jobs is not None and jobs < 1:
        raise SettingsError(f"--jobs {jobs} must be 1 or more")
    try:
        from joblib import Parallel, cpu_count, delayed
        from joblib.externals.loky import get_reusable_executor
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError:
        raise SweepError(MISSING) from None

    def work(grid: Grid, left: Sequence[int], own: Own | None) -> Iterator[tuple[int, Rows]]:
        many, task = min(jobs or cpu_count(), len(left)), delayed(_in_process)
        pool: Any = Parallel(n_jobs=many, return_as="generator_unordered")
        try:
            yield from pool(task(grid, number, own, os.getpid()) for number in left)
        except TerminatedWorkerError:
            raise SweepError("a process was killed, perhaps for want of memory") from None
        except Exception as error:
            raise SweepError(f"a process failed: {_named(error)}") from None
        finally:
            if many > 1:  # stopped by Ctrl-C, it would complain on its way out
                get_reusable_executor().shutdown(kill_workers=True)

    return work


def _in_process(grid: Grid, number: int, own: Own | None, parent: int) -> tuple[int, Rows]:
    if os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    return number, cell_rows(grid, number, cell_course(grid, number, own))


# ---------------------------------------------------------------------------------------------
# Other machines


def remote(address: str) -> Work:
    """The workers of a Dask scheduler, which need krrviz installed and no disk of ours.

    A worker that dies has its cells computed by another.

    Raises
    ------
    SettingsError
        ``address`` is none.
    SweepError
        distributed is not installed. Later: the scheduler does not answer, or no longer.
    """
    if not re.fullmatch(r"tcp://[^\s/]+:[0-9]{1,5}", address):
        raise SettingsError(f"--dask {shown(address)} must be an address, as in tcp://host:8786")
    try:
        from distributed import Client, KilledWorker, as_completed
    except ImportError:
        raise SweepError(MISSING) from None
    gone = SweepError(f"--dask {shown(address)}: the scheduler answers no longer")

    def work(grid: Grid, left: Sequence[int], own: Own | None) -> Iterator[tuple[int, Rows]]:
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what is wrong we say, in one line
        try:
            client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise SweepError(
                f"--dask {shown(address)}: no scheduler answers there ({shown_error(error)})"
            ) from None
        try:
            # A person's table goes there once, not with every cell.
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it is large
                table = own and client.submit(_handed, own, pure=False)
            asked = {
                client.submit(
                    _far, grid, number, table, key=f"{grid.digest}-{number}", pure=False
                ): number
                for number in left
            }
            ready = as_completed(asked, loop=client.loop)
            while asked:
                if client.status != "running":
                    raise gone
                batch = ready.next_batch(block=False)
                if not batch:
                    time.sleep(0.05)
                for future in batch:
                    number = asked.pop(future)
                    try:
                        rows = _result(client, future)
                    except KilledWorker as error:
                        died = Course(refusal=f"its workers died: {shown_error(error)}")
                        rows = cell_rows(grid, number, died)
                    except Exception as error:
                        if future.status != "error":
                            raise gone from None
                        told = f"a worker of {address} failed: {_named(error)}"
                        raise SweepError(told) from None
                    yield number, rows
        finally:
            client.close(timeout=2)

    return work


def _far(grid: Grid, number: int, own: Own | None) -> Rows:
    torch.set_num_threads(1)  # a worker has as many cells at a time as threads
    return cell_rows(grid, number, cell_course(grid, number, own))


def _handed(own: Own) -> Own:
    return own


def _result(client: Any, future: Any) -> Rows:
    """A finished cell's rows, fetched from its worker; where that died, from the next."""
    while client.status == "running":
        try:
            return future.result(timeout=1)
        except TimeoutError:
            if future.status == "error":  # the cell's own
                raise
    raise OSError


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {shown_error(error)}"
