"""The guarantee page in a real browser holds the library's figures, topic by topic."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from krrviz import Settings
from krrviz.guarantee import guarantee
from krrviz.scaling import SWEEPS, tail
from krrviz.settings import View

Settled = Callable[[Page], None]
SMALL = "data=gp&n=12&queries=5&prompts=3&segments=16&update=chebyshev"


def rows(page: Page, name: str) -> list[dict[str, Any]]:
    return page.get_by_test_id("figures").last.evaluate(
        "(root, name) => root.krrviz.rows(name)", name
    )


def opened(page: Page, settled: Settled, url: str) -> Settings:
    page.goto(url)
    settled(page)
    return Settings.from_query(page.url)


def test_the_dial_shows_the_librarys_guarantee_and_answers_keys(
    page: Page, serve: Callable[[], str], settled: Settled
) -> None:
    settings = opened(page, settled, f"{serve()}/guarantee?{SMALL}&eps=0.1")

    def assert_shows(eps: float) -> None:
        found = guarantee(settings, eps)
        c, measured = found.construction, found.measured
        assert measured is not None
        table = page.locator("table").first
        for words in (
            f"{c.steps:,} steps", f"{c.blocks:,} blocks", f"m = {c.segments:,}",
            f"{found.certificate.a_priori:.2e}", f"post hoc {measured.post_hoc:.2e}",
            f"measured {measured.error:.2e}", f"needed: {found.needed:,} steps",
        ):  # fmt: skip
            expect(table).to_contain_text(words)
        parts = {(row["bar"], row["term"]): row["value"] for row in rows(page, "budget")}
        assert parts["proved", "iteration"] == pytest.approx(found.certificate.iteration, rel=1e-5)
        assert parts["measured", "product"] == pytest.approx(measured.product, rel=1e-4)

    assert_shows(0.1)
    page.get_by_role("slider", name="Accuracy ε").press("ArrowRight")
    page.wait_for_url(re.compile("eps=0.03"))
    settled(page)
    assert View.from_query(page.url).eps == 0.03
    assert_shows(0.03)


TOLD = {
    "eps=0&topic=dail": ("eps=0 must be 1e-15 to 1000.", "topic=dail must be one of dial"),
    "eps=1e-14": ("is below what can be certified here: float64 reaches",),
    "update=function_space": ("update=function_space has no certificate",),
    "dtype=float16&product=plain": ("product=plain needs dtype=float64 or float32",),
    "ridge=0.001&update=richardson&eps=0.001": ("Not measured: that would take about",),
}


def test_what_cannot_be_is_told_and_the_page_stays_alive(
    page: Page, app: str, settled: Settled
) -> None:
    for query, problems in TOLD.items():
        given = dict(part.split("=") for part in f"{SMALL}&{query}".split("&"))
        page.goto(f"{app}/guarantee?" + "&".join(f"{k}={quote(v)}" for k, v in given.items()))
        for told in problems:
            expect(page.get_by_text(told)).to_be_visible(timeout=30_000)
        page.get_by_role("radio", name="Spectrum").click()
        settled(page)
        assert rows(page, "tail")


@pytest.mark.soak
def test_each_topic_draws_its_sweep_in_both_themes_on_a_phone(
    page: Page, app: str, settled: Settled
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    settings = opened(page, settled, f"{app}/guarantee?{SMALL}&topic=spectrum")
    found = tail(settings)
    drawn = {row["value"] for row in rows(page, "spectrum")}
    assert len(drawn) == found.eigenvalues.size
    assert max(drawn) == pytest.approx(found.eigenvalues.max(), rel=1e-5)
    columns = {
        "Sink": ("sink", "sink_error", "error"),
        "One step size": ("transfer", "transfer", "error"),
        "Update rules": ("rules", "rules", "error"),
        "Precision": ("precision", "precision", "error"),
    }
    for number, (topic, (name, figure, column)) in enumerate(columns.items()):
        page.emulate_media(color_scheme="dark" if number % 2 else "light")
        page.get_by_role("radio", name=topic, exact=True).click()
        settled(page)
        assert View.from_query(page.url).topic == name
        expected = [row[column] for _, point in SWEEPS[name](settings, None) for row in point()]
        shown = [row[column] for row in rows(page, figure) if row.get(column) is not None]
        assert shown
        for value in shown:
            assert min(abs(value - other) for other in expected) <= 1e-5 * abs(value)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("radio", name="Looseness").click()
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible(timeout=20_000)


def test_a_sweep_stops_keeps_what_it_has_and_goes_on(
    page: Page, app: str, settled: Settled
) -> None:
    page.goto(f"{app}/guarantee?data=gp&prompts=2&queries=4&topic=depth&update=heavy_ball&seed=5")
    page.get_by_role("button", name="Stop and keep").click(timeout=30_000)
    told = page.get_by_text(re.compile(r"Stopped: \d of 7 points are shown"))
    expect(told).to_be_visible(timeout=30_000)
    settled(page)
    kept = {row["series"] for row in rows(page, "depth_absolute_0")}
    assert "N = 16" in kept
    assert len(kept) < 7
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("Steps to 1e-3 at N = 16, 32, 64, 128, 256, 512, 1024")).to_be_visible(
        timeout=60_000
    )
    settled(page)
    assert {row["series"] for row in rows(page, "depth_absolute_0")} > kept


def test_the_sinks_dial_moves_the_setting(page: Page, app: str, settled: Settled) -> None:
    opened(page, settled, f"{app}/guarantee?{SMALL}&topic=sink")
    page.get_by_role("slider", name="Sink level s").last.press("ArrowRight")
    page.wait_for_url(re.compile("sink=0.001"))
    settled(page)
    expect(page.get_by_text("attention = P⁻¹K:")).to_be_visible()
