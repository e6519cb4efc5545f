"""Training in several processes ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ended_groups import TIMES
from running import clean_environment


@pytest.mark.slow
def test_no_process_waits_forever_at_the_end(tmp_path):
    script = Path(__file__).parent / "ended_groups.py"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         script, tmp_path],
        env=clean_environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-9000:]
    assert len(list(tmp_path.glob("ended*"))) == 2 * TIMES
