"""`ampft compare --predictions`: tables of other frameworks, compared without run records."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_folders import NAMES, SEEDS, labels, predicted, write_run

from ampft import cli
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import read_comparison
from ampft.errors import InputError
from ampft.integrations.foreign_predictions import compare_tables, groups_by_row

N = 60
ARMS = {"fp32": lambda seed: range(5), "bf16": lambda seed: range(seed % 5, 9)}


def rows_of(arm: str, seed: int, n: int = N) -> list[dict[str, object]]:
    """Return rows as another framework has them; the ids are strings in an order of their own."""
    guesses = predicted(ARMS[arm](seed), n)
    order = np.random.default_rng(seed).permutation(n)
    return [
        {"id": f"x{i}", "label": NAMES[labels(n)[i]], "prediction": NAMES[guesses[i]]}
        for i in order
    ]


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return path


def write_tables(folder: Path, suffix: str = "csv", seeds=SEEDS) -> list[str]:
    return [
        str(write_table(folder / f"{arm}-seed{seed}.{suffix}", rows_of(arm, seed)))
        for arm in ARMS
        for seed in seeds
    ]


def with_probabilities(row: dict[str, object]) -> dict[str, object]:
    shares = {name: 0.8 if name == row["prediction"] else 0.1 for name in NAMES}
    return {"id": row["id"], "label": row["label"], "probabilities": shares}


@pytest.fixture
def runs(tmp_path):
    """Runs with the same predictions as the tables."""
    return [
        write_run(tmp_path / "runs", arm, seed, predicted(ARMS[arm](seed), N), truth=labels(N))
        for arm in ARMS
        for seed in SEEDS
    ]


@pytest.mark.slow
def test_tables_are_compared_like_runs(tmp_path, runs):
    of_runs = compare_folders(runs, metric="macro_f1")
    of_tables = compare_tables(write_tables(tmp_path), metric="macro_f1")
    base, by_name = of_runs.arms[0], attrgetter("name")
    for one, other in zip(of_tables.arms, of_runs.arms, strict=True):
        assert one.metrics["accuracy"] == other.metrics["accuracy"]
        # The order of the classes changes the rounding of their mean.
        assert (one.difference is None) == (other.difference is None)
        if one.difference:
            assert one.difference.interval95 == pytest.approx(other.difference.interval95)
            assert one.difference.verdict == other.difference.verdict
        for mine, theirs in zip(one.classes, sorted(other.classes, key=by_name), strict=True):
            assert replace(mine, difference=None) == replace(theirs, difference=None)
            assert (mine.difference is None) == (theirs.difference is None) == (other is base)
            if mine.difference and theirs.difference:
                assert mine.difference.interval == pytest.approx(theirs.difference.interval)
                assert mine.difference.p_difference == pytest.approx(theirs.difference.p_difference)
        assert (one.flips is None) == (other.flips is None)
        assert one.flips is None or one.flips.per_seed == other.flips.per_seed
    assert (of_tables.seeds, of_tables.examples) == (SEEDS, N)
    assert remark_texts(of_tables.stamps)[0].startswith(
        "no run record: fairness of the training is unknown"
    )


@pytest.mark.slow
def test_probabilities_give_log_loss_and_calibration(tmp_path, runs):
    tables = [
        str(write_table(tmp_path / f"{arm}-seed{seed}.jsonl",
                        [with_probabilities(row) for row in rows_of(arm, seed)]))
        for arm in ARMS for seed in SEEDS
    ]  # fmt: skip
    of_tables = compare_tables(tables, metric="log_loss")
    of_runs = compare_folders(runs, metric="log_loss")
    for one, other in zip(of_tables.arms, of_runs.arms, strict=True):
        assert one.metrics["log_loss"].mean == pytest.approx(other.metrics["log_loss"].mean)
        assert one.calibration == other.calibration


@pytest.mark.slow
def test_one_table_of_all_arms_equals_a_table_per_run(tmp_path):
    expected = compare_tables(write_tables(tmp_path))
    rows = [
        {"Arm": arm, "Seed": seed, **row}
        for arm in ARMS
        for seed in SEEDS
        for row in rows_of(arm, seed)
    ]
    for name in ("all.csv", "all.parquet", "all.jsonl"):
        received = compare_tables([str(write_table(tmp_path / name, rows))])
        assert [arm.difference for arm in received.arms] == [a.difference for a in expected.arms]


@pytest.mark.slow
def test_arm_and_seed_can_be_assigned_to_files(tmp_path):
    paths = write_tables(tmp_path)
    expected = compare_tables(paths)
    sources = []
    for number, path in enumerate(paths):
        file = Path(path).rename(tmp_path / f"{number}.csv")
        arm = list(ARMS)[number // len(SEEDS)]
        sources.append(f"{arm}:{SEEDS[number % len(SEEDS)]}={file}")
    assert [arm.difference for arm in compare_tables(sources).arms] == [
        arm.difference for arm in expected.arms
    ]
    swapped = compare_tables(sources, baseline="bf16")
    assert [arm.name for arm in swapped.arms] == ["bf16", "fp32"]
    assert swapped.arms[1].difference.estimate == -expected.arms[1].difference.estimate


@pytest.mark.slow
def test_examples_of_a_group_and_equal_texts_are_one_case(tmp_path):
    def compare(**columns):
        rows = [
            {"arm": arm, "seed": seed, **row, **{k: of(row["id"]) for k, of in columns.items()}}
            for arm in ARMS for seed in SEEDS for row in rows_of(arm, seed)
        ]  # fmt: skip
        return compare_tables([str(write_table(tmp_path / "grouped.csv", rows))])

    assert compare(text=lambda id_: f"text {id_}").groups is None
    assert compare(text=lambda id_: f"text {int(id_[1:]) // 2}!").groups == N // 2
    grouped = compare(group=lambda id_: int(id_[1:]) // 3)
    assert grouped.groups == N // 3
    assert any("groups" in stamp for stamp in remark_texts(grouped.stamps))
    joined = compare(group=lambda id_: int(id_[1:]) // 3, text=lambda id_: int(id_[1:]) % (N // 2))
    assert joined.groups == N // 6


@pytest.mark.slow
def test_the_command_prints_writes_and_claims_no_cost(tmp_path, capsys):
    folder = tmp_path / "out"
    words = ["--predictions", *write_tables(tmp_path), "--output_dir", str(folder)]
    assert cli.main(["compare", *words]) == 0
    printed = capsys.readouterr().out
    assert "! no run record: fairness of the training is unknown" in printed
    for word in ("speed", "memory", "On this machine"):
        assert word not in printed.replace("expected", "")
    written = read_comparison(folder)
    assert written.kind == "predictions"
    assert "Speed-up is" not in html_text(written)
    assert "no run record" in html_text(written)


BAD = {
    "twice": (lambda rows: [*rows, rows[0]], "occurs twice for the same arm and seed"),
    "missing": (lambda rows: rows[2:], "it lacks 2 ids"),
    "more": (lambda rows: [*rows, {**rows[0], "id": "new"}], "it also has 1 id: 'new'"),
    "label": (
        lambda rows: [{**rows[0], "label": "no" if rows[0]["label"] != "no" else "yes"}, *rows[1:]],
        "the labels of 1 id are not those in",
    ),
    "prediction": (
        lambda rows: [{**rows[0], "prediction": "perhaps"}, *rows[1:]],
        "column prediction has 'perhaps', but the labels are 'maybe', 'no', 'yes'",
    ),
    "empty cell": (lambda rows: [{**rows[0], "label": ""}, *rows[1:]], "column label is empty"),
    "no rows": (lambda rows: [], "the table has no rows"),
    "no id": (
        lambda rows: [{k: v for k, v in row.items() if k != "id"} for row in rows],
        "column id is missing",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_tables_are_refused_with_one_message(tmp_path, capsys, bad):
    change, message = BAD[bad]
    tables = write_tables(tmp_path, seeds=SEEDS[:3])
    rows = change(rows_of("bf16", SEEDS[1]))
    if rows:
        write_table(tmp_path / f"bf16-seed{SEEDS[1]}.csv", rows)
    else:
        (tmp_path / f"bf16-seed{SEEDS[1]}.csv").write_text("id,label,prediction\n")
    assert_refused(["--predictions", *tables], message, tmp_path, capsys)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"no": 0.5, "yes": 0.6, "maybe": 0.1}, "not between 0 and 1 with sum 1"),
        ({"no": 2.5, "yes": -1.0, "maybe": -0.5}, "not between 0 and 1 with sum 1"),
        ({"no": 0.5, "yes": 0.5}, "Give one probability per class"),
        ({"no": 0.5, "yes": "half", "maybe": 0.1}, "not a number"),
        ([0.5, 0.4, 0.1], "whose order is known only if the labels are 0, 1"),
        ("half", "must hold an object such as"),
    ],
)
def test_bad_probabilities_are_refused(tmp_path, capsys, shares, message):
    tables = []
    for arm in ARMS:
        for seed in SEEDS[:3]:
            rows = [with_probabilities(row) for row in rows_of(arm, seed)]
            if (arm, seed) == ("bf16", SEEDS[2]):
                rows[4]["probabilities"] = shares
            tables.append(str(write_table(tmp_path / f"{arm}-seed{seed}.jsonl", rows)))
    assert_refused(["--predictions", *tables], message, tmp_path, capsys)


def test_what_is_not_a_comparison_is_refused(tmp_path, capsys):
    tables = write_tables(tmp_path)
    two_seeds = [path for path in tables if path.endswith(tuple(f"{s}.csv" for s in SEEDS[:2]))]
    assert_refused(
        ["--predictions", *two_seeds], "received 2 seeds per arm, but error bars", tmp_path, capsys
    )
    assert_refused(["--predictions", *tables[:5]], "the only arm is fp32", tmp_path, capsys)
    assert_refused(
        ["--predictions", *tables[:-1]], f"no rows with seed {SEEDS[-1]}", tmp_path, capsys
    )
    nameless = str(Path(tables[0]).rename(tmp_path / "first.csv"))
    unknown = ["--predictions", nameless, *tables[1:]]
    assert_refused(unknown, "its arm and seed are unknown", tmp_path, capsys)
    twice = ["--predictions", *tables[1:], tables[1]]
    assert_refused(twice, "occurs twice for the same arm and seed", tmp_path, capsys)
    assert_refused(
        [tables[2], "--predictions", tables[1]], "either tables or runs", tmp_path, capsys
    )
    by = ["--predictions", *tables, "--by", "seed"]
    assert_refused(by, "--by has no effect without RUN", tmp_path, capsys)
    names = [tables[2], "--label_names", "a,b"]
    assert_refused(names, "--label_names has no effect without --predictions", tmp_path, capsys)
    assert_refused([], "RUN is missing", tmp_path, capsys)


def assert_refused(words, message, tmp_path, capsys):
    folder = tmp_path / "out"
    assert cli.main(["compare", "--output_dir", str(folder), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err or pytest.fail(printed.err)
    assert not folder.exists()


def table_of(path: Path, seed: int, change=lambda row: row, classes=("a", "b", "c")) -> str:
    """Write a table with a prediction and a probability per class, right in 4 of 5 examples."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(40):
        label = classes[index % len(classes)]
        guess = label if random.random() < 0.8 else classes[(index + 1) % len(classes)]
        share = random.uniform(0.6, 0.9)
        rest = (1 - share) / (len(classes) - 1)
        shares = {f"probability_{name}": share if name == guess else rest for name in classes}
        rows.append(change({"id": index, "label": label, "prediction": guess, **shares}))
    return str(write_table(path, rows))


