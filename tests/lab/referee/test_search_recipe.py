"""`recipes/search.py` with trainings that are replaced by tables of a known accuracy."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from judged_tables import write_table

import ampft
from ampft.lab.referee.ledger import read_entries

optuna = pytest.importorskip("optuna")
RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.fixture
def search(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(RECIPES))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search").mkdir()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return importlib.import_module("search")


def finetune_with(wrong_share):
    """Return a stand-in for `ampft.finetune`, with a share of wrong predictions by folder."""

    def finetune(train, *, seed, output_dir, **settings):
        trial = int(Path(output_dir).name.partition("-")[0])
        share = wrong_share(trial)
        table = write_table(Path(f"{output_dir}.csv"), seed, share)
        value = 1 - share + 0.001 * np.sin(seed)
        return SimpleNamespace(
            folder=table, record=SimpleNamespace(best=SimpleNamespace(value=value))
        )

    return finetune


def test_trials_that_validate_better_are_judged(search, monkeypatch, capsys):
    shares = {0: 0.3, 1: 0.02, 2: 0.3}
    monkeypatch.setattr(ampft, "finetune", finetune_with(shares.__getitem__), raising=False)
    search.main("train.csv", "validation.csv", "test.csv", trials=3)
    entries, _ = read_entries(Path("search/ledger"))
    assert [entry.trial.answer for entry in entries[1:]] == ["keep"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["best", "keep"]
    assert "PRUNED" in lines[3] or "not judged" in lines[3]
