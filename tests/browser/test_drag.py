"""The fan follows a slider while it is held; session and link change when it is let go."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from playwright.sync_api import Page, expect

from krrviz import Settings, fan_frame

from .test_fan import FIGURES, assert_draws, eventually, linked, opened, rows, slide

Settled = Callable[[Page], None]
ROOT = Path(__file__).parents[2]
SMALL = "n=24&prompts=2&steps=12&queries=8"
NAMES = {"bandwidth": "Bandwidth", "ridge": "Ridge", "n": "Context length", "steps": "Depth"}


@contextmanager
def held(page: Page, label: str) -> Iterator[Callable[[int], None]]:
    """A slider with the mouse down on it; call the result to move that by pixels."""
    box = page.get_by_role("slider", name=label).bounding_box()
    assert box is not None
    x, y = box["x"], box["y"] + box["height"] / 2  # its left end is where the thumb is
    page.mouse.move(x, y)
    page.mouse.down()
    yield lambda by: page.mouse.move(x + by, y)
    page.mouse.up()


def drawn(page: Page) -> pd.DataFrame:
    return rows(page, "fan_transformer").sort_values(by=["step", "n"], ignore_index=True)


def frame(settings: Settings) -> pd.DataFrame:
    whole = fan_frame(settings).query("method == 'transformer'")
    return whole.filter(["step", "n", "error"]).sort_values(by=["step", "n"], ignore_index=True)


def test_the_charts_follow_every_slider_that_is_held(
    page: Page, app: str, settled: Settled
) -> None:
    before = opened(page, settled, f"{app}/?{SMALL}")
    place = page.locator(FIGURES).bounding_box()
    caption = page.locator(f"{FIGURES} .held")
    for field, label in NAMES.items():
        url, was = page.url, linked(page)
        with held(page, label) as move:
            for by in (-4, -10, -16):
                move(by)
            thumb = page.get_by_role("slider", name=label)

            def follows(field: str = field, thumb=thumb, was: Settings = was) -> None:
                shown = type(getattr(was, field))(thumb.get_attribute("aria-valuetext"))
                assert shown < getattr(was, field)
                pd.testing.assert_frame_equal(
                    drawn(page), frame(was.but(**{field: shown})), check_dtype=False, rtol=1e-12
                )

            eventually(follows)
            expect(caption).to_contain_text("while held")
            assert page.url == url
            assert page.locator(FIGURES).bounding_box() == place
        page.wait_for_url(lambda now, url=url: now != url)
        settled(page)
        assert getattr(linked(page), field) < getattr(before, field)
        expect(caption).to_be_hidden()
        assert_draws(page, linked(page))
    after = {name: rows(page, name) for name in ("fan_transformer", "steps", "prediction")}
    page.reload()
    settled(page)
    for name, shown in after.items():
        assert rows(page, name).equals(shown)


def test_let_go_where_it_stood_nothing_has_changed(page: Page, app: str, settled: Settled) -> None:
    before = opened(page, settled, f"{app}/?{SMALL}")
    whole, url = drawn(page), page.url
    with held(page, "Bandwidth") as move:
        move(-20)
        eventually(lambda: _differs(page, whole))
        for by in (-40, 0):  # let go while the first is under way
            move(by)
    eventually(lambda: pd.testing.assert_frame_equal(drawn(page), whole))
    settled(page)
    assert page.url == url
    expect(page.locator(f"{FIGURES} .held")).to_be_hidden()
    slide("ArrowLeft", "Bandwidth")(page)  # and the keyboard is as it was
    page.wait_for_url(lambda now: now != url)
    settled(page)
    assert linked(page).bandwidth < before.bandwidth
    assert_draws(page, linked(page))


def _differs(page: Page, whole: pd.DataFrame) -> None:
    assert not drawn(page).equals(whole)


# A fan that takes its time in pieces, and writes down how many of its kind are then under way.
SLOW = """
import time
fan_at_once, alive = fan, []

def fan(settings, table, told):
    alive.append(settings)
    with open("alive.txt", "a") as file:
        print(len(alive), file=file)
    try:
        for piece in range(20):
            time.sleep(0.05)
            told(piece / 20)
        return fan_at_once(settings, table, told)
    finally:
        alive.remove(settings)
"""


def test_of_quick_changes_the_last_wins_and_the_others_end(
    page: Page, serve: Callable[..., str], settled: Settled, tmp_path: Path
) -> None:
    for part in ("krrviz", "pages", "assets", ".streamlit"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "app.py", tmp_path)
    with (tmp_path / "krrviz" / "ui" / "compute.py").open("a", encoding="utf-8") as module:
        module.write(SLOW)
    opened(page, settled, f"{serve(tmp_path)}/?{SMALL}")
    slider = page.get_by_role("slider", name="Bandwidth")
    slider.focus()
    for _ in range(20):
        slider.press("ArrowLeft")
        page.wait_for_timeout(30)

    def arrived() -> None:
        assert f"{linked(page).bandwidth:.4g}" == slider.get_attribute("aria-valuetext")

    eventually(arrived)
    settled(page)
    arrived()
    assert linked(page).bandwidth < 0.1  # about twenty stops from 0.3
    assert_draws(page, linked(page))
    alive = [int(line) for line in (tmp_path / "alive.txt").read_text("utf-8").split()]
    assert len(alive) > 3
    assert max(alive) <= 2
