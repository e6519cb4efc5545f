"""Writes checkpoints in the background, one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """A thread that writes; its errors surface when the training asks for them."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._current: Future[object] | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Wait for the job before, raise its error, and start another."""
        self.wait()
        self._current = self._executor.submit(job)

    def check(self) -> None:
        """Raise the error of the current job if it has failed; do not wait for it."""
        if self._current is not None and self._current.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the current job, and raise its error."""
        current, self._current = self._current, None
        if current is not None:
            current.result()

    def close(self) -> None:
        """Wait for the current job, whose error is suppressed because another one is reported."""
        with contextlib.suppress(Exception):
            self.wait()
        self._executor.shutdown()
