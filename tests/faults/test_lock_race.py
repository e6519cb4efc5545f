"""A folder has one writer, whatever the order in which several claim and release it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from pathlib import Path

from filelock import unlock_descriptor

from ampft.errors import InputError
from ampft.ownership import PrivateFolder
from ampft.runs.folder import RunFolder

WRITERS, ROUNDS = 6, 40


def most_writers_at_once(
    folder: Path, refusals: tuple[type[Exception], ...] = (InputError,)
) -> tuple[int, int]:
    """Let several writers claim a folder many times; return the most at once, and all claims."""
    inside, most, claims = 0, 0, 0
    counting = threading.Lock()

    def write(seed: int) -> None:
        nonlocal inside, most, claims
        generator = random.Random(seed)
        for _ in range(ROUNDS):
            with contextlib.suppress(*refusals), RunFolder(folder, keep_files=True):
                with counting:
                    inside, claims = inside + 1, claims + 1
                    most = max(most, inside)
                time.sleep(generator.random() / 1000)
                with counting:
                    inside -= 1
            time.sleep(generator.random() / 1000)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return most, claims


def test_one_writer_at_a_time(tmp_path):
    most, claims = most_writers_at_once(tmp_path)
    assert most == 1
    assert claims > ROUNDS / 2
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_removed_after_its_release_admits_two_writers(tmp_path, monkeypatch):
    """Negative control: another writer may have locked the file that is then removed."""

    def close(self, *, keep=False):
        unlock_descriptor(self._descriptor)
        os.close(self._descriptor)
        time.sleep(0.005)
        shutil.rmtree(self.path, ignore_errors=True)

    monkeypatch.setattr(PrivateFolder, "close", close)
    # A folder that disappears under its writer also breaks other assumptions.
    refusals = (InputError, AssertionError, OSError)
    assert most_writers_at_once(tmp_path, refusals)[0] > 1
