"""Access: every page for everybody: axe, small screens, zoom, keyboard, less motion."""

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from .conftest import watched
from .test_links import LOOKS, SMALL, link

WIDE = """
() => {
  const main = document.querySelector('[data-testid="stMain"]');
  return main.scrollWidth - main.clientWidth;
}
"""
# The names of what the Tab key stops at, into shadow roots.
FOCUSED = """
() => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at && `${at.tagName} ${at.ariaLabel || at.innerText || ''}`;
}
"""


def ready(page: Page, at: str, settled: Callable[[Page], None]) -> None:
    if at in ("workshop", "own_data"):
        page.get_by_role("button", name="Copy link").wait_for()
        page.wait_for_timeout(500)
    else:
        settled(page)


@pytest.mark.parametrize("at", LOOKS)
def test_a_page_is_for_everybody(
    at: str, browser: Browser, app: str, settled: Callable[[Page], None]
) -> None:
    looks: list[dict[str, Any]] = [
        {"viewport": {"width": 1440, "height": 900}},
        {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True},
    ]
    for look in looks:
        with watched(browser, **look) as page:
            page.goto(app + link(at, SMALL, LOOKS[at]))
            ready(page, at, settled)
            assert page.evaluate(WIDE) <= 1, f"{look} scrolls sideways"
            found = [
                (rule["id"], [node["html"][:300] for node in rule["nodes"]])
                for rule in Axe().run(page).response["violations"]
                if rule["impact"] in ("serious", "critical")
            ]
            assert not found
            if look["viewport"]["width"] == 1440:
                # 200 % zoom leaves a page half its width.
                page.set_viewport_size({"width": 720, "height": 450})
                page.wait_for_timeout(500)
                assert page.evaluate(WIDE) <= 1, "zoomed, it scrolls sideways"


def test_the_keyboard_reaches_everything(
    page: Page, app: str, settled: Callable[[Page], None]
) -> None:
    page.goto(app + link("fan", SMALL, LOOKS["fan"]))
    settled(page)
    seen = list[str]()
    for _ in range(140):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED) or "")
    said = "\n".join(seen)
    for name in (
        "Presets", "Bandwidth", "Depth", "Tour", "Own data", "Copy link", "Export",
        "Play the steps", "INPUT", "Nesterov", "Download Error by step", "0.001",
        "What each curve is", "σ",
    ):  # fmt: skip
        assert name in said, name
    # The glossary tells under the focus what it tells under the pointer.
    symbol = page.locator(".strip .symbol").first
    symbol.focus()
    expect(symbol.get_by_role("tooltip")).to_be_visible()


def test_who_asks_for_less_motion_gets_steps(
    browser: Browser, app: str, settled: Callable[[Page], None]
) -> None:
    with watched(browser, reduced_motion="reduce") as page:
        page.goto(app + link("fan", SMALL, LOOKS["fan"]))
        settled(page)
        page.get_by_role("button", name="Play the steps").click()
        panel = page.locator("[data-testid=figures]")
        start = panel.evaluate("root => root.krrviz.step()")
        page.wait_for_timeout(600)
        assert panel.evaluate("root => root.krrviz.step()") == start
