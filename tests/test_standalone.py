"""What becomes HTML: nothing of a person's text is markup, and nothing is fetched."""

import json
import re
from html.parser import HTMLParser

import pytest

from krrviz.ui import standalone
from krrviz.ui.glossary import SYMBOLS, marked
from krrviz.ui.panels import Mounted

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&<!--'


class Elements(HTMLParser):
    """What a browser would make of the file: tags, and the text of the JSON element."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.told = ""
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = ("id", "told") in attrs

    def handle_data(self, data: str) -> None:
        self.told += data if self.inside else ""


def test_hostile_words_stay_words() -> None:
    panels = {
        "one": Mounted("figures", "<section></section>", {"title": HOSTILE}),
        "two": Mounted("heatmaps", "<section></section>", HOSTILE.encode()),
        "three": Mounted("share", "<div></div>", {"query": HOSTILE}),
    }
    text = standalone.page(HOSTILE, HOSTILE, panels, {HOSTILE: {HOSTILE: HOSTILE}})
    found = Elements()
    found.feed(text)
    assert found.tags.count("script") == 3  # what was told, the library, the panels
    assert "img" not in found.tags
    one, two = json.loads(found.told)  # the panel that is no picture stays out
    assert one["data"] == {"title": HOSTILE}
    assert "data" not in two
    assert "default-src 'none'" in text


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_every_symbol_is_explained(symbol: str) -> None:
    assert f'tabindex="0">{symbol}<span role="tooltip">' in marked(f"Here: {symbol}.")


def test_only_symbols_are_marked() -> None:
    text = "A transformer's layers solve it. Take λ, D⁻¹K or A = K + rI; <b>n</b>."
    found = re.findall(r'tabindex="0">([^<]+)<', marked(text))
    assert found == ["λ", "D⁻¹K", "A", "K", "n"]
    assert "&lt;b&gt;" in marked(text)
