"""Runs that fail: bad input ends the comparison, anything else is named at its end."""

from __future__ import annotations

import json
import os
import signal

import pytest
from planned import plan

from ampft.arguments import parse_compare_arguments
from ampft.comparison.execution.launch import interruptible
from ampft.comparison.execution.session import open_comparison
from ampft.errors import InputError

pytestmark = pytest.mark.slow

BAD_INPUT = "import sys; print('error: --train_file x: gone', file=sys.stderr); sys.exit(2)"
CRASH = "raise RuntimeError('out of luck')"


def opened(tmp_path, source):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(source)
    return open_comparison(parse_compare_arguments([]), tmp_path / "cmp", plan(), recipe)


def test_bad_input_in_the_first_run_of_an_arm_ends_the_comparison(tmp_path, capsys):
    with (
        pytest.raises(InputError, match=r"^--train_file x: gone$"),
        opened(tmp_path, BAD_INPUT) as comparing,
    ):
        comparing.launch(comparing.missing()[0])
    assert "run 1/9 fp32 seed 42: failed (--train_file x: gone)" in capsys.readouterr().out
    assert (tmp_path / "cmp" / "plan.json").exists()


def crash_in_the_first_run(tmp_path):
    with opened(tmp_path, CRASH) as comparing:
        first = comparing.missing()[0]
        comparing.launch(first)
        assert first in comparing.missing()
        with pytest.raises(InputError, match="3 of 3 seeds lack a run, and 3 are needed"):
            comparing.folders(3)
        comparing.close(3)


def test_a_crash_is_named_at_the_end_with_its_log(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        crash_in_the_first_run(tmp_path)
    shown = capsys.readouterr().out
    log = tmp_path / "cmp" / "logs" / "fp32-seed42.log"
    assert str(log) in shown
    assert "out of luck" in log.read_text()
    assert json.loads((tmp_path / "cmp" / "plan.json").read_text())["looks_taken"] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_says_how_to_go_on(tmp_path, capsys, request, number, code):
    before = signal.signal(number, signal.SIG_DFL)  # what is ignored, as under nohup, stays so
    request.addfinalizer(lambda: signal.signal(number, before))
    with pytest.raises(SystemExit, match=str(code)), opened(tmp_path, CRASH):
        os.kill(os.getpid(), number)
    assert f"ended by {number.name}: 0 of 9 runs have ended." in capsys.readouterr().err
    assert not (tmp_path / "cmp" / ".lock").exists()


def test_where_there_is_no_sighup_the_others_are_heard(monkeypatch, capsys):
    monkeypatch.delattr(signal, "SIGHUP")  # as on Windows
    with pytest.raises(SystemExit, match="143"), interruptible(lambda: "go on."):
        os.kill(os.getpid(), signal.SIGTERM)
    assert capsys.readouterr().err == "\nended by SIGTERM: go on.\n"
