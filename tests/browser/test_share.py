"""Share: what a page gives out stands by itself, offline, and holds the page's own numbers."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

from krrviz import Construction, View, load_construction, predict, sample
from krrviz.cli import main

from .conftest import ROOT, watched
from .test_links import HELD, LOOKS, SMALL, copied, link


def saved(page: Page, label: str, folder: Path) -> Path:
    """A file of the menu Export."""
    with page.expect_download() as download:
        page.get_by_role("button", name=label).click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


@pytest.mark.parametrize("at", ["fan", "attention", "forward"])
def test_files_stand_alone_and_hold_the_pages_numbers(
    at: str, page: Page, browser: Browser, app: str, settled: Callable[[Page], None], tmp_path: Path
) -> None:
    page.goto(app + link(at, SMALL, LOOKS[at]))
    settled(page)
    held, address = page.evaluate(HELD), copied(page)
    page.get_by_role("button", name="Export").click()
    html, script, data = (
        saved(page, label, tmp_path) for label in ("Web page (", "Python script (", "Data (")
    )
    # The web page, opened from a disk without a network, holds the same to the last digit.
    with watched(browser, offline=True) as alone:
        alone.goto(html.as_uri())
        alone.wait_for_function(
            "() => [...document.querySelectorAll('.panel')].length > 0 && "
            "[...document.querySelectorAll('.panel')].every(panel => "
            "panel.shadowRoot.querySelector('section').dataset.ready === 'true')"
        )
        assert alone.evaluate(HELD) == held
        assert "http://" not in html.read_text("utf-8").partition('<script type="module">')[0]
    # The script and the command line write what the menu gave, byte for byte.
    done = subprocess.run(
        [sys.executable, script.name, "made"], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert main(["run", address, "--out", str(tmp_path / "run")]) == 0
    with zipfile.ZipFile(data) as archive:
        assert archive.namelist()
        for name in archive.namelist():
            content = archive.read(name)
            assert content == (tmp_path / "made" / name).read_bytes()
            assert content == (tmp_path / "run" / name).read_bytes()
            ElementTree.parse((tmp_path / "made" / name).with_suffix(".svg"))


def test_the_weights_are_the_transformer(
    page: Page, app: str, settled: Callable[[Page], None], tmp_path: Path
) -> None:
    page.goto(app + link("fan", SMALL, View()))
    settled(page)
    page.get_by_role("button", name="Export").click()
    with zipfile.ZipFile(saved(page, "weights", tmp_path)) as archive:
        archive.extractall(tmp_path)
    model, construction = load_construction(tmp_path / "transformer")
    assert construction == Construction.from_settings(SMALL)
    problem = sample(SMALL)
    drawn = page.evaluate(HELD)["steps"]
    error = predict(model, problem).predictions[-1] - problem.exact
    mean = float((error.norm(dim=-1) / problem.exact.norm(dim=-1)).mean())
    (told,) = [r["error"] for r in drawn if r["method"] == "transformer" and r["step"] == 4]
    assert told == pytest.approx(mean, rel=1e-12)
    assert torch.isfinite(error).all()


def test_a_map_is_saved_as_svg(
    page: Page, app: str, settled: Callable[[Page], None], tmp_path: Path
) -> None:
    page.goto(app + link("attention", SMALL, View()))
    settled(page)
    figure = page.locator("[data-testid=heatmaps] figure").first
    figure.locator("button.download").press("Enter")
    with page.expect_download() as download:
        figure.get_by_role("button", name="SVG").press("Enter")
    download.value.save_as(tmp_path / "map.svg")
    text = " ".join(ElementTree.parse(tmp_path / "map.svg").getroot().itertext())
    assert "attention" in text
    assert "token i" in text
    assert "sink" in text


def test_embedded_it_shows_the_named_controls_alone(
    page: Page, app: str, settled: Callable[[Page], None]
) -> None:
    view = View(controls="bandwidth,n,bandwidth", presenter="on")
    page.goto(app + link("fan", SMALL, view) + "&embed=true")
    settled(page)
    expect(page.get_by_role("slider", name="Bandwidth")).to_have_count(1)
    expect(page.get_by_role("slider", name="Context length")).to_have_count(1)
    expect(page.get_by_role("slider", name="Ridge")).to_have_count(0)
    expect(page.get_by_test_id("stSidebar")).to_have_count(0)
    expect(page.get_by_role("link", name="Tour")).to_have_count(0)
    expect(page.get_by_role("link", name="Open in krrviz")).to_have_count(1)
    size = "element => parseFloat(getComputedStyle(element).fontSize)"
    assert page.locator("[data-testid=figures]").evaluate(size) == 20
    assert page.get_by_test_id("stMarkdownContainer").first.evaluate(size) > 16
    page.goto(app + link("fan", SMALL, View()))
    settled(page)
    page.get_by_role("button", name="Export").click()
    snippet = page.get_by_test_id("stCode").inner_text()
    assert snippet.startswith("<iframe src=")
    assert "embed=true" in snippet
