"""krrviz in the browser: streamlit run app.py."""

import sys

import streamlit as st

# The heading's place, the scrubber's and the charts', as high as they will be at 1440 × 900.
BOXES = """
<style>
[data-testid="stMainBlockContainer"] { padding: 2.9rem 2.5rem 1rem; }
[data-testid="stSidebarNav"] { display: none; } /* the files of pages/, until these have names */
.boxes { display: grid; gap: 8px; grid-template-rows: 66px 46px 36px 224px 264px; }
.boxes div { border-radius: 6px; background: color-mix(in srgb, currentColor 7%, transparent); }
</style>
<div class="boxes" role="status" aria-label="krrviz is loading">
  <div></div><div></div><div></div><div></div><div></div>
</div>
"""

# Torch and the rest take seconds to load, once a server: what is to come is drawn before.
place = st.empty()
if "krrviz.ui.shell" not in sys.modules:
    st.set_page_config("krrviz", layout="wide")
    place.html(BOXES)

from krrviz.ui import shell  # noqa: E402

place.empty()
shell.run()
