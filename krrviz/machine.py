"""The machine: which device runs a picture, and whether it has the memory and the time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from krrviz.kernel import HELD_BYTES, RANK
from krrviz.settings import DATASETS, Settings, SettingsError, shown

Result = TypeVar("Result")

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# A person waits this long for a picture at the most.
MAX_SECONDS = 600.0
# Columns that the factor of a long draw is expected to keep.
LONG_DRAW = 1024
# What many prompts and prefixes are cut into, so that memory does not grow with their number.
CHUNK_BYTES = 2**28


def max_memory() -> float:
    """Bytes one picture may take: ``KRRVIZ_MAX_MEMORY`` (in GiB), or half the machine's.

    Raises
    ------
    SettingsError
        The variable is not a number above 0.
    """
    named = os.environ.get("KRRVIZ_MAX_MEMORY")
    if named:
        try:
            gib = float(named)
        except ValueError:
            gib = 0.0
        if not 0 < gib < math.inf:
            raise SettingsError(f"KRRVIZ_MAX_MEMORY={shown(named)} must be GiB above 0, like 8")
        return gib * 2**30
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    except (AttributeError, ValueError, OSError):  # no sysconf, as on Windows
        return 4 * 2**30


def room(size: float, named: str, *fields: str) -> None:
    """Raises SettingsError where ``named`` needs more bytes than one picture may take."""
    memory = max_memory()
    if size > memory:
        raise SettingsError(
            f"{named} would need about {size / 2**30:.3g} GiB but {memory / 2**30:.3g} GiB are "
            "allowed; ask for fewer",
            *fields,
        )


def compute_device(settings: Settings) -> torch.device:
    """The device that ``settings`` name; auto is CUDA, then MPS (no float64 there), then the CPU.

    Raises
    ------
    SettingsError
        The named device is not on this machine.
    """
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if settings.device == "auto":
        usable = [name for name, yes in there.items() if yes]
        if settings.dtype == "float64":
            usable = [name for name in usable if name != "mps"]
        return torch.device(usable[0])
    if not there[settings.device]:
        raise SettingsError(
            f"device={settings.device} is not on this machine; allowed: auto, "
            + ", ".join(name for name, yes in there.items() if yes),
            "device",
        )
    return torch.device(settings.device)


def on_device(
    settings: Settings, work: Callable[[torch.device], Result]
) -> tuple[Result, str | None]:
    """``work`` on the settings' device, or on the CPU where that runs out of memory; and a notice.

    Raises
    ------
    SettingsError
        The named device is not on this machine, or the CPU ran out of memory.
    """
    device = compute_device(settings)
    try:
        return work(device), None
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
    if device.type != "cpu":
        told = f"device={device.type} ran out of memory: this was computed on the CPU instead."
        return work(torch.device("cpu")), told
    raise SettingsError(f"n={settings.n} ran out of memory; a smaller n or fewer queries fit", "n")


def _out_of_memory(error: Exception) -> bool:
    """Whether memory was short: torch's CPU allocator says so in words only."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "allocate memory" in str(error)


@dataclass(frozen=True)
class Estimate:
    """What a picture costs: peak bytes, and seconds on two CPU cores."""

    bytes: float
    seconds: float


def system_bytes(settings: Settings) -> float:
    """Bytes that one prompt of one prefix length needs where every pattern is formed."""
    tokens = 1 + settings.n + settings.queries
    matrices = 3 * settings.n**2  # K, A, and its factor, always float64
    if "transformer" in settings.methods:
        matrices += 5 * tokens**2  # three patterns, and the logits of the one being made
    states = 3 * (settings.steps + 1) * tokens  # a trajectory, and its errors
    return 8.0 * (matrices + states)


def prompt_bytes(settings: Settings, prefixes: int) -> float:
    """Bytes that one prompt with all its prefixes needs in a fan: they share its matrices."""
    n, tokens = settings.n, 1 + settings.n + settings.queries
    held = 8 * n**2 <= HELD_BYTES
    own = settings.policy in ("one_over_l", "optimal")  # of eigenvalues, one after the other
    # K, A, and its factor, always float64; or what preconditions where K is not held
    matrices = 3.0 * n**2 if held else 2.0 * RANK * n + 4 * prefixes * RANK**2
    if own or (held and settings.ridge_scale == "per_sample"):
        matrices += 5 * n**2  # a prefix's own, one after the other
    if "transformer" in settings.methods:
        if settings.dtype in ("float64", "float32"):
            matrices += 3 * tokens * n if 8 * tokens * n <= CHUNK_BYTES else 0
        else:
            matrices += 5 * prefixes * tokens**2
    # a few vectors of each method, and of the transformer's stream; its states as they are made,
    # together, and with what is read out of them; every method's answers, and as one
    vectors, times = 6 * len(settings.methods), settings.steps + 1
    if "transformer" in settings.methods:
        vectors += 40 + 4 * times
    answers = 2 * len(settings.methods) * settings.queries * times
    return 8.0 * (matrices + prefixes * (tokens * vectors + answers))


