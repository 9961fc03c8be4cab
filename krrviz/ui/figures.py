"""The figures panel: Vega-Lite charts in the browser, scrubbed together without a server trip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import streamlit as st
import vl_convert
from streamlit.components.v2 import component
from streamlit.components.v2.types import ComponentRenderer

from krrviz import charts
from krrviz.ui import live, state
from krrviz.ui.panels import panel, pictures

HTML = """
<section class="figures" data-testid="figures" data-ready="false">
  <p class="problem" role="alert" hidden></p>
  <div class="scrubber">
    <button class="play" type="button" aria-label="Play the steps">▶</button>
    <label><span></span><input type="range" min="0" value="0" step="1"></label>
  </div>
  <output class="held" hidden></output>
  <div class="facets"></div>
  <div class="wide"></div>
  <div class="laws"></div>
  <div class="maps"></div>
  <div class="tip" aria-hidden="true" hidden></div>
</section>
"""

LARGER = {"strokeWidth": 1.8, "size": 2.0}


@cache
def _library() -> ComponentRenderer:
    """Register Vega: 0.9 MB of JavaScript, which take the bundler some seconds to gather."""
    # Only the embedder: the bundle binds the names vega and vegaLite to null.
    hand_over = """
      globalThis.krrvizVega = vegaEmbed;
      globalThis.dispatchEvent(new Event("krrviz-vega"));
    """
    js = vl_convert.javascript_bundle(hand_over) + "\nexport default () => {};"
    return component("krrviz_vega", js=js)


def vega() -> None:
    """Mount the chart library; the shell calls this once a run, before any figures.

    Its message never changes, so that a browser receives it on its first run and a reference of a
    few bytes on later ones. It takes no room worth seeing.
    """
    _library()(key="krrviz_vega", height=1)


def _thick(part: Any, by: float = 1.0) -> Any:
    """A specification with its lines and marks larger; ``by`` is what a number grows by."""
    if isinstance(part, dict):
        return {
            name: _thick(value, LARGER.get(name, by if name == "value" else 1.0))
            for name, value in part.items()
        }
    if isinstance(part, list):
        return [_thick(item) for item in part]
    number = isinstance(part, (int, float)) and not isinstance(part, bool)
    return part * by if number and by != 1 else part


def figures(
    shown: Mapping[str, charts.Figure],
    *,
    steps: int,
    key: str,
    led: int | None = None,
    each: tuple[str, str] = charts.STEP,
    on_pick: Callable[[], None] | None = None,
    held: dict[str, Any] | None = None,
) -> None:
    """Show charts that share one step, with a scrubber, legends and downloads.

    The step (or layer) opened at is the view's; one chosen by letting the scrubber go or by a pin
    becomes the view's. In between the browser needs no server.

    Parameters
    ----------
    shown
        The figures by name; names are file names of downloads, and what tests ask for.
    steps
        The last step, for the scrubber's "Step t = 12 of 32".
    key
        Identifies the panel over reruns, so that its charts are updated, not rebuilt.
    led
        The step of a page on which heatmaps with moments lead the way, 0 where there are no steps;
        then there is no scrubber here.
    each
        What the steps are, in a word and a symbol, for the scrubber.
    on_pick
        If given, a cell that is clicked in a chart of cells is sent to the server, which finds its
        number in ``st.session_state[key]["picked"]``.
    held
        Of a page that follows the sidebar's sliders while they are held: which of them, the
        request that this answers, and what is drawn that is not set.
    """
    pictures().update(shown)
    big = state.big()
    panels = [
        {
            "name": name,
            "spec": _thick(spec) if big else spec,
            "tables": {table: charts.columns(frame) for table, frame in figure.tables.items()},
            "alt": figure.alt,
        }
        for name, figure in shown.items()
        for spec in [{part: it for part, it in figure.spec.items() if part != "config"}]
    ]
    field = "step" if each is charts.STEP else "lit_layer"
    asked = getattr(state.view(), field)

    def chosen() -> None:
        step = int(st.session_state[key]["step"])
        state.look(**{field: "last" if step == steps else step})

    data: dict[str, Any] = {
        "figures": panels,
        "steps": steps,
        "step": led if led is not None else steps if asked == "last" else min(asked, steps),
        "led": led is not None,
        "picks": on_pick is not None,
        "each": [each[0].capitalize(), each[1]],
        "themes": {mode: charts.theme(mode, 1.45 if big else 1) for mode in charts.INK},
        "big": big,
        "held": held,
    }

    def followed() -> None:
        live.hold(st.session_state[key]["held"])

    panel("figures", HTML)(
        key=key,
        data=data,
        on_step_change=chosen,
        **({"on_picked_change": on_pick} if on_pick else {}),
        **({"on_held_change": followed} if held else {}),
    )