def stamps_of(tables: list[str]) -> list[str]:
    stamps = remark_texts(compare_tables(tables).stamps)
    return [stamp for stamp in stamps if stamp.startswith("identical predictions: ")]


@pytest.mark.slow
def test_the_larger_of_two_nearly_equal_probabilities_is_predicted(tmp_path):
    for arm, share in (("one", 0.49999999), ("other", 0.4)):
        rows = [
            {"id": i, "label": "b", "probability_a": share, "probability_b": 1 - share}
            for i in range(20)
        ]
        write_table(tmp_path / f"{arm}.csv", rows)
    sources = [f"{arm}={tmp_path / arm}.csv" for arm in ("one", "other")]
    found = compare_tables(sources, label_names=["a", "b"])
    assert [arm.metrics["accuracy"].mean for arm in found.arms] == [1.0, 1.0]


def test_copied_tables_are_stamped(tmp_path):
    own = {(arm, seed): table_of(tmp_path / f"{arm}-seed{seed}.csv", 10 * seed + (arm == "y"))
           for arm in "xy" for seed in (1, 2, 3)}  # fmt: skip
    assert stamps_of([*own.values()]) == []  # the negative control
    for arm in "xy":
        for seed in (2, 3):
            Path(own[arm, seed]).write_text(Path(own[arm, 1]).read_text())
    (stamp,) = stamps_of([*own.values()])
    assert "x 1, x 2, x 3; y 1, y 2, y 3 (arm and seed) predict exactly the same" in stamp
    lines = Path(own["y", 1]).read_text().splitlines()  # the same rows in another order
    Path(own["y", 3]).write_text("\n".join([lines[0], *lines[:0:-1]]))
    assert stamps_of([*own.values()]) == [stamp]