def weight_bytes(segments: int, steps: int, update: str, layout: str, d: int) -> float:
    """Bytes of the hinges' weights; only a fused Chebyshev has others in every block."""
    layers = max(1, steps) if update == "chebyshev" and layout == "fused" else 3
    return 8.0 * layers * 4 * segments * 2 * (d + 14) * 2  # twice while they are put together


def estimate(settings: Settings, prefixes: int) -> Estimate:
    """Memory and time of a fan of ``prefixes`` context lengths, before anything is allocated.

    Times are for about 1e9 matrix entries read a second and 1e10 operations a second: a rough
    guide, within a factor of a few on any laptop.
    """
    one = prompt_bytes(settings, prefixes)
    systems = settings.prompts * prefixes
    rows = settings.n + settings.queries
    drawn = 8.0 * rows**2 <= HELD_BYTES
    draws = 2 * 8.0 * (rows**2 if drawn else LONG_DRAW * rows) if settings.data == "gp" else 0.0
    tokens = 1 + settings.n + settings.queries
    spectra = 1.0 if settings.policy in ("certified", "manual") else 60.0
    weights = 0.0
    if "transformer" in settings.methods:
        d = DATASETS[settings.data].d or settings.d
        weights = weight_bytes(
            settings.segments, settings.steps, settings.update, settings.layout, d
        )
    kept = 8.0 * (settings.steps + 1) * systems * len(settings.methods)  # every error, to average
    matrix = settings.prompts * tokens**2
    columns = prefixes * len(settings.methods)  # of one product with the prompt's matrix
    step = (
        matrix / 1e9 + 2 * matrix * columns / 1e10 + systems * len(settings.methods) * tokens / 5e7
    )
    own = settings.ridge_scale == "per_sample" or spectra > 1
    direct = (systems if own else settings.prompts) * spectra * settings.n**3 / 3
    if 8 * settings.n**2 > HELD_BYTES:
        # the kernel anew in every step, once for all classical methods; and some forty for α*
        kinds = len({method == "transformer" for method in settings.methods})
        step += kinds * matrix / 1e8
        direct = 40 * matrix * (1e10 / 1e8) + (direct if spectra > 1 else 0)
    return Estimate(
        max(one, min(one * settings.prompts, CHUNK_BYTES)) + draws + kept + weights,
        settings.steps * step + direct / 1e10,
    )


def check(settings: Settings, prefixes: int) -> None:
    """Refuse, with the figure, what this machine has not the memory or the time for.

    Raises
    ------
    SettingsError
    """
    cost, memory = estimate(settings, prefixes), max_memory()

    def fits(other: Settings) -> bool:
        lower = estimate(other, prefixes)
        return lower.bytes <= memory and lower.seconds <= MAX_SECONDS

    if fits(settings):
        return
    short = cost.bytes > memory
    wanted = (
        f"need about {cost.bytes / 2**30:.1f} GiB but {memory / 2**30:.1f} GiB are allowed"
        if short
        else f"would take about {cost.seconds:.0f} s but {MAX_SECONDS:.0f} s are allowed"
    )
    names = ("n", "steps") if short else ("steps", "prompts", "n")
    raise SettingsError(
        f"n={settings.n}, steps={settings.steps}, prompts={settings.prompts} {wanted}"
        + _instead(settings, names, fits),
        *names,
        *("queries", "segments", "data"),
    )


def _instead(settings: Settings, names: tuple[str, ...], fits: Callable[[Settings], bool]) -> str:
    """The first of ``names`` that can be lowered until the settings fit, and how far."""
    for name in names:
        low, high = {"n": 2, "prompts": 1, "steps": 0}[name], getattr(settings, name)
        if not fits(settings.but(**{name: low})):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(settings.but(**{name: middle})) else (low, middle)
        return f"; {name} up to {low} fits"
    return "; make several of them smaller"
