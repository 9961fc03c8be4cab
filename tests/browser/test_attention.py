"""The attention page in a real browser reads out the library's numbers, by pointer and by keys."""

import csv
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from krrviz import Settings, anatomy
from krrviz.settings import View

Settled = Callable[[Page], None]
MAPS = "[data-testid=heatmaps]"
START = "/attention?n=24&queries=8&prompts=3&steps=6"
NUMBER = re.compile(r"^(.+)\n(-?[\d.]+(?:e[-+]?\d+)?)$", re.MULTILINE)


def ask(page: Page, call: str, panel: int = 0) -> Any:
    """What a panel of maps says."""
    return page.locator(MAPS).nth(panel).evaluate(f"root => root.heatmaps.{call}")


def opened(page: Page, settled: Settled, address: str) -> anatomy.Anatomy:
    page.goto(address)
    settled(page)
    return anatomy.anatomy(Settings.from_query(page.url))


def linked(page: Page) -> View:
    """The view that the address bar holds."""
    return View.from_query(page.url)


def read_out(page: Page, panel: int = 0) -> dict[str, float]:
    """The readout's numbers by their titles."""
    return {name: float(text) for name, text in NUMBER.findall(ask(page, "readout()", panel))}


def matrices(a: anatomy.Anatomy, block: int) -> dict[str, np.ndarray]:
    """What the maps are to hold, in their order."""
    attention, kernel = a.attention(block), a.kernel(block)
    assert attention is not None
    shown = {"attention": attention, "kernel": kernel, "difference": attention - kernel}
    return {name: values[np.ix_(a.order, a.order)] for name, values in shown.items()}


def assert_draws(page: Page, a: anatomy.Anatomy, block: int) -> None:
    """Every cell of every map is the library's number, to the last bit."""
    for name, expected in matrices(a, block).items():
        rows, cols = ask(page, f"shape('{name}')")
        cells = (
            f"names() && Array.from({{ length: {rows * cols} }}, (_, k) => "
            f"root.heatmaps.value('{name}', Math.floor(k / {cols}), k % {cols}))"
        )
        assert (rows, cols) == expected.shape
        assert ask(page, cells) == expected.ravel().tolist()


def test_a_link_opened_first_on_a_fresh_server(
    page: Page, serve: Callable[[], str], settled: Settled
) -> None:
    query = "?data=gp&d=3&n=16&queries=4&layout=fused&block=3&product=plain"
    a = opened(page, settled, f"{serve()}/attention{query}")
    assert_answers(page, a, query)


def assert_answers(page: Page, a: anatomy.Anatomy, query: str) -> None:
    """The page shows what a query asks for."""
    assert Settings.from_query(page.url) == Settings.read(query)[0]
    assert linked(page).block == View.read(query)[0].block
    assert_draws(page, a, int(linked(page).block))


def test_every_problem_is_drawn(page: Page, app: str, settled: Settled) -> None:
    for query in (
        "",
        "?data=diabetes&n=20&queries=5&block=0",
        "?data=co2&n=30&queries=6&steps=3&block=7",
        "?n=2&queries=1&steps=0&block=1",
        "?data=gp&n=12&queries=4&bandwidth=0.001&dtype=float32",
    ):
        assert_answers(page, opened(page, settled, f"{app}/attention{query}"), query)


def test_the_largest_prompt(page: Page, app: str, settled: Settled) -> None:
    a = opened(page, settled, f"{app}/attention?data=gp&n=512&prompts=1&steps=2")
    expected = matrices(a, 1)["attention"]
    assert ask(page, "shape('attention')") == list(expected.shape)
    for i, j in ((0, 0), (1, 1), (300, 41), (544, 512)):
        assert ask(page, f"value('attention', {i}, {j})") == expected[i, j]


def test_three_maps_stand_side_by_side_and_rounding_is_not_painted_large(
    page: Page, app: str, settled: Settled
) -> None:
    a = opened(page, settled, app + START)
    words = page.get_by_text("Click a cell to follow").inner_text().split()
    assert len(words) <= 40
    tops = page.locator(f"{MAPS} canvas.cells").evaluate_all(  # all at one moment
        "canvases => canvases.slice(0, 3).map(canvas => canvas.getBoundingClientRect().y)"
    )
    assert len(tops) == 3
    assert len({*tops}) == 1
    gap = np.abs(matrices(a, 1)["difference"]).max()
    assert 0 < gap < a.tolerance(1)
    expect(page.get_by_text(f"At most {gap:.2g}, within the tolerance")).to_be_visible()
    # The largest difference is hardly coloured: the scale ends at the tolerance.
    for signed in (float(gap), -float(gap)):
        share = page.locator(MAPS).first.evaluate(
            "(root, gap) => root.panel.view('difference').share(gap, 0)", signed
        )
        assert share == pytest.approx(0.5 + signed / a.tolerance(1) / 2)


