"""The page on ablations in a real browser holds the library's numbers, topic by topic."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from krrviz import Settings, checkpoints
from krrviz.counterparts import counterpart_rows
from krrviz.tables import assets
from krrviz.trained.gpt import load
from krrviz.trained.match import align, rivals
from krrviz.trained.probe import Probed, fixed_task, probe

Settled = Callable[[Page], None]
ROOT = Path(__file__).parents[2]
ASKED = 16
SMALL = f"data=gp&d=3&n=12&queries=5&prompts=3&steps=12&segments=64&asked={ASKED}"


def rows(page: Page, name: str) -> list[dict[str, Any]]:
    for panel in page.get_by_test_id("figures").all():
        if name in panel.evaluate("root => root.krrviz.names()"):
            return panel.evaluate("(root, name) => root.krrviz.rows(name)", name)
    raise AssertionError(f"no figure {name}")


@cache
def asked() -> Probed:
    model, card = load(assets() / "checkpoints" / "main-0")
    return probe(model, fixed_task(card), ASKED)


def test_a_link_shows_the_kernels_and_the_models_that_are_missing(
    page: Page, app: str, settled: Settled
) -> None:  # the first test: the link is the first that the server is asked for
    page.goto(f"{app}/ablations?{SMALL}&ablation=kernels")
    settled(page)
    found = align(asked(), "lens", "gaussian")
    assert found.similarity is not None
    table = page.locator("table").first
    expect(table).to_contain_text(f"Gaussian {found.gap:.3f}")
    expect(table).to_contain_text(f"Gaussian {found.similarity.score:.3f}")
    # Keys reach the cells: the first is the model's gap to its own kernel's KRR.
    grid = page.get_by_label("Gap of the last layer to KRR: 3 rows, 4 columns")
    grid.press("Home")
    expect(page.get_by_text(str(found.gap)[:8])).to_be_visible()
    for name, kernel in (("laplacian-0", "Laplacian"), ("matern-0", "Matérn 3/2")):
        row = table.get_by_role("row").filter(has=page.get_by_role("cell", name=kernel, exact=True))
        if checkpoints.missing(name):
            expect(row).to_contain_text("missing")
        else:
            expect(row).to_contain_text("[")


@pytest.mark.soak
def test_attention_is_compared_at_matched_loss(page: Page, app: str, settled: Settled) -> None:
    page.goto(f"{app}/ablations?{SMALL}&ablation=attention")
    settled(page)
    drawn = {(row["series"], row["step"]): row["gap_to_krr"] for row in rows(page, "courses")}
    for name, kind in (("main-0", "Softmax"), ("linear-0", "Linear attention")):
        log = checkpoints.log(name)
        assert log is not None
        for step, gap in zip(log.step, log.gap_to_krr, strict=True):
            assert drawn[f"{kind} ({name})", step] == pytest.approx(gap, rel=1e-5)
    line = page.get_by_role("listitem").filter(has_text="At matched loss")
    expect(line).to_contain_text("what linear-0 reached after")
    expected = rivals(asked(), "lens")
    shown = {row["method"]: row["score"] for row in rows(page, "alike_main-0")}
    assert rows(page, "alike_linear-0")
    assert shown == {
        method: pytest.approx(route.score, abs=2e-5) for method, route in expected.items()
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_hand_built_stack_with_other_scores_on_a_phone(
    page: Page, app: str, settled: Settled, scheme: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    page.goto(f"{app}/ablations?{SMALL}&ablation=constructed")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expected = counterpart_rows(Settings.from_query(page.url))
    for column in ("own", "gaussian"):
        drawn = {(r["series"], r["step"]): r["error"] for r in rows(page, f"scores_{column}")}
        assert len(drawn) == len(expected)
        for row in expected:
            assert drawn[row["title"], row["step"]] == pytest.approx(row[column], rel=1e-5)
    lowest = next(float(row["lowest"]) for row in expected if row["score"] == "relu")
    assert lowest < 0
    expect(page.get_by_text("ReLU cannot converge here")).to_be_visible()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("dtype=float32", "needs dtype=float64. Change"),
        ("update=function_space", "has no counterpart with another score"),
    ],
)
def test_what_has_no_counterpart_is_told(page: Page, app: str, query: str, told: str) -> None:
    page.goto(f"{app}/ablations?{SMALL}&ablation=constructed&{query}")
    expect(page.get_by_text(told)).to_be_visible(timeout=120_000)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_without_any_checkpoint_each_topic_says_so(
    page: Page, serve: Callable[..., str], settled: Settled, tmp_path: Path
) -> None:
    for name in ("app.py", "pages", "krrviz", ".streamlit"):
        kept = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        kept(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "assets", tmp_path / "assets", ignore=lambda *_: ["checkpoints"])
    page.goto(f"{serve(tmp_path)}/ablations?{SMALL}")
    expect(page.get_by_test_id("stAlert")).to_contain_text(
        "Missing: main-0 (Gaussian), laplacian-0 (Laplacian), matern-0 (Matérn 3/2)",
        timeout=120_000,
    )
    settled(page)
    page.get_by_role("radio", name="Attention", exact=True).click()
    expect(page.get_by_test_id("stAlert")).to_contain_text(
        "Missing: main-0 (Softmax), linear-0", timeout=120_000
    )
    page.get_by_role("radio", name="Hand-built", exact=True).click()
    settled(page)
    assert rows(page, "scores_own")
