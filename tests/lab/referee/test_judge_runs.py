"""`ampft judge` on run folders."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_folders import SEEDS, predicted, record_of, write_run

import ampft
from ampft import cli
from ampft.errors import InputError
from ampft.files import describe_file
from ampft.lab.referee.answer_text import judgement_text
from ampft.lab.referee.ledger_audit import audit_ledger
from ampft.runs.record import DataPart

SHARES = {"base": 0.2, "good": 0.02, "null": 0.2}


def write_side(parent, name: str, share: float, learning_rate: float, seeds=SEEDS, **changes):
    """Write runs in fp32 with another learning rate, which are wrong on a share of the rows."""
    folders = []
    for seed in seeds:
        random = np.random.default_rng([seed, *name.encode()])
        wrong = np.flatnonzero(random.random(200) < share)
        arguments = {**record_of("fp32", seed).arguments, "learning_rate": learning_rate}
        values = {"name": f"{name}-seed{seed}", "arguments": arguments, **changes}
        folders.append(write_run(parent, "fp32", seed, predicted(wrong), **values))
    return folders


@pytest.fixture
def ledger(tmp_path):
    return ampft.judge(tmp_path / "ledger", best=write_side(tmp_path, "base", 0.2, 1e-5)).ledger


def data_part(**fingerprints: str) -> DataPart:
    part = record_of("fp32", 42).data
    return replace(part, fingerprints={**part.fingerprints, **fingerprints})


@pytest.mark.slow
def test_runs_are_judged_and_their_changed_settings_written_down(ledger, tmp_path):
    dropped = ampft.judge(ledger, candidate=write_side(tmp_path, "null", 0.2, 2e-5))
    assert dropped.answer == "drop"
    assert dropped.entry.trial.changes == {"learning_rate": [1e-5, 2e-5]}
    kept = ampft.judge(ledger, candidate=write_side(tmp_path, "good", 0.02, 3e-5))
    assert kept.answer == "keep"
    assert kept.state.test.fingerprint == "cd" * 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": data_part(train="cd" * 32)}, "its train split is the test set of the ledger"),
        ({"data": data_part(test="ef" * 32)}, "differ from the ledger's test set"),
        ({"status": "diverged"}, "has not finished"),
        ({"metrics": {"selected": True}}, "its best epoch was chosen on the rows"),
    ],
)
def test_runs_that_saw_the_test_rows_or_others_are_refused(ledger, tmp_path, changes, message):
    candidate = write_side(tmp_path, "other", 0.1, 2e-5, **changes)
    with pytest.raises(InputError, match=message):
        ampft.judge(ledger, candidate=candidate)
    assert [path.name for path in ledger.glob("entry-*")] == ["entry-000001.json"]


@pytest.mark.slow
def test_a_refusal_does_not_say_which_labels_of_a_run_differ(ledger, tmp_path):
    candidate = [Path(folder) for folder in write_side(tmp_path, "other", 0.1, 2e-5)]
    path = candidate[0] / "predictions.parquet"
    table = pq.read_table(path)
    ids = table["label_id"].to_pylist()
    ids[7] = 1 - ids[7]
    index = table.schema.get_field_index("label_id")
    pq.write_table(table.set_column(index, table.schema.field(index), [ids]), path)
    with pytest.raises(InputError, match="does not predict the test set of the ledger") as caught:
        ampft.judge(ledger, candidate=candidate)
    said = str(caught.value).replace(str(candidate[0]), "")
    assert not re.search(r"\d|yes|maybe", said)


@pytest.mark.slow
def test_a_side_is_one_procedure_with_one_run_per_seed(ledger, tmp_path):
    mixed = write_side(tmp_path, "one", 0.1, 2e-5, SEEDS[:3])
    mixed += write_side(tmp_path, "two", 0.1, 3e-5, SEEDS[3:])
    with pytest.raises(InputError, match="its runs differ in learning_rate"):
        ampft.judge(ledger, candidate=mixed)
    twice = write_side(tmp_path, "three", 0.1, 3e-5, SEEDS[:1])
    with pytest.raises(InputError, match="both have seed 42"):
        ampft.judge(ledger, candidate=[*mixed[:3], *twice])


@pytest.fixture
def leaking(tmp_path):
    """Write runs whose training files have rows of the test set."""
    texts = [f"Text {i}!" for i in range(200)]  # equal but for case and punctuation; one is longer
    (tmp_path / "more.csv").write_text("text,label\nSomething else,no\n")
    rows = "".join(f"{text},no\n" for text in texts)
    (tmp_path / "train.csv").write_text(f"text,label\nTest row 0,no\n{rows}")

    def write(train_file: str, *, shared: int | None = None):
        paths = [
            path for part in train_file.split(",") for path in sorted(Path("/").glob(part[1:]))
        ]
        data = replace(
            record_of("fp32", 42).data,
            input_columns=("text",),
            files={str(path): describe_file(path).sha256 for path in paths},
            shared_with_train=None if shared is None else {"test": shared},
        )
        folders = []
        for seed in SEEDS:
            arguments = {**record_of("fp32", seed).arguments, "train_file": train_file}
            values = {"name": f"leak-seed{seed}", "arguments": arguments, "data": data}
            wrong = np.arange(seed % 5)
            folders.append(write_run(tmp_path, "fp32", seed, predicted(wrong), **values))
        return folders

    return write


@pytest.mark.slow
@pytest.mark.parametrize("files", ["{0}/train.csv", "{0}/more.csv,{0}/train.csv", "{0}/t*.csv"])
def test_training_rows_are_compared_with_the_test_rows(ledger, tmp_path, leaking, files):
    with pytest.raises(InputError, match="training rows contain more rows of the test set"):
        ampft.judge(ledger, candidate=leaking(files.format(tmp_path)))


@pytest.mark.slow
def test_training_rows_that_cannot_be_read_are_said(ledger, leaking):
    judged = ampft.judge(ledger, candidate=leaking("/missing.csv"))
    assert not judged.entry.trial.checked_rows
    assert "not checked for rows of the test set: its record does not say" in judgement_text(judged)


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "is_said"), [(0, False), (200, True)])
def test_a_best_that_was_trained_on_test_rows_is_said(tmp_path, leaking, shared, is_said):
    best = leaking(f"{tmp_path}/more.csv", shared=shared)
    printed = " ".join(judgement_text(ampft.judge(tmp_path / "ledger", best=best)).split())
    assert ("the best was trained on 200 of the test rows" in printed) == is_said
    assert ("warning" in printed) == is_said


@pytest.mark.slow
def test_a_leak_in_the_record_is_refused_whatever_the_file_is_today(ledger, tmp_path, leaking):
    candidate = leaking(f"{tmp_path}/train.csv", shared=200)
    shutil.copy(tmp_path / "more.csv", tmp_path / "train.csv")  # the clean file is copied back
    with pytest.raises(InputError, match="training rows contain more rows of the test set"):
        ampft.judge(ledger, candidate=candidate)


@pytest.mark.slow
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_training_file_that_changed_or_is_gone_is_said_by_judge_and_audit(
    ledger, tmp_path, leaking, is_gone, capsys
):
    candidate = leaking(f"{tmp_path}/more.csv", shared=0)
    judged = ampft.judge(ledger, candidate=candidate)
    assert judged.entry.trial.checked_rows
    assert audit_ledger(ledger).verdict == "confirmed"
    if is_gone:
        (tmp_path / "more.csv").unlink()
    else:
        (tmp_path / "more.csv").write_text("text,label\nOther,no\n")
    words = "its training files are gone" if is_gone else "its training files were changed since"
    with pytest.raises(SystemExit, match="1"):
        cli.main(["audit", str(ledger)])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"entry 2: {words}" in printed
    assert "confirmed" not in printed
    other = tmp_path / "other"
    best = ledger.parent.glob("base-seed*")
    ampft.judge(other, best=list(best))
    again = ampft.judge(other, candidate=candidate)
    assert not again.entry.trial.checked_rows
    assert words in judgement_text(again)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (None, ()),
        ("gone", ("entry 1: its training files are gone",)),
        ("other", ("entry 1: its training files were changed since the training",)),
    ],
)
def test_an_audit_looks_at_the_training_files_of_the_best(tmp_path, leaking, change, lost):
    file = tmp_path / "more.csv"
    ledger = ampft.judge(tmp_path / "ledger", best=leaking(str(file), shared=0)).ledger
    if change == "gone":
        file.unlink()
    elif change == "other":
        file.write_text("text,label\nOther,no\n")
    audit = audit_ledger(ledger)
    assert audit.lost == lost
    assert audit.verdict == ("not repeated" if lost else "confirmed")


@pytest.mark.slow
def test_an_audit_says_that_a_record_of_the_best_was_edited(tmp_path, leaking):
    best = leaking(f"{tmp_path}/more.csv", shared=200)
    ledger = ampft.judge(tmp_path / "ledger", best=best).ledger
    record = Path(best[0]) / "run.json"
    record.write_text(record.read_text().replace('"test": 200', '"test": 0', 1))
    audit = audit_ledger(ledger)
    assert audit.verdict == "not repeated"
    assert [line.startswith("entry 1: ") and "run.json" in line for line in audit.lost] == [True]


@pytest.mark.slow
def test_the_first_best_has_the_leaks_of_its_training_not_of_todays_file(tmp_path, leaking):
    best = leaking(f"{tmp_path}/more.csv", shared=0)
    shutil.copy(tmp_path / "train.csv", tmp_path / "more.csv")
    assert ampft.judge(tmp_path / "ledger", best=best).state.test.shared_rows == 0
