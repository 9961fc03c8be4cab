"""Export: what a link's page shows, computed outside the app, and the script that does so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from krrviz import checkpoints, findings
from krrviz.anatomy import anatomy
from krrviz.charts import Figure
from krrviz.counterparts import counterpart_rows
from krrviz.fan import Fan, averaged, curve, fan
from krrviz.forward import walk
from krrviz.frames import held_out_rows
from krrviz.guarantee import guarantee
from krrviz.heldout import held_out
from krrviz.lessons import AVERAGE, TOUR
from krrviz.maps import Map
from krrviz.pictures import ablations, attention, forward, own_data, trained
from krrviz.pictures import fan as fans
from krrviz.pictures import guarantee as guaranteed
from krrviz.pictures import map as mapping
from krrviz.scaling import SWEEPS, tail
from krrviz.settings import Settings, SettingsError, View
from krrviz.settings import shown as said
from krrviz.suggest import cross_validated_bandwidth, gcv_ridge, median_bandwidth
from krrviz.surgery import errors, named
from krrviz.sweep import cell_course, mapped, same
from krrviz.tables import Table
from krrviz.tasks import dimension, table_of
from krrviz.trained import match as matching
from krrviz.trained.abroad import beyond, live
from krrviz.trained.inside import headed, patch
from krrviz.trained.probe import Probed, fixed_task, probe

Picture = Figure | Map | pd.DataFrame  # or a table
Shown = dict[str, Picture]


def _fan(settings: Settings, view: View, table: Table | None, result: Fan | None) -> Shown:
    result = result or fan(settings, table)
    fitted = curve(settings, settings.methods[0], table) if result.d == 1 else None
    return {**fans.figures(result, fitted, settings, view.floor)}


def _attention(settings: Settings, view: View, table: Table | None, result: Fan | None) -> Shown:
    a = anatomy(settings, table)
    view = _within(view, block=a.depth - 1, pin=len(a.kinds) - 1)
    shown = _named(attention.matrices(a, view.block))
    token = attention.followed(a, view.pin)
    step = a.step(view.block, token)
    row = [] if step is None else attention.row(a, view.block, token, step)
    # Both panels of the page have a kernel and a difference.
    return shown | {f"row_{m.name}" if m.name in shown else m.name: m for m in row}


def _forward(settings: Settings, view: View, table: Table | None, result: Fan | None) -> Shown:
    a = anatomy(settings, table)
    view = _within(
        view,
        block=a.depth - 1,
        pin=len(a.kinds) - 1,
        fault_block=a.depth - 1,
        fault_query=settings.queries,
    )
    fault = named(view)
    whole, way = walk(settings, None, table), walk(settings, fault, table)
    shown, moment = forward.Shown(a, way), forward.moment(way, view.block, view.part)
    pinned = forward.followed(a, view.pin)
    token, block = shown.to_walk(pinned), way.moments[moment].block
    stream = forward.stream(shown, whole)
    faulty = errors(settings, fault, table) if fault else None
    return {
        "stream": replace(stream, values=stream.values[moment]),
        **forward.token(way, moment, token, f"token {pinned}"),
        **forward.errors(way, errors(settings, None, table), faulty, (view.floor, 2.0)),
        **_named(forward.jacobians(shown, block, token)),
        **_named(m for part in forward.weights(way, block) for m in part),
    }


def _guarantee(settings: Settings, view: View, table: Table | None, result: Fan | None) -> Shown:
    if view.topic == "dial":
        return {**guaranteed.budget(guarantee(settings, view.eps, table))}
    if view.topic == "spectrum":
        return {**guaranteed.spectrum(tail(settings, table), settings)}
    points = SWEEPS[view.topic](settings, table)
    rows = pd.DataFrame([row for _, point in points for row in point()])
    if view.topic == "sink":
        return {**guaranteed.sink(tail(settings, table), rows, settings)}
    if view.topic == "looseness":
        return {"looseness": rows}
    return {} if rows.empty else {**guaranteed.SWEPT[view.topic](rows, settings)}


def _map(settings: Settings, view: View, table: Table | None, result: Fan | None) -> Shown:
    grid = mapped(settings, view, None if table is None else table.rows)
    found = {number: cell_course(grid, number, same(table)) for number in range(len(grid))}
    rows = mapping.rows(grid, found)
    return {**mapping.figures(rows, grid, settings, view), "map_rows": rows}


def _trained(settings: Settings, view: View, table: Table | None, result: Fan | None) -> Shown:
    if view.model == "own":
        raise SettingsError(
            "model=own was trained or loaded in a session of the app and is nowhere else; choose "
            "a shipped one",
            "model",
        )
    model, card = checkpoints.loaded(view.model)
    task, shape = fixed_task(card), model.shape
    size = trained.step_size(settings)
    match view.study:
        case "heads":
            found = headed(model, task)
            layer = min(view.layer, shape.layers)
            return _named([*trained.heads(found, shape, layer), trained.alike(found)])
        case "beyond":
            return {**trained.beyond(beyond(model, task, settings.steps), task.n)}
        case "yours":
            found, result = live(model, card, settings, table), result or fan(settings, table)
            return {**trained.yours(found, settings, view.floor),
                    **trained.yours_solvers(result, settings, view.floor)}  # fmt: skip
    probed = probe(model, task, view.asked)
    match view.study:
        case "fan":
            wanted = trained.asked(settings)
            solvers = (
                trained.solvers(matching.fans(probed, wanted, size), settings) if wanted else {}
            )
            return {**trained.layers(probed), **solvers}
        case "controls":
            return {**trained.controls(probed), **trained.patches(patch(model, task, view.asked))}
    matched = matching.match(probed, size)
    if view.study == "operator":
        return {**trained.operator(probed, matched, settings)}
    stand = findings.standing(
        matched, view.metric, view.readout, settings.policy, settings.ridge_scale
    )
    if stand.free.empty:
        return {}
    return {**trained.rankings(stand, shape.layers), **trained.grids(stand)}


def _ablations(settings: Settings, view: View, table: Table | None, result: Fan | None) -> Shown:
    if view.ablation == "constructed":
        return {**ablations.scores(pd.DataFrame(counterpart_rows(settings, table)), view.floor)}

    def probed(names: Iterable[str]) -> dict[str, Probed]:
        loaded = {name: checkpoints.loaded(name) for name in names if not checkpoints.missing(name)}
        return {
            name: probe(model, fixed_task(card), view.asked)
            for name, (model, card) in loaded.items()
        }

    if view.ablation == "attention":
        logs = {name: rows for name in ablations.KINDS
                if (rows := checkpoints.log(name)) is not None and len(rows)}  # fmt: skip
        kinds = ablations.kinds(checkpoints.snapshots(ablations.MAIN))
        ranks = {
            name: findings.route_rows(matching.rivals(found, view.readout))
            for name, found in probed(kinds).items()
        }
        courses = ablations.courses(logs) if logs else {}
        return {**courses, **ablations.rankings(ranks, kinds)}
    models = probed(ablations.TRAINED_ON)
    rows = findings.kernel_rows(
        {
            name: (found, [matching.align(found, view.readout, k) for k in ablations.KERNELS])
            for name, found in models.items()
        }
    )
    length = next((found.prompts.task.n for found in models.values()), "N")
    lost = [name for name in ablations.TRAINED_ON if checkpoints.missing(name)]
    return _named(ablations.kernels(rows, length, lost))


def _own_data(settings: Settings, view: View, table: Table | None, done: Fan | None) -> Shown:
    if settings.data != "csv":
        return {}
    own = table_of(settings, table)
    hints = own_data.suggestions(
        median_bandwidth(own.X, settings.seed),
        cross_validated_bandwidth(own.X, own.y, settings.ridge, settings.seed),
        gcv_ridge(own.X, own.y, settings.bandwidth, settings.seed),
    )
    result = held_out(settings, table)
    told = {"held_out": held_out_rows(result)}
    if own.d > 1:
        return {**hints, **own_data.residuals(result, settings.methods[0]), **told}
    drawn = _fan(settings, view, table, done)
    return {**hints, **{name: drawn[name] for name in ("steps", "prediction")}, **told}


def _tour(settings: Settings, view: View, table: Table | None, done: Fan | None) -> Shown:
    station = TOUR[view.station - 1]
    if station.shown == (AVERAGE,):
        if dimension(settings, table) > 1:
            return {}
        return {**fans.average(averaged(settings, table))}
    drawn = PAGES[station.page](settings, replace(view, **station.look), table, done)
    return {name: drawn[name] for name in station.shown if name in drawn}


PAGES: Mapping[str, Callable[[Settings, View, Table | None, Fan | None], Shown]] = {
    "fan": _fan,
    "attention": _attention,
    "forward": _forward,
    "guarantee": _guarantee,
    "map": _map,
    "trained": _trained,
    "ablations": _ablations,
    "own_data": _own_data,
    "tour": _tour,
}


def shown(
    page: str,
    settings: Settings,
    view: View,
    table: Table | None = None,
    result: Fan | None = None,
) -> Shown:
    """Every figure and map that a page shows, by name and in the page's order.

    All is computed anew, but for ``result``, the fan of these settings, where it is there already.

    Raises
    ------
    SettingsError, TableError, CheckpointError, ProbeError
        What the page would say it cannot show; ``model=own``, which is in a browser alone.
    """
    return PAGES[_known(page)](settings, view, table, result)


def rows(picture: Picture) -> pd.DataFrame:
    """A picture's numbers, tidy."""
    if isinstance(picture, pd.DataFrame):
        return picture
    return picture.rows() if isinstance(picture, Figure) else picture.cells()


