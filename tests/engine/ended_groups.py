"""The script of each of two processes, started by torchrun; both end training many times.

torchrun --standalone --nproc_per_node 2 ended_groups.py FOLDER

Both share one core, so that the thread of the last collective operation is often still at work when
the model is dropped.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ampft.engine.ending import end_training

TIMES = 20


def train_and_end(store: Path) -> None:
    """Train a step, gather something, end, and drop the model."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    gathered = [torch.empty(5) for _ in range(2)]
    dist.all_gather(gathered, torch.ones(5))
    del gathered
    end_training(SimpleNamespace(end_training=dist.destroy_process_group))  # type: ignore[arg-type]
    reducer = model.reducer
    model.__dict__.clear()
    del model, reducer
    gc.collect()


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(90, exit=True)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.freeze()
    for number in range(TIMES):
        train_and_end(folder / f"store{number}")
        (folder / f"ended{os.environ['RANK']}-{number}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
