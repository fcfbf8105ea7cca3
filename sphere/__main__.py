"""`python -m sphere`."""

import sys

from sphere.cli import main

if __name__ == "__main__":
    sys.exit(main())
