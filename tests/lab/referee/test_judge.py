"""`ampft judge` and `ampft audit LEDGER` on tables."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from file_faults import FileFaults
from judged_tables import SEEDS, write_side, write_table
from running import CANARIES

import ampft
from ampft import LedgerSettings, cli
from ampft.errors import InputError
from ampft.integrations.foreign_predictions import compare_tables
from ampft.lab.referee.answer_text import judgement_text
from ampft.lab.referee.ledger import append_entry, entry_path, new_entry, read_entries
from ampft.lab.referee.ledger_audit import audit_ledger, audit_text
from ampft.text.json_io import json_text, values_hash

REPOSITORY = Path(__file__).parents[3]
SIDES = {"old": 0.2, "same": 0.2, "good": 0.02}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("tables")
    return {name: write_side(folder, name, share) for name, share in SIDES.items()}


@pytest.fixture
def ledger(tmp_path, written):
    settings = LedgerSettings(tries=10)
    return ampft.judge(tmp_path / "ledger", best=written["old"], settings=settings).ledger


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("entry-*")}


@pytest.mark.slow
def test_a_gain_is_kept_and_a_null_change_dropped(ledger, written):
    dropped = ampft.judge(ledger, candidate=written["same"], note="a comment")
    assert (dropped.answer, dropped.entry.note) == ("drop", "a comment")
    kept = ampft.judge(ledger, candidate=written["good"])
    assert kept.answer == "keep"
    assert kept.entry.trial.shown_points >= 1
    assert kept.state.best_entry == 3
    back = ampft.judge(ledger, candidate=written["old"])  # what the best was before
    assert back.answer == "drop"
    assert back.spent == pytest.approx(3 * 0.75 / 10)


@pytest.mark.slow
def test_a_sealed_ledger_stores_no_numbers_and_an_open_one_does(ledger, tmp_path, written):
    assert ampft.judge(ledger, candidate=written["same"]).entry.trial.estimate is None
    settings = LedgerSettings(answers="open", max_seeds=10)
    ampft.judge(tmp_path / "open", best=written["old"], settings=settings)
    found = ampft.judge(tmp_path / "open", candidate=written["good"]).entry.trial.estimate
    assert found.lower < found.interval[0] < found.gain < found.interval[1]


@pytest.mark.slow
def test_repeated_folds_are_judged_by_the_interval_of_a_comparison(tmp_path):
    sides: dict[str, list[str]] = {"old": [], "new": []}
    for seed in SEEDS:
        fold = np.random.default_rng(seed).permutation(np.arange(300) % 5)
        for name, wrong in (("old", 0.3), ("new", 0.2)):
            random = np.random.default_rng([seed, len(sides["new"]), len(sides["old"])])
            labels = np.arange(300) % 2
            share = wrong + random.normal(0, 0.1, 5)[fold]
            predicted = np.where(random.random(300) < share, 1 - labels, labels)
            columns = {"id": range(300), "label": labels, "prediction": predicted, "fold": fold}
            sides[name].append(str(tmp_path / f"{name}-seed{seed}.csv"))
            pd.DataFrame(columns).to_csv(sides[name][-1], index=False)
    settings = LedgerSettings(answers="open")
    ampft.judge(tmp_path / "ledger", best=sides["old"], settings=settings)
    judged = ampft.judge(tmp_path / "ledger", candidate=sides["new"]).entry.trial.estimate
    compared = compare_tables([*sides["old"], *sides["new"]]).arms[1].difference
    assert judged.interval == pytest.approx(compared.interval95, rel=1e-12)


def test_a_page_that_cannot_be_written_costs_no_try(ledger, written, capsys):
    before, table = files(ledger), Path(written["old"][0])
    content = table.read_bytes()
    flags = ["judge", str(ledger), "--page", str(table)]
    for more in ([], ["--candidate", *written["good"]]):
        assert cli.main([*flags, *more]) == 2
        assert "this file exists and is not a page" in capsys.readouterr().err
    assert (files(ledger), table.read_bytes()) == (before, content)


def test_one_source_needs_no_list(ledger, written):
    with pytest.raises(InputError, match="--candidate: received 1 seed"):
        ampft.judge(ledger, candidate=written["good"][0])


@pytest.mark.slow
def test_more_seeds_continue_an_undecided_candidate(tmp_path, written):
    ledger = tmp_path / "ledger"
    ampft.judge(ledger, best=written["old"][:3], settings=LedgerSettings(max_seeds=5))
    first = ampft.judge(ledger, candidate=written["same"][:3])
    assert first.answer == "undecided"
    with pytest.raises(InputError, match=r"too many seeds.*add the best with them first"):
        ampft.judge(ledger, candidate=written["same"])
    added = ampft.judge(ledger, best=written["old"][3:])
    assert [model.seed for model in added.state.best] == list(SEEDS)
    last = ampft.judge(ledger, candidate=written["same"])
    assert (last.answer, last.entry.trial.number) == ("drop", 2)


def test_seeds_are_used_in_their_order(ledger, written):
    before = files(ledger)
    with pytest.raises(InputError, match="lacks seed 1"):
        ampft.judge(ledger, candidate=written["good"][1:])
    with pytest.raises(InputError, match="at least 3"):
        ampft.judge(ledger, candidate=written["good"][:2])
    assert files(ledger) == before


def test_the_same_question_is_answered_from_the_ledger(ledger, written):
    first = ampft.judge(ledger, candidate=written["good"])
    before = files(ledger)
    again = ampft.judge(ledger, candidate=written["good"])
    assert again.is_repeated
    assert again.entry == first.entry
    assert files(ledger) == before


def test_a_candidate_equal_to_the_best_is_refused(ledger, tmp_path, written):
    copies = []
    for path in map(Path, written["old"]):
        rows = path.read_text().splitlines()
        copy = tmp_path / path.name.replace("old", "copy")
        copy.write_text("\n".join([rows[0], *rows[:0:-1]]) + "\n")  # in another order
        copies.append(str(copy))
    before = files(ledger)
    with pytest.raises(InputError, match="bit for bit"):
        ampft.judge(ledger, candidate=copies)
    assert files(ledger) == before


@pytest.mark.slow
def test_a_copy_of_what_was_kept_is_refused_and_its_own_files_are_answered(
    ledger, tmp_path, written
):
    ampft.judge(ledger, candidate=written["good"])
    (tmp_path / "copy").mkdir()
    copies = [shutil.copy(path, tmp_path / "copy") for path in written["good"]]
    with pytest.raises(InputError, match="bit for bit"):
        ampft.judge(ledger, candidate=copies)
    assert ampft.judge(ledger, candidate=written["good"]).is_repeated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 200}, "its ids are not the test set's"),
        ({"prefix": "other"}, "its ids are not the test set's"),
    ],
)
def test_other_rows_are_refused(ledger, tmp_path, change, message):
    other = write_side(tmp_path, "other", 0.1, **change)
    before = files(ledger)
    with pytest.raises(InputError, match=message):
        ampft.judge(ledger, candidate=other)
    assert files(ledger) == before


@pytest.mark.slow
def test_a_best_that_changed_is_refused(tmp_path, written):
    copied = [shutil.copy(path, tmp_path) for path in written["old"]]
    ledger = ampft.judge(tmp_path / "ledger", best=copied).ledger
    write_table(tmp_path / "old-seed1.csv", 99, 0.2)
    with pytest.raises(InputError, match=r"old-seed1\.csv was changed since it was read"):
        ampft.judge(ledger, candidate=written["good"])
    for path in copied:
        (tmp_path / path.rpartition("/")[2]).unlink()
    with pytest.raises(InputError, match="pass its new path with --best"):
        ampft.judge(ledger, candidate=written["good"])
    assert ampft.judge(ledger, candidate=written["good"], best=written["old"]).answer == "keep"


@pytest.mark.parametrize("field", ["note", "who", "when", "number"])
def test_an_edited_entry_is_refused(ledger, written, field):
    ampft.judge(ledger, candidate=written["same"])
    path = entry_path(ledger, 2)
    values = json.loads(path.read_text())
    values[field] = 7 if field == "number" else "edited"
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"entry-000002\.json is damaged or was edited"):
        ampft.judge(ledger, candidate=written["good"])


@pytest.mark.slow
def test_a_missing_or_foreign_entry_is_refused(ledger, tmp_path, written):
    ampft.judge(ledger, candidate=written["same"])
    ampft.judge(ledger, candidate=written["good"])
    kept = entry_path(ledger, 2).read_bytes()
    entry_path(ledger, 2).unlink()
    with pytest.raises(InputError, match=r"entry-000002\.json is missing"):
        read_entries(ledger)
    other = ampft.judge(tmp_path / "other", best=written["same"]).ledger
    ampft.judge(other, candidate=written["good"])
    shutil.copy(entry_path(other, 2), entry_path(ledger, 2))
    with pytest.raises(InputError, match="does not continue the entry before it"):
        read_entries(ledger)
    entry_path(ledger, 2).write_bytes(kept)
    assert len(read_entries(ledger)[0]) == 3


def test_a_lock_that_is_a_folder_is_one_message(tmp_path, written, capsys):
    (tmp_path / "ledger" / ".lock").mkdir(parents=True)
    assert cli.main(["judge", str(tmp_path / "ledger"), "--best", *written["old"]]) == 2
    assert ".lock is not a file, but judge locks" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "ledger").iterdir()] == [".lock"]


def test_a_full_disk_is_the_one_of_the_ledger(ledger, written, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ampft.files.write", full)
    before = files(ledger)
    assert cli.main(["judge", str(ledger), "--candidate", *written["same"]]) == 2
    error = capsys.readouterr().err
    assert f"LEDGER {ledger}: the folder cannot be written (No space left on device)" in error
    assert "TMPDIR" not in error
    assert files(ledger) == before


def test_a_note_keeps_no_token(ledger, written):
    note = f"tried with {CANARIES['HF_TOKEN']}"
    entry = ampft.judge(ledger, candidate=written["same"], note=note).entry
    assert entry.note == "tried with REDACTED"


def test_a_killed_writer_leaves_whole_entries(ledger):
    entries, sha256 = read_entries(ledger)
    entry = new_entry("seeds", entries, sha256, list(entries[0].models))
    with FileFaults(ledger) as faults:
        append_entry(ledger, entry)
    assert len(faults.states) > 3
    for tree in faults.states.values():
        copy = ledger.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name, content in tree.items():
            if content is not None:
                (copy / name).write_bytes(content)
        found, _ = read_entries(copy)
        assert found in ([*entries], [*entries, entry])


@pytest.mark.slow
def test_two_writers_take_turns(ledger, written):
    with ThreadPoolExecutor(4) as pool:
        sides = [written["same"], written["good"], written["same"], written["good"]]
        answers = list(pool.map(lambda side: ampft.judge(ledger, candidate=side), sides))
    assert {each.answer for each in answers} == {"drop", "keep"}
    assert len(read_entries(ledger)[0]) in (3, 4)  # one of "same" may follow the keep
    assert not audit_ledger(ledger).wrong


@pytest.mark.slow
def test_the_final_claim_needs_new_rows_and_ends_the_ledger(ledger, tmp_path, written):
    ampft.judge(ledger, candidate=written["good"])
    with pytest.raises(InputError, match="some of its rows are rows of the ledger"):
        ampft.judge(ledger, final=True, candidate=written["good"], best=written["old"])
    sides = {
        name: write_side(tmp_path, name, SIDES[name], prefix="new") for name in ("good", "old")
    }
    found = ampft.judge(ledger, final=True, candidate=sides["good"], best=sides["old"])
    assert found.answer == "keep"
    low, high = found.entry.trial.estimate.interval
    assert low < 0.18 < high
    with pytest.raises(InputError, match="ended with the final claim"):
        ampft.judge(ledger, candidate=written["same"])


@pytest.mark.slow
def test_an_audit_repeats_answers_and_notices_a_wrong_one(ledger, written):
    ampft.judge(ledger, candidate=written["same"])
    audit = audit_ledger(ledger)
    assert (audit.repeated, audit.lost, audit.wrong) == (1, (), ())
    assert audit.verdict == "confirmed"
    entries, sha256 = read_entries(ledger)
    models = list(entries[1].models)
    trial = entries[1].trial
    forged = type(trial)(**{**vars(trial), "answer": "keep", "number": 3})
    append_entry(ledger, new_entry("try", entries, sha256, models, trial=forged))
    (wrong_level, wrong_answer) = audit_ledger(ledger).wrong
    assert "entry 3 was not judged at the level" in wrong_level
    assert "entry 3 says keep, but its files say drop" in wrong_answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "verdict", "repeated"),
    [("old", "not repeated", 0), ("good", "partly repeated", 1), ("both", "not repeated", 0)],
)
@pytest.mark.parametrize("change", ["gone", "changed"])
def test_an_audit_without_its_files_is_never_confirmed(
    tmp_path, written, capsys, lost, verdict, repeated, change
):
    sides = {}
    for name, paths in written.items():
        (tmp_path / name).mkdir()
        sides[name] = [shutil.copy(path, tmp_path / name) for path in paths]
    ledger = ampft.judge(tmp_path / "ledger", best=sides["old"]).ledger
    ampft.judge(ledger, candidate=sides["same"])
    ampft.judge(ledger, candidate=sides["good"])
    for path in (p for name in sides for p in sides[name] if lost in (name, "both")):
        if change == "gone":
            Path(path).unlink()
        else:
            Path(path).write_text(Path(path).read_text().replace("c0", "c1", 1))
    with pytest.raises(SystemExit, match="1"):
        cli.main(["audit", str(ledger)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "confirmed" not in printed
    assert f"{verdict}; last hash" in printed
    assert f"{repeated} of 2 answers repeated" in printed
    assert ("is gone" if change == "gone" else "was changed since it was read") in printed
    with pytest.raises(SystemExit, match="1"):
        cli.main(["audit", str(ledger), "--json"])
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


@pytest.mark.slow
def test_the_command_has_exit_codes_and_json(tmp_path, written, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["judge", "ledger", "--best", *written["old"], "--tries", "10"]) == 0
    assert "10 planned tries; sealed answers; at most 5 seeds" in capsys.readouterr().out
    with pytest.raises(SystemExit) as dropped:
        cli.main(["judge", "ledger", "--candidate", *written["same"]])
    assert dropped.value.code == 5
    assert "not shown" in capsys.readouterr().out
    assert cli.main(["judge", "ledger", "--candidate", *written["good"], "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["answer"], values["exit_code"], values["best_entry"]) == ("keep", 0, 3)
    assert values["gain_at_least"] >= 0.01
    assert cli.main(["audit", "ledger"]) == 0
    assert "verdict    confirmed" in capsys.readouterr().out


@pytest.mark.parametrize("heading", ["## Use it", "## Commands for agents"])
def test_the_commands_of_the_page_work(tmp_path, written, monkeypatch, heading):
    for name, side in (("base", written["old"]), ("new", written["good"])):
        for seed, path in zip(SEEDS, side, strict=True):
            shutil.copy(path, tmp_path / f"{name}-seed{seed}.csv")
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "judge.md").read_text(encoding="utf-8")
    part = text[text.index(heading) :].partition("\n## ")[0]
    commands = [line for line in part.splitlines() if line.startswith("ampft judge")]
    assert len(commands) == 2
    assert [cli.main(shlex.split(command)[1:]) for command in commands] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--candidate", "GOOD"], "not a ledger"),
        (["ledger"], "no run was given"),
        (["ledger", "--candidate", "GOOD", "--tries", "7"], "settings of a ledger are chosen"),
        (["ledger", "--candidate", "GOOD", "--margin", "0"], "--margin 0"),
        (["new", "--best", "OLD", "--tries", "0"], "--tries 0"),
        (["new", "--best", "OLD", "--tries", str(10**400)], "--tries 1000"),
        (["new", "--best", "OLD", "--error", "1e-320"], "--error 9.99"),
        (["ledger", "--candidate", "GOOD", "--margin", "1e-320"], "--margin 9.99"),
        (["new", "--best", "OLD", "--error", "50"], "--error 50"),
        (["new", "--best", "OLD", "--metric", "acuracy"], "accuracy"),
        (["new", "--best", "OLD", "GOOD"], "have the arms"),
        (["ledger", "--candidate", "absent-seed1.csv"], "absent-seed1.csv"),
        (["ledger", "--best", "OLD"], "has the seeds 1, 2, 3, 4, 5 already"),
        (["ledger", "--final", "--candidate", "GOOD"], "both sides on new rows"),
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(ledger, written, capsys, arguments, message):
    named = {"OLD": written["old"], "GOOD": written["good"]}
    folder, *rest = arguments
    expanded = [part for word in rest for part in named.get(word, [word])]
    before = files(ledger)
    assert cli.main(["judge", str(ledger.parent / folder), *expanded]) == 2
    assert message in capsys.readouterr().err
    assert files(ledger) == before
    assert not (ledger.parent / "new").exists()


def test_a_folder_of_something_else_is_refused(tmp_path, written):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes.txt and no entry-000001.json"):
        ampft.judge(tmp_path, best=written["old"])


@pytest.fixture
def ended(ledger, tmp_path, written):
    """A ledger with a keep and a final claim on new rows."""
    ampft.judge(ledger, candidate=written["good"])
    sides = {n: write_side(tmp_path, n, SIDES[n], prefix="new") for n in ("good", "old")}
    ampft.judge(ledger, final=True, candidate=sides["good"], best=sides["old"])
    return ledger


def edit_last(ledger, change) -> None:
    """Change the trial of the last entry; its hash follows from the edited file."""
    path = entry_path(ledger, len(read_entries(ledger)[0]))
    values = json.loads(path.read_text())
    change(values["trial"])
    del values["sha256"]
    path.write_text(json_text({**values, "sha256": values_hash(values)}))


@pytest.mark.slow
def test_an_audit_repeats_the_final_claim(ended):
    assert audit_ledger(ended).repeated == 2
    edit_last(ended, lambda trial: trial["estimate"].update(gain=0.3))
    assert audit_ledger(ended).wrong == ("entry 3 has other numbers than its files",)


@pytest.mark.slow
def test_an_audit_repeats_the_numbers_of_an_open_ledger(tmp_path, written):
    ledger = tmp_path / "open"
    ampft.judge(ledger, best=written["old"], settings=LedgerSettings(answers="open"))
    ampft.judge(ledger, candidate=written["good"])
    assert audit_ledger(ledger).wrong == ()
    edit_last(ledger, lambda trial: trial["estimate"].update(interval=[0.2, 0.3]))
    assert audit_ledger(ledger).wrong == ("entry 2 has other numbers than its files",)


def with_texts(folder, sources, prefix) -> list[str]:
    """Write copies of tables with a column of texts."""
    folder.mkdir()
    copies = []
    for path in map(Path, sources):
        head, *rows = path.read_text().splitlines()
        texts = [f"{prefix} {row.partition(',')[0]}" for row in rows]
        lines = [f"{head},text", *(f"{row},{text}" for row, text in zip(rows, texts, strict=True))]
        (folder / path.name).write_text("\n".join(lines) + "\n")
        copies.append(str(folder / path.name))
    return copies


@pytest.mark.parametrize("has_texts", ["ledger", "claim"])
def test_a_final_claim_is_compared_by_ids_if_one_side_has_no_texts(tmp_path, written, has_texts):
    texts = {name: with_texts(tmp_path / name, written[name], "a") for name in ("old", "good")}
    first, last = (texts, written) if has_texts == "ledger" else (written, texts)
    ledger = ampft.judge(tmp_path / "ledger", best=first["old"]).ledger
    ampft.judge(ledger, candidate=first["good"])
    before = files(ledger)
    with pytest.raises(InputError, match="some of its rows are rows of the ledger"):
        ampft.judge(ledger, final=True, candidate=last["good"], best=last["old"])
    assert files(ledger) == before


def test_equal_ids_with_other_texts_are_new_rows(tmp_path, written):
    one, other = (
        {name: with_texts(tmp_path / f"{name}-{text}", written[name], text) for name in SIDES}
        for text in ("one", "other")
    )
    ledger = ampft.judge(tmp_path / "ledger", best=one["old"]).ledger
    found = ampft.judge(ledger, final=True, candidate=other["good"], best=other["old"])
    assert found.answer == "keep"


def test_one_training_under_several_seeds_is_refused(ledger, tmp_path, written):
    copies = [tmp_path / f"copy-seed{seed}.csv" for seed in SEEDS]
    for path in copies:
        shutil.copy(written["good"][0], path)
    with pytest.raises(InputError, match="--candidate: the predictions with the seeds 1 and 2"):
        ampft.judge(ledger, candidate=[str(path) for path in copies])


def test_fewer_seeds_than_a_change_needs_are_refused():
    with pytest.raises(InputError, match="--max_seeds 2: must be at least 3"):
        LedgerSettings(max_seeds=2)


def test_an_audit_counts_one_entry_and_two(ledger, written):
    assert "1 entry, each" in audit_text(audit_ledger(ledger))
    ampft.judge(ledger, candidate=written["same"])
    assert "2 entries, each" in audit_text(audit_ledger(ledger))


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["open", "sealed"])
def test_a_candidate_that_learned_nothing_is_not_kept(tmp_path, answers):
    """Equally useless models are not worse than one another, which keeps nothing of use."""
    sides = {}
    for name, first in (("old", 0), ("new", 10)):
        sides[name] = [str(tmp_path / f"{name}-seed{seed}.csv") for seed in SEEDS]
        for seed, path in zip(SEEDS, sides[name], strict=True):
            frame = pd.DataFrame({"id": range(300), "label": np.arange(300) % 2})
            probability = np.random.default_rng(first + seed).uniform(0.6, 0.9, 300)
            frame = frame.assign(prediction=0, probability_0=probability)
            frame.assign(probability_1=1 - probability).to_csv(path, index=False)
    settings = LedgerSettings(tries=2, answers=answers)
    ledger = ampft.judge(tmp_path / "ledger", best=sides["old"], settings=settings).ledger
    found = ampft.judge(ledger, candidate=sides["new"], claim="not_worse", margin=5)
    assert found.answer == "drop"
    assert "predicts the same for every example" in found.entry.trial.learned_nothing
    assert "no keep, because a model learned nothing" in judgement_text(found)
