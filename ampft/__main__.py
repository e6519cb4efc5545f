"""`python -m ampft` is the command `ampft`."""

import sys

from ampft.cli import main

if __name__ == "__main__":
    sys.exit(main())
