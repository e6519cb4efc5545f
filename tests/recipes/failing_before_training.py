"""One of two processes, without a launcher: process 1 fails while process 0 waits for it in C++.

python failing_before_training.py FOLDER FLAGS...
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import ampft
from ampft.engine import ending
from ampft.runs import prepare

SECONDS_BLOCKED = 100


def choose_folder(*_: object, **__: object) -> None:
    """Fail in process 1. In process 0, wait without Python, as for NCCL."""
    if os.environ["RANK"] == "1":
        raise ValueError("this process had enough")
    Path(sys.argv[1], "waiting").touch()
    ctypes.CDLL(None).sleep(SECONDS_BLOCKED)


def main() -> None:
    ending.GRACE_SECONDS = 1.0
    prepare.choose_folder = choose_folder
    try:
        ampft.prepare(ampft.parse_classify_arguments(sys.argv[2:]))
    except ValueError:
        while not Path(sys.argv[1], "waiting").exists():
            time.sleep(0.1)
        time.sleep(20)  # alive, so that the other one sees no closed connection
        raise


if __name__ == "__main__":
    main()
