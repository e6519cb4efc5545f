"""A candidate learns its answer from the referee and nothing else: no label, also in refusals."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ampft import cli

N, SEEDS, CLASSES = 300, (1, 2, 3), ("c0", "c1", "c2")
TOLD = re.compile(r"first of id '(?P<id>[^']*)': '(?P<one>[^']*)' and '(?P<other>[^']*)'")
BAD = 37  # rows with a defect, a number that no message has for another reason
IDS = [f"x{row}" for row in range(N)]


def labels(key: int) -> list[str]:
    """Return labels that depend on a key, as many of each class for every key."""
    return [CLASSES[i % 3] for i in np.random.default_rng(key).permutation(N)]


def write_side(folder: Path, name: str, seeds=SEEDS, **columns) -> list[str]:
    """Write a table per seed, with an own prediction for each row and further columns."""
    folder.mkdir(exist_ok=True)
    paths = []
    for seed in seeds:
        random = np.random.default_rng([seed, *name.encode()])
        rows = {"id": IDS, "prediction": [CLASSES[i] for i in random.integers(0, 3, N)], **columns}
        rows = {key: values(seed) if callable(values) else values for key, values in rows.items()}
        rows = {key: values for key, values in rows.items() if values is not None}
        paths.append(folder / f"{name}-seed{seed}.csv")
        with paths[-1].open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(rows)
            writer.writerows(zip(*rows.values(), strict=True))
    return list(map(str, paths))


def started(folder: Path, truth: list[str]) -> Path:
    """Start a ledger; the best's predictions do not depend on the labels."""
    best = write_side(folder, "old", label=truth)
    assert cli.main(["judge", str(folder / "ledger"), "--best", *best]) == 0
    return folder / "ledger"


# The attack


def learned(submit: Callable[[list[str]], str]) -> tuple[dict[str, str], int]:
    """Guess labels and read the refusals until they tell nothing more; return them, and calls."""
    known: dict[str, str] = {}
    guess, random = dict.fromkeys(IDS, ""), np.random.default_rng(0)
    for calls in range(1, N + 1):
        guess |= {i: CLASSES[random.integers(3)] for i in IDS if i not in known} | known
        told = TOLD.search(submit(list(guess.values())))
        if told is None:
            return known, calls
        known[told["id"]] = ({told["one"], told["other"]} - {guess[told["id"]]}).pop()
    return known, N


@pytest.mark.slow
@pytest.mark.parametrize("way", ["candidate", "best", "final"])
def test_guessed_labels_are_never_corrected(tmp_path, capsys, way):
    ledger = started(tmp_path, labels(0))
    before = {path.name: path.read_bytes() for path in ledger.iterdir()}
    # Two seeds are too few, so that a call is refused whatever else is right.
    two = SEEDS[:2]

    def submit(guess: list[str]) -> str:
        flags = ["--candidate", *write_side(tmp_path / "new", "new", two, label=guess)]
        if way == "best":
            flags += ["--best", *write_side(tmp_path / "new", "old", (4, 5), label=guess)]
        if way == "final":
            flags += ["--final", "--best", *write_side(tmp_path, "old", label=labels(0))]
        assert cli.main(["judge", str(ledger), *flags]) == 2
        return capsys.readouterr().err

    assert learned(submit) == ({}, 1)
    assert {path.name: path.read_bytes() for path in ledger.iterdir()} == before


def test_the_attack_learns_from_a_referee_that_tells():
    truth = dict(zip(IDS, labels(0), strict=True))

    def submit(guess: list[str]) -> str:
        wrong = [(i, g) for i, g in zip(IDS, guess, strict=True) if g != truth[i]]
        return (
            f"the first of id {wrong[0][0]!r}: {wrong[0][1]!r} and {truth[wrong[0][0]]!r}"
            * bool(wrong)
        )

    known, calls = learned(submit)
    assert known.items() <= truth.items()
    assert len(known) > 150
    assert calls <= N


# Every kind of refusal says the same whatever the labels are


def spoilt(values: list[str], value: str) -> list[str]:
    return [value] * BAD + values[BAD:]


def probabilities(rows) -> dict[str, list[object]]:
    return {f"probability_{name}": list(column) for name, column in zip(CLASSES, rows, strict=True)}


EVEN = [[0.4] * N, [0.3] * N, [0.3] * N]
PREDICTED = ["c0"] * N
# Name -> columns of the candidate's tables, and what the refusal says; None for an answer.
TABLES = {
    "no labels": ({}, None),
    "wrong labels": ({"label": labels(5)}, None),
    "labels of no class": ({"label": ["zzz"] * N}, None),
    "empty labels": ({"label": [""] * N}, None),
    "other groups": ({"group": [f"g{i // 7}" for i in range(N)]}, None),
    "other texts": ({"text": [f"text {i // 9}" for i in range(N)]}, None),
    "probabilities": ({"prediction": None, **probabilities(EVEN)}, "are equal, bit for bit"),
    "other ids": ({"id": [f"y{i}" for i in range(N)]}, "ids are not the test set's"),
    "some other ids": ({"id": spoilt(IDS, "")}, "a cell of column id is empty"),
    "ids twice": ({"id": IDS[: N - BAD] + IDS[:BAD]}, "an id occurs twice"),
    "one id twice": ({"id": [*IDS[:-1], IDS[0]]}, "an id occurs twice"),
    "an unknown class": (
        {"prediction": spoilt(PREDICTED, "c9")}, "column prediction has an unknown class"
    ),
    "an empty prediction": (
        {"prediction": spoilt(PREDICTED, "")}, "a cell of column prediction is empty"
    ),
    "no predictions": ({"prediction": None}, "column prediction or probabilities is missing"),
    "sums": (probabilities([[0.9] * N, *EVEN[1:]]), "not between 0 and 1 with sum 1"),
    "words": (probabilities([["a"] * N, *EVEN[1:]]), "a probability is not a number"),
    "other classes": (
        {"probability_c0": [0.5] * N, "probability_c7": [0.5] * N}, "of other classes"
    ),
    "lists": ({"probabilities": ["[0.4, 0.3, 0.3]"] * N}, "lists, whose order is unknown"),
    "no lists": ({"probabilities": ["a"] * N}, "neither an object nor a list"),
    "contradictions": (
        {"prediction": ["c1"] * N, **probabilities(EVEN)}, "contradict its probabilities"
    ),
    "folds": ({"fold": [i % 5 for i in range(N)]}, "its folds differ from the best one's"),
    "one fold": ({"fold": ["1"] * N}, "column fold has one value"),
}  # fmt: skip


