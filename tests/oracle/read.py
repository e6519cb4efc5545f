"""What a person who opens the files would say: rows, labels, weights, and where they are."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from oracle.cases import Case, Disagreement, compare
from oracle.draw import MEDIA, Drawn, Row, held_out
from oracle.product import RunFolder

Kept = list[tuple[int, Row]]


def label_names(case: Case, rows: list[Row]) -> list[str]:
    """Return the classes in the order of their values: numbers as numbers, others as texts."""
    if case.task == "regression":
        return ["label"]
    if case.task == "columns":
        return [
            f"{column}={value}"
            for column in ("mood", "topic")
            for value in sorted({row[column] for row in rows if row[column] is not None})
        ]
    if case.task == "ordinal" and (order := case.settings.get("label_order")):
        return order.split(",")
    ignored = str(case.settings.get("ignore_label", "")).split(",")
    labels = [row["label"] for row in rows if row["label"] is not None]
    values = [label for label in labels if str(label) not in ignored]
    if case.task in ("multi-label", "tokens"):
        values = [value for row in values for value in row]
    present = {str(value) for value in values}
    if present and all(_is_number(value) for value in present):
        return sorted(present, key=float)
    return sorted(present)


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def text_of(case: Case, drawn: Drawn, row: Row) -> Any:
    """Return the text of a row, a pair of texts, or a list of words, with columns before it."""
    parts = [row[column] for column in drawn.texts]
    if case.task in MEDIA:
        return str(drawn.files["train"].parent / parts[0])
    if (delimiter := case.settings.get("text_column_delimiter")) is not None:
        parts = [delimiter.join(part for part in parts if not is_missing(part))]
    if columns := case.settings.get("feature_columns"):
        cells = [f"{name}: {_cell_text(row[name])}." for name in columns.split(",")]
        parts[0] = f"{' '.join(cells)} {parts[0]}"
    return tuple(parts) if len(parts) > 1 else parts[0]


def _cell_text(value: Any) -> str:
    if value is None:
        return "unknown"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def kept_rows(case: Case, drawn: Drawn, split: str) -> Kept:
    """Return the rows that count, with their index in the file."""
    ignored = str(case.settings.get("ignore_label", "")).split(",")
    kept = []
    for index, row in enumerate(drawn.rows[split]):
        lacks_text = lacks(case, drawn, row)
        lacks_label = any(row[column] is None for column in drawn.labels)
        if case.task == "multi-label":
            lacks_label = False  # an empty cell has no labels
        if not lacks_text and not lacks_label and str(row[drawn.labels[0]]) not in ignored:
            kept.append((index, row))
    if drawn.chosen is None:
        return kept
    return [(index, row) for index, row in kept if index in drawn.chosen[split]]


def lacks(case: Case, drawn: Drawn, row: Row) -> bool:
    """Return whether a row has no text: none of a pair, or none of those that are joined."""
    needed = all if "text_column_delimiter" in case.settings else any
    return needed(is_missing(row[column]) for column in drawn.texts)


def named_rows(case: Case, drawn: Drawn) -> list[Row]:
    """Return the rows whose labels are the classes: those for training, or of all folds."""
    if "folds" in case.settings:
        drawn = replace(drawn, chosen=None)
    return [row for _, row in kept_rows(case, drawn, "train")]


LIMITS = {"train": "max_train_samples", "validation": "max_eval_samples",
          "test": "max_predict_samples"}  # fmt: skip


def choice(case: Case, drawn: Drawn) -> dict[str, list[int]] | None:
    """Return the places in the file of each split's rows, which the product chooses at random.

    The order is that of the file. `check_choice` says whether the choice is as documented.
    """
    if not set(LIMITS.values()) & set(case.settings) and not held_out(case):
        return None
    import ampft
    from oracle.product import flags

    names = ("data_seed", "fold", "folds", *FRACTIONS.values(), *LIMITS.values(), *OF_ROWS)
    settings = {name: case.settings[name] for name in names if name in case.settings}
    task = [] if case.task in ("text", "pairs", *MEDIA) else ["--task", case.task]
    words = [*drawn.words(), *task, "--output_dir", "none", *flags(settings)]
    try:
        data = ampft.load_data(ampft.parse_classify_arguments(words))
    except ampft.InputError:
        return None
    found = {}
    for split, part in data.splits.items():
        column = next(name for name in PLACES if name in part.column_names)
        path, count = drawn.files[split], len(drawn.rows[split])
        numbers = places(path, count, case.settings.get("encoding", "utf-8-sig"))
        found[split] = [numbers.index(place) for place in part[column]]
    return found


# Settings that say which rows there are, and where each is.
OF_ROWS = ("drop_missing_text", "drop_missing_labels", "ignore_label", "group_column", "encoding",
           "label_separator", "label_order", "feature_columns", "text_column_delimiter",
           "sheet_name")  # fmt: skip
FRACTIONS = {"validation": "validation_fraction", "test": "test_fraction"}
PLACES = ("ampft_line", "ampft_row")


def check_choice(case: Case, drawn: Drawn) -> list[Disagreement]:
    """Hold the choice of rows against what the documentation says of it."""
    if drawn.chosen is None:
        return []
    every, found = replace(drawn, chosen=None), []
    if "data_seed" in case.settings:
        found += _check_seed(case, every, drawn.chosen)
    for split, ids in drawn.chosen.items():
        found += compare(f"order of the rows of {split}", ids, sorted(set(ids)))
    if "folds" in case.settings:
        return found + _check_folds(case, every, drawn.chosen)
    if held_out(case):
        return found + _check_held_out(case, every, drawn.chosen)
    for split, flag in LIMITS.items():
        rows = dict(kept_rows(case, every, split))
        ids, most = drawn.chosen[split], case.settings.get(flag, len(rows))
        found += compare(f"rows of {split}", [len(ids), set(ids) <= set(rows)],
                         [min(most, len(rows)), True])  # fmt: skip
        if case.task in ("text", "pairs", "ordinal", *MEDIA):
            sizes = Counter(str(row["label"]) for row in rows.values())
            got = Counter(str(rows[index]["label"]) for index in ids)
            for label, size in sizes.items():
                share = size * min(most, len(rows)) / len(rows)
                if split == "train":
                    found += compare(f"training keeps a row of {label}", got[label] > 0, True)
                elif abs(got[label] - share) >= 1:
                    found.append(Disagreement(f"rows of {label} in {split}", got[label], share))
    return found


def _check_seed(case: Case, every: Drawn, own: Mapping[str, list[int]]) -> list[Disagreement]:
    """Other seeds of the data choose other rows."""
    left_out = [len(kept_rows(case, every, split)) - len(own[split]) for split in own]
    if min(case.rows) < 6 or max(left_out) < 3:  # few choices
        return []
    others = [
        choice(replace(case, settings={**case.settings, "data_seed": seed}), every)
        for seed in (11, 12, 13)
    ]
    return compare("--data_seed has an effect", any(other != own for other in others), True)


def _check_folds(case: Case, every: Drawn, own: Mapping[str, list[int]]) -> list[Disagreement]:
    """Each row is tested in one fold, and rows that belong together are in one part."""
    rows = dict(kept_rows(case, every, "train"))
    tested, found = [], []
    for fold in range(1, case.settings["folds"] + 1):
        parts = choice(replace(case, settings={**case.settings, "fold": fold}), every)
        if parts is None:
            return [Disagreement("folds", f"fold {fold} is refused", "as fold 1")]
        tested += parts["test"]
        if fold == case.settings.get("fold", 1):
            found += compare("the same fold", parts, dict(own))
        inside = [parts["train"], parts["test"]]
        both = sorted([*parts["train"], *parts["test"]])
        found += compare(f"rows of fold {fold}", both, sorted(rows))
        for key in ("inputs", case.settings.get("group_column")):
            if key is not None:
                of = [{_key(case, every, rows[index], key) for index in part} for part in inside]
                found += compare(f"{key} in two parts of fold {fold}", sorted(of[0] & of[1]), [])
    return found + compare("rows of all folds", sorted(tested), sorted(rows))


def _check_held_out(case: Case, every: Drawn, own: Mapping[str, list[int]]) -> list[Disagreement]:
    """Each row is in one part, rows that belong together in the same, and classes are divided."""
    rows, found = dict(kept_rows(case, every, "train")), []
    parts = {split: own[split] for split in ("train", *held_out(case))}
    found += compare(
        "rows of all parts",
        sorted(index for part in parts.values() for index in part),
        sorted(rows),
    )
    keys = ["inputs", *([case.settings["group_column"]] if "group_column" in case.settings else [])]
    for key in keys:
        seen: dict[str, set[str]] = {}
        for split, part in parts.items():
            for index in part:
                seen.setdefault(_key(case, every, rows[index], key), set()).add(split)
        split_up = sorted(name for name, splits in seen.items() if len(splits) > 1)
        found += compare(f"{key} in two parts", split_up, [])
    together = {_key(case, every, row, "inputs") for row in rows.values()}
    if len(together) == len(rows) and "group_column" not in case.settings:
        for split in held_out(case):
            count = round(case.settings[FRACTIONS[split]] * len(rows))
            if case.task in ("text", "pairs", "ordinal"):  # a class keeps a row for training
                sizes = Counter(str(row["label"]) for row in rows.values())
                count = min(count, sum(sizes.values()) - len(sizes))
                for label, size in sizes.items():
                    got = sum(str(rows[index]["label"]) == label for index in parts[split])
                    share = case.settings[FRACTIONS[split]] * size
                    if got > share + 1 or (got < share - 1 and got < size - 2):
                        found.append(Disagreement(f"rows of {label} in {split}", got, share))
                kept = {str(rows[index]["label"]) for index in parts["train"]}
                found += compare("classes for training", sorted(kept), sorted(sizes))
            found += compare(f"rows of {split}", len(parts[split]), count)
    return found


def _key(case: Case, drawn: Drawn, row: Row, of: str) -> str:
    return str(text_of(case, drawn, row)) if of == "inputs" else str(row[of])


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty, or has blanks only."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def label_of(case: Case, drawn: Drawn, row: Row) -> Any:
    """Return the label of a row as the predictions show it."""
    if case.task == "columns":
        return [f"{column}={row[column]}" for column in drawn.labels]
    value = row["label"]
    if value is None:
        return []
    if case.task == "regression":
        return value
    return [str(each) for each in value] if isinstance(value, list) else str(value)


def weights_of(case: Case, rows: Kept) -> list[float]:
    """Return how much each row counts in the loss."""
    column = case.settings.get("weight_column")
    return [float(row[column]) if column else 1.0 for _, row in rows]


def places(path: Path, count: int, encoding: str) -> list[int]:
    """Return the line of each row in a text file, or its number in another, from 1."""
    if path.suffix == ".xlsx":  # below the row of names
        return list(range(2, count + 2))
    if path.suffix not in (".csv", ".tsv"):
        return list(range(1, count + 1))
    with path.open(encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        next(reader)
        starts, before = [], reader.line_num
        for _ in reader:
            starts.append(before + 1)
            before = reader.line_num
    return starts


def check(case: Case, drawn: Drawn, run: RunFolder) -> list[Disagreement]:
    """Hold what the run read against the files."""
    rows = {split: kept_rows(case, drawn, split) for split in drawn.files}
    found = check_choice(case, drawn) + compare(
        "run.json: examples", run.record["data"]["examples"], {k: len(v) for k, v in rows.items()}
    )
    names = label_names(case, named_rows(case, drawn))
    if case.task != "regression":
        found += compare("label_names", sorted(run.record["label_names"]), sorted(names))
    if case.task == "ordinal":
        found += compare("order of the labels", list(run.record["label_names"]), names)
    if case.task == "tokens":
        return found + _check_words(drawn, run, rows["test"])
    predictions = run.predictions
    found += compare("predictions.parquet: rows", len(predictions), len(rows["test"]))
    encoding = case.settings.get("encoding", "utf-8-sig")
    lines = places(drawn.files["test"], len(drawn.rows["test"]), encoding)
    for position, ((index, row), got) in enumerate(zip(rows["test"], predictions, strict=False)):
        what = f"predictions.parquet, row {position}"
        place = got.get("file_line", got.get("file_row"))
        found += compare(f"{what}: place", place, lines[index])
        found += compare(f"{what}: example_id", got["example_id"], position)
        label = label_of(case, drawn, row)
        shown = got["label"]
        if isinstance(label, list):
            shown, label = sorted(shown), sorted(label)
        found += compare(f"{what}: label", shown, label, 1e-6)
        expected = text_of(case, drawn, row)
        if case.task in MEDIA:
            continue
        if "text_column_delimiter" in case.settings:
            expected = tuple(row[column] for column in drawn.texts)
        for column, text in zip(
            drawn.texts, expected if isinstance(expected, tuple) else [expected], strict=True
        ):
            if column in got:
                found += compare(f"{what}: {column}", got[column], text)
        if case.settings.get("id_column"):
            found += compare(f"{what}: id", got.get("id"), row["id"])
    return found + _check_overlap(case, drawn, run, rows)


def _check_words(drawn: Drawn, run: RunFolder, rows: Kept) -> list[Disagreement]:
    found = []
    for position, ((_, row), got) in enumerate(zip(rows, run.predictions, strict=False)):
        what = f"predictions.parquet, row {position}"
        for column, expected in (("text", row["text"]), ("label", row["label"])):
            shown = got.get({"text": "tokens", "label": "labels"}[column], got.get(column))
            if isinstance(shown, str):
                expected = " ".join(expected)
            found += compare(f"{what}: {column}", shown, expected)
    return found


def spelling(case: Case, drawn: Drawn, row: dict[str, Any]) -> str:
    """Return the input of a row without differences in case, punctuation and spaces."""
    text = str(text_of(case, drawn, row))
    return "".join(filter(str.isalnum, text.casefold())) or text


def overlaps(case: Case, drawn: Drawn) -> bool:
    """Return whether two splits share inputs, in any spelling, or groups."""

    def spelled(split: str) -> set[str]:
        return {spelling(case, drawn, row) for _, row in kept_rows(case, drawn, split)}

    names = ("train", "validation", "test")
    splits = [spelled(split) for split in names]
    if "group_column" in case.settings:
        column = case.settings["group_column"]
        groups = [{row[column] for _, row in kept_rows(case, drawn, split)} for split in names]
        if any((one & other) - {None, ""} for one, other in combinations(groups, 2)):
            return True
    return any(one & other for one, other in combinations(splits, 2))


def _check_overlap(
    case: Case, drawn: Drawn, run: RunFolder, rows: dict[str, Kept]
) -> list[Disagreement]:
    """Count the rows whose inputs training has too."""
    keys = {split: [spelling(case, drawn, row) for _, row in kept] for split, kept in rows.items()}
    trained = Counter(keys["train"])
    oracle = {split: sum(key in trained for key in keys[split]) for split in ("test", "validation")}
    return compare("run.json: shared_with_train", run.record["data"]["shared_with_train"], oracle)
