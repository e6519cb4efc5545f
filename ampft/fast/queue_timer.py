"""Whether the host queues steps as slowly as the device takes for them, so that graphs help."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# The device waits for the host if it ends a step when the host has just queued the last kernel.
QUEUE_SHARE = 0.8
SKIPPED_STEPS, TIMED_STEPS = 2, 5


@dataclass
class QueueTimer:
    """Compares how long the host queues steps with how long the device takes for them.

    No step is waited for: its times are read when the next one begins, after the optimizer step has
    read its loss.
    """

    # Function that returns a new event of the device's stream that records its time.
    event: Callable[[], Any]
    # Seconds of the host and of the device for each timed step.
    times: list[tuple[float, float]] = field(default_factory=list)
    _last: tuple[float, Any, Any] | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the forward and backward passes of a step, which begin on an idle device."""
        if self._last is not None and self._last[2].query():
            queued, start, end = self._last
            self.times.append((queued, start.elapsed_time(end) / 1000))
        start, end = self.event(), self.event()
        start.record()
        began = time.perf_counter()
        yield
        end.record()
        self._last = (time.perf_counter() - began, start, end)

    @property
    def is_decided(self) -> bool:
        """Whether enough steps were timed."""
        return len(self.times) >= SKIPPED_STEPS + TIMED_STEPS

    @property
    def seconds(self) -> tuple[float, float]:
        """Medians of the host's and the device's seconds per step, without the first steps."""
        host, device = zip(*self.times[SKIPPED_STEPS:], strict=True)
        return statistics.median(host), statistics.median(device)

    @property
    def is_launch_bound(self) -> bool:
        """Whether the device waits for the host; False until that is known."""
        if not self.is_decided:
            return False
        host, device = self.seconds
        return host >= QUEUE_SHARE * device

    def decision(self) -> str:
        """Return the decision in words."""
        host, device = (f"{1000 * seconds:.3g} ms" for seconds in self.seconds)
        word = "on" if self.is_launch_bound else "off"
        return f"{word}: the host queues a step in {host}, and the device takes {device}"

    def as_dict(self) -> dict[str, object]:
        """Return the decision and its numbers, for the record; None for what is not known yet."""
        host, device = self.seconds if self.is_decided else (None, None)
        return {
            "is_launch_bound": self.is_launch_bound if self.is_decided else None,
            "queue_seconds": host,
            "device_seconds": device,
            "least_share": QUEUE_SHARE,
        }