def said(argv: list[str], folder: Path, capsys) -> tuple[int, str]:
    """Return the exit code and the output of a command, without paths, hashes and times."""
    try:
        code = cli.main(argv)
    except SystemExit as ended:
        code = ended.code
    out = capsys.readouterr()
    text = (out.out + out.err).replace(str(folder), "FOLDER")
    return code, re.sub(r"\b[0-9a-f]{16,64}\b", "HASH", text)


@pytest.fixture(scope="module")
def two_ledgers(tmp_path_factory):
    """Return two folders with ledgers that differ in the labels only."""
    folders = [tmp_path_factory.mktemp(f"truth{key}") for key in (0, 1)]
    for key, folder in enumerate(folders):
        started(folder, labels(key))
    assert labels(0) != labels(1)
    return folders


def silent(text: str) -> bool:
    """Return whether a text names no row, no class and no number of rows."""
    return not re.search(rf"\b[xy]\d+\b|\bc\d\b|\b{N}\b|\b{BAD}\b|line \d|row \d", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_answered_without_regard_to_the_labels(two_ledgers, tmp_path, capsys, name):
    columns, message = TABLES[name]
    found = []
    for key, folder in enumerate(two_ledgers):
        tables = write_side(tmp_path / str(key), "new", **columns)
        found.append(
            said(["judge", str(folder / "ledger"), "--candidate", *tables], folder, capsys)
        )
    found = [
        (code, text.replace(str(tmp_path / str(k)), "")) for k, (code, text) in enumerate(found)
    ]
    assert found[0] == found[1]
    code, text = found[0]
    if message is None:
        assert code == 5
    else:
        assert code == 2
        assert message in text
        assert silent(text.replace("between 0 and 1 with sum 1", ""))


@pytest.mark.slow
def test_entries_and_audits_do_not_depend_on_the_labels(tmp_path, capsys):
    outputs, entries = [], []
    for key in (0, 1):
        folder = tmp_path / str(key)
        folder.mkdir()
        ledger = started(folder, labels(key))
        tables = write_side(folder, "same", label=labels(7))
        code, text = said(["judge", str(ledger), "--candidate", *tables, "--json"], folder, capsys)
        page = folder / "page.html"
        outputs.append([
            code,
            text[text.index("{") :],
            said(["audit", str(ledger)], folder, capsys),
            said(["audit", str(ledger), "--json"], folder, capsys),
            said(["judge", str(ledger), "--page", str(page)], folder, capsys),
            re.sub(r"[0-9a-f]{64}", "", page.read_text(encoding="utf-8")),
        ])  # fmt: skip
        stored = [json.loads(path.read_text()) for path in sorted(ledger.glob("entry-*.json"))]
        for entry in stored:
            for volatile in ("when", "previous", "sha256"):
                entry.pop(volatile)
            for model in entry["models"]:
                model.pop("file_sha256")  # of the file, in which the user may keep labels
        stored[0]["test"].pop("sha256")  # salted
        entries.append(stored)
    assert outputs[0] == outputs[1]
    assert entries[0] == entries[1]


def test_the_hash_of_the_labels_is_salted(tmp_path):
    hashes = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        started(tmp_path / name, labels(0))
        entry = json.loads((tmp_path / name / "ledger" / "entry-000001.json").read_text())
        hashes.append(entry["test"]["sha256"])
    assert hashes[0] != hashes[1]


@pytest.mark.slow
def test_labels_that_were_edited_in_the_ledger_are_refused(tmp_path, capsys):
    ledger = started(tmp_path, labels(0))
    table = ledger / "cases.json"
    values = json.loads(table.read_text())
    values["labels"][0] = (values["labels"][0] + 1) % 3
    table.write_text(json.dumps(values))
    tables = write_side(tmp_path, "new")
    assert cli.main(["judge", str(ledger), "--candidate", *tables]) == 2
    assert "missing, damaged or edited" in capsys.readouterr().err
    table.unlink()
    assert cli.main(["judge", str(ledger), "--candidate", *tables]) == 2
    assert "Restore the folder from a copy" in capsys.readouterr().err


@pytest.mark.parametrize(("metric", "code"), [("cohen_kappa", 2), ("matthews", 0)])
def test_a_metric_that_some_predictions_leave_undefined_starts_no_ledger(
    tmp_path, capsys, metric, code
):
    truth = ["c1", *["c0"] * (N - 1)]
    best = write_side(tmp_path, "old", label=truth)
    folder = tmp_path / "ledger"
    flags = ["--metric", metric, "--label_names", ",".join(CLASSES)]
    assert cli.main(["judge", str(folder), "--best", *best, *flags]) == code
    assert folder.exists() == (code == 0)
    assert ("undefined for some predictions" in capsys.readouterr().err) == (code == 2)
