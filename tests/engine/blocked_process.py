"""A process that waits in C++, as for NCCL, while another one fails. It should end within seconds.

python blocked_process.py FOLDER CASE
"""

from __future__ import annotations

import ctypes
import json
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch.distributed import TCPStore, distributed_c10d

from ampft.engine import ending
from ampft.errors import TrainingStopped

SECONDS_BLOCKED = 120


def accelerator(index: int) -> Any:
    return SimpleNamespace(process_index=index, num_processes=2)


def block() -> None:
    """Wait without Python: no exception and no signal handler runs until this returns."""
    ctypes.CDLL(None).sleep(SECONDS_BLOCKED)


def main(folder: Path, case: str) -> None:
    ending.GRACE_SECONDS = 1.0
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                     timeout=timedelta(seconds=30))  # fmt: skip

    def record_stop(status: str, reason: str) -> None:
        (folder / "stop.json").write_text(json.dumps([status, reason]), encoding="utf-8")

    with patch.object(distributed_c10d, "_get_default_store", lambda: store):
        with ending.exit_if_others_fail(accelerator(0), record_stop):
            if case in ("fails", "leaves"):
                error = TrainingStopped("the loss is not finite")
                ending.report_first_failure(accelerator(1), error)
            if case == "fails":
                block()
        if case != "fails":
            ctypes.CDLL(None).sleep(3)  # longer than the grace
        (folder / "left").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