def write(
    pictures: Mapping[str, Picture], folder: Path, kinds: Iterable[str] = ("csv", "svg")
) -> list[str]:
    """Write each picture as NAME.csv at full precision, NAME.svg or NAME.png; the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, picture in pictures.items():
        for kind in kinds:
            file = folder / f"{name}.{kind}"
            if kind == "csv":
                rows(picture).to_csv(file, index=False)
            elif isinstance(picture, pd.DataFrame):
                continue
            else:
                picture.chart().save(file)
            names.append(file.name)
    return names


def page_of(link: str) -> str:
    """The page that a link's path names; fan where it has no path.

    Raises
    ------
    SettingsError
        There is no such page, or nothing of it can be computed here.
    """
    head, mark, _ = link.strip().partition("?")
    head = head.partition("#")[0]
    _, host, rest = head.partition("://")
    if not host and not head.startswith("/") and not (mark and "=" not in head):
        return "fan"  # a query alone
    path = rest.partition("/")[2] if host else head
    return _known(path.rstrip("/").rpartition("/")[2] or "fan")


def _known(page: str) -> str:
    if page not in PAGES:
        raise SettingsError(f"page={said(page)} must be one of {', '.join(PAGES)}", "page")
    return page


def _within(view: View, **last: int) -> View:
    """The view with numbers beyond the last there is held to it."""
    return replace(view, **{
        name: min(value, most)
        for name, most in last.items()
        if isinstance(value := getattr(view, name), int)
    })  # fmt: skip


def _named(maps: Iterable[Map]) -> Shown:
    return {m.name: m for m in maps}


def link(page: str, settings: Settings, view: View) -> str:
    """The page's link, without the server's address; the app's home is the fan."""
    path = "" if page == "fan" else page
    return f"/{path}?{settings.to_query()}&{view.to_query().partition('&')[2]}"