def exchanged(one: str, other: str, share: float = 1.0):
    """Return a change that exchanges two columns of probabilities in a share of the rows."""

    def change(row):
        one_column, other_column = f"probability_{one}", f"probability_{other}"
        if row["id"] < 40 * share:
            row |= {one_column: row[other_column], other_column: row[one_column]}
        return row

    return change


def rotated(row):
    """Name the probabilities of a, b and c after the next of them."""
    columns = [f"probability_{name}" for name in "abc"]
    values = [row[column] for column in columns]
    return row | dict(zip(columns, [values[-1], *values[:-1]], strict=True))


@pytest.mark.parametrize(
    ("change", "classes", "refused"),
    [
        (exchanged("a", "b"), ("a", "b"), True),
        (rotated, ("a", "b", "c"), True),
        (rotated, ("a", "b", "c", "d", "e"), True),
        (exchanged("a", "b"), ("a", "b", "c"), True),
        (exchanged("c", "b"), ("a", "b", "c", "d", "e", "f", "g"), True),
        (exchanged("a", "b", 0.2), ("a", "b", "c"), False),  # a few rows disagree
        (lambda row: row | {"prediction": "a"}, ("a", "b"), False),  # a high threshold for b
        (lambda row: row, ("a", "b", "c"), False),
    ],
)
def test_exchanged_columns_of_probabilities_are_refused(tmp_path, change, classes, refused):
    tables = [
        table_of(tmp_path / f"{arm}-seed{seed}.csv", 10 * seed + (arm == "y"),
                 change if arm == "y" else lambda row: row, classes)
        for arm in "xy" for seed in (1, 2, 3)
    ]  # fmt: skip
    if refused:
        with pytest.raises(InputError, match=r"y-seed1\.csv: the column prediction and the prob"):
            compare_tables(tables)
    else:
        compare_tables(tables)


