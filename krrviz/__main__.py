"""python -m krrviz."""

import os
import sys

# Threads that wait for work are to sleep, as in the app: torch's OpenMP reads this when it loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from krrviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
