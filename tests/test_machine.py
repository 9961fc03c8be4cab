"""The machine: what it refuses, what it suggests instead, and the devices it names."""

import re
from pathlib import Path

import pytest
import torch

from krrviz import PRESETS, Settings, SettingsError, fan_frame, machine
from krrviz.machine import check, compute_device, estimate, max_memory, prompt_bytes, system_bytes

PREFIXES = 12
GIB = 2**30
TOO_MUCH = {
    "memory": Settings(data="gp", n=8000, steps=1, prompts=1),
    "memory, with many steps": Settings(data="gp", n=64, steps=100_000, queries=1024, prompts=1),
    "memory, on data": Settings(data="co2", n=2000, queries=200, prompts=1, steps=1),
    "time": Settings(data="gp", n=512, steps=50_000, prompts=64),
    "time of the direct solve": Settings(
        data="gp", n=2000, steps=20, prompts=256, ridge_scale="per_sample"
    ),
}
ROOM = {"memory": 1.0, "memory, with many steps": 1.0, "memory, on data": 0.2}


MEMINFO = Path("/proc/meminfo")


def test_memory_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "1.5")
    assert max_memory() == 1.5 * GIB


@pytest.mark.skipif(not MEMINFO.exists(), reason="the oracle is Linux's own figure")
def test_memory_is_half_the_machines_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRRVIZ_MAX_MEMORY", raising=False)
    total = int(MEMINFO.read_text("ascii").split()[1]) * 1024
    assert max_memory() == pytest.approx(total / 2, rel=0.05)


def test_memory_without_sysconf_is_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRRVIZ_MAX_MEMORY", raising=False)
    monkeypatch.delattr(machine.os, "sysconf")
    assert max_memory() == 4 * GIB


@pytest.mark.parametrize("word", ["lots", "nan"])
def test_a_memory_limit_that_is_no_number_is_refused_by_name(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", word)
    with pytest.raises(SettingsError, match=f"KRRVIZ_MAX_MEMORY={word}"):
        check(Settings(), PREFIXES)


@pytest.mark.parametrize("case", TOO_MUCH)
def test_what_does_not_fit_is_refused_with_the_figure(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TOO_MUCH[case]
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", str(ROOM.get(case, 64)))
    with pytest.raises(SettingsError) as caught:
        check(settings, PREFIXES)
    cost, told = estimate(settings, PREFIXES), str(caught.value)
    assert f"n={settings.n}" in told
    assert f"steps={settings.steps}" in told
    if case in ROOM:
        assert f"about {cost.bytes / GIB:.1f} GiB but {ROOM[case]:.1f} GiB are allowed" in told
        assert caught.value.fields[0] == "n"
    else:
        assert f"about {cost.seconds:.0f} s but 600 s are allowed" in told
        assert caught.value.fields[0] == "steps"


@pytest.mark.parametrize("case", TOO_MUCH)
def test_what_is_suggested_instead_fits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TOO_MUCH[case]
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", str(ROOM.get(case, 64)))
    with pytest.raises(SettingsError) as caught:
        check(settings, PREFIXES)
    suggested = re.search(r"(n|steps|prompts) up to (\d+) fits", str(caught.value))
    assert suggested
    check(settings.but(**{suggested[1]: int(suggested[2])}), PREFIXES)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_a_small_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRRVIZ_MAX_MEMORY", "1")
    check(PRESETS[name].settings, PREFIXES)
    assert estimate(PRESETS[name].settings, PREFIXES).seconds < 30


def test_a_refusal_comes_before_anything_large_is_allocated() -> None:
    # 16384² doubles are 2 GiB: a fan that were begun would take minutes.
    with pytest.raises(SettingsError, match=r"GiB|600 s"):
        fan_frame(Settings(data="gp", n=16384, prompts=256, steps=1000))


@pytest.mark.parametrize(
    ("field", "more"),
    [("n", 128), ("queries", 64), ("steps", 64), ("prompts", 32), ("policy", "optimal")],
)
def test_more_work_is_estimated_longer(field: str, more: object) -> None:
    settings = Settings(data="gp", n=64, queries=32, steps=32, prompts=16)
    less, grown = (estimate(s, PREFIXES) for s in (settings, settings.but(**{field: more})))
    assert grown.seconds > less.seconds
    assert grown.bytes >= less.bytes


def test_one_system_holds_at_least_its_matrices_and_its_trajectory() -> None:
    settings = Settings(data="gp", n=1000, queries=100, steps=500, methods=("nesterov",))
    kernel_and_factor = 2 * 1000**2 * 8
    trajectory = 501 * 1100 * 8
    assert system_bytes(settings) >= kernel_and_factor + trajectory
    assert prompt_bytes(settings, 3) >= kernel_and_factor + 3 * 501 * 100 * 8  # answers alone
    patterns = 3 * 1101**2 * 8
    drawn = settings.but(methods=("transformer",))
    assert system_bytes(drawn) >= kernel_and_factor + trajectory + patterns
    assert prompt_bytes(drawn, 3) >= kernel_and_factor + 3 * trajectory + patterns / 2
    half = prompt_bytes(drawn.but(dtype="float16"), 3)
    assert half >= kernel_and_factor + 3 * (trajectory + patterns)


def test_pieces_bound_the_memory_of_many_prompts() -> None:
    one, many = (estimate(Settings(data="motorcycle", prompts=p), PREFIXES) for p in (1, 256))
    assert many.bytes <= max(one.bytes, 1.1 * machine.CHUNK_BYTES)


# -- devices ----------------------------------------------------------------------------------


def there(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in names)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in names)


@pytest.mark.parametrize(
    ("names", "dtype", "device"),
    [
        ((), "float64", "cpu"),
        ((), "float32", "cpu"),
        (("cuda", "mps"), "float32", "cuda"),
        (("cuda",), "float64", "cuda"),
        (("mps",), "float32", "mps"),
        (("mps",), "float64", "cpu"),
    ],
)
def test_auto_takes_the_fastest_device_that_can(
    names: tuple[str, ...], dtype: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, *names)
    assert compute_device(Settings(dtype=dtype)).type == device


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused_by_name(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch)
    with pytest.raises(SettingsError, match=f"device={device} .*; allowed: auto, cpu") as caught:
        compute_device(Settings(device=device, dtype="float32"))
    assert caught.value.fields == ("device",)


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_a_device_that_is_there_is_taken(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, "cuda", "mps")
    assert compute_device(Settings(device=device, dtype="float32")) == torch.device(device)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cuda_draws_the_fan_of_the_cpu(dtype: str) -> None:
    settings = Settings(data="gp", n=24, prompts=4, steps=8, dtype=dtype)
    cuda, cpu = (fan_frame(settings.but(device=device)) for device in ("cuda", "cpu"))
    assert (cuda.error - cpu.error).abs().max() < (1e-8 if dtype == "float64" else 2e-2)
