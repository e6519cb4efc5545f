"""Finished studies of Optuna, judged after the fact."""

from __future__ import annotations

import pytest
from judged_tables import write_side

import ampft
from ampft.errors import InputError
from ampft.lab.referee.ledger import is_ledger
from ampft.lab.referee.ledger_page import page, read_ledger_report, summary

optuna = pytest.importorskip("optuna")

# Share of wrong predictions and validation score of each trial.
TRIALS = {0: (0.3, 0.70), 1: (0.3, 0.74), 2: (0.3, 0.60), 3: (0.02, 0.97), 4: (0.3, 0.80)}


def study_of(folder, *, direction="maximize", sign=1):
    """Return a study whose trials have tables as their runs."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction=direction)
    for number, (wrong, score) in TRIALS.items():
        trial = study.ask()
        trial.suggest_float("learning_rate", 1e-5, 1e-3)
        trial.set_user_attr("runs", write_side(folder, f"t{number}", wrong))
        study.tell(trial, sign * score)
    study.tell(study.ask(), state=optuna.trial.TrialState.PRUNED)
    return study


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "sign"), [("maximize", 1), ("minimize", -1)])
def test_trials_that_would_have_been_chosen_are_judged(tmp_path, direction, sign):
    study = study_of(tmp_path, direction=direction, sign=sign)
    found = ampft.judge_study(study, tmp_path / "ledger")
    assert [each.answer for each in found] == [None, "drop", "keep"]  # trials 0, 1 and 3
    assert found[2].entry.note.startswith("trial 3: learning_rate ")
    assert found[2].state.settings.tries == 4


def test_a_study_without_runs_or_baseline_is_refused(tmp_path):
    study = study_of(tmp_path)
    with pytest.raises(InputError, match="trial 0: it has no runs"):
        ampft.judge_study(study, tmp_path / "ledger", runs=lambda trial: ())
    with pytest.raises(InputError, match=r"baseline 5: .*Choose one of 0, 1, 2, 3, 4"):
        ampft.judge_study(study, tmp_path / "ledger", baseline=5)
    two = optuna.create_study(directions=["maximize", "minimize"])
    with pytest.raises(InputError, match="2 objectives"):
        ampft.judge_study(two, tmp_path / "ledger")
    assert not is_ledger(tmp_path / "ledger")


@pytest.mark.slow
def test_numbers_of_a_sealed_ledger_are_on_its_page_only_after_the_final_claim(tmp_path):
    ledger = tmp_path / "ledger"
    found = ampft.judge_study(study_of(tmp_path), ledger)
    before = read_ledger_report(ledger)
    assert (before.numbers, before.first_score) == ({}, None)
    assert "are sealed" in summary(before)[-1]
    assert "<script" not in page(before)
    (tmp_path / "new").mkdir()
    sides = {
        side: write_side(tmp_path / "new", side, wrong, prefix="new")
        for side, wrong in (("last", 0.02), ("first", 0.3))
    }
    ampft.judge(ledger, final=True, candidate=sides["last"], best=sides["first"])
    after = read_ledger_report(ledger)
    assert set(after.numbers) == {2, 3}
    assert after.first_score == pytest.approx(0.7, abs=0.05)
    assert after.numbers[3].score == pytest.approx(0.98, abs=0.02)
    low, high = after.numbers[3].interval
    assert low < 0.28 < high
    text = " ".join(summary(after))
    assert "The final claim on new rows is confirmed" in text
    assert "The winner is entry 3" in text
    assert "Choosing the best test score" in text
    assert found[2].entry.trial.answer in page(after)


@pytest.mark.slow
def test_the_page_is_written_and_a_missing_ledger_refused(tmp_path, capsys):
    from ampft import cli

    ledger, file = tmp_path / "ledger", tmp_path / "ledger.html"
    ampft.judge_study(study_of(tmp_path), ledger)
    assert cli.main(["judge", str(ledger), "--page", str(file)]) == 0
    assert "2 tries: 1 kept" in file.read_text(encoding="utf-8")
    assert cli.main(["judge", str(tmp_path / "none"), "--page", str(file)]) == 2
    assert "none" in capsys.readouterr().err
