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

from ampft import ownership
from ampft.errors import InputError
from ampft.ownership import PrivateFolder
from ampft.runs.folder import RunFolder

WRITERS, ROUNDS = 6, 40


def most_writers_at_once(folder: Path) -> tuple[int, int]:
    """Let several writers claim a folder many times; return the most at once, and all claims."""
    inside, most, claims = 0, 0, 0
    counting = threading.Lock()

    def write(seed: int) -> None:
        nonlocal inside, most, claims
        generator = random.Random(seed)
        for _ in range(ROUNDS):
            with contextlib.suppress(InputError), RunFolder(folder, keep_files=True):
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
    assert claims >= ROUNDS / 4, "the test has hardly begun"
    assert list(tmp_path.iterdir()) == []


def writers_after_a_release(folder: Path, monkeypatch, *, removes_first: bool) -> int:
    """Let a second writer claim a folder while the first one releases it, then a third one.

    Return how many of the two write at the same time.
    """
    claimed: list[RunFolder] = []

    def claim() -> None:
        with contextlib.suppress(InputError):
            claimed.append(RunFolder(folder, keep_files=True))

    def release(descriptor: int) -> None:
        unlock_descriptor(descriptor)
        if not claimed:
            claim()

    def close_and_then_remove(self, *, keep=False):
        release(self._descriptor)
        os.close(self._descriptor)
        shutil.rmtree(self.path)

    first = RunFolder(folder, keep_files=True)
    with monkeypatch.context() as patch:
        if removes_first:
            patch.setattr(ownership, "unlock_descriptor", release)
        else:
            patch.setattr(PrivateFolder, "close", close_and_then_remove)
        first.close()
    claim()
    writers = len(claimed)
    for writer in claimed:
        writer.close()
    return writers


def test_a_writer_that_claims_a_folder_during_its_release_is_the_only_one(tmp_path, monkeypatch):
    assert writers_after_a_release(tmp_path, monkeypatch, removes_first=True) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_removed_after_its_release_admits_two_writers(tmp_path, monkeypatch):
    """Negative control: another writer has locked the file that is then removed."""
    assert writers_after_a_release(tmp_path, monkeypatch, removes_first=False) == 2
