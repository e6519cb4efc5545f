"""Models that learned nothing are equivalent through no door; those that learned still are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from run_folders import NAMES, SEEDS, labels, predicted, write_run

import ampft
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.answer import answer_text
from ampft.comparison.findings import PlanFacts
from ampft.comparison.remarks import remark_texts
from ampft.comparison.verdict_text import verdict_texts
from ampft.integrations.foreign_predictions import compare_tables

N = 900
MARGIN = 0.03
WARNING = {"one_prediction": "the model predicts 'no' for every example."}
GOOD, NEARLY = range(60), range(1, 61)


def constant():
    return 0 * labels(N)


def write_table(path, predictions, **columns) -> str:
    names = pd.Series(NAMES)
    frame = pd.DataFrame({"id": range(N), "label": names[labels(N)].to_numpy()})
    frame["prediction"] = names[predictions].to_numpy()
    frame.assign(**columns).to_csv(path, index=False)
    return f"{path.stem}={path}"


def assert_no_verdict(comparison, because: str) -> None:
    assert comparison.arms[1].difference.verdict is None
    assert comparison.arms[1].outcome == ""
    (text,) = verdict_texts(comparison)
    assert "has no verdict, because" in text
    assert because in text
    assert "equivalent" not in text + answer_text(comparison)
    assert remark_texts(comparison.stamps)[0].startswith("not trained well: ")


def finished(folder, one, other, **changes):
    runs = [
        write_run(folder, arm, 42, each, truth=labels(N), **changes)
        for arm, each in (("fp32", one), ("bf16", other))
    ]
    return compare_folders(runs, margin=MARGIN)


def test_two_finished_runs_that_learned_nothing_are_not_equivalent(tmp_path):
    found = finished(tmp_path / "nothing", constant(), constant(), warnings=WARNING)
    assert_no_verdict(found, "for every example")
    assert answer_text(found) == "No answer: fp32 and bf16 did not train well."
    learned = finished(tmp_path / "learned", predicted(GOOD, N), predicted(NEARLY, N))
    assert learned.arms[1].outcome == "equivalent"


RARE = "'maybe' is never predicted (5 of 1000 training rows)."


@pytest.mark.parametrize("name", ["never_predicted", "served_back", "batch_norm", "compilation"])
def test_a_warning_that_is_not_about_the_training_leaves_the_verdict(tmp_path, name):
    """A rare class that is never predicted took the verdict from every comparison."""
    found = finished(tmp_path, predicted(GOOD, N), predicted(NEARLY, N), warnings={name: RARE})
    assert found.arms[1].outcome == "equivalent"
    assert "did not train well" not in answer_text(found)
    (stamp,) = (s for s in remark_texts(found.stamps) if "'maybe' is never predicted" in s)
    assert stamp.startswith("warnings, which do not prevent a verdict: 2 of 2 runs have one, ")


def test_a_candidate_that_never_predicts_a_rare_class_can_be_kept(tmp_path):
    warnings = {"never_predicted": RARE}
    best, good = (
        [
            write_run(
                tmp_path / name,
                "fp32",
                seed,
                predicted(range(seed % 5, N, every), N),
                truth=labels(N),
                warnings=warnings,
            )
            for seed in SEEDS
        ]
        for name, every in (("best", 2), ("good", 20))
    )
    ledger = ampft.judge(tmp_path / "ledger", best=best).ledger
    found = ampft.judge(ledger, candidate=good)
    assert found.entry.trial.learned_nothing == ""
    assert found.answer == "keep"


@pytest.mark.slow
def test_planned_runs_that_learned_nothing_are_not_equivalent(tmp_path):
    runs = [
        write_run(tmp_path, arm, seed, constant(), truth=labels(N), warnings=WARNING)
        for arm in ("fp32", "bf16")
        for seed in SEEDS
    ]
    plan = PlanFacts(planned=True, seed_counts=(len(SEEDS),))
    assert_no_verdict(compare_folders(runs, margin=MARGIN, plan=plan), "5 of 5 runs of fp32")


def test_tables_of_models_that_learned_nothing_are_not_equivalent(tmp_path):
    same = [write_table(tmp_path / f"{name}.csv", constant()) for name in ("old", "new")]
    assert_no_verdict(compare_tables(same, margin=MARGIN), "predicts the same for every example")
    luck = [
        write_table(tmp_path / f"{name}.csv", np.random.default_rng(1).permutation(labels(N)))
        for name in ("old", "new")
    ]
    assert_no_verdict(compare_tables(luck, margin=MARGIN), "not shown to be better")
    learned = [
        write_table(tmp_path / f"{name}.csv", predicted(wrong, N))
        for name, wrong in (("old", GOOD), ("new", NEARLY))
    ]
    assert compare_tables(learned, margin=MARGIN).arms[1].outcome == "equivalent"


def test_a_table_that_learned_nothing_is_still_worse(tmp_path):
    tables = [
        write_table(tmp_path / "old.csv", predicted(GOOD, N)),
        write_table(tmp_path / "new.csv", constant()),
    ]
    comparison = compare_tables(tables, margin=MARGIN)
    assert comparison.arms[1].outcome == "worse"
    assert answer_text(comparison).startswith("new is worse than old")


@pytest.mark.slow
def test_folds_that_learned_nothing_are_not_equivalent(tmp_path):
    sources = [
        write_table(tmp_path / f"{arm}-seed{seed}.csv", constant(), fold=labels(N)).partition("=")[
            2
        ]
        for arm in ("old", "new")
        for seed in SEEDS
    ]
    assert_no_verdict(compare_tables(sources, margin=MARGIN), "5 of 5 runs of old")
