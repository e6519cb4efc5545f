"""Signals are heard at once, and never lost in a library that catches everything."""

from __future__ import annotations

import os
import signal
import time

import datasets
import pytest
from datasets.fingerprint import Hasher

from ampft.signals import heard, hearing, raise_if_heard
from ampft.text.terminal import run_main


class Interrupting:
    """Is interrupted while datasets computes a fingerprint from it."""

    def __init__(self, number=signal.SIGINT):
        self.number = number

    def __reduce__(self):
        os.kill(os.getpid(), self.number)
        time.sleep(0.05)  # until the signal is handled
        return Interrupting, ()


def mapped(value):
    rows = datasets.Dataset.from_dict({"number": [1, 2]})
    return rows.map(lambda row: {"is_set": value is not None})


def test_datasets_swallows_an_interruption():
    """Negative control: without this, the files of `_SWALLOWING` can be shortened."""
    assert len(mapped(Interrupting())) == 2
    with pytest.raises(KeyboardInterrupt):
        Hasher.hash(Interrupting())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143)],
)
def test_an_interruption_during_a_fingerprint_is_heard_after_it(number, error, code):
    def work():
        with hearing():
            mapped(Interrupting(number))
            time.sleep(5)

    with pytest.raises(error) as caught:
        work()
    assert getattr(caught.value, "code", None) == code
    assert heard() == 0


def test_an_interruption_that_was_swallowed_is_heard_at_the_next_phase():
    def work():
        with hearing():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            except BaseException:
                assert heard() == signal.SIGINT
            raise_if_heard()

    with pytest.raises(KeyboardInterrupt):
        work()
    raise_if_heard()  # it is over


def test_an_interruption_that_became_another_error_is_no_traceback(capsys):
    def main():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt as error:
            raise ImportError("a part of it is missing") from error

    assert run_main(main) == 130
    assert capsys.readouterr().err.endswith("\ninterrupted\n")


def test_another_error_stays_one():
    """Negative control."""

    def main():
        raise ImportError("a part of it is missing")

    with pytest.raises(ImportError, match="a part"):
        run_main(main)