@pytest.fixture
def two_models(tmp_path):
    """Write one table per arm, with further columns by the number of an id."""

    def write(**columns) -> list[str]:
        for arm in ARMS:
            rows = rows_of(arm, SEEDS[0])
            for name, of_id in columns.get(arm, {}).items():
                rows = [{**row, name: of_id(int(str(row["id"])[1:]))} for row in rows]
            write_table(tmp_path / f"{arm}.csv", rows)
        return [f"{arm}={tmp_path / arm}.csv" for arm in ARMS]

    return write


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("column", ["group", "text"])
def test_groups_and_texts_count_in_whichever_table_they_are(two_models, arm, column):
    sources = two_models(**{arm: {column: lambda number: f"g{number % 12}"}})
    assert compare_tables(sources).groups == 12
    assert compare_tables(sources[::-1]).groups == 12


@pytest.mark.parametrize("column", ["group", "text"])
def test_tables_that_contradict_each_other_are_refused(two_models, column):
    sources = two_models(
        fp32={column: lambda number: f"g{number}"}, bf16={column: lambda number: f"g{number % 4}"}
    )
    with pytest.raises(InputError, match=f"column {column} differs from .* for 56 ids"):
        compare_tables(sources)


def test_the_same_groups_of_two_tables_get_the_same_names():
    first = groups_by_row(["1:0", "1:0", "2:7", "2:8"], ["13", "4", "9", "2"])
    second = groups_by_row(["2:3", "1:5", "1:6", "2:3"], ["4", "2", "9", "13"])
    assert first == ["13", "13", "9", "2"]
    assert dict(zip(["13", "4", "9", "2"], first, strict=True)) == dict(
        zip(["4", "2", "9", "13"], second, strict=True)
    )
    assert groups_by_row(["1:0", "1:1"], ["1", "2"]) is None
