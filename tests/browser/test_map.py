"""The map in a real browser: its cells are the library's, and each is a way to the fan."""

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from krrviz import Settings, fan_frame

Settled = Callable[[Page], None]
SMALL = "data=gp&d=1&n=12&queries=4&prompts=2&steps=8&segments=16&map_eps=0.3"


def cells(page: Page) -> list[dict[str, Any]]:
    return page.get_by_test_id("figures").evaluate("root => root.krrviz.rows('map')")


def test_a_cell_says_what_the_fan_says_and_a_click_or_a_button_opens_it(
    page: Page, serve: Callable[[], str], settled: Settled
) -> None:
    url = serve()
    page.goto(f"{url}/map?{SMALL}")
    settled(page)
    base, shown = Settings.from_query(page.url), cells(page)
    assert len(shown) == 49
    assert {row["state"] for row in shown} == {"reached", "never"}
    for row in shown[::9]:
        at = base.but(bandwidth=row["bandwidth"], ridge=row["ridge"])
        errors = fan_frame(at).query("n == 12 and method == 'transformer'").error
        there = [step for step, error in enumerate(errors) if error <= 0.3]
        assert row["label"] == (str(there[0]) if there else "never")
    figure = page.get_by_test_id("figures").locator("canvas")
    box = figure.bounding_box()
    assert box is not None
    figure.click(position={"x": box["width"] - 30, "y": 50})  # the upper right cell
    page.wait_for_url(re.compile(rf"^{url}/\?.*bandwidth=4.0&ridge=100.0"))
    settled(page)
    expect(page.get_by_text("A transformer solves kernel ridge regression")).to_be_visible()

    page.get_by_role("link", name="Map", exact=True).click()
    expect(page.get_by_text("Open this setting")).to_be_visible()
    settled(page)
    slider = page.get_by_role("slider", name="Ridge λ").last
    slider.press("ArrowLeft")
    expect(page.get_by_test_id("stMain").get_by_text("0.01", exact=True)).to_be_visible()
    settled(page)
    page.get_by_role("button", name="Open this setting").press("Enter")
    page.wait_for_url(re.compile(rf"^{url}/\?.*bandwidth=0.5&ridge=0.01"))


def test_an_axis_that_changes_nothing_is_told(page: Page, app: str, settled: Settled) -> None:
    page.goto(f"{app}/map?{SMALL}&map_x=noise".replace("data=gp&", ""))
    expect(page.get_by_text("changes nothing without data=gp")).to_be_visible(timeout=30_000)
