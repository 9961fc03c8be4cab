"""Heatmaps: matrices on canvases that share one cell, under the pointer or the arrow keys."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import streamlit as st

from krrviz.maps import Cell, Frames, Map, Points
from krrviz.ui import state
from krrviz.ui.panels import panel, pictures

Asked = TypeVar("Asked")

HTML = """
<section class="heatmaps" data-testid="heatmaps" data-ready="false">
  <p class="problem" role="alert" hidden></p>
  <div class="scrubber" hidden>
    <button type="button" aria-label="One back">◂</button>
    <button class="play" type="button" aria-label="Play">▶</button>
    <button type="button" aria-label="One on">▸</button>
    <label>speed <select><option value="1">1×</option><option value="3" selected>3×</option>
      <option value="10">10×</option></select></label>
    <input type="range" min="0" value="0" step="1" aria-label="Moment">
    <p class="now" role="status"></p>
  </div>
  <div class="legend"></div>
  <div class="grid"></div>
  <div class="below"><div class="beside"></div><div class="readout" role="status"></div></div>
</section>
"""


def heatmaps(
    maps: Sequence[Map],
    *,
    key: str,
    pin: Cell | None = None,
    on_pin: Callable[[], None] | None = None,
    linked: bool = True,
    points: Points | None = None,
    frames: Frames | None = None,
    on_frame: Callable[[], None] | None = None,
) -> None:
    """Show matrices side by side, with a readout of the cell pointed at.

    Parameters
    ----------
    maps
        The matrices. Linked ones have the same columns, and one cell for all of them.
    key
        Identifies the panel over reruns.
    pin
        The cell (row, column) pinned, as in a link; it wins over one pinned in the browser.
    on_pin
        If given, a cell pinned or let go by click, Enter or Escape is sent to the server, which
        finds it in ``st.session_state[key]["pin"]``: row and column, or None.
    points
        A plot of the rows' tokens beside the readout.
    frames
        The moments that maps with several matrices hold.
    on_frame
        If given, a moment chosen by letting the scrubber go is sent to the server, which finds
        its index in ``st.session_state[key]["frame"]``.
    """
    for shown in maps:
        # A page may have two of one name, in two panels.
        name = f"{key}_{shown.name}" if shown.name in pictures() else shown.name
        if frames is not None and shown.values.ndim > 2:
            shown = replace(shown, values=shown.values[frames.at])
        pictures()[name] = shown
    blob, head, lists = bytearray(), [], {}
    for shown in maps:
        head.append(_described(shown, lists))
        if shown.minus is None:
            head[-1]["values"] = _append(blob, shown.values)
        if shown.places is not None:
            head[-1]["places"] = _append(blob, shown.places)
    data: dict[str, Any] = {"maps": head, "lists": list(lists), "linked": linked}
    data |= {"report": on_pin is not None, "big": state.big()}
    if points is not None:
        data["points"] = {name: getattr(points, name) for name in ("title", "x_title", "y_title")}
        data["points"] |= {name: _append(blob, getattr(points, name)) for name in "xy"}
    if frames is not None:
        data["frames"] = {
            name: [_plain(item) for item in getattr(frames, name)]
            for name in ("titles", "lines", "steps", "col_marks")
        }
        asked, at = _asked(key, frames.at, "frame")
        data["frames"] |= {"asked": asked, "at": at, "report": on_frame is not None}
    data["asked"], data["pin"] = _asked(key, None if pin is None else tuple(pin))
    text = json.dumps(data).encode()
    text += b" " * (-(len(text) + 8) % 8)  # numbers start at a multiple of their size
    panel("heatmaps", HTML)(
        key=key,
        data=struct.pack("<q", len(text)) + text + blob,
        on_pin_change=on_pin,
        on_frame_change=on_frame,
    )


def _plain(item: object) -> object:
    return item if isinstance(item, (str, int)) else list(cast("Sequence[str]", item))


def _append(blob: bytearray, values: np.ndarray) -> tuple[int, list[int]]:
    """Put float64 numbers at the end; where they start, in numbers, and their shape."""
    start = len(blob) // 8
    blob += np.ascontiguousarray(values, dtype="<f8").tobytes()
    return start, list(values.shape)


def _described(shown: Map, lists: dict[tuple[Any, ...], int]) -> dict[str, Any]:
    """A map but for its numbers. Maps share most of their lists: each is sent once."""
    names = "name title kind note row_title col_title limit minus formula"
    several = "rows cols row_names col_names row_marks col_marks limits words"
    held = {name: tuple(getattr(shown, name)) for name in several.split()}
    return (
        {name: getattr(shown, name) for name in names.split()}
        | {"lists": {name: lists.setdefault(items, len(lists)) for name, items in held.items()}}
        | {"row_terms": {name: list(words) for name, words in shown.row_terms.items()}}
    )


def _asked(key: str, value: Asked, field: str = "pin") -> tuple[int, Asked]:
    """How often the server has set a pin (or a frame), and to what.

    One that the browser itself reported is no news to it: the message stays the same to the
    byte, and Streamlit sends a reference instead of megabytes.
    """
    memory = f"{key} {field} asked"
    count, sent, reported = st.session_state.get(memory, (0, None, None))
    told = st.session_state.get(key)  # None until the panel is on the page
    now = told.get(field) if told else None
    now = tuple(now) if isinstance(now, (list, tuple)) else now
    if told is None or (value != now and (value, now) != (sent, reported)):
        count, sent, reported = count + 1, value, now
    st.session_state[memory] = count, sent, reported
    return count, sent
