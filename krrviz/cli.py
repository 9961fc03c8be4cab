"""The command line: python -m krrviz."""

from __future__ import annotations

import argparse
import io
import json
import platform
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from krrviz.fan import fan
from krrviz.frames import fan_rows, step_rows
from krrviz.settings import Settings, SettingsError
from krrviz.tables import TableError, read_csv
from krrviz.trust import trust

VERSIONS = ("krrviz", "torch", "numpy", "pandas")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0, or 2 with a message on stderr where something cannot be used."""
    parser = argparse.ArgumentParser(prog="krrviz", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="compute the data of a link and write it as files",
        description="Writes settings.json, trajectories.csv (method, step, error at the full "
        "context), fan.csv (method, step, n, error) and summary.json; prints the summary. "
        "Errors are relative to the reference, inputs and labels standardised.",
        epilog="settings (key: allowed; default): "
        + "; ".join(
            f"{name}: {about.rule.allowed}; {_default(name)}"
            for name, about in Settings.table().items()
        ).replace("%", "%%"),
    )
    run.add_argument("link", nargs="?", default="", help="a link of the app, or a query string")
    run.add_argument("--csv", metavar="FILE", help="take the prompts from this CSV file")
    run.add_argument("--target", metavar="COLUMN", help="its target; default the last column")
    run.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    run.set_defaults(call=_run)

    bench = commands.add_parser("bench", help="print the figures and times of this machine")
    bench.set_defaults(call=_bench)

    # Not every terminal or pipe can write ⁻¹ or σ.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    options = parser.parse_args(arguments)
    try:
        options.call(options)
    except (SettingsError, TableError, OSError) as error:
        print(f"krrviz: {error}", file=sys.stderr)
        return 2
    return 0


def _default(name: str) -> str:
    """A setting's default in words."""
    value = getattr(Settings(), name)
    if name == "bandwidth":
        return "the data set's own"
    return " and ".join(value) if isinstance(value, tuple) else str(value)


def _run(options: argparse.Namespace) -> None:
    if options.csv is not None:
        table = read_csv(options.csv, options.target)
        settings = Settings.from_query(options.link, data="csv")
    elif options.target is None:
        table, settings = None, Settings.from_query(options.link)
    else:
        raise SettingsError("--target names a column of --csv FILE; no file was given")
    out = Path(options.out)
    if out.exists() and not out.is_dir():
        raise SettingsError(f"--out {out} is a file; name a folder")

    started = time.perf_counter()
    result = fan(settings, table)
    checks = trust(settings, table, result.residual)
    steps = step_rows(result)
    final = steps[steps.step == settings.steps]
    summary = {
        "link": "?" + settings.to_query(),
        "reference": settings.reference,
        "reference_rms": result.scale,
        "final_error": dict(zip(final.method, final.error, strict=True)),
        "checks": [{**asdict(check), "passed": check.passed} for check in checks],
        "notices": [*result.notices, *(table.notices if table is not None else ())],
        "device": result.device,
        "dtype": settings.dtype,
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in VERSIONS},
    }
    out.mkdir(parents=True, exist_ok=True)
    fan_rows(result).to_csv(out / "fan.csv", index=False)
    steps.to_csv(out / "trajectories.csv", index=False)
    for name, content in (("settings.json", asdict(settings)), ("summary.json", summary)):
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(_told(summary))


def _told(summary: dict) -> str:
    """The summary for a person."""
    lines = [
        f"error against {summary['reference']} at the last step, mean over prompts:",
        *(f"  {method:34} {error:.3e}" for method, error in summary["final_error"].items()),
        "checks:",
        *(
            f"  {'ok ' if check['passed'] else 'FAIL'} {check['name']:26} {check['value']:.2e} "
            f"(at most {check['tolerance']:.2e})"
            for check in summary["checks"]
        ),
        *(f"  {c['name']}: {c['meaning']}" for c in summary["checks"] if not c["passed"]),
        *(f"note: {notice}" for notice in summary["notices"]),
        f"{summary['device']}, {summary['dtype']}, {summary['seconds']} s",
    ]
    return "\n".join(lines)


def _bench(options: argparse.Namespace) -> None:
    from krrviz.bench import main as bench

    bench()
