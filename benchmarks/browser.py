"""Time the fan page from an input to the drawn charts: python benchmarks/browser.py.

A key pressed on the bandwidth's slider, and a pointer that holds it and moves, at the default size;
each beside its floor, an app of that one slider whose charts, the same, are computed before. A time
begins at the key or at the slider's new stop, and ends at the first frame with all charts drawn.
"between drawings" is a steady drag's. No setting comes twice, so that no fan is drawn from a cache.
Writes benchmarks/results/browser.csv.
"""

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "tests" / "browser"))
from conftest import CHROMIUM, FLAGS, ROOT, SETTLED, server

from krrviz.bench.record import Goal, Row, Times, machine
from krrviz.bench.report import table, write

ROUNDS = 2  # of app and floor by turns: the machine may be busy with something else for a while
RUNS = 20
STEADY = 5000  # milliseconds of steady dragging
# Milliseconds of 95 % of the moves of a held slider; medians over the floor's.
GOAL, RATIO = Goal(150, at_least=False), Goal(1.5, at_least=False)

FLOOR = f"""
import gc, sys
sys.path.insert(0, {str(ROOT)!r})
import streamlit as st
from krrviz.fan import curve, fan
from krrviz.pictures.fan import figures as fan_figures
from krrviz.settings import Settings, View
from krrviz.ui import figures, live, sidebar

st.set_page_config(layout="wide")
st.session_state.setdefault("settings", Settings())
st.session_state.setdefault("view", View())
live.release()
figures.vega()
stops = sidebar.stops("bandwidth")

@st.cache_resource(show_spinner=False)
def made():
    shown = {{}}
    for stop in stops:
        settings = Settings(bandwidth=stop)
        first = settings.methods[0]
        alone = settings.but(methods=(first,))
        shown[stop] = fan_figures(fan(settings), curve(alone, first), settings, 1e-3)
    gc.freeze()  # as the app's shell does
    return shown

def changed():
    st.session_state.settings = Settings(bandwidth=st.session_state.bandwidth)

st.session_state.bandwidth = st.session_state.settings.bandwidth
with st.sidebar:
    st.select_slider("Bandwidth", stops, key="bandwidth", on_change=changed)

@st.fragment
def pictures():
    drawn = live.settings()
    shown = made()[drawn.bandwidth]
    figures.figures(shown, steps=drawn.steps, key="fan", held=live.answer(drawn))

pictures()
"""
# Notes when a key went down or the slider reached a stop, and each frame with all charts drawn.
WATCH = """
() => {
  const roots = [...document.querySelectorAll('*')].flatMap((e) => e.shadowRoot ?? []);
  const [figures] = roots.flatMap((root) => [...root.querySelectorAll('[data-testid=figures]')]);
  const slider = document.querySelector('.st-key-bandwidth input[type=range]');
  window.frames = [];
  new MutationObserver(() => figures.dataset.ready === 'true' && requestAnimationFrame(
    (at) => window.frames.push(performance.now())
  )).observe(figures, { attributes: true, attributeFilter: ['data-ready'] });
  addEventListener('keydown', () => (window.begun = performance.now()), true);
  new MutationObserver(() => window.holding && (window.begun = performance.now()))
    .observe(slider, { attributes: true, attributeFilter: ['aria-valuetext'] });
  addEventListener('pointerdown', () => (window.holding = true), true);
  addEventListener('pointerup', () => (window.holding = false), true);
}
"""


def drawn(page: Page) -> float:
    """Milliseconds from the last input to the first frame after it."""
    first = "window.frames.find((at) => at > window.begun)"
    page.wait_for_function(f"{first} !== undefined", timeout=60_000, polling=20)
    return page.evaluate(f"{first} - window.begun")


def keys(page: Page) -> Iterator[float]:
    slider = page.get_by_role("slider", name="Bandwidth")
    slider.focus()
    for _ in range(RUNS):
        page.evaluate("window.frames = []")
        slider.press("ArrowRight")
        yield drawn(page)
        page.wait_for_function(SETTLED, polling=50)


@contextmanager
def held(page: Page) -> Iterator[Callable[[float], None]]:
    """The slider with the pointer down on it; call the result to move that by pixels."""
    box = page.get_by_role("slider", name="Bandwidth").bounding_box()
    assert box is not None
    x, y = box["x"], box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    yield lambda by: page.mouse.move(x + by, y)
    page.mouse.up()


def moves(page: Page) -> Iterator[float]:
    with held(page) as move:
        for run in range(1, RUNS + 1):
            page.evaluate("[window.frames, window.begun] = [[], undefined]")
            move(2.5 * run)  # a stop is 1.9 pixels wide
            page.wait_for_function("window.begun !== undefined", polling=10)
            yield drawn(page)
            page.wait_for_timeout(150)


def steady(page: Page) -> Iterator[float]:
    with held(page) as move:
        page.evaluate("window.frames = []")
        for tick in range(STEADY // 20):
            move(-80 * tick * 20 / STEADY)
            page.wait_for_timeout(20)
        frames = page.evaluate("window.frames")
    for before, after in pairwise(frames):
        yield after - before


MEASURED = {"key": keys, "held": moves, "between drawings": steady}


def timed(page: Page, address: str, seed: int) -> dict[str, list[float]]:
    times = {}
    for what, measure in MEASURED.items():
        seed += 1
        page.goto(f"{address}/?seed={seed}", timeout=120_000)
        page.wait_for_function(SETTLED, timeout=300_000, polling=50)
        page.evaluate(WATCH)
        times[what] = [*measure(page)]
    return times


def main() -> None:
    chromium = next(filter(None, map(shutil.which, CHROMIUM)))
    with (
        tempfile.TemporaryDirectory() as folder,
        server() as url,
        sync_playwright() as playwright,
    ):
        (Path(folder) / "app.py").write_text(FLOOR, "utf-8")
        shutil.copytree(ROOT / ".streamlit", Path(folder) / ".streamlit")
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        about = machine() | {"gpu": f"none used; load {os.getloadavg()[0]:.1f} before"}
        about["versions"] += f", chromium {browser.version}, streamlit {version('streamlit')}"
        with server(Path(folder)) as bare:
            found = {name: {what: [] for what in MEASURED} for name in ("krrviz", "floor")}
            for number in range(ROUNDS):
                for name, address in (("krrviz", url), ("floor", bare)):
                    page = browser.new_page(viewport={"width": 1440, "height": 900})
                    for what, times in timed(page, address, 100 * number).items():
                        found[name][what] += times
                    page.close()
        browser.close()
    rows = []
    for what in MEASURED:
        ours, floor = (Times(tuple(t / 1e3 for t in found[a][what]), None) for a in found)
        for app, times in (("krrviz", ours), ("floor", floor)):
            late = statistics.quantiles(times.seconds, n=20)[-1] * 1e3
            goal = GOAL if what == "held" and times is ours else None
            rows.append(Row("browser", what, app, times, late, "ms, p95", goal))
        ratio = ours.median / floor.median
        rows.append(Row("browser", what, "krrviz over floor", None, ratio, "of medians", RATIO))
    write(ROOT / "benchmarks" / "results" / "browser.csv", rows, about)
    print(table([row.cells() for row in rows]))


if __name__ == "__main__":
    main()
