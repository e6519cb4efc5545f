"""The command line that completes a run, as its processes were started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampft.runs.completing_command import completing_command


@pytest.mark.parametrize(
    ("program", "processes", "sharded", "start"),
    [
        ("recipes/classify.py", 1, False, "ampft train "),
        ("own.py", 1, False, "python own.py "),
        ("ampft", 2, False, "torchrun --nproc_per_node 2 -m ampft train "),
        ("own.py", 2, False, "torchrun --nproc_per_node 2 own.py "),
        ("ampft", 2, True, "accelerate launch -m ampft train "),
        ("my own.py", 2, True, "accelerate launch 'my own.py' "),
    ],
)
def test_it_starts_as_many_processes_as_the_run_had(
    make_record, program, processes, sharded, start
):
    record = make_record(command=[program, "--seed", "3"])
    topology = replace(record.topology, num_processes=processes, sharded=sharded)
    line = completing_command(replace(record, topology=topology), {"output_dir": "a b"})
    assert line is not None
    assert line.startswith(start)
    assert line.endswith("--output_dir 'a b'")
    assert "--seed 3" in line


def test_data_in_memory_have_no_command(make_record):
    assert completing_command(make_record(command=[]), {}) is None
