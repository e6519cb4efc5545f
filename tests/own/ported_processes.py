"""Loops of users in several processes, stopped and continued, and in plain torch.

torchrun --nproc_per_node 2 ported_processes.py FOLDER
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import torch
from accelerate import Accelerator
from torch import distributed

sys.path.insert(0, str(Path(__file__).parent))

from ported_loops import LOOPS, Ours, Plain, weights

from ampft.errors import Preempted

NAMES = ("rate_by_epoch", "unfrozen", "plateau inside", "plateau_outside", "steps inside")
STOPS = (8, 10)  # within an epoch, and after its last step


def main(folder: str) -> None:
    """Write the relative errors of this process, and whether it continued bit for bit."""
    torch.set_num_threads(1)
    rank, found = Accelerator(cpu=True).process_index, {}
    with patch.object(distributed, "destroy_process_group"):  # one group serves all loops
        for name in NAMES:
            expected = weights(LOOPS[name](Plain()))
            whole = weights(LOOPS[name](Ours(Path(folder, name, "whole"), micro_batches=2)))
            stopped = Path(folder, name, "stopped")
            for step in STOPS:
                with contextlib.suppress(Preempted):
                    LOOPS[name](Ours(stopped, stop_at=step, micro_batches=2))
                distributed.barrier()  # until the main process has left the folder
            again = weights(LOOPS[name](Ours(stopped, micro_batches=2)))
            error = float((whole - expected).norm() / expected.norm())
            found[name] = [error, torch.equal(whole, again)]
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(sys.argv[1])
