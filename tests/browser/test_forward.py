"""The forward page in a real browser: its numbers are the library's, and it can be broken."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from playwright.sync_api import Locator, Page, TimeoutError, expect

from krrviz import Settings, View
from krrviz.construction.slots import Slots
from krrviz.forward import Walk, jacobian, walk
from krrviz.surgery import Fault, Perturbed, SwitchedOff, Ungated, Unmasked, errors

Settled = Callable[[Page], None]
SMALL = "n=12&queries=6&prompts=3&steps=5&segments=32"
STREAM = "stream"


def maps(page: Page, name: str) -> Locator:
    """The heatmaps panel that shows the map called ``name``."""
    panels = page.locator("[data-testid=heatmaps]")
    for k in range(panels.count()):
        if name in panels.nth(k).evaluate("root => root.heatmaps.names()"):
            return panels.nth(k)
    raise AssertionError(f"no map {name}")


def drawn(page: Page, name: str) -> list[list[float]]:
    """All values of a map as it stands."""
    return maps(page, name).evaluate(
        """(root, name) => {
            const [rows, cols] = root.heatmaps.shape(name);
            const line = (i) =>
                Array.from({ length: cols }, (_, j) => root.heatmaps.value(name, i, j));
            return Array.from({ length: rows }, (_, i) => line(i));
        }""",
        name,
    )


def frame(page: Page) -> int:
    return maps(page, STREAM).evaluate("root => root.heatmaps.frame()")


def rows(page: Page, name: str) -> pd.DataFrame:
    """The rows that a chart draws."""
    return pd.DataFrame(
        page.evaluate(
            """(name) => {
                const all = (root, what) => [...root.querySelectorAll(what)];
                const shadows = all(document, '*').flatMap(e => e.shadowRoot ?? []);
                const panels = shadows.flatMap(s => all(s, '[data-testid=figures]'));
                return panels.find(p => p.krrviz.names().includes(name)).krrviz.rows(name);
            }""",
            name,
        )
    )


def opened(page: Page, settled: Settled, address: str) -> tuple[Settings, View]:
    page.goto(address)
    settled(page)
    return linked(page)


def linked(page: Page) -> tuple[Settings, View]:
    return Settings.from_query(page.url), View.read(page.url)[0]


def order(w: Walk) -> list[int]:
    """For one input: the sink, the context by x, the queries by x."""
    assert w.slots.d == 1
    n = w.problem.n_max
    context = (1 + w.problem.X[:, 0].argsort(stable=True)).tolist()
    queries = (1 + n + w.problem.x_query[:, 0].argsort(stable=True)).tolist()
    return [0, *context, *queries]


def assert_shows(page: Page, w: Walk, at: int) -> None:
    """The stream's map holds the walk's numbers at a moment, to the last digit."""
    expected = w.stream[at, order(w)].tolist()
    assert drawn(page, STREAM) == [pytest.approx(row, rel=1e-12, abs=1e-300) for row in expected]


def test_a_link_opened_first_on_a_fresh_server(
    page: Page, serve: Callable[[], str], settled: Settled
) -> None:
    query = f"{SMALL}&layout=fused&product=plain&block=4&part=attention"
    assert_answers(page, settled, f"{serve()}/forward?{query}")


def test_the_first_screen_holds_the_librarys_numbers(
    page: Page, app: str, settled: Settled
) -> None:
    assert_answers(page, settled, f"{app}/forward")
    words = page.get_by_text("Every number the transformer holds").inner_text().split()
    assert len(words) <= 40


def assert_answers(page: Page, settled: Settled, address: str) -> Walk:
    """The page shows the moment that its address asks for."""
    settings, view = opened(page, settled, address)
    assert settings == Settings.read(address)[0]
    w = walk(settings)
    at = w.moment_of(view.block) - (view.part == "attention")
    assert frame(page) == at
    assert_shows(page, w, at)
    return w


@pytest.fixture
def small(page: Page, app: str, settled: Settled) -> Walk:
    settings, _ = opened(page, settled, f"{app}/forward?{SMALL}")
    return walk(settings)


def test_scrubbing_shows_every_moment_without_the_server(
    page: Page, app: str, settled: Settled
) -> None:
    sent: list[object] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    w = assert_answers(page, settled, f"{app}/forward?{SMALL}")
    before = len(sent)
    panel = maps(page, STREAM)
    slider = panel.locator("input[type=range]")
    for at in (0, 1, 7, len(w.moments) - 1):
        slider.evaluate(
            "(slider, at) => { slider.value = at; slider.dispatchEvent("
            "new Event('input', { bubbles: true })); }",
            at,
        )
        assert_shows(page, w, at)
        here = w.moments[at]
        if here.part != "prompt":
            expect(panel.locator(".now")).to_contain_text(f"Block {here.block} of 11")
        # Charts of the same page follow.
        value = page.locator("[data-testid=figures]").first.evaluate("root => root.krrviz.step()")
        assert value == here.step
    panel.get_by_label("speed").select_option("10")
    slider.evaluate("slider => { slider.value = 3; slider.oninput(); }")
    panel.get_by_role("button", name="Play").click()
    page.wait_for_function("root => root.heatmaps.frame() > 8", arg=panel.element_handle())
    assert len(sent) == before
    panel.get_by_role("button", name="Pause").click()
    settled(page)
    assert len(sent) > before


def test_the_keyboard_alone_steps_and_the_link_follows(
    page: Page, small: Walk, settled: Settled
) -> None:
    slider = maps(page, STREAM).locator("input[type=range]")
    start = frame(page)
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    page.wait_for_url(re.compile("block=2.*part=mlp"))
    settled(page)
    assert frame(page) == start + 2
    maps(page, STREAM).get_by_role("button", name="One back").press("Enter")
    page.wait_for_url(re.compile("block=2.*part=attention"))
    settled(page)
    page.reload()
    settled(page)
    assert frame(page) == start + 1
    assert_shows(page, small, start + 1)


def test_what_happens_is_said_with_the_current_numbers(
    page: Page, app: str, settled: Settled
) -> None:
    settings, _ = opened(page, settled, f"{app}/forward?{SMALL}&block=6&pin=4")
    w = walk(settings)
    at = w.moment_of(6)
    now = maps(page, STREAM).locator(".now")
    expect(now).to_contain_text("reads mask, b, z, p")
    expect(now).to_contain_text("writes z, p, α")
    found, solver = float(w.state[3, 4]), float(w.solver.states[3, 3])
    expect(now).to_contain_text(f"{found:.6g} in the channel, {solver:.6g} in the solver")
    expect(page.get_by_role("cell", name=f"{found:.8g}", exact=True).first).to_be_visible()
    expect(page.get_by_role("cell", name=f"{found - solver:.2e}", exact=True)).to_be_visible()
    expect(page.locator(".katex-mathml").first).to_contain_text("η")
    alphas = rows(page, "state").sort_values(by="step")
    assert alphas[alphas.method == "transformer"].state.tolist() == pytest.approx(
        w.state[:, 4].tolist(), rel=1e-5
    )
    marks = rows(page, "squares").dropna(subset=["sign"]).query("step == 3").set_index("sign")
    product = (marks.square["s₊"] - marks.square["s₋"]) / 4
    u = w.value(at, 4, "u")
    bound = w.construction.product_error(w.construction.r_alpha)
    assert product == pytest.approx(u * found, abs=bound + 1e-6)


def test_a_click_follows_a_token(page: Page, small: Walk, settled: Settled) -> None:
    panel = maps(page, STREAM)
    canvas = panel.locator("canvas").first
    canvas.focus()
    for key in ["ArrowDown"] * 3 + ["ArrowRight"] * 2 + ["Enter"]:
        canvas.press(key)
    token = order(small)[3]
    page.wait_for_url(re.compile(f"pin={token}&"))
    settled(page)
    value = small.value(frame(page), token, small.slots.names[2])
    assert float(panel.locator("dd").inner_text()) == value
    assert f"α of token {token}" in panel.locator(".now").inner_text()


def test_jacobians_are_the_librarys_and_the_mlp_crosses_nothing(
    page: Page, app: str, settled: Settled
) -> None:
    settings, _ = opened(page, settled, f"{app}/forward?{SMALL}&block=3")
    w = walk(settings)
    at, tokens = w.moment_of(3), torch.tensor(order(w))
    for name, moment in (("jacobian_attention", at - 1), ("jacobian_mlp", at)):
        expected = jacobian(w.layer(moment), w.before(moment), tokens).tolist()
        assert drawn(page, name) == [pytest.approx(row, rel=1e-9) for row in expected]
    crossing = [
        v for i, row in enumerate(drawn(page, "jacobian_mlp")) for v in row[:i] + row[i + 1 :]
    ]
    assert set(crossing) == {0}
    expect(page.get_by_text("Off the diagonal every entry is exactly 0.")).to_be_visible()


def test_weights_are_drawn_with_their_channels(page: Page, small: Walk) -> None:
    block = small.model.blocks[1]
    assert drawn(page, "W_Qᵀ") == block.attention.w_q.T.tolist()
    assert drawn(page, "W_O") == block.attention.w_o.tolist()
    assert drawn(page, "W_1ᵀ") == block.mlp.w_1.T.tolist()
    assert drawn(page, "W_2") == block.mlp.w_2.tolist()
    panel = maps(page, "W_2")
    p = Slots(1).index["p"]
    # Hidden units narrower than a pixel are averaged with their neighbours, rows are not.
    pixels = panel.evaluate(
        """(root, p) => {
            const { canvas, box, shape } = root.panel.view('W_2');
            const colour = (row) => [...canvas.getContext('2d').getImageData(
                box.x + 40, box.y + (row / shape[0]) * box.h, 1, 1).data];
            return [p - 0.1, p + 0.1, p + 0.5, p + 0.9, p + 1.1].map(colour);
        }""",
        p,
    )
    assert pixels[0] == pixels[4] != pixels[1]
    assert pixels[1] == pixels[2] == pixels[3]
    panel.evaluate("(root, p) => root.heatmaps.hover(p, 0, 'W_2')", p)
    assert "p: u·α" in panel.evaluate("root => root.heatmaps.readout()")


FAULTS: dict[str, Fault] = {
    "fault=block&fault_block=0": SwitchedOff("block", 0),
    "fault=mlp&fault_block=4": SwitchedOff("mlp", 4),
    "fault=perturb&fault_matrix=W_2&fault_block=2&fault_noise=0.3&fault_seed=2": Perturbed(
        "W_2", 2, 0.3, 2
    ),
    "fault=ungated": Ungated(),
    "fault=unmask&fault_query=3": Unmasked(2),
}


def assert_curves(page: Page, settings: Settings, fault: Fault | None) -> None:
    found = rows(page, "errors").dropna(subset=["error"]).sort_values(by="step")
    whole = found[found.method == "transformer"].error.tolist()
    assert whole == pytest.approx(errors(settings).tolist(), rel=1e-5)
    faulty = found[found.method == "broken"].error.tolist()
    expected = errors(settings, fault).tolist() if fault else []
    assert faulty == pytest.approx(expected, rel=1e-5)


def test_a_link_breaks_it_and_reset_brings_it_back(page: Page, app: str, settled: Settled) -> None:
    for query, fault in FAULTS.items():
        settings, _ = opened(page, settled, f"{app}/forward?{SMALL}&{query}&block=4")
        w = walk(settings, fault)
        assert_curves(page, settings, fault)
        assert_shows(page, w, frame(page))
        expect(page.get_by_text(fault.sentence(walk(settings).model)).first).to_be_visible()
        page.get_by_role("button", name="Reset", exact=True).click()
        page.wait_for_url(re.compile("fault=none"))
        settled(page)
        assert linked(page)[1] == View(block=4)
        assert_curves(page, settings, None)
        assert_shows(page, walk(settings), frame(page))
        expect(page.get_by_text("Broken:")).to_have_count(0)


def test_it_is_broken_by_its_controls(page: Page, small: Walk, settled: Settled) -> None:
    wanted = page.get_by_role("option", name="round a matrix to few bits")
    for _ in range(10):  # a menu closes again while its surroundings still move
        page.get_by_role("combobox", name="Break").click()
        with contextlib.suppress(TimeoutError):
            wanted.wait_for(timeout=1000)
            break
    wanted.click()
    page.wait_for_url(re.compile("fault=quantise"))
    settled(page)
    bits = page.get_by_label("Bits", exact=False).and_(page.locator("input"))
    bits.fill("4")
    bits.press("Enter")
    page.wait_for_url(re.compile("fault_bits=4"))
    settled(page)
    expect(page.get_by_text("is rounded to 4 bits").first).to_be_visible()
    settings, _ = linked(page)
    broken = rows(page, "errors").query("method == 'broken'").error
    assert broken.tolist() != pytest.approx(errors(settings).tolist(), rel=1e-3)


BAD_LINKS = {
    "block=500&pin=99&fault=fire&fault_bits=99&fault_noise=nan": (
        "block=500: the transformer has 12 blocks",
        "pin=99: the prompt has 19 tokens",
        "fault=fire must be one of",
        "fault_bits=99 must be",
        "fault_noise=nan must be",
    ),
    "fault=block&fault_block=77&part=tail": (
        "fault_block=77: the transformer has 12 blocks",
        "part=tail must be one of",
    ),
    "fault=unmask&fault_query=9&block=-1": (
        "fault_query=9: the prompt has 6 queries",
        "block=-1 must be",
    ),
}


def test_a_bad_link_is_told_and_the_page_lives(page: Page, app: str, settled: Settled) -> None:
    for query, problems in BAD_LINKS.items():
        opened(page, settled, f"{app}/forward?{SMALL}&{query}")
        for told in problems:
            expect(page.get_by_test_id("stAlert").filter(has_text=told).first).to_be_visible()
        assert drawn(page, STREAM)
        assert len(rows(page, "errors"))


def test_divergence_is_drawn_as_divergence(page: Page, app: str, settled: Settled) -> None:
    query = "fault=perturb&fault_matrix=W_2&fault_block=2&fault_noise=50"
    opened(page, settled, f"{app}/forward?n=12&queries=6&prompts=2&steps=300&{query}&block=201")
    found = rows(page, "errors").query("method == 'broken'").error
    assert found.notna().all()
    assert found.max() > 1e100
    expect(page.get_by_text("overflow broken")).to_be_visible()
    expect(page.get_by_text("without the fault")).to_be_visible()
    # α is 1e188 here, whose square no number holds: its Jacobian has a length all the same.
    lengths = maps(page, "jacobian_attention").locator("figure").first
    for words in ("exactly 0", "not finite", "inf", "NaN"):
        expect(lengths).not_to_contain_text(words)
    # What has overflowed later is said there, and only there.
    stream = maps(page, STREAM)
    expect(stream.locator(".note")).not_to_contain_text("not finite")
    stream.evaluate("root => root.heatmaps.setFrame(9999)")
    expect(stream.locator(".note")).to_contain_text("values are not finite, painted yellow")


CASES: list[dict[str, Any]] = [
    {"query": "n=2&queries=1&prompts=1&steps=0"},
    {"query": "n=2&queries=1&prompts=1&steps=1&layout=fused&segments=65536"},
    {"query": "data=gp&n=512&prompts=1&steps=8&layout=fused&block=5&part=attention"},
    {"query": "data=diabetes&n=100&prompts=2&steps=8&product=plain&block=5"},
    {"query": "data=co2&n=40&prompts=2&steps=8&dtype=float32"},
    {"query": "data=gp&n=40&prompts=2&inputs=clumped&d=5&segments=1&part=prompt"},
    {"query": "n=20&prompts=1&steps=900&block=1801&methods=nesterov"},
    {"query": "n=20&prompts=1&steps=900&block=700", "told": "some blocks are kept"},
    {"query": "data=gp&n=20&prompts=1&steps=6&update=nesterov&ridge_scale=per_sample&block=6"},
    {"query": "data=gp&n=20&prompts=1&steps=6&update=function_space&sink=ridge&block=5&pin=25"},
]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_every_problem_is_drawn_on_a_phone_too(
    page: Page, app: str, settled: Settled, scheme: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    for case in CASES[scheme == "dark" :: 2]:
        opened(page, settled, f"{app}/forward?{case['query']}")
        assert_fits(page, case)


def assert_fits(page: Page, case: dict[str, Any]) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for panel in page.locator("[data-testid=heatmaps]").all():
        assert panel.evaluate("root => root.scrollWidth <= root.clientWidth + 1")
    formula = page.locator(".katex-display")
    assert formula.evaluate("shown => shown.scrollWidth - shown.clientWidth") <= 2
    inside = "shown => shown.scrollHeight - shown.clientHeight"
    assert (
        formula.locator("xpath=ancestor::*[@data-testid='stVerticalBlock'][1]").evaluate(inside)
        <= 0
    )
    assert drawn(page, STREAM)
    told = page.get_by_test_id("stAlert")
    expect(told).to_have_count(1 if "told" in case else 0)
    if "told" in case:
        expect(told).to_contain_text(case["told"])
