"""The command line: python -m krrviz."""

from __future__ import annotations

import argparse
import io
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from krrviz import export, findings
from krrviz.bench.report import SECTIONS, bench, results
from krrviz.construction.stored import save_construction
from krrviz.construction.weights import Construction
from krrviz.fan import fan
from krrviz.frames import fan_rows, step_rows
from krrviz.guarantee import guarantee
from krrviz.machine import compute_device
from krrviz.scaling import SWEEPS, Rows
from krrviz.settings import DIGEST, Settings, SettingsError, View
from krrviz.sweep import read_grid
from krrviz.sweeping import SweepError, local, remote, sweep
from krrviz.tables import MAX_ROWS, Table, TableError, open_csv
from krrviz.tasks import own_table
from krrviz.trained.gpt import CheckpointError, load
from krrviz.trained.match import match
from krrviz.trained.probe import READOUTS, ProbeError, fixed_task, probe
from krrviz.trained.train import RECIPES, read_recipe, train
from krrviz.trust import factor_name, trust

VERSIONS = ("krrviz", "torch", "numpy", "pandas")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0, or 2 with a message on stderr where something cannot be used."""
    parser = argparse.ArgumentParser(prog="krrviz", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="compute the data of a link and write it as files",
        description="Writes settings.json, trajectories.csv (method, step, error at the full "
        "context), fan.csv (method, step, n, error), summary.json, and NAME.csv for each picture "
        "of the page that the link names; prints the summary. "
        "Errors are relative to the reference, inputs and labels standardised.",
        epilog=_settings_help(),
    )
    _problem_arguments(run)
    run.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    run.add_argument("--pictures", action="store_true", help="write NAME.svg and NAME.png, too")
    run.set_defaults(call=_run)

    script = commands.add_parser(
        "script",
        help="print a Python program that writes what a link's page shows",
        description="The program needs krrviz alone; it writes NAME.csv and NAME.svg for each "
        "picture into the folder it is given.",
        epilog=_settings_help(),
    )
    script.add_argument("link", nargs="?", default="", help="a link of the app, or a query string")
    script.set_defaults(call=_script)

    weights = commands.add_parser(
        "weights",
        help="write the hand-built transformer's weights as safetensors",
        description="Writes transformer.safetensors and its card transformer.json: every "
        "parameter, which block has which layer, names and shapes, a checksum, the a-priori bound. "
        "krrviz.load_construction reads them again.",
        epilog=_settings_help(),
    )
    _problem_arguments(weights)
    weights.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    weights.set_defaults(call=_weights)

    proof = commands.add_parser(
        "certify",
        help="depth and width for an accuracy, what is proved of them and what they reach",
        description="Prints the steps and hinges per side that reach --eps for every prompt within "
        "the bounds, the a-priori and post-hoc bounds, and the measured error, or its cost. All in "
        "units of the labels' standard deviation.",
        epilog=_settings_help(),
    )
    _problem_arguments(proof)
    proof.add_argument(
        "--eps", type=float, required=True, help="largest |transformer − exact KRR|, above 0"
    )
    proof.set_defaults(call=_certify)

    scaling = commands.add_parser(
        "scaling",
        help="write how depth, width and error grow, as CSV files",
        description="Writes one CSV file for each picture of the page Guarantee: "
        + ", ".join(SWEEPS)
        + ". Errors are relative to exact KRR unless a column says otherwise.",
        epilog=_settings_help(),
    )
    _problem_arguments(scaling)
    scaling.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    scaling.add_argument(
        "--only", metavar="NAME", action="append", choices=[*SWEEPS], help="may be repeated"
    )
    scaling.set_defaults(call=_scaling)

    sweeping = commands.add_parser(
        "sweep",
        help="compute a grid of settings, on several cores or machines",
        description="GRID.toml may hold a link, a table [settings], and holds a table [sweep]: "
        "each key a setting, its value a list, or {from=, to=, count=, scale='linear' or 'log'}. "
        "Writes sweep.csv: for every cell of their product, a row for each method with the swept "
        "values, the first step at which its mean error is at most --eps, its error at the last "
        "step, the winner, device, dtype, seconds, and why a cell was refused. Finished cells are "
        "kept in DIR/cells: stopped at any moment and started again, it goes on, and tries refused "
        "cells once more.",
        epilog=_settings_help(),
    )
    sweeping.add_argument("grid", metavar="GRID.toml", help="the file that describes the grid")
    sweeping.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    sweeping.add_argument(
        "--eps", type=float, default=1e-3, help="relative error to reach, above 0; default 1e-3"
    )
    sweeping.add_argument(
        "--csv", metavar="FILE", help="take the prompts of data=csv from this CSV file"
    )
    where = sweeping.add_mutually_exclusive_group()
    where.add_argument(
        "--jobs", metavar="J", type=int, help="processes here; default as many as cores"
    )
    where.add_argument(
        "--dask",
        metavar="SCHEDULER",
        help="compute on the workers of this Dask scheduler, as in tcp://host:8786",
    )
    sweeping.set_defaults(call=_sweep)

    training = commands.add_parser(
        "train",
        help="train a GPT-2-style model on the task, or go on with it",
        description="Trains a recipe into DIR/NAME.safetensors (averaged weights), .json (its "
        "card), .csv (step, loss, gap to KRR) and .state.safetensors (what going on needs). "
        "Killed at any moment and started again, it goes on from the last checkpoint.",
    )
    what = training.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", choices=[*RECIPES], help="a recipe of ours")
    what.add_argument(
        "--recipe",
        metavar="FILE",
        help="a JSON file as the recipe in a card; its name without .json is the checkpoint's",
    )
    training.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    training.add_argument("--steps", type=int, help="how many in all; default the recipe's")
    training.set_defaults(call=_train)

    probing = commands.add_parser(
        "probe",
        help="write which solver's steps a trained model's layers are like, as CSV files",
        description="Writes ranking.csv (score and 95 %% interval of every readout, metric, ridge "
        "convention, policy and method, layers' best steps free or at a fixed rate), heatmaps.csv "
        "(every layer beside every step), layers.csv and solvers.csv (errors by layer or step and "
        "n), probes.csv (R² of linear probes), additivity.csv and summary.json; prints the ranking "
        "by similarity of errors.",
    )
    probing.add_argument("checkpoint", help="path without its ending: assets/checkpoints/main-0")
    probing.add_argument("--out", metavar="DIR", required=True, help="folder to write into")
    probing.add_argument(
        "--prompts", type=int, default=512, help="how many are asked; as many fit the probes"
    )
    probing.set_defaults(call=_probe)

    timing = commands.add_parser(
        "bench",
        help="print the figures and times of this machine, and write them as CSV",
        description="Times are medians of runs, contenders in turn, after a warm-up. "
        "Writes SECTION.csv for each section: " + ", ".join(SECTIONS) + ".",
    )
    timing.add_argument("--out", metavar="DIR", default=str(results()), help="default %(default)s")
    timing.add_argument(
        "--only", metavar="NAME", action="append", choices=[*SECTIONS], help="may be repeated"
    )
    timing.set_defaults(call=_bench)

    # Not every terminal or pipe can write ⁻¹ or σ.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    options = parser.parse_args(arguments)
    try:
        options.call(options)
    except (SettingsError, TableError, CheckpointError, ProbeError, SweepError, OSError) as error:
        print(f"krrviz: {error}", file=sys.stderr)
        return 2
    return 0


def _default(name: str) -> str:
    """A setting's default in words."""
    value = getattr(Settings(), name)
    if name == "bandwidth":
        return "the data set's own"
    return " and ".join(value) if isinstance(value, tuple) else str(value)


