"""Links: opened in a clean profile, a page shows what its link stands for, and gives it back."""

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from krrviz import Settings, View, export
from krrviz.charts import Figure, columns
from krrviz.maps import Map
from krrviz.settings import DATASETS, DIGEST
from krrviz.tables import open_csv
from krrviz.tasks import own_table

from .conftest import watched

OWN = Path(__file__).parents[1] / "links" / "own.csv"
SMALL = Settings(n=12, steps=4, prompts=2, queries=4, segments=8)
# Every page, at what of it is quick.
LOOKS = {
    "fan": View(step=2, floor=1e-6),
    "tour": View(station=2, answers="ba------"),
    "attention": View(block=2, pin=3, pin_key=5),
    "forward": View(block=2, part="attention", pin=4),
    "guarantee": View(topic="spectrum"),
    "map": View(map_of="winner", map_x="ridge", map_y="n"),
    "trained": View(study="heads", layer=3),
    "ablations": View(ablation="constructed"),
    "workshop": View(),
    "own_data": View(source="paste"),
}
# All that the panels of a page hold, by name.
HELD = """
() => {
  const shadows = [...document.querySelectorAll('*')].flatMap(element => element.shadowRoot ?? []);
  const found = {};
  for (const root of [document, ...shadows]) {
    for (const { krrviz } of root.querySelectorAll('[data-testid="figures"]'))
      for (const name of krrviz.names()) found[name] = krrviz.rows(name);
    for (const { heatmaps } of root.querySelectorAll('[data-testid="heatmaps"]'))
      for (const name of heatmaps.names()) {
        const [rows, cols] = heatmaps.shape(name);
        const made = Array.from({ length: rows }, (_, i) =>
          Array.from({ length: cols }, (_, j) => heatmaps.value(name, i, j)));
        found[name in found ? `row_${name}` : name] = made;
      }
  }
  return found;
}
"""
COPIED = """
() => [...document.querySelectorAll('*')].flatMap(element => element.shadowRoot ?? [])
  .map(root => root.querySelector('[data-testid="share"]')).find(share => share).dataset.copied
"""


def link(at: str, settings: Settings, view: View) -> str:
    path = "/" if at == "fan" else f"/{at}"
    return f"{path}?{settings.to_query()}&{view.to_query().partition('&')[2]}"


def copied(page: Page) -> str:
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Press Ctrl+C").or_(page.get_by_text("Copied")).wait_for()
    return page.evaluate(COPIED)


def read(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame as a file gives it back, whatever its columns were made of."""
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)))


def same(shown: dict[str, export.Picture], held: dict[str, Any]) -> None:
    """Assert that a browser holds a page's pictures to the last digit."""
    drawn = {name: it for name, it in shown.items() if not isinstance(it, pd.DataFrame)}
    assert {*held} == {*drawn}
    for name, picture in drawn.items():
        if isinstance(picture, Map):
            assert np.array_equal(np.array(held[name], float), picture.values, equal_nan=True)
        else:
            assert isinstance(picture, Figure)
            wanted = columns(picture.rows())
            got = pd.DataFrame(held[name], columns=[*wanted])
            # A browser writes 1.0 as 1.
            pd.testing.assert_frame_equal(
                read(got), read(pd.DataFrame(wanted)), check_exact=True, check_dtype=False
            )


def visited(at: str) -> list[str]:
    """Data sets that a page is opened with: a person's file and another; all in `make soak`."""
    shipped = [name for name in DATASETS if name != "csv"]
    if "KRRVIZ_SOAK" in os.environ:
        return [*DATASETS]
    return ["csv", shipped[[*LOOKS].index(at) % len(shipped)]]


@pytest.mark.parametrize("at", LOOKS)
def test_a_link_shows_what_it_stands_for_and_is_given_back(
    at: str, browser: Browser, app: str, settled: Callable[[Page], None]
) -> None:
    digest = open_csv(OWN).digest[:DIGEST]
    with watched(browser) as page:
        for data in visited(at):  # each visit is a session of its own
            settings = SMALL.but_data(data, 40, digest if data == "csv" else "none")
            table = own_table(open_csv(OWN), settings) if data == "csv" else None
            view = LOOKS[at]
            address = link(at, settings, view)
            page.goto(app + address)
            if data == "csv" and at != "workshop":
                page.get_by_text(f"its SHA-256 begins with {digest}").wait_for()
                page.locator("input[type=file]").set_input_files(OWN)
            if at == "workshop" or (at == "own_data" and data != "csv"):
                page.get_by_role("button", name="Copy link").wait_for()
            else:
                settled(page)
                same(export.shown(at, settings, view, table), page.evaluate(HELD))
            back = copied(page)
            assert urlsplit(back).path == urlsplit(address).path
            assert parse_qs(urlsplit(back).query) == parse_qs(urlsplit(address).query)


def test_what_was_scrubbed_and_pinned_is_in_the_link(
    browser: Browser, app: str, settled: Callable[[Page], None]
) -> None:
    with watched(browser) as page:
        page.goto(app + link("fan", SMALL, View()))
        settled(page)
        scrubber = page.locator("[data-testid=figures] input[type=range]")
        scrubber.focus()
        scrubber.press("ArrowLeft")
        page.wait_for_url("**step=3&**")
        fan = copied(page)
        page.goto(app + link("attention", SMALL, View()))
        settled(page)
        cells = page.locator("[data-testid=heatmaps] canvas.cells").first
        cells.focus()
        for key in ("ArrowDown", "ArrowRight", "Enter"):
            cells.press(key)
        page.wait_for_url(re.compile(r"pin=\d"))
        settled(page)
        attention, read = copied(page), page.locator("[data-testid=heatmaps]").first
        pinned = read.evaluate("root => root.heatmaps.pin()")
    with watched(browser) as page:
        page.goto(fan)
        settled(page)
        panel = page.locator("[data-testid=figures]")
        assert panel.evaluate("root => root.krrviz.step()") == 3
        page.goto(attention)
        settled(page)
        first = page.locator("[data-testid=heatmaps]").first
        assert first.evaluate("root => root.heatmaps.pin()") == pinned


def test_a_hostile_link_is_told_and_does_nothing(
    browser: Browser, app: str, settled: Callable[[Page], None]
) -> None:
    bad = {
        "ridge": "%3Cscript%3Ealert(1)%3C/script%3E",
        "file": "..%2F..%2Fetc%2Fpasswd",
        "seed": "1%00",
        "bandwidth": "%E2%80%AE0.3",
        "answers": "x" * 2000,
        "n": "9&n=10",
    }
    with watched(browser) as page:
        page.on("dialog", lambda dialog: pytest.fail("a script of the link ran"))
        query = "&".join(f"{key}={value}" for key, value in bad.items())
        page.goto(f"{app}/?steps=4&prompts=2&{query}")
        settled(page)
        told = page.get_by_test_id("stAlert")
        expect(told).to_have_count(len(bad))
        said = " ".join(told.all_inner_texts())
        for key in bad:
            assert f"{key}=" in said or f"{key} stands 2 times" in said
        assert "\u202e" not in said
        assert "must be" in said
        assert parse_qs(urlsplit(copied(page)).query)["steps"] == ["4"]
