"""Time the fan page from an input to the drawn charts: python benchmarks/browser.py.

A key pressed on the bandwidth's slider, and a pointer that holds it and moves, at the default size;
each beside its floor, an app of that one slider whose charts, the same, are computed before. A time
begins at the key or at the slider's new stop, and ends at the first frame with all charts drawn.
Writes benchmarks/results/browser.csv.
"""

import csv
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "browser"))
from conftest import CHROMIUM, FLAGS, SETTLED, server

from krrviz.bench import machine

RUNS = 40
HELD = 5000  # milliseconds of steady dragging
GOALS = {"p95 held (ms)": 150, "ratio": 1.5}

FLOOR = f"""
import sys
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

@st.cache_resource
def made():
    shown = []
    for stop in stops:
        settings = Settings(bandwidth=stop)
        first = settings.methods[0]
        alone = settings.but(methods=(first,))
        shown.append(fan_figures(fan(settings), curve(alone, first), settings, 1e-3))
    return shown

def changed():
    st.session_state.settings = Settings(bandwidth=st.session_state.bandwidth)

st.session_state.bandwidth = st.session_state.settings.bandwidth
with st.sidebar:
    st.select_slider("Bandwidth", stops, key="bandwidth", on_change=changed)

@st.fragment
def pictures():
    drawn = live.settings()
    shown = made()[stops.index(drawn.bandwidth)]
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
    page.wait_for_function(f"{first} !== undefined", polling=20)
    return page.evaluate(f"{first} - window.begun")


def keys(page: Page) -> Iterator[float]:
    slider = page.get_by_role("slider", name="Bandwidth")
    slider.focus()
    for run in range(RUNS):
        page.evaluate("window.frames = []")
        slider.press("ArrowLeft" if run < RUNS / 2 else "ArrowRight")
        yield drawn(page)
        page.wait_for_function(SETTLED, polling=50)


def moves(page: Page) -> tuple[list[float], list[float]]:
    """Times of single moves, and between the drawings of a steady drag."""
    box = page.get_by_role("slider", name="Bandwidth").bounding_box()
    assert box is not None
    x, y = box["x"], box["y"] + box["height"] / 2
    stop, single = box["width"] / 60, []  # far enough to reach another stop
    page.mouse.move(x, y)
    page.mouse.down()
    for run in range(1, RUNS + 1):
        page.evaluate("[window.frames, window.begun] = [[], undefined]")
        page.mouse.move(x - stop * (run if run <= RUNS / 2 else RUNS + 0.5 - run), y)
        page.wait_for_function("window.begun !== undefined", polling=10)
        single.append(drawn(page))
        page.wait_for_timeout(150)
    page.evaluate("window.frames = []")
    for tick in range(HELD // 16):
        page.mouse.move(x - stop * (20 - abs(20 - tick / 4 % 40)), y)
        page.wait_for_timeout(16)
    page.wait_for_timeout(500)
    frames = page.evaluate("window.frames")
    page.mouse.up()
    return single, [after - before for before, after in zip(frames, frames[1:], strict=False)]


def timed(page: Page, address: str) -> dict[str, list[float]]:
    page.goto(address)
    page.wait_for_function(SETTLED, timeout=300_000, polling=50)
    page.evaluate(WATCH)
    pressed = [*keys(page)]
    single, between = moves(page)
    page.wait_for_function(SETTLED, timeout=60_000, polling=50)
    return {"key": pressed, "held": single, "between drawings": between}


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
        told = [*machine(), f"chromium {browser.version}, streamlit {version('streamlit')}"]
        with server(Path(folder)) as bare:
            found = {}
            for name, address in (("krrviz", url), ("floor", bare)):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                found[name] = timed(page, address)
                page.close()
        browser.close()
    path = ROOT / "benchmarks" / "results" / "browser.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["what", "app", "runs", "median_ms", "p95_ms", "ratio_of_medians", "on"])
        for what in found["krrviz"]:
            floor = statistics.median(found["floor"][what])
            for name in ("krrviz", "floor"):
                times = found[name][what]
                middle = statistics.median(times)
                row = [f"{middle:.0f}", f"{statistics.quantiles(times, n=20)[-1]:.0f}"]
                ratio = f"{middle / floor:.2f}"
                table.writerow([what, name, len(times), *row, ratio, "; ".join(told)])
    print(path.read_text("utf-8"), f"goals: {GOALS}")


if __name__ == "__main__":
    main()
