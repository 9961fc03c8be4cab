"""python -m krrviz."""

import sys

from krrviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
