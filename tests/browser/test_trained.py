"""The page on trained models in a real browser: the library's figures, topic by topic."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect

from krrviz import Settings
from krrviz.tables import assets
from krrviz.trained.abroad import live
from krrviz.trained.gpt import load
from krrviz.trained.inside import heads
from krrviz.trained.match import Systems, Variant, pooled, similarity
from krrviz.trained.probe import SEED, fixed_task, probe
from krrviz.trained.prompts import draw

Settled = Callable[[Page], None]
ASKED = 16
MAIN = assets() / "checkpoints" / "main-0"


def rows(page: Page, name: str) -> list[dict[str, Any]]:
    """The rows of a figure, in whichever panel it stands."""
    panels = page.get_by_test_id("figures")
    panels.first.wait_for()
    for panel in panels.all():
        if name in panel.evaluate("root => root.krrviz.names()"):
            return panel.evaluate("(root, name) => root.krrviz.rows(name)", name)
    raise AssertionError(f"{name} is not drawn")


def topic(page: Page, settled: Settled, name: str) -> None:
    page.get_by_role("radio", name=name, exact=True).press("Space")
    page.wait_for_function("() => !document.querySelector('[data-testid=stSpinner]')")
    settled(page)


def test_layers_and_heads_hold_the_librarys_figures(
    page: Page, serve: Callable[[], str], settled: Settled
) -> None:
    model, card = load(MAIN)
    task = fixed_task(card)
    found = probe(model, task, ASKED)
    page.goto(f"{serve()}/trained?model=main-0&asked={ASKED}&readout=krr")
    settled(page)
    expect(page.get_by_text(card["sha256"][:12])).to_be_visible()

    for readout in ("lens", "krr", "untrained krr"):
        wanted = pooled(found.answers[readout], found.krr)
        drawn = rows(page, f"layers_{readout.replace(' ', '_')}")
        assert len(drawn) == wanted.numel()
        for row in drawn:
            expected = float(wanted[row["step"], row["n"] - 1])
            assert row["error"] == pytest.approx(expected, rel=1e-3)
    expect(page.get_by_test_id("figures").first).to_contain_text("Layer ℓ = 8 of 8")

    topic(page, settled, "Heads")
    alike = heads(model, draw(task, 16, torch.Generator().manual_seed(SEED + 2**27))).alike
    maps = page.get_by_test_id("heatmaps")
    value = maps.last.evaluate("root => root.heatmaps.value('alike', 4, 1)")
    assert value == pytest.approx(float(alike[4, 1]), rel=1e-4)
    kernel = maps.first.evaluate("root => root.heatmaps.value('kernel', 1, 0)")
    assert kernel == 1  # the second point may look at the first alone

    page.set_viewport_size({"width": 390, "height": 844})
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.soak
def test_the_slow_topics_hold_the_librarys_figures(
    page: Page, serve: Callable[[], str], settled: Settled
) -> None:
    model, card = load(MAIN)
    found = probe(model, fixed_task(card), ASKED)
    page.goto(f"{serve()}/trained?model=main-0&asked={ASKED}&readout=krr&study=controls")
    settled(page)
    drawn = {(row["series"], row["layer"]) for row in rows(page, "patch_slope")}
    assert len(drawn) == 3 * 7

    topic(page, settled, "Which solver")
    scores = rows(page, "ranking_free")
    assert len(scores) == 8
    values = [row["score"] for row in scores]
    assert values == sorted(values, reverse=True)
    assert all(row["low"] <= row["score"] <= row["high"] for row in scores)
    descent = Systems.of(found.prompts, range(1, 33)).answers(
        Variant("gradient_descent", "certified", "absolute")
    )
    alike = similarity(found.answers["krr"], descent, found.labels).mean(0)
    best = alike[1:].amax(-1)
    mine = next(row for row in scores if row["method"] == "gradient_descent")
    assert mine["score"] == pytest.approx(float(best.mean()), abs=1e-4)
    cells = [row for row in rows(page, "match_gradient_descent") if row["table"] == "cells"]
    for row in cells:
        expected = float(alike[row["layer"], row["step"]])
        assert row["value"] == pytest.approx(expected, abs=1e-4)
    page.get_by_role("radio", name="Operator distance").press("Space")
    page.wait_for_url("**metric=operator**")
    settled(page)
    values = [row["score"] for row in rows(page, "ranking_free")]
    assert values == sorted(values)

    topic(page, settled, "Operator")  # what was matched is kept
    named = {row["series"] for row in rows(page, "additivity")}
    assert named == {"Trained, its own head", "Conjugate gradient", "Preconditioned CG"}

    page.set_viewport_size({"width": 390, "height": 844})
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_sidebars_prompts_and_what_cannot_be_asked(
    page: Page, app: str, settled: Settled
) -> None:
    model, card = load(MAIN)
    settings = Settings(n=12, prompts=3, queries=5, steps=4)
    page.goto(f"{app}/trained?study=yours&{settings.to_query()}")
    settled(page)
    found = live(model, card, settings)
    drawn = {(row["step"], row["n"]): row["error"] for row in rows(page, "yours")}
    for layer, curve in enumerate(found.errors):
        for n, error in zip(found.counts, curve, strict=True):
            assert drawn[layer, n] == pytest.approx(float(error), rel=1e-3)
    expect(page.get_by_text("Outside its training range")).to_contain_text("It reads 2 inputs")

    page.goto(f"{app}/trained?study=yours&data=diabetes&n=12&prompts=3&queries=5&steps=4")
    expect(page.get_by_text("data=diabetes has 10 inputs and this model reads 2")).to_be_visible()
    page.goto(f"{app}/trained?asked=4")
    expect(page.get_by_text("probes of width 64 need at least 9")).to_be_visible()
    page.goto(f"{app}/trained?model=own")
    expect(page.get_by_text("nothing was trained or loaded in this session")).to_be_visible()


def test_all_shipped_checkpoints_can_be_used() -> None:
    """What is there is whole; what is not is shown as missing."""
    cards = sorted(Path(assets() / "checkpoints").glob("*.json"))
    assert MAIN.with_name("main-0.json") in cards
    for card in cards:
        load(card.with_suffix(""))
    assert sum(file.stat().st_size for file in cards[0].parent.iterdir()) < 25e6
