"""The fan page in a real browser draws what the library computes, and stays alive."""

import re
import time
from collections.abc import Callable

import pandas as pd
import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, expect

from krrviz import Settings, fan_frame
from krrviz.fan import fan
from krrviz.settings import PRESETS
from krrviz.trust import trust

Settled = Callable[[Page], None]
FIGURES = "[data-testid=figures]"


def rows(page: Page, name: str) -> pd.DataFrame:
    """The data rows that a chart draws."""
    return pd.DataFrame(
        page.locator(FIGURES).evaluate("(root, name) => root.krrviz.rows(name)", name)
    )


def names(page: Page) -> list[str]:
    return page.locator(FIGURES).evaluate("root => root.krrviz.names()")


def linked(page: Page) -> Settings:
    """The settings that the address bar holds."""
    return Settings.from_query(page.url)


def opened(page: Page, settled: Settled, address: str) -> Settings:
    page.goto(address)
    settled(page)
    return linked(page)


def eventually(check: Callable[[], None], seconds: float = 15) -> None:
    """The check passes in time: a browser draws some moments after the server has answered."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except (AssertionError, PlaywrightError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def assert_draws(page: Page, settings: Settings) -> None:
    """Every facet comes to draw the library's numbers, to the last digit."""
    frame = fan_frame(settings)
    eventually(lambda: _assert_draws(page, settings, frame))


