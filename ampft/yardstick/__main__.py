"""`python -m ampft.yardstick`: the same as `ampft yardstick`."""

import sys

from ampft.errors import run_door
from ampft.yardstick.door import main

if __name__ == "__main__":
    sys.exit(run_door(lambda: main(sys.argv[1:])))
