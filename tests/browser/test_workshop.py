"""A person trains a model, watches its fan, ends it, carries it away and brings it back."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect

from krrviz.trained.parcel import opened
from krrviz.trained.prompts import answers, draw

FRESH = 10**6 + 1  # the seed of the prompts that the page draws
Settled = Callable[[Page], None]


def rows(page: Page, name: str) -> list[dict[str, Any]]:
    return page.get_by_test_id("figures").evaluate("(root, name) => root.krrviz.rows(name)", name)


def test_a_model_is_trained_watched_cancelled_downloaded_and_loaded(
    page: Page, serve: Callable[[], str], settled: Settled, tmp_path: Path
) -> None:
    page.goto(f"{serve()}/workshop?n=12")
    start = page.get_by_role("button", name="Start training")
    expect(start).to_be_enabled(timeout=120_000)
    for label, value in (("Points N", "4"), ("Steps", "2000"), ("Batch", "8")):
        field = page.get_by_role("spinbutton", name=re.compile(f"^{label}"))
        field.fill(value)
        field.press("Tab")
    start.press("Enter")
    expect(start).to_be_disabled()
    expect(page.get_by_text(re.compile(r"Step \d+ of 2,000, .* left: loss 0"))).to_be_visible(
        timeout=120_000
    )
    early = {(row["step"], row["n"]) for row in rows(page, "own_fan")}
    assert early == {(layer, n) for layer in range(3) for n in range(1, 5)}

    cancel = page.get_by_role("button", name="Cancel")
    cancel.press("Enter")
    told = page.get_by_text(re.compile(r"Cancelled\. The checkpoint of step [\d,]+ is kept\."))
    expect(told).to_be_visible()
    expect(cancel).to_have_count(0)
    settled(page)

    with page.expect_download() as caught:
        page.get_by_role("button", name="Download weights").click()
    file = tmp_path / "own.zip"
    caught.value.save_as(file)
    assert sorted(zipfile.ZipFile(file).namelist()) == ["own.csv", "own.json", "own.safetensors"]
    parcel = opened({"own.zip": file.read_bytes()})
    assert f"step {parcel.card['steps']:,} is kept" in told.inner_text()
    assert (parcel.recipe.shape.d, parcel.recipe.task.n, parcel.recipe.batch) == (1, 4, 8)

    # The curve of the last layer is the model's own answer against direct solves.
    prompts = draw(parcel.recipe.task, 64, torch.Generator().manual_seed(FRESH))
    X, y = prompts.X.float(), prompts.y.float()
    with torch.no_grad():
        found = parcel.model(X[:, :-1], y[:, :-1], X[:, -1:]).double()
    gap = (found - answers(prompts)).norm(dim=0) / answers(prompts).norm(dim=0)
    drawn = {row["n"]: row["error"] for row in rows(page, "own_fan") if row["step"] == 2}
    assert drawn == pytest.approx({n: float(gap[n]) for n in range(1, 5)}, rel=1e-4)

    # What cannot be used is told, and the model before it stays.
    upload = page.locator("input[type=file]")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(parcel.files["own.safetensors"][:-7])
    card = tmp_path / "broken.json"
    card.write_text(json.dumps(parcel.card))
    upload.set_input_files([broken, card])
    expect(page.get_by_text("Not loaded: broken: the weights cannot be read")).to_be_visible()
    settled(page)
    assert {row["n"] for row in rows(page, "own_fan")} == {1, 2, 3, 4}

    page.reload()
    expect(start).to_be_enabled(timeout=120_000)
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    upload.set_input_files(file)
    settled(page)
    again = {row["n"]: row["error"] for row in rows(page, "own_fan") if row["step"] == 2}
    assert again == drawn
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
