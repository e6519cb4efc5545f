"""A training whose cores other programs use says so, and what to do."""

import pytest

from ampft.features import contention
from ampft.features.contention import ContentionMonitor, CpuTime, contention_note

START = CpuTime(100.0, 20.0, 1000.0)


def later(*, own: float, used: float, wall: float = 4.0) -> CpuTime:
    """The times after `wall` seconds, in which this program had `own` cores and all had `used`."""
    return CpuTime(START.wall + wall, START.own + own * wall, START.all + used * wall)


@pytest.mark.parametrize(
    ("own", "used", "threads", "cores", "is_said"),
    [
        (1.0, 2.0, 2, 2, True),  # a busy loop on each of two cores
        (0.4, 2.0, 2, 2, True),
        (30.0, 64.0, 64, 64, True),
        (0.5, 4.0, 2, 4, True),
        (1.9, 2.0, 16, 2, False),  # more threads than cores get all cores
        (2.0, 2.0, 2, 2, False),  # nobody else
        (1.2, 1.2, 2, 2, False),  # a small model on a quiet machine, whose threads sleep
        (1.0, 2.0, 1, 2, False),  # one thread never waits for another
        (8.0, 30.0, 8, 64, False),  # others, on other cores
    ],
)
def test_only_threads_that_others_keep_from_running_are_named(own, used, threads, cores, is_said):
    note = contention_note(START, later(own=own, used=used), threads=threads, cores=cores)
    if not is_said:
        assert note is None
    else:
        assert f"get the time of {own:.1f} of {cores} cores" in note
        assert "OMP_WAIT_POLICY=passive" in note


def test_a_run_says_it_once_and_not_before_it_can_know(monkeypatch):
    looks = [  # the times of each look, since the start of the preparation
        later(own=1, used=2, wall=2.9),  # too early
        later(own=2, used=2, wall=4.0),  # nobody else
        later(own=1.5, used=2, wall=8.0),  # others for the last four seconds
        later(own=1.2, used=2, wall=12.0),
    ]
    lines = []
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(CpuTime, "now", classmethod(lambda _: looks[0]))
    monkeypatch.setattr(contention.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(contention.time, "perf_counter", lambda: looks[0].wall)
    monitor = ContentionMonitor(2, START, lines.append)
    monitor.begin()
    for expected in (0, 1, 1):
        looks.pop(0)
        monitor.after_step(None)
        assert len(lines) == expected
    assert lines[0].startswith("threads ")


def test_nothing_is_said_of_threads_that_sleep(monkeypatch):
    lines = []
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(CpuTime, "now", classmethod(lambda _: later(own=1, used=2)))
    monkeypatch.setattr(contention.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(contention.time, "perf_counter", lambda: START.wall + 4)
    ContentionMonitor(2, START, lines.append).begin()
    assert lines == []
