"""Own data: files, pasted rows and clicked points; they stay in their session."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from krrviz import Settings
from krrviz.tables import assets, open_csv

from .conftest import watched
from .test_links import HELD, OWN, copied

MOTORCYCLE = assets() / "datasets" / "motorcycle.csv"


def test_a_file_is_used_suggests_and_is_asked_for_elsewhere(
    page: Page, browser: Browser, app: str, settled: Callable[[Page], None]
) -> None:
    page.goto(f"{app}/own_data")
    page.locator("input[type=file]").set_input_files(OWN)
    settled(page)
    page.get_by_text("Decimal commas read as decimal points").wait_for()
    page.get_by_text("Dates read as days").wait_for()
    page.wait_for_url("**data=csv&file=**")
    page.get_by_role("button", name="Median distance: σ").click()
    page.wait_for_url(re.compile(r"bandwidth=(?!1\.0&)"))
    settled(page)
    target = page.get_by_role("combobox", name="Target")
    target.scroll_into_view_if_needed()
    page.wait_for_timeout(500)  # its list closes while the page scrolls
    target.click()
    page.get_by_role("option", name="height").click()
    page.wait_for_url("**target=2&**")
    settled(page)
    address = copied(page)
    settings = Settings.from_query(address)
    assert settings.bandwidth != 1
    assert "height" not in address
    held = page.evaluate(HELD)
    assert "residuals" in held
    with watched(browser) as other:
        other.goto(address)
        other.get_by_text(f"begins with {settings.file}").wait_for()
        other.get_by_role("link", name="Attention = kernel").click()
        other.wait_for_url("**/attention?**")
        other.get_by_text(f"begins with {settings.file}").wait_for()
        other.locator("input[type=file]").set_input_files(MOTORCYCLE)
        other.get_by_text("That is another file").wait_for()
        other.locator("input[type=file]").set_input_files(OWN)
        settled(other)
        other.get_by_role("link", name="Own data").click()
        other.wait_for_url("**/own_data?**")
        settled(other)
        assert other.evaluate(HELD) == held


def test_pasted_rows_are_read_or_refused_by_name(
    page: Page, app: str, settled: Callable[[Page], None]
) -> None:
    page.goto(f"{app}/own_data?source=paste")
    text, use = page.get_by_role("textbox").last, page.get_by_role("button", name="Use these rows")
    text.fill("plant,height\nfern,1\nmoss,2\noak,3")
    text.press("Control+Enter")
    use.click()
    expect(page.get_by_test_id("stAlert").first).to_contain_text("'plant' holds text ('fern')")
    rows = "\n".join(f"{i},{(i * 7) % 5},n{i}" for i in range(12))
    text.fill(f'"x, first",<script>alert(1)</script>,name\n{rows}')
    text.press("Control+Enter")
    use.click()
    settled(page)
    told = page.get_by_test_id("stAlert").filter(has_text="Columns left out")
    expect(told).to_contain_text("'name' holds text ('n0')")
    expect(page.get_by_role("table").or_(page.get_by_test_id("stDataFrame")).first).to_be_visible()


def test_points_are_clicked_and_set_by_keyboard(
    page: Page, app: str, settled: Callable[[Page], None]
) -> None:
    page.goto(f"{app}/own_data?source=click")
    plot = page.locator("[data-testid=points][data-ready=true] svg")
    for x, y in ((80, 200), (300, 60), (520, 150)):
        plot.click(position={"x": x, "y": y})
    page.get_by_text("clicked points.csv: 3 rows are used").wait_for()
    settled(page)
    plot.click(position={"x": 700, "y": 90})
    page.get_by_text("clicked points.csv: 4 rows are used").wait_for()
    settled(page)
    plot.focus()
    for key in ("ArrowUp", "ArrowRight", "Enter"):
        plot.press(key)
    expect(page.locator("[data-testid=points] output")).to_have_text("5 points")
    settled(page)
    page.get_by_text("clicked points.csv: 5 rows are used").wait_for()
    assert "prediction" in page.evaluate(HELD)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0", "not a text file"),
        (b"a,b\n1,2\n3\n", "line 3 has 1 cells"),
        (b"a,b\n1,2\n3,4\n", "number of complete rows: 2"),
        (b"", "empty"),
    ],
    ids=["binary", "ragged", "short", "empty"],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    content: bytes, said: str, page: Page, app: str, tmp_path: Path
) -> None:
    file = tmp_path / "..%2f<b>odd.csv"
    file.write_bytes(content)
    page.goto(f"{app}/own_data")
    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_test_id("stAlert").first).to_contain_text(said)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_columns_that_cannot_be_used_give_way_and_names_stay_words(
    page: Page, app: str, settled: Callable[[Page], None], tmp_path: Path
) -> None:
    rows = "".join(f"{i},{(i * 7) % 11}\n" for i in range(9))
    file = tmp_path / "odd.csv"
    file.write_text(f"x,![z](http://evil.example/q.png)\n{rows}", "utf-8")
    digest = open_csv(file).digest[:16]
    page.goto(f"{app}/own_data?data=csv&file={digest}&target=999&columns=2,2&n=64")
    page.get_by_text(f"begins with {digest}").wait_for()
    page.locator("input[type=file]").set_input_files(file)
    settled(page)
    told = page.get_by_test_id("stAlert")
    for said in (
        "target=999: the file has 2 columns",
        "n=64 with queries=32 needs more than the 9 rows",
    ):
        expect(told.filter(has_text=said).first).to_be_visible()
    settings = Settings.from_query(copied(page))
    assert (settings.target, settings.columns) == ("last", "all")
    assert settings.n + settings.queries <= 9
