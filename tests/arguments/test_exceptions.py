"""Every exception of ampft can be pickled, and is raised again with the words of Python."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import signal

import pytest

import ampft
from ampft.arguments.parsing import messages_for_python
from ampft.engine.step import StepOutcome, StepStopped
from ampft.errors import InputError, Preempted, TrainingStopped

MESSAGE = "--learning_rate 30: too high"
VALUES = {
    "message": MESSAGE,
    "outcome": StepOutcome(float("inf"), float("inf"), None, True, 30.0),
    "number": signal.SIGTERM,
}


def exceptions() -> list[type[Exception]]:
    for module in pkgutil.walk_packages(ampft.__path__, "ampft."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting, found = [Exception], []
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        found += [c for c in below if c.__module__.split(".")[0] == "ampft"]
    return sorted(set(found), key=lambda c: c.__name__)


def make(kind: type[Exception]) -> Exception:
    if not inspect.isfunction(kind.__init__):
        return kind(MESSAGE)
    return kind(*(VALUES.get(name, name) for name in inspect.signature(kind).parameters))


def is_copied_by_pickle(error: Exception) -> bool:
    try:
        copy = pickle.loads(pickle.dumps(error))
    except TypeError:
        return False
    return (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_every_exception_is_copied_by_pickle():
    found = exceptions()
    assert {StepStopped, InputError, TrainingStopped, Preempted} < set(found)
    assert [kind for kind in found if not is_copied_by_pickle(make(kind))] == []


class _Forgetful(TrainingStopped):
    def __init__(self, message: str, outcome: StepOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def test_an_exception_that_keeps_an_argument_to_itself_is_noticed():
    assert not is_copied_by_pickle(make(_Forgetful))


def test_every_exception_of_a_command_is_raised_again(subtests):
    found = (InputError, TrainingStopped, Preempted)
    kinds = [kind for kind in (*exceptions(), _Forgetful) if issubclass(kind, found)]
    assert StepStopped in kinds
    for kind in kinds:
        with subtests.test(kind.__name__):
            is_raised_again(kind)


def is_raised_again(kind: type[Exception]) -> None:
    original = make(kind)
    with (
        pytest.raises(kind, match=r"^learning_rate 30: too high$") as caught,
        messages_for_python(),
    ):
        raise original
    assert caught.value is original
    assert vars(caught.value) == vars(make(kind))
    # Only the lines of this test and of the context: nothing of the command.
    assert {entry.path.name for entry in caught.traceback} <= {"test_exceptions.py", "keywords.py",
                                                               "contextlib.py"}  # fmt: skip
