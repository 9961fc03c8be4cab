"""Time the largest heatmaps from click to idle: python benchmarks/heatmap.py.

At N = 512, a block of other weights is chosen (three new matrices are sent and drawn), and a cell
is pinned. A time ends at the last change of the page before it comes to rest.
"""

import shutil
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "tests" / "browser"))
from conftest import CHROMIUM, FLAGS, SETTLED, server

from krrviz.bench.record import machine

RUNS = 9
GOAL = 0.5  # seconds, for the median
ADDRESS = "/attention?data=gp&n=512&queries=32"
# Notes when the script last came to rest and when maps were last drawn.
WATCH = """
() => {
  const app = document.querySelector('[data-testid="stApp"]');
  const roots = [...document.querySelectorAll('*')].flatMap((e) => e.shadowRoot ?? []);
  const maps = roots.flatMap((root) => [...root.querySelectorAll('[data-testid="heatmaps"]')]);
  const note = () => (window.lastChange = performance.now());
  const options = { attributes: true, attributeFilter: ['data-ready', 'data-test-script-state'] };
  for (const watched of [app, ...maps]) new MutationObserver(note).observe(watched, options);
  addEventListener('click', () => {
    [window.clicked, window.settledSince] = [performance.now(), undefined];
  }, true);
}
"""


def seconds(page: Page, click: str, text: str | None = None) -> float:
    """From a click to the last change."""
    target = page.get_by_role("radio", name=text) if text else page.locator(click).nth(2)
    target.click(position=None if text else {"x": 150, "y": 150})
    page.wait_for_function("window.lastChange > window.clicked", polling=50)
    page.wait_for_function(SETTLED, polling=50)
    return page.evaluate("(window.lastChange - window.clicked) / 1000")


def main() -> None:
    chromium = next(filter(None, map(shutil.which, CHROMIUM)))
    with server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url + ADDRESS)
        page.wait_for_function(SETTLED, timeout=120_000, polling=50)
        page.evaluate(WATCH)
        blocks = [
            seconds(page, "", name) for _ in range(RUNS) for name in ("read-in", "update (a)")
        ]
        pins = [seconds(page, "[data-testid=heatmaps] canvas.cells") for _ in range(RUNS)]
        browsed = f"chromium {browser.version}, streamlit {version('streamlit')}"
        browser.close()
    print(
        *machine().values(), browsed, "", "545 × 545 tokens, three maps, click to idle:", sep="\n"
    )
    for name, times in (("another block", blocks), ("a pin", pins)):
        print(
            f"{name:14}  median {statistics.median(times):.3f} s  "
            f"range {min(times):.3f}–{max(times):.3f}  (goal {GOAL} s)"
        )


if __name__ == "__main__":
    main()
