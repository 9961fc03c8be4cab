"""Standalone: a page as one HTML file that opens anywhere, without a network or a server.

Its panels are those of the page, script and all, with what they were told written into the file.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import vl_convert

from krrviz.ui.panels import Mounted, source

# Where the page would take these from Streamlit's theme.
STYLE = """
:root { color-scheme: light dark; --st-font: system-ui, sans-serif; --st-code-font: monospace;
  --st-text-color: #1a2027; --st-background-color: #ffffff; --st-secondary-background-color: #f2f5f9;
  --st-primary-color: #0b5cad; --st-border-color: #cfd6de; --st-red-text-color: #a8201a; }
@media (prefers-color-scheme: dark) { :root { --st-text-color: #eef2f6; --st-background-color: #030507;
  --st-secondary-background-color: #1b222b; --st-primary-color: #2f78c8; --st-border-color: #3a444f;
  --st-red-text-color: #ff8a80; } }
body { font: 16px/1.5 var(--st-font); color: var(--st-text-color); background: var(--st-background-color);
  max-width: 1200px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.5rem; } h2 { font-size: 1rem; } table { border-collapse: collapse; font-size: 13px; }
.panel { margin: 16px 0; } a { color: var(--st-primary-color); }
td, th { padding: 2px 12px 2px 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; } th { min-width: 9em; }
"""  # noqa: E501

# Nothing is fetched. Vega compiles its expressions, hence unsafe-eval.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

# A panel's script expects what Streamlit hands a component, in a root of its own.
MOUNT = """
for (const { name, html, css, data, bytes } of JSON.parse(document.getElementById("told").textContent)) {
  const place = document.getElementById("panels").appendChild(document.createElement("div"));
  place.className = "panel";
  const root = place.attachShadow({ mode: "open" });
  root.innerHTML = `<style>${css}</style>${html}`;
  const told = bytes ? Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)) : data;
  panels[name]({ parentElement: root, data: told, setStateValue() {}, setTriggerValue() {} });
}
"""  # noqa: E501


DRAWN = ("figures", "heatmaps")  # the panels that hold pictures


@cache
def _library() -> str:
    bundle = vl_convert.javascript_bundle("globalThis.krrvizVega = vegaEmbed;")
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def page(
    title: str, text: str, panels: Mapping[str, Mounted], tables: Mapping[str, Mapping[str, Any]]
) -> str:
    """The file's text: heading, panels, then tables of what was set and checked.

    Nothing in it comes from a link but checked values, and all text is escaped.
    """
    told = [
        {
            "name": panel.name,
            "html": panel.html,
            "css": source(f"{panel.name}.css"),
            **(
                {"bytes": base64.b64encode(panel.data).decode()}
                if isinstance(panel.data, bytes)
                else {"data": panel.data}
            ),
        }
        for panel in panels.values()
        if panel.name in DRAWN
    ]
    # In a script element only "</" could end it, and "<!--" confuse it.
    data = json.dumps(told).replace("<", "\\u003c")
    mine = "".join(_module(name) for name in sorted({it["name"] for it in told}))
    rows = "".join(
        f"<h2>{html.escape(name)}</h2><table>{''.join(map(_row, table.items()))}</table>"
        for name, table in tables.items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>krrviz: {html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<main><h1>{html.escape(title)}</h1><p>{html.escape(text)}</p><div id="panels"></div>'
        f'{rows}</main><script id="told" type="application/json">{data}</script>'
        f'<script type="module">{_library()}</script>'
        f'<script type="module">const panels = {{}};\n{mine}{MOUNT}</script></body></html>'
    )


def _module(name: str) -> str:
    """A panel's script in a scope of its own, its function entered among the panels."""
    js = source("common.js") + source(f"{name}.js")
    return f"{{\n{js.replace('export default', f'panels.{name} =')}\n}}\n"


def _row(pair: tuple[str, Any]) -> str:
    name, value = (html.escape(str(part)) for part in pair)
    return f"<tr><th>{name}</th><td>{value}</td></tr>"