def _assert_draws(page: Page, settings: Settings, frame: pd.DataFrame) -> None:
    for method in settings.methods:
        drawn = rows(page, f"fan_{method}").sort_values(by=["step", "n"])
        computed = frame.query(f"method == '{method}'").sort_values(by=["step", "n"])
        assert drawn.step.tolist() == computed.step.tolist()
        assert drawn.n.tolist() == computed.n.tolist()
        assert drawn.error.tolist() == pytest.approx(computed.error.tolist(), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("address", ["/", "/fan?data=gp&n=24&prompts=3&methods=nesterov"])
def test_a_link_opened_first_on_a_fresh_server(
    page: Page, serve: Callable[[], str], settled: Settled, address: str
) -> None:
    settings = opened(page, settled, serve() + address)
    assert settings == Settings.from_query(address.partition("?")[2])
    assert_draws(page, settings)


def test_the_first_screen_needs_no_scrolling_and_tells_the_checks_figures(
    page: Page, app: str, settled: Settled
) -> None:
    settings = opened(page, settled, app)
    words = page.get_by_text("Each curve is one step").inner_text().split()
    assert len(words) <= 40
    assert names(page) == [*(f"fan_{m}" for m in Settings().methods), "steps", "prediction"]
    for place in (page.locator(FIGURES), page.get_by_text("direct solve:")):
        box = place.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
    for check in trust(settings, residual=fan(settings).residual):
        assert check.passed
        expect(
            page.get_by_text(f"{check.name}: {check.value:.2g} within {check.tolerance:.2g}")
        ).to_be_visible()


def test_a_failed_check_is_said_not_only_coloured(page: Page, app: str, settled: Settled) -> None:
    opened(page, settled, f"{app}/fan?ridge=1e-12&prompts=2")
    expect(page.get_by_text(re.compile("direct solve: .* exceeds 1e-10"))).to_be_visible()


def slide(key: str, label: str, times: int = 1) -> Callable[[Page], None]:
    def move(page: Page) -> None:
        slider = page.get_by_role("slider", name=label)
        slider.focus()
        for _ in range(times):
            slider.press(key)

    return move


def choose(label: str, option: str) -> Callable[[Page], None]:
    def pick(page: Page) -> None:
        wanted = page.get_by_role("option", name=option, exact=True)

        def take() -> None:  # a menu closes again while its surroundings still move
            if not wanted.is_visible():
                page.get_by_role("combobox", name=label).click()
            wanted.click(timeout=2000)

        eventually(take)

    return pick


def unfold(group: str, then: Callable[[Page], None]) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        part = page.get_by_test_id("stExpander").filter(has_text=group).first
        if not part.locator("details").evaluate("details => details.open"):
            part.click()
        then(page)

    return act


def enter(label: str, text: str) -> Callable[[Page], None]:
    def write(page: Page) -> None:
        box = page.get_by_label(label, exact=True)
        box.fill(text)
        box.press("Enter")

    return write


MOVES = {
    "bandwidth": slide("ArrowLeft", "Bandwidth"),
    "ridge": slide("ArrowRight", "Ridge"),
    "n": slide("ArrowLeft", "Context length"),
    "steps": slide("ArrowLeft", "Depth"),
    "seed": unfold("Problem", enter("Seed", "7")),
    "queries": unfold("Problem", enter("Queries", "20")),
    "prompts": unfold("Problem", enter("Prompts", "4")),
    "segments": unfold("Transformer", enter("Hinges per side m", "8")),
    "alpha_range": unfold("Transformer", enter("Range of α", "3")),
    "product": unfold("Transformer", choose("Product", "plain")),
    "policy": unfold("Comparison", choose("Step policy", "optimal")),
    "reference": unfold("Comparison", choose("Error against", "the labels")),
    "dtype": unfold("Machine", choose("Precision", "float32")),
    "data": choose("Data", "Diabetes"),
}
GP = "data=gp&n=12&prompts=2&steps=4&queries=8"
FOR_SOME_SETTINGS = {
    "inputs": unfold("Problem", choose("GP inputs", "clumped")),
    "d": unfold("Problem", enter("Input dimension d", "3")),
    "noise": unfold("Problem", enter("Label noise", "0.5")),
    "label_bound": unfold("Transformer", enter("Label bound", "0.5")),
}
WITHOUT_TRANSFORMER = {
    "step_size": unfold("Comparison", enter("Step size", "0.1")),
    "ridge_scale": unfold("Problem", choose("Ridge scale", "per sample")),
}


@pytest.mark.parametrize(
    ("query", "moves"),
    [
        ("n=24&prompts=3&steps=12&queries=16", MOVES),
        (GP, FOR_SOME_SETTINGS),
        (f"{GP}&policy=manual&step_size=0.2&methods=nesterov", WITHOUT_TRANSFORMER),
    ],
    ids=["all", "some", "methods"],
)
def test_every_control_changes_the_picture_and_the_link_brings_all_back(
    page: Page, app: str, settled: Settled, query: str, moves: dict[str, Callable[[Page], None]]
) -> None:
    after = opened(page, settled, f"{app}/fan?{query}")
    for field, move in moves.items():
        before, drawn = after, rows(page, "steps")
        move(page)
        page.wait_for_url(
            lambda url, field=field, before=before: (
                getattr(Settings.from_query(url), field) != getattr(before, field)
            )
        )
        settled(page)
        after = linked(page)
        assert_draws(page, after)
        assert not rows(page, "steps").equals(drawn), field
    shown = {name: rows(page, name) for name in names(page)}
    page.reload()
    settled(page)
    assert linked(page) == after
    assert {name for name in shown if not rows(page, name).equals(shown[name])} == set()


def test_changes_made_faster_than_answers_all_arrive(
    page: Page, app: str, settled: Settled
) -> None:
    opened(page, settled, f"{app}/?n=24&prompts=2&steps=12&queries=8")
    slider = page.get_by_role("slider", name="Context length")
    slider.focus()
    for _ in range(6):
        slider.press("ArrowLeft")
        page.wait_for_timeout(100)

    def all_arrived() -> None:
        assert linked(page).n == int(slider.get_attribute("aria-valuetext") or 0)

    eventually(all_arrived)
    settled(page)
    all_arrived()
    assert linked(page).n <= 20  # a busy browser may miss a key itself
    assert_draws(page, linked(page))


def test_back_returns_to_the_start_and_then_leaves(page: Page, app: str, settled: Settled) -> None:
    page.goto("about:blank")
    opened(page, settled, f"{app}/?n=24&prompts=2&steps=4&queries=8")
    slide("ArrowLeft", "Context length", times=1)(page)
    page.wait_for_url("**n=23**")
    settled(page)
    page.go_back()
    page.wait_for_url("**n=24**")
    settled(page)
    assert_draws(page, Settings.from_query("n=24&prompts=2&steps=4&queries=8"))
    for _ in range(6):
        if page.url == "about:blank":
            break
        page.go_back()
        page.wait_for_timeout(1500)
    assert page.url == "about:blank"


def test_a_long_computation_can_be_cancelled(page: Page, app: str, settled: Settled) -> None:
    before = opened(page, settled, f"{app}/?data=gp&n=64&prompts=2")
    slide("End", "Depth", times=1)(page)  # 2048 steps
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_url("**steps=32**")
    settled(page)
    assert linked(page) == before


def test_methods_and_presets_are_clicks_away(page: Page, app: str, settled: Settled) -> None:
    opened(page, settled, f"{app}/fan?n=12&prompts=2&steps=4&queries=8")
    unfold("Comparison", choose("Methods", "Chebyshev"))(page)
    page.wait_for_url("**methods=chebyshev**")
    assert_draws(page, linked(page))
    assert "fan_chebyshev" in names(page)
    page.keyboard.press("Escape")  # a menu of several stays open
    settled(page)
    page.get_by_role("button", name="Presets").click()
    dialog = page.get_by_role("dialog")
    for preset in PRESETS.values():  # each with its picture
        picture = dialog.get_by_role("img", name=f"{preset.title}: its fan", exact=True)
        expect(picture).to_be_visible()
        assert picture.evaluate("img => img.decode().then(() => img.naturalWidth)") > 0
        expect(dialog.get_by_text(preset.title, exact=True)).to_be_visible()
    expect(dialog.get_by_role("button", name="Open", exact=True)).to_have_count(len(PRESETS))
    dialog.get_by_role("button", name="Open", exact=True).nth([*PRESETS].index("gentle")).click()
    page.wait_for_url("**ridge=1.0**")
    expect(dialog).to_have_count(0)
    settled(page)
    assert linked(page) == PRESETS["gentle"].settings
    assert_draws(page, linked(page))


def test_depth_is_scrubbed_in_the_browser(page: Page, app: str, settled: Settled) -> None:
    sent: list[object] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    opened(page, settled, f"{app}/fan?n=12&prompts=2&steps=20&queries=8")
    scrubber = page.locator(f"{FIGURES} input[type=range]")
    before, step = len(sent), "root => root.krrviz.step()"
    for value in (3, 9, 5):
        scrubber.evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent("
            "new Event('input', { bubbles: true })); }",
            value,
        )
        assert page.locator(FIGURES).evaluate(step) == value
    assert len(sent) == before
    # Letting go tells the server, so that the link carries the step; the keyboard does as well.
    scrubber.press("ArrowLeft")
    settled(page)
    page.wait_for_url(re.compile("step=4"))
    page.reload()
    settled(page)
    assert page.locator(FIGURES).evaluate(step) == 4


BAD_LINKS = {
    "bandwidth=0&ridge=-1&n=129&methods=magic&policy=best&update=polyak&step=-4&nonsense=1": (
        "bandwidth=0 must be 0.001 to 1000",
        "ridge=-1 must be",
        "motorcycle has 133",
        "methods=magic must be one or more of",
        "policy=best must be one of",
        "update=polyak must be one of richardson,",
        "step=-4 must be",
        "nonsense is not a setting",
    ),
    "data=<script>alert(1)</script>&ridge=nan&noise=inf&bandwidth=**x**": (
        "must be one of gp,",
        "ridge=nan must be",
        "noise=inf must be",
        "bandwidth=**x** must be",
    ),
    "data=gp&n=16384&prompts=64": ("s are allowed",),
    "steps=100000&prompts=64": ("are allowed",),
}


def test_a_bad_link_is_told_and_the_page_lives(page: Page, app: str, settled: Settled) -> None:
    for query, problems in BAD_LINKS.items():
        opened(page, settled, f"{app}/?{query}")
        for told in problems:
            expect(page.get_by_test_id("stAlert").filter(has_text=told).first).to_be_visible()
        assert len(rows(page, "steps"))


def test_a_link_of_somebodys_file_asks_for_it_and_the_page_lives(
    page: Page, app: str, settled: Settled
) -> None:
    file = "0123456789abcdef"
    page.goto(f"{app}/?data=csv&file={file}&n=12&prompts=2&steps=4&queries=8")
    asked = page.get_by_test_id("stAlert").filter(has_text="made with a file of somebody's own")
    expect(asked).to_contain_text(f"SHA-256 begins with {file}", timeout=60_000)
    expect(page.locator("input[type=file]")).to_have_count(1)
    expect(page.locator(FIGURES)).to_have_count(0)  # nothing else stands in for it
    assert linked(page).file == file
    page.get_by_role("button", name="Go on without it").click()
    page.wait_for_url("**data=motorcycle**")
    settled(page)
    expect(asked).to_have_count(0)
    assert_draws(page, linked(page))


def test_divergence_is_drawn_as_divergence(page: Page, app: str, settled: Settled) -> None:
    opened(page, settled, f"{app}/fan?policy=manual&step_size=900&steps=200&prompts=2")
    drawn = rows(page, "fan_gradient_descent")
    assert drawn.error.notna().all()
    assert drawn.error.max() > 1e100
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_a_phone_shows_all_of_it(page: Page, app: str, settled: Settled) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        opened(page, settled, app)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator(FIGURES).evaluate("root => root.scrollWidth <= root.clientWidth + 1")


def test_embedded_it_hides_the_controls(page: Page, app: str, settled: Settled) -> None:
    opened(page, settled, f"{app}/fan?n=12&prompts=2&embed=true")
    assert "embed=true" in page.url
    expect(page.get_by_test_id("stSidebar")).not_to_be_visible()
    expect(page.get_by_role("link", name="Attention = kernel")).to_have_count(0)  # nor pages
    assert_draws(page, linked(page))