def _settings_help() -> str:
    return "settings (key: allowed; default): " + "; ".join(
        f"{name}: {about.rule.allowed}; {_default(name)}"
        for name, about in Settings.table().items()
    ).replace("%", "%%")


def _problem_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("link", nargs="?", default="", help="a link of the app, or a query string")
    command.add_argument(
        "--csv",
        metavar="FILE",
        help="take the prompts from this CSV file; of over 10^6 rows the link's seed draws as many",
    )
    command.add_argument(
        "--target", metavar="COLUMN", help="its target; default the last column of numbers or dates"
    )
    command.add_argument(
        "--input",
        metavar="COLUMN",
        action="append",
        dest="inputs",
        help="a column to predict the target from; may be repeated, default all others",
    )


def _problem(options: argparse.Namespace) -> tuple[Settings, Table | None]:
    """The settings and the table that a command names."""
    if options.csv is not None:
        settings = Settings.from_query(options.link, data="csv")
        columns = open_csv(options.csv, settings.seed)
        named: dict[str, Any] = {}
        if options.target is not None:
            named["target"] = columns.number(options.target)
        if options.inputs is not None:
            named["columns"] = ",".join(str(columns.number(name)) for name in options.inputs)
        settings = settings.but(**named)
        table = own_table(columns, settings)
        return settings.but(file=columns.digest[:DIGEST]), table
    for name, value in (("--target", options.target), ("--input", options.inputs)):
        if value is not None:
            raise SettingsError(f"{name} names a column of --csv FILE; no file was given")
    return Settings.from_query(options.link), None


