"""Failing runs: invalid input stops the comparison; other failures are listed at the end."""

from __future__ import annotations

import json
import os
import signal

import pytest
from planned import plan

from ampft.comparison.execution.session import open_comparison
from ampft.comparison.settings import parse_compare_arguments
from ampft.errors import InputError
from ampft.exit_codes import interruptible

pytestmark = pytest.mark.slow

BAD_INPUT = "import sys; print('error: --train_file x: gone', file=sys.stderr); sys.exit(2)"
CRASH = "raise RuntimeError('out of luck')"


def opened(tmp_path, source):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(source)
    return open_comparison(parse_compare_arguments([]), tmp_path / "cmp", plan(), recipe)


@pytest.mark.full
def test_invalid_input_in_the_first_run_of_an_arm_stops_the_comparison(tmp_path, capsys):
    with (
        pytest.raises(InputError, match=r"^--train_file x: gone$"),
        opened(tmp_path, BAD_INPUT) as session,
    ):
        session.train([session.missing()[0]])
    assert "run 1/9 fp32 seed 42: failed (--train_file x: gone)" in capsys.readouterr().out
    assert (tmp_path / "cmp" / "plan.json").exists()


def crash_in_the_first_run(tmp_path):
    with opened(tmp_path, CRASH) as session:
        first = session.missing()[0]
        session.train([first])
        assert first in session.missing()
        with pytest.raises(
            InputError, match="3 of 3 seeds lack a run, but at least 3 complete seeds"
        ):
            session.analysed(3)
        session.close(3)


def test_a_crash_is_listed_at_the_end_with_its_log(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        crash_in_the_first_run(tmp_path)
    out = capsys.readouterr().out
    log = tmp_path / "cmp" / "logs" / "fp32-seed42.log"
    assert str(log) in out
    assert "out of luck" in log.read_text()
    assert json.loads((tmp_path / "cmp" / "plan.json").read_text())["seeds_analysed"] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_prints_how_to_continue(tmp_path, capsys, request, number, code):
    before = signal.signal(
        number, signal.SIG_DFL
    )  # an ignored signal, as under nohup, stays ignored
    request.addfinalizer(lambda: signal.signal(number, before))
    with pytest.raises(SystemExit, match=str(code)), opened(tmp_path, CRASH):
        os.kill(os.getpid(), number)
    assert f"terminated by {number.name}: 0 of 9 runs are complete." in capsys.readouterr().err
    assert not (tmp_path / "cmp" / ".lock").exists()


def test_without_sighup_other_signals_are_handled(monkeypatch, capsys):
    monkeypatch.delattr(signal, "SIGHUP")  # as on Windows
    with pytest.raises(SystemExit, match="143"), interruptible(lambda: "go on."):
        os.kill(os.getpid(), signal.SIGTERM)
    assert capsys.readouterr().err == "\nterminated by SIGTERM: go on.\n"
