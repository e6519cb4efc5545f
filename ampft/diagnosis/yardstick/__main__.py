"""`python -m ampft.diagnosis.yardstick`: the same as `ampft yardstick`."""

import sys

from ampft.diagnosis.yardstick.command import main
from ampft.errors import run_main

if __name__ == "__main__":
    sys.exit(run_main(lambda: main(sys.argv[1:])))
