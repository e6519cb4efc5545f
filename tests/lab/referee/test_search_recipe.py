"""`recipes/search.py` with trainings that are replaced by tables of a known accuracy."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from judged_tables import write_table
from running import clean_environment

import ampft
from ampft.lab.referee.ledger import read_entries

optuna = pytest.importorskip("optuna")
RECIPES = Path(__file__).parents[3] / "recipes"
FILES = ("train.csv", "validation.csv", "test.csv")
SHARES = {0: 0.3, 1: 0.3, 2: 0.02, 3: 0.3, 4: 0.01}  # wrong predictions by trial


class Killed(BaseException):
    """Stands for a signal that ends the process."""


@pytest.fixture
def search(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(RECIPES))
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).write_text(f"text,label\n{name},a\n")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return importlib.import_module("search")


def finetune_with(wrong_share, trained):
    """Return a stand-in for `ampft.finetune`, with a share of wrong predictions by folder.

    As `resume_from_checkpoint="latest"` does, it returns a run that has finished as it is.
    """

    def finetune(train, *, seed, output_dir, resume_from_checkpoint, **settings):
        assert resume_from_checkpoint == "latest"
        trial, table = int(output_dir.name.partition("-")[0]), Path(f"{output_dir}.csv")
        share = wrong_share[trial]
        if not table.exists():
            trained.append((output_dir.name, settings["learning_rate"]))
            write_table(table, seed, share)
        value = 1 - share + 0.001 * np.sin(seed)
        return SimpleNamespace(
            folder=table, record=SimpleNamespace(best=SimpleNamespace(value=value))
        )

    return finetune


@pytest.fixture
def trained(monkeypatch):
    """The trainings so far: name of the folder, and learning rate."""
    trained = []
    monkeypatch.setattr(ampft, "finetune", finetune_with(SHARES, trained), raising=False)
    return trained


def answers(folder: Path) -> list[str]:
    return [entry.trial.answer for entry in read_entries(folder)[0][1:]]


def test_trials_that_validate_better_are_judged(search, trained, capsys):
    search.main(*FILES, trials=3)
    assert answers(Path("search/ledger")) == ["keep"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in (lines[1], lines[3])] == ["best", "keep"]
    assert "not judged" in lines[2]


def killed_at(number: int, monkeypatch, kill: Callable[[], None]) -> None:
    """Make the search end at its n-th write, n from 0: of the study's log or of the ledger."""
    from optuna.storages.journal import JournalFileBackend

    from ampft.lab.referee import judge

    count = 0

    def counted(write):
        def writing(*args, **kwargs):
            nonlocal count
            count += 2
            if count - 2 == number:
                kill()
            result = write(*args, **kwargs)
            if count - 1 == number:
                kill()
            return result

        return writing

    for owner, name in ((JournalFileBackend, "append_logs"), (judge, "append_entry")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


def raise_killed() -> None:
    raise Killed


@pytest.mark.slow
def test_a_search_that_is_killed_anywhere_continues_to_the_same_result(
    search, trained, monkeypatch, capsys, tmp_path
):
    search.main(*FILES, trials=5)
    expected, of_all = capsys.readouterr().out, [*trained]
    expected_answers = answers(Path("search/ledger"))
    kills = 0
    for number in range(0, 1000, 7):  # an even one kills before a write, an odd one after it
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        with monkeypatch.context() as context:
            context.chdir(folder)
            for name in FILES:
                Path(name).write_text((tmp_path / name).read_text())
            trained.clear()
            ended = False
            with context.context() as killing, contextlib.suppress(Killed):
                killed_at(number, killing, raise_killed)
                search.main(*FILES, trials=5)
                ended = True
            if ended:
                break
            kills += 1
            search.main(*FILES, trials=5)
            assert capsys.readouterr().out == expected
            assert answers(Path("search/ledger")) == expected_answers
            assert trained == of_all, "no run is trained twice, and none with other settings"
    assert kills > 10


@pytest.mark.slow
def test_a_killed_process_continues_by_the_same_command(search, tmp_path):
    """A real process, killed by the system at several times."""
    (tmp_path / "own.py").write_text(
        "import sys, time\n"
        f"sys.path[:0] = [{str(RECIPES)!r}, {str(Path(__file__).parent)!r}]\n"
        "import ampft, search, test_search_recipe as stand_in\n"
        "def slowly(*args, **settings):\n"
        "    time.sleep(0.05)\n"
        "    return stand_in.finetune_with(stand_in.SHARES, [])(*args, **settings)\n"
        "ampft.finetune = slowly\n"
        "search.main(*stand_in.FILES, trials=5)\n"
    )
    command = [sys.executable, "own.py"]
    environment = clean_environment(PYTHONPATH=str(RECIPES.parent / "tests"))
    kills = 0
    for waiting in (0.05, 0.4, 0.9, 60.0):
        with subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            begun = time.monotonic()
            while not Path("search/study.log").exists() and time.monotonic() < begun + 60:
                time.sleep(0.01)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(waiting)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            out = process.stdout.read()
    assert process.returncode == 0
    assert kills >= 1
    finished = Path("search").rename("interrupted")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == out
    assert answers(finished / "ledger") == answers(Path("search/ledger"))


def test_a_study_of_something_else_is_refused(search, trained):
    search.main(*FILES, trials=2)
    before = Path("search/study.log").read_bytes()
    with pytest.raises(ampft.InputError, match="study with other trials and settings"):
        search.main(*FILES, trials=3, num_train_epochs=1)
    Path("test.csv").write_text("text,label\nother,b\n")
    with pytest.raises(ampft.InputError, match="study with other files"):
        search.main(*FILES, trials=2)
    assert Path("search/study.log").read_bytes() == before


def test_a_search_that_was_refused_before_it_trained_can_be_corrected(search, trained, monkeypatch):
    finetune = ampft.finetune

    def refuse(*files, **settings):
        raise ampft.InputError("train.csv has no column called label")

    monkeypatch.setattr(ampft, "finetune", refuse)
    with pytest.raises(ampft.InputError, match="no column called label"):
        search.main(*FILES, trials=2)
    monkeypatch.setattr(ampft, "finetune", finetune)
    Path("train.csv").write_text("text,label\ncorrected,a\n")
    search.main(*FILES, trials=2, num_train_epochs=1)
    assert len(trained) == 10
    Path("train.csv").write_text("text,label\nchanged,a\n")  # negative control
    with pytest.raises(ampft.InputError, match="study with other files"):
        search.main(*FILES, trials=2, num_train_epochs=1)


def test_a_folder_of_something_else_is_refused(search, trained):
    Path("search").mkdir()
    Path("search/notes.txt").touch()
    with pytest.raises(ampft.InputError, match=r"search/ has files that no search wrote"):
        search.main(*FILES)
    assert not trained
    assert [path.name for path in Path("search").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("files", "message"),
    [((), "usage: python search.py train.csv"), ((*FILES[:2], "gone.csv"), "gone.csv: no such")],
)
def test_without_its_files_it_says_so(search, files, message):
    with pytest.raises(ampft.InputError, match=message):
        search.main(*files)
    assert not Path("search").exists()


@pytest.mark.parametrize("seeds", [(1, 2), (1, 2, 2)])
def test_too_few_seeds_are_refused_before_any_training(search, trained, monkeypatch, seeds):
    monkeypatch.setattr(search, "SEEDS", seeds)
    with pytest.raises(ampft.InputError, match=r"judged over at least 3\. Add seeds"):
        search.main(*FILES, trials=2)
    assert not trained
    assert not Path("search").exists()


def test_a_second_search_in_the_same_folder_is_refused(search, trained):
    from filelock import FileLock

    Path("search").mkdir()
    with FileLock("search/lock"):
        Path("search/study.log").touch()
        with pytest.raises(ampft.InputError, match="another search is running"):
            search.main(*FILES)


def test_a_trial_that_diverges_is_left_and_the_first_ends_the_search(search, trained, monkeypatch):
    usual = ampft.finetune

    def diverging(train, *, output_dir, **settings):
        if output_dir.name.startswith(diverges):
            raise ampft.TrainingStopped("the loss is not finite")
        return usual(train, output_dir=output_dir, **settings)

    monkeypatch.setattr(ampft, "finetune", diverging, raising=False)
    diverges = "1-"
    search.main(*FILES, trials=3)
    assert answers(Path("search/ledger")) == ["keep"]
    Path("search").rename("earlier")
    diverges = "0-"
    with pytest.raises(ampft.TrainingStopped, match="not finite"):
        search.main(*FILES, trials=3)