def script(page: str, settings: Settings, view: View) -> str:
    """A Python program that writes what a page shows as files; it needs krrviz alone.

    Raises
    ------
    SettingsError
        There is no such page.
    """
    own = settings.data == "csv"

    def spelled(record: Settings | View) -> str:
        lines = [f"    {name}={getattr(record, name)!r},\n" for name in record.table()]
        return f"{type(record).__name__}(\n{''.join(lines)})"

    return SCRIPT.format(
        page=_known(page),
        version=version("krrviz"),
        link=link(page, settings, view),
        imports=CSV_IMPORTS if own else "",
        settings=spelled(settings),
        view=spelled(view),
        arguments=CSV_ARGUMENTS if own else "",
        table=", own_table(open_csv(given.csv, settings.seed), settings)" if own else "",
    )


SCRIPT = '''"""The page {page} of krrviz {version}: each picture as NAME.csv and NAME.svg.

{link}
"""

import argparse
from pathlib import Path

from krrviz import Settings, View
from krrviz.export import shown, write
{imports}
settings = {settings}
view = {view}

arguments = argparse.ArgumentParser()
{arguments}arguments.add_argument("folder", nargs="?", default=".", help="what to write into")
given = arguments.parse_args()
pictures = shown("{page}", settings, view{table})
print("\\n".join(write(pictures, Path(given.folder))))
'''

CSV_IMPORTS = """from krrviz.tables import open_csv
from krrviz.tasks import own_table
"""
CSV_ARGUMENTS = """arguments.add_argument("csv", help="the CSV file that prompts are taken from")
"""
