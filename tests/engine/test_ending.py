"""Training in several processes ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from blocked_process import SECONDS_BLOCKED
from ended_groups import TIMES
from representatives import full_except
from running import clean_environment
from torch.distributed import HashStore, distributed_c10d

from ampft.engine.ending import exit_together_on_failure, report_first_failure
from ampft.errors import InputError


@pytest.mark.full
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


def process(index, *, of=2):
    return SimpleNamespace(process_index=index, num_processes=of)


def test_the_process_that_fails_first_gives_the_reason(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    own = ("diverged", "the loss is not finite")
    assert report_first_failure(process(1), *own) == own
    closed = ("interrupted", "RuntimeError: Connection closed by peer")
    expected = ("diverged", "process 1 failed first: the loss is not finite")
    assert report_first_failure(process(0), *closed) == expected
    assert report_first_failure(process(0, of=1), *closed) == closed, "one process asks nobody"


def test_a_process_that_loses_another_one_gives_its_reason_without_a_traceback(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    report_first_failure(process(0), "interrupted", "InputError: reviews.csv, line 3: no label")
    reason = "process 0 failed first: InputError: reviews.csv, line 3"
    with pytest.raises(InputError, match=reason), exit_together_on_failure(process(1)):
        raise RuntimeError("Connection closed by peer")


def test_without_a_group_the_own_reason_remains():
    assert report_first_failure(process(0), "interrupted", "OSError: no") == (
        "interrupted",
        "OSError: no",
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", full_except(["fails", "leaves", "none"], ["fails"]))
def test_a_failing_process_ends_one_that_waits_in_cpp(tmp_path, case):
    script = Path(__file__).parent / "blocked_process.py"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, script, tmp_path, case],
        env=clean_environment(), capture_output=True, text=True, timeout=2 * SECONDS_BLOCKED,
    )  # fmt: skip
    if case == "fails":
        reason = "process 1 failed first: the loss is not finite"
        assert done.returncode == 1
        assert json.loads((tmp_path / "stop.json").read_text()) == ["diverged", reason]
        assert done.stderr.endswith(f"[rank 0] error: {reason}\n")
        assert time.monotonic() - started < SECONDS_BLOCKED
    else:
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "stop.json").exists()
    assert (tmp_path / "left").exists() == (case != "fails")
