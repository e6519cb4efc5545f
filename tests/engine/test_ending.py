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

from ampft.engine.ending import (
    LOST,
    exit_together_on_failure,
    raise_failure_of_other,
    report_first_failure,
)
from ampft.errors import InputError, OtherProcessFailed, TrainingStopped
from ampft.exit_codes import run_main


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


@pytest.fixture
def store(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    return store


CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5853")


@pytest.mark.usefixtures("store")
def test_the_process_that_fails_first_gives_the_reason():
    own = TrainingStopped("the loss is not finite")
    assert report_first_failure(process(1), own) == ("diverged", str(own))
    expected = ("diverged", "process 1 failed first: the loss is not finite")
    assert report_first_failure(process(0), CLOSED) == expected
    assert report_first_failure(process(0), own) == ("diverged", str(own)), "of all together"
    alone = report_first_failure(process(0, of=1), CLOSED)
    assert alone == ("interrupted", f"RuntimeError: {CLOSED}"), "one process asks nobody"


@pytest.mark.usefixtures("store")
def test_a_process_that_loses_another_one_gives_its_reason_without_a_traceback(capsys):
    report_first_failure(process(0), InputError("reviews.csv, line 3: no label"))

    def main():
        with exit_together_on_failure(process(1)):
            raise CLOSED

    assert run_main(main) == 1
    reason = "process 0 failed first: InputError: reviews.csv, line 3: no label"
    assert capsys.readouterr().err == f"error: {reason}\n"


@pytest.mark.parametrize("has_store", [True, False])  # False: the killed process hosted it
def test_a_process_that_was_killed_leaves_no_reason(request, has_store):
    if has_store:
        request.getfixturevalue("store")
    for rank in (0, 2):
        found = report_first_failure(process(rank, of=3), CLOSED)
        assert found == ("interrupted", LOST)
    with pytest.raises(OtherProcessFailed, match=f"^{LOST}$"):
        raise_failure_of_other(CLOSED, LOST)


@pytest.mark.usefixtures("store")
def test_an_error_of_this_process_stays_what_it_is():
    with pytest.raises(ValueError, match=r"^no label$"), exit_together_on_failure(process(1)):
        raise ValueError("no label")
    with pytest.raises(ValueError, match=r"^other$"), exit_together_on_failure(process(0)):
        raise ValueError("other")


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
