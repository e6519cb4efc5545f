"""Signals become requests to stop; a second one, or a closed terminal, leaves at once."""

from __future__ import annotations

import signal
import time
from unittest.mock import patch

import pytest
from accelerate import Accelerator

from ampft.engine.ending import REPEATED_SECONDS, StopSignalMonitor, TimeLimit
from ampft.signals import StopRequested

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def stop():
    return StopSignalMonitor(Accelerator(cpu=True))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_request_that_the_next_poll_raises(stop, capfd, number):
    before = signal.getsignal(number)
    with stop.listening():
        stop.poll()
        signal.raise_signal(number)
        with pytest.raises(StopRequested, match=number.name):
            stop.poll()
    assert signal.getsignal(number) is before
    assert f"{number.name}: stopping after this step" in capfd.readouterr().err


@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_leaves_at_once(stop, second):
    with stop.listening():
        signal.raise_signal(signal.SIGTERM)
        # A launcher may forward the first one.
        signal.raise_signal(second)
        later = time.monotonic() + REPEATED_SECONDS
        with (
            patch("time.monotonic", return_value=later),
            pytest.raises(SystemExit, match=str(128 + second)),
        ):
            signal.raise_signal(second)


def test_a_closed_terminal_leaves_at_once_unless_ignored(stop):
    with stop.listening(), pytest.raises(SystemExit, match="129"):
        signal.raise_signal(signal.SIGHUP)
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with stop.listening():
            signal.raise_signal(signal.SIGHUP)
            stop.poll()
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert not stop.received


def test_a_time_limit_counts_earlier_parts_of_the_run(stop):
    now = time.perf_counter()
    limits = [TimeLimit(None, now, 99.0), TimeLimit(60.0, now), TimeLimit(60.0, now, earlier=59.9)]
    time.sleep(0.15)
    for limit in limits:
        stop.poll(limit)
    assert [limit.is_reached for limit in limits] == [False, False, True]


def test_the_only_process_polls_instead_of_voting(stop):
    limit = TimeLimit(60.0, time.perf_counter(), earlier=60.0)
    assert stop.votes(limit) == []
    stop.decide((), limit)
    assert limit.is_reached


def test_votes_of_several_processes_decide(stop):
    limit = TimeLimit(60.0, time.perf_counter())
    nobody, one, late = ([0.0] * (len(SIGNALS) + 1) for _ in range(3))
    one[SIGNALS.index(signal.SIGTERM)] = 1.0
    late[-1] = 2.0
    stop.decide(nobody, limit)
    assert not limit.is_reached
    stop.decide(late, limit)
    assert limit.is_reached
    with pytest.raises(StopRequested, match="SIGTERM"):
        stop.decide(one, limit)
