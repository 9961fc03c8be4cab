"""Tour: predict, reveal, go on; progress is in the link."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from krrviz import View
from krrviz.lessons import TOUR

from .test_links import copied


@pytest.mark.parametrize("embed", ["", "&embed=true"])
def test_a_station_is_predicted_revealed_and_left(
    embed: str, page: Page, app: str, settled: Callable[[Page], None]
) -> None:
    page.goto(f"{app}/tour?station=2{embed}")
    page.get_by_text("The picture comes with the answer.").wait_for()
    expect(page.get_by_role("button", name="Reveal")).to_be_disabled()
    page.get_by_text(f"b) {TOUR[1].options[1]}").click()
    page.get_by_role("button", name="Reveal").click()
    settled(page)
    expect(page.get_by_text("(your prediction)")).to_have_count(1)
    expect(page.get_by_text("← right")).to_have_count(1)
    expect(page.locator("[data-testid=heatmaps] figure")).to_have_count(3)
    page.wait_for_url("**answers=-b------**")
    page.get_by_role("button", name="Next").click()
    page.get_by_text("3 of 8").wait_for()
    page.get_by_role("button", name="Show without predicting").click()
    settled(page)
    page.wait_for_url("**answers=-bs-----**")
    page.get_by_role("button", name="Back").click()
    page.get_by_text("2 of 8").wait_for()
    settled(page)
    if embed:
        expect(page.get_by_test_id("stSidebar")).to_have_count(0)
        return
    view = View.from_query(copied(page))
    assert (view.station, view.answers) == (2, "-bs-----")


def test_settings_that_left_the_station_are_told_and_put_back(
    page: Page, app: str, settled: Callable[[Page], None]
) -> None:
    page.goto(f"{app}/tour?station=3&answers=--a-----&n=12&steps=4&prompts=2")
    settled(page)
    page.get_by_text("no longer this station's").wait_for()
    page.get_by_role("button", name="Put them back").click()
    page.wait_for_url("**n=64&**")
    settled(page)
    expect(page.get_by_text("no longer this station's")).to_have_count(0)
