"""Signals are heard at once, and never lost in a library that catches everything."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time

import datasets
import pytest
from datasets.fingerprint import Hasher

from ampft.exit_codes import run_main
from ampft.signals import heard, hearing, raise_if_heard


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


IMPORTS = """
import os, signal, sys
from ampft.ownership import TemporaryFolder
from ampft.exit_codes import run_main

def main():
    if {owns}:
        folder = TemporaryFolder("test")
    sys.path.insert(0, {place!r})
    import interrupted_module, time
    time.sleep(1)

sys.exit(run_main(main))
"""
MODULE = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.05)
finally:
    print("imported", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("owns", [False, True])
def test_a_signal_in_an_import_ends_a_command_at_once_or_after_it(tmp_path, name, owns):
    """It ends at once if nothing is to be removed; an error in C++ would abort it."""
    (tmp_path / "interrupted_module.py").write_text(MODULE.format(name=name))
    words = [sys.executable, "-c", IMPORTS.format(owns=owns, place=str(tmp_path))]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        words, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    number = getattr(signal, name)
    assert (done.returncode, done.stdout) == (128 + number, "imported\n" if owns else "")
    assert done.stderr == ("\ninterrupted\n" if name == "SIGINT" else "")
    assert list(temporary.iterdir()) == []


class Dropped:
    """Is interrupted where Python ignores errors."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


class Looked(dict):
    """Is interrupted in an ordinary method, where errors are raised."""

    def __missing__(self, key):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def drop(held, keys):
    del held[0]
    keys.append("dropped")
    time.sleep(5)


def look_up(held, keys):
    keys.append(held[0]["absent"])
    time.sleep(5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "work", "went_on"),
    [(Dropped, drop, ["dropped"]), (Looked, look_up, [])],
    ids=["finalizer", "control"],
)
def test_an_interruption_in_a_finalizer_is_heard_after_it(held, work, went_on, capsys):
    keys = []
    with pytest.raises(KeyboardInterrupt), hearing():
        work([held()], keys)
    assert keys == went_on
    assert capsys.readouterr().err == ""


CALLED = """
import os, signal, time
from ampft.signals import hearing

with hearing():
    {interrupted}
    time.sleep(20)
"""


@pytest.mark.slow
def test_a_program_that_is_imported_hears_at_once(tmp_path):
    """Only imports inside `hearing` are waited for, not the import of the program itself."""
    interruption = "os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "program.py").write_text(CALLED.format(interrupted=interruption))
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path, "program")
    assert time.monotonic() < begun + 15


@pytest.mark.slow
def test_an_import_inside_is_waited_for(tmp_path):
    """Negative control."""
    (tmp_path / "slow_import.py").write_text(MODULE.format(name="SIGINT"))
    (tmp_path / "program.py").write_text(CALLED.format(interrupted="import slow_import, sys"))
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path, "program")
    assert sys.modules.pop("slow_import")


def run_in(folder, name):
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_command_ends_without_a_search_for_garbage():
    """With torch and transformers it takes more than a second of processor time."""
    script = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "from ampft.exit_codes import run_main\n"
        "{}\n"
    )
    for call, expected in (("sys.exit(run_main(lambda: None))", "True\n"), ("", "False\n")):
        done = subprocess.run(
            [sys.executable, "-c", script.format(call)], capture_output=True, text=True, check=True
        )
        assert done.stdout == expected


@pytest.mark.slow
def test_an_interruption_before_the_command_begins_is_no_traceback(tmp_path):
    script = """
import builtins, os, signal
original = builtins.__import__
def interrupting(name, *rest):
    if name == "ampft.cli":
        os.kill(os.getpid(), signal.SIGINT)
    return original(name, *rest)
builtins.__import__ = interrupting
from ampft.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