def test_hovering_reads_out_the_librarys_numbers(page: Page, app: str, settled: Settled) -> None:
    a = opened(page, settled, app + START)
    canvas = page.locator(f"{MAPS} canvas.cells").nth(1)
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 120, box["y"] + 100)
    i, j = ask(page, "cell()")
    expected = {name: values[i, j] for name, values in matrices(a, 1).items()}
    assert read_out(page) == {
        "attention": expected["attention"],
        "D⁻¹K": expected["kernel"],
        "difference": expected["difference"],
    }
    # The formula holds its numbers, and they make the kernel's.
    row, column = (int(a.order[at]) for at in (i, j))
    text = ask(page, "readout()")
    found = re.search(r"exp\(−([\d.e-]+)/\(2 · ([\d.]+)²\)\)/([\d.]+) = ([\d.e-]+)", text)
    assert found is not None
    squared, sigma, total, value = map(float, found.groups())
    assert squared == pytest.approx(a.distance[row, column], rel=1e-5)
    assert total == pytest.approx(a.degree[row], rel=1e-5)
    assert value == pytest.approx(np.exp(-squared / (2 * sigma**2)) / total, rel=1e-4)
    assert value == pytest.approx(expected["kernel"], rel=1e-5)
    page.mouse.move(2, 2)
    assert ask(page, "cell()") is None
    # At read-in the sink's share is s/(D + s), with its numbers.
    a = opened(page, settled, f"{app}{START}&block=0&pin=2&pin_key=0")
    number = r"([\d.e-]+)"
    found = re.search(
        rf"s/\(D \+ s\) = {number}/\({number} \+ {number}\) = {number}", ask(page, "readout()")
    )
    assert found is not None
    top, degree, level, value = map(float, found.groups())
    assert top == level == a.levels(0)[2]
    assert value == pytest.approx(top / (degree + level), rel=1e-5)
    assert value == pytest.approx(a.kernel(0)[2, 0], rel=1e-5)


def test_a_click_pins_and_the_link_brings_it_back(page: Page, app: str, settled: Settled) -> None:
    a = opened(page, settled, f"{app}{START}&block=3")
    page.locator(f"{MAPS} canvas.cells").first.click(position={"x": 150, "y": 80})
    page.wait_for_url(re.compile(r"pin=\d"))
    settled(page)
    cell, view, seen = ask(page, "pin()"), linked(page), read_out(page)
    assert [view.pin, view.pin_key] == [int(a.order[at]) for at in cell]
    assert view.block == 3
    page.reload()
    settled(page)
    assert linked(page) == view
    assert ask(page, "pin()") == cell
    assert read_out(page) == seen


def test_the_pinned_row_goes_from_score_to_kernel(page: Page, app: str, settled: Settled) -> None:
    a = opened(page, settled, f"{app}{START}&pin=7&pin_key=12")
    step = a.step(1, 7)
    assert step is not None
    kernel = a.kernel(1)[7]
    expected = {
        "score": step.score - step.score.max(),
        "exponential": step.exponential,
        "softmax": step.attention,
        "kernel": kernel,
        "difference": step.attention - kernel,
        "degree": a.degree,
    }
    assert ask(page, "names()", 1) == list(expected)
    for name, values in expected.items():
        for place, token in enumerate(a.order):
            assert ask(page, f"value('{name}', 0, {place})", 1) == values[token]
    numbers = page.get_by_text("Row sum D").inner_text()
    for value in (a.degree[7], step.score[12], step.exponential[12], kernel[12]):
        assert f"{value:.6g}" in numbers
    # Both panels stand at the same key.
    assert ask(page, "cell()") == [a.order.tolist().index(7), a.order.tolist().index(12)]
    assert ask(page, "cell()", 1) == [0, a.order.tolist().index(12)]


def test_a_map_can_be_saved(page: Page, app: str, settled: Settled) -> None:
    a = opened(page, settled, app + START)
    figure = page.locator(f"{MAPS} figure").first
    figure.get_by_role("button", name="Download attention").press("Enter")
    with page.expect_download() as download:
        figure.get_by_role("button", name="CSV").press("Enter")
    assert download.value.suggested_filename == "attention.csv"
    names, *lines = csv.reader(download.value.path().read_text().splitlines())
    expected = matrices(a, 1)["attention"]
    assert [[float(cell) for cell in line[1:]] for line in lines] == expected.tolist()
    assert names[1] == "j = 0 (sink)"
    assert [line[0] for line in lines][-1].startswith(f"i = {a.order[-1]} (query, time ")
    figure.get_by_role("button", name="Download attention").press("Enter")
    with page.expect_download() as download:
        figure.get_by_role("button", name="PNG").press("Enter")
    picture = download.value.path().read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == 2 * 640
    # The map on the page is as it was.
    assert figure.locator("canvas").evaluate("c => c.width") < 640


def test_a_bar_clicked_moves_the_key(page: Page, app: str, settled: Settled) -> None:
    a = opened(page, settled, f"{app}{START}&pin=7&pin_key=12")
    page.locator(MAPS).nth(1).locator("canvas.cells").first.click(position={"x": 200, "y": 40})
    page.wait_for_url(lambda url: View.from_query(url).pin_key != 12)
    settled(page)
    assert linked(page).pin == 7
    assert ask(page, "cell()")[1] == a.order.tolist().index(linked(page).pin_key)


