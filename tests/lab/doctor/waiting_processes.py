"""The script of each of two processes, started by torchrun; the main one works for long.

torchrun --standalone --nproc_per_node 2 waiting_processes.py FOLDER
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from torch.distributed.distributed_c10d import _set_pg_timeout

from ampft.lab.doctor.doctor import wait_for_main_process

TIMEOUT, WORK = 2, 6  # seconds


def main(folder: Path) -> None:
    state = PartialState(cpu=True)
    _set_pg_timeout(timedelta(seconds=TIMEOUT))
    if state.is_main_process:
        time.sleep(WORK)
    wait_for_main_process()
    (folder / f"ended-{state.process_index}").touch()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
