"""krrviz in the browser: streamlit run app.py."""

import os

# Threads that wait for work are to sleep: several sessions share the cores. Torch's OpenMP reads
# this once, when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from krrviz.ui import shell

shell.run()