def test_the_keyboard_alone_suffices(page: Page, app: str, settled: Settled) -> None:
    a = opened(page, settled, app + START)
    last = len(a.kinds) - 1
    canvas = page.locator(f"{MAPS} canvas.cells").first
    page.get_by_role("spinbutton", name=re.compile("Update, 1 to 6")).focus()
    for _ in range(6):  # by Tab from the control before it
        page.keyboard.press("Tab")
        if canvas.evaluate("canvas => canvas.getRootNode().activeElement === canvas"):
            break
    else:
        pytest.fail("the map cannot be reached by Tab")
    for key, cell in (
        ("ArrowDown", [1, 0]),
        ("ArrowRight", [1, 1]),
        ("PageDown", [11, 1]),
        ("End", [11, last]),
        ("ArrowRight", [11, last]),
        ("Control+End", [last, last]),
        ("Control+Home", [0, 0]),
        ("ArrowUp", [0, 0]),
        ("PageDown", [10, 0]),
        ("ArrowRight", [10, 1]),
    ):
        canvas.press(key)
        assert ask(page, "cell()") == cell
    assert read_out(page)["attention"] == matrices(a, 1)["attention"][10, 1]
    canvas.press("Enter")
    page.wait_for_url(f"**pin={a.order[10]}&pin_key={a.order[1]}**")
    settled(page)
    canvas.press("Escape")
    page.wait_for_url("**pin=none&pin_key=none**")
    assert ask(page, "pin()") is None


def test_a_block_is_chosen_by_name_and_an_idle_one_says_so(
    page: Page, app: str, settled: Settled
) -> None:
    a = opened(page, settled, app + START)
    for part, block in (("read-in", 0), ("read-out", 13), ("update (a)", 1)):
        page.get_by_role("radio", name=part, exact=True).click()
        page.wait_for_url(f"**block={block}&**")
        settled(page)
        assert_draws(page, a, block)
    box = page.get_by_role("spinbutton", name=re.compile("Update, 1 to 6"))
    box.fill("4")
    box.press("Enter")
    page.wait_for_url("**block=7&**")
    settled(page)
    page.get_by_role("radio", name="update (b)", exact=True).click()
    page.wait_for_url("**block=8&**")
    settled(page)
    expect(page.get_by_text("Block 8 (update 4, second half) attends to nothing")).to_be_visible()
    assert ask(page, "names()") == ["kernel"]


BAD_LINKS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "block=900&pin=3&pin_key=99": (
        (
            "block=900: the transformer has 14 blocks; 13 is the last and is shown",
            "pin_key=99: the prompt has 33 tokens",
        ),
        {"block": 13, "pin": 3, "pin_key": 32},
    ),
    "block=-1&pin=33": (
        (
            "block=-1 must be a whole number 0 to",
            "pin=33: the prompt has 33 tokens; 32 is the last and is shown",
        ),
        {"block": 1, "pin": 32},
    ),
    "block=first&pin=1.5": (
        ("block=first must be", "pin=1.5 must be"),
        {"block": 1, "pin": "none"},
    ),
}


def test_a_bad_link_is_told_and_the_nearest_is_shown(
    page: Page, app: str, settled: Settled
) -> None:
    for query, (problems, shown) in BAD_LINKS.items():
        a = opened(page, settled, f"{app}{START}&{query}")
        for told in problems:
            expect(page.get_by_test_id("stAlert").filter(has_text=told).first).to_be_visible()
        view = linked(page)
        assert {field: getattr(view, field) for field in shown} == shown
        assert_draws(page, a, int(view.block))


def test_what_has_no_transformer_is_told(page: Page, app: str, settled: Settled) -> None:
    opened(page, settled, f"{app}/attention?dtype=bfloat16&product=plain")
    told = page.get_by_test_id("stAlert").filter(has_text="bfloat16 holds balanced products")
    expect(told.first).to_be_visible()


def test_pages_are_a_click_away_and_keep_the_settings(
    page: Page, app: str, settled: Settled
) -> None:
    opened(page, settled, f"{app}{START}&ridge=0.7&pin=5")
    before = page.url.partition("?")[2]
    page.get_by_role("link", name="Fan").click()
    page.wait_for_url(f"{app}/?v=1**")
    settled(page)
    assert page.url.partition("?")[2] == before
    page.get_by_role("link", name="Attention = kernel").click()
    page.wait_for_url("**/attention?**")
    settled(page)
    assert page.url.partition("?")[2] == before
    assert ask(page, "pin()") is not None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(page: Page, app: str, settled: Settled, scheme: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    opened(page, settled, f"{app}{START}&pin=5&pin_key=9")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for panel in (0, 1):
        fits = "root => root.scrollWidth <= root.clientWidth + 1"
        assert page.locator(MAPS).nth(panel).evaluate(fits)
    boxes = [canvas.bounding_box() for canvas in page.locator(f"{MAPS} canvas.cells").all()[:3]]
    tops = [box["y"] for box in boxes if box]
    assert len(tops) == 3
    assert tops == sorted(set(tops))  # stacked