def _folder(named: str) -> Path:
    out = Path(named)
    if out.exists() and not out.is_dir():
        raise SettingsError(f"--out {out} is a file; name a folder")
    return out


def _run(options: argparse.Namespace) -> None:
    settings, table = _problem(options)
    page, view = export.page_of(options.link), View.from_query(options.link)
    out = _folder(options.out)

    started = time.perf_counter()
    result = fan(settings, table)
    checks = trust(settings, table, result.residual)
    steps = step_rows(result)
    final = steps[steps.step == settings.steps]
    shown = export.shown(page, settings, view, table, result)
    summary = {
        "link": export.link(page, settings, view),
        "page": page,
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
    kinds = ("csv", "svg", "png") if options.pictures else ("csv",)
    summary["files"] = export.write(shown, out, kinds)
    fan_rows(result).to_csv(out / "fan.csv", index=False)
    steps.to_csv(out / "trajectories.csv", index=False)
    for name, content in (("settings.json", asdict(settings)), ("summary.json", summary)):
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(_told(summary))


def _script(options: argparse.Namespace) -> None:
    settings, view = Settings.from_query(options.link), View.from_query(options.link)
    print(export.script(export.page_of(options.link), settings, view), end="")


def _weights(options: argparse.Namespace) -> None:
    settings, table = _problem(options)
    path = _folder(options.out) / "transformer"
    card = save_construction(path, Construction.from_settings(settings, table))
    bound = "none" if card["a_priori"] is None else f"{card['a_priori']:.3e}"
    print(
        f"{len(card['tensors'])} tensors for {len(card['blocks'])} blocks; a priori bound {bound}; "
        f"sha256 {card['sha256']}\nwrote {path}.safetensors and {path}.json"
    )


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


def _certify(options: argparse.Namespace) -> None:
    settings, table = _problem(options)
    found = guarantee(settings, options.eps, table)
    c, proof, measured = found.construction, found.certificate, found.measured
    ridge = "N · " if c.per_sample else ""
    lines = [
        f"solves (K + {ridge}{c.ridge:g} I)α = y, N = {c.n_max}, σ = {c.bandwidth:g}; update "
        f"{c.update}, sink {c.sink}, product {c.product}, {settings.dtype}",
        f"steps         {c.steps}  ({c.blocks} blocks, layout {c.layout})",
        f"segments      {c.segments}  (hinges per side; MLP width {4 * c.segments} and a few)",
        f"parameters    {found.parameters:.3g}",
        f"operations    {found.operations:.3g} in a dense forward pass",
        f"range         {factor_name(c)} within {proof.alpha_range:.4g}  (certified: no prompt "
        "within the bounds leaves it)",
        f"bounds        |y| ≤ {c.label_bound:g}, ‖x‖ ≤ {c.input_bound:.4g}, exact arithmetic",
        f"a priori      {proof.a_priori:.3e}  = iteration {proof.iteration:.2e} + product "
        f"{proof.product:.2e} + sink {proof.sink:.2e}",
        f"rounding      {proof.rounding:.1e}  (an allowance, no proof)",
    ]
    if measured:
        lines += [
            f"post hoc      {measured.post_hoc:.3e}  on the prompts measured",
            f"measured      {measured.error:.3e}  (relative {measured.relative:.2e})",
        ]
        if measured.error > found.eps:
            lines.append("beyond ε:     these prompts leave the bounds; raise label_bound or "
                         "input_bound")  # fmt: skip
    else:
        lines.append(
            "measured      not measured, would cost "
            + ("more memory than there is" if found.seconds == math.inf else "")
            + ("" if found.seconds == math.inf else f"about {found.seconds:.0f} s")
            + f"; --eps {found.affordable:.2g} is measured"
        )
    needed = "more than was searched" if found.needed is None else found.needed
    lines.append(f"depth needed  {needed}  by the rule itself on these prompts")
    print("\n".join(lines))


def _scaling(options: argparse.Namespace) -> None:
    settings, table = _problem(options)
    out = _folder(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in options.only or SWEEPS:
        rows: Rows = []
        for label, point in SWEEPS[name](settings, table):
            print(f"{name}: {label}", file=sys.stderr, flush=True)
            rows += point()
        pd.DataFrame(rows).to_csv(out / f"{name}.csv", index=False)
    (out / "settings.json").write_text(
        json.dumps(asdict(settings), indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
    print(f"wrote {', '.join(f'{name}.csv' for name in options.only or SWEEPS)} to {out}")


def _sweep(options: argparse.Namespace) -> None:
    if options.csv is None:
        grid, own = read_grid(Path(options.grid), options.eps), None
    else:
        columns = open_csv(options.csv)
        named = {"data": "csv", "file": columns.digest[:DIGEST]}
        grid = read_grid(Path(options.grid), options.eps, **named)
        if len(columns.numbers) == MAX_ROWS:  # perhaps of more, drawn by a seed
            if "seed" in grid.axes:
                raise SettingsError(
                    f"seed draws the rows of --csv {options.csv}, which has {MAX_ROWS} or more; "
                    "it cannot be swept, too"
                )
            seed = grid.fixed.get("seed", Settings.from_query(grid.link).seed)
            columns = open_csv(options.csv, seed)
        own = partial(own_table, columns)
    out = _folder(options.out)
    work = local(options.jobs) if options.dask is None else remote(options.dask)
    started, total = time.perf_counter(), len(grid)
    try:
        with _bar() as bar:

            def told(count: int, refused: int) -> None:
                bar(count / total, f"{count} of {total} cells, {refused} refused")

            computed, refused = sweep(grid, out, work, told, own)
    except KeyboardInterrupt as error:
        print(f"krrviz: {error}", file=sys.stderr)
        raise SystemExit(130) from None
    print(
        f"wrote {out / 'sweep.csv'}: {total} cells, {computed} of them computed now, {refused} "
        f"refused, in {time.perf_counter() - started:.1f} s"
    )


@contextmanager
def _bar() -> Iterator[Callable[[float, str], None]]:
    """How far a command is: on a terminal a bar drawn over itself, elsewhere a line now and then.

    Called with the share done and a few words.
    """
    started, on_terminal, said = time.perf_counter(), sys.stderr.isatty(), -1

    def told(done: float, words: str) -> None:
        nonlocal said
        part, line = int(24 * done), f"{words}, {time.perf_counter() - started:.0f} s"
        if on_terminal:
            print(f"\r[{'#' * part:24}] {line} ", file=sys.stderr, end="", flush=True)
        elif part != said:
            print(line, file=sys.stderr, flush=True)
        said = part

    try:
        yield told
    finally:
        if on_terminal and said >= 0:
            print(file=sys.stderr)


def _train(options: argparse.Namespace) -> None:
    out, name = _folder(options.out), options.name
    try:
        if name is None:
            file = Path(options.recipe)
            recipe, name = read_recipe(file), file.stem
            if file.resolve() == (out / f"{name}.json").resolve():
                raise ValueError(f"--out {out} would write the card over {file}; name another")
        else:
            recipe = RECIPES[name]
        if options.steps is not None:
            recipe = replace(recipe, steps=options.steps)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    device = compute_device(Settings(dtype="float32"))
    with _bar() as bar:

        def told(step: int, loss: float, found: dict[str, float]) -> None:
            bar(
                step / recipe.steps,
                f"step {step} of {recipe.steps}: loss {loss:.4f}, gap to KRR "
                f"{found['gap_to_krr']:.3f}",
            )

        card = train(recipe, out / name, device, told)
    if card:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in card["figures"].items())
        print(f"{name}: {card['steps']} steps on {card['device']}; {figures}")
    else:
        print(f"{name}: its {recipe.steps} steps were taken before")


def _probe(options: argparse.Namespace) -> None:
    model, card = load(Path(options.checkpoint))
    out = _folder(options.out)
    started = time.perf_counter()
    probed = probe(model, fixed_task(card), options.prompts)
    matched = match(probed)
    ranking: findings.Frame = findings.ranking_rows(matched.matches)
    layers = findings.layer_rows(probed)
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in {
        "ranking": ranking,
        "heatmaps": findings.grid_rows(matched.matches),
        "layers": layers,
        "solvers": findings.solver_rows(matched.fans),
        "probes": findings.probe_rows(probed),
        "additivity": findings.defect_rows(probed, matched),
    }.items():
        rows.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    summary = {
        "checkpoint": Path(options.checkpoint).name,
        "card": card,
        "prompts": options.prompts,
        "seconds": round(time.perf_counter() - started, 1),
        "versions": {name: version(name) for name in VERSIONS},
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    free = ranking[(ranking.path == "free") & (ranking.ridge_scale == "absolute")]
    for readout, told in READOUTS.items():
        print(f"similarity of errors, layers 1 to {card['shape']['layers']}, read by {told}:")
        for row in findings.ranked(
            free[free.readout == readout], "similarity", "certified"
        ).itertuples():
            print(
                f"  {row.method:34} {row.score:.4f}  [{row.low:.4f}, {row.high:.4f}]  "
                f"steps {row.steps}"
            )
    print(f"wrote {out} in {summary['seconds']} s")


def _bench(options: argparse.Namespace) -> None:
    bench(_folder(options.out), options.only or ())
