"""Rows of all splits: checked against each other, divided where splits are missing, labelled."""

from __future__ import annotations

import hashlib
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Protocol

import numpy as np
import numpy.typing as npt
from datasets import ClassLabel, Dataset, DatasetDict, List

from ampft.data.columns import DataColumns
from ampft.data.corrections import corrected
from ampft.data.dataset import (
    ClassificationData,
    cells,
    content_columns,
    fingerprint,
    strata_of,
    value_bytes,
)
from ampft.data.extension_points import CONTRADICTION_NOTES, TEXT_NOTES
from ampft.data.labelled_rows import LabelledRows
from ampft.data.media import MEDIA
from ampft.data.request import DataRequest
from ampft.data.row_labels import (
    NO,
    NUMBER,
    UNLABELLED,
    WEIGHT_COLUMN,
    YES,
    Masks,
    RowLabels,
    sort_names,
)
from ampft.data.splits import (
    FILE_COLUMN,
    GROUP_COLUMN,
    group_equal_keys,
    normalized_value,
    subsample,
    with_missing_splits,
    without_invisible,
)
from ampft.errors import InputError, did_you_mean, listed, quoted, quoted_list
from ampft.flag import split_names
from ampft.text.numbers import counted

DigestArray = npt.NDArray[np.uint64]

MAX_GROUPS_SHOWN = 5
MAX_FRACTIONS = 20  # half stars from 0.5 to 5 can be classes
# Texts that pandas reads as missing values, and that SNLI and UCI use for them.
MISSING = frozenset(
    {"nan", "NaN", "NA", "N/A", "n/a", "<NA>", "null", "NULL", "None", "-", "--", "?"}
)
LABEL_SEPARATORS = (",", ";", "|", "\n", " ")
MIN_ROWS_PER_CLASS = 2  # with fewer on average, the column may not hold classes
LARGEST_LABEL = 1e30  # numbers of float32 end at 3.4e38, and their squares are summed
LARGEST_EXACT = 2**53  # from here on, different integers are the same float
BOOLEANS = {"true": "true", "yes": "true", "false": "false", "no": "false"}


def assemble(
    rows: Mapping[str, LabelledRows],
    columns: DataColumns,
    request: DataRequest,
    *,
    name: str,
    notes: Sequence[str],
) -> ClassificationData:
    """Check the splits against each other, make the missing ones, and add the labels.

    Args:
        rows: Splits as the source has them, including `train`.
        request: The user's choices.

    Raises:
        InputError: `class_names`, `_shared_rows` or `missing_splits` rejects the data.
    """
    rows = {split: _with_weights(part, request) for split, part in rows.items()}
    ordered = columns.labels.per_unit
    several = request.several_labels or ordered
    if request.label_corrections is not None:
        is_plain = not (several or columns.labels.numbers) and columns.kind == "text"
        rows["train"] = corrected(
            rows["train"], columns.inputs, request.label_corrections, has_texts=is_plain
        )
    rows, names, label_notes = _labelled(rows, columns, request)
    conversion_notes: list[str] = []
    if columns.kind in MEDIA:
        rows, conversion_notes = MEDIA[columns.kind].check(rows, columns.inputs[0], columns.kind)
    digests = exact = {
        split: _input_digests(part.inputs, columns.inputs) for split, part in rows.items()
    }
    if columns.kind not in MEDIA:
        normal = {
            split: _input_digests(part.inputs, columns.inputs, normalize=True)
            for split, part in rows.items()
        }
        digests = merged_digests(exact, normal)
    train, groups, group_notes = rows["train"], digests["train"], list[str]()
    if GROUP_COLUMN in columns.extra:
        groups, group_notes = _joined_groups(train, groups, request)
    if columns.labels.numbers:
        parts = {split: _add_numbers(part) for split, part in rows.items()}
    else:
        parts = {
            split: _add_labels(part, names, several=several, ordered=ordered)
            for split, part in rows.items()
        }
    splits, split_notes = with_missing_splits(parts, strata_of(parts["train"]), groups, request)
    of_train = ["train", *(split for split in splits if split not in rows)]
    compared = {
        s: part for s, part in rows.items() if s != "train" or not request.trains_on_evaluated
    }
    shared_notes, shared = _shared_rows(compared, digests, exact, refuse=request.fail_on_leak)
    if GROUP_COLUMN in columns.extra:
        shared_notes += _shared_groups(compared, request)
    # What is said of training rows has no meaning without a training.
    is_silent = bool(ordered or columns.labels.numbers or request.evaluated)
    text_notes = None if request.evaluated else TEXT_NOTES.get()
    contradiction_notes = None if is_silent else CONTRADICTION_NOTES.get()
    all_notes = [
        *notes,
        *conversion_notes,
        *(note for part in rows.values() for note in part.notes),
        *(text_notes(train, columns) if text_notes else []),
        *_ignored_notes(rows, request.ignored_labels),
        *label_notes,
        *([] if is_silent else _label_notes(names, train.labels, several=several)),
        *(contradiction_notes(train, digests["train"]) if contradiction_notes else []),
        *shared_notes,
        *group_notes,
        *split_notes,
        *([] if is_silent else _few_rows_notes(train, of_train)),
    ]
    data = finalize(splits, request, columns.inputs, columns.kind, name, all_notes)
    is_reduced = any(len(part) < len(splits[split]) for split, part in data.splits.items())
    if is_reduced and not request.trains_on_evaluated:
        shared = _shared_with_train(data.splits, columns)
    return replace(
        data,
        shared_with_train=dict.fromkeys(splits.keys() - {"train"}, 0) | shared,
        text_units=columns.units if ordered else None,
        feature_columns=columns.features,
        text_column_delimiter=columns.delimiter,
        number_name=columns.labels.title if columns.labels.numbers else None,
    )


def _shared_groups(rows: Mapping[str, LabelledRows], request: DataRequest) -> list[str]:
    """Return a note for each two splits that share values of the group column.

    Raises:
        InputError: Two splits do, and `fail_on_leak` is set.
    """
    notes = []
    values = {
        split: {group for (group,) in cells(part.inputs, (GROUP_COLUMN,))} - {None}
        for split, part in rows.items()
    }
    for first, second in combinations(sorted(values, key=lambda split: split != "train"), 2):
        if shared := values[first] & values[second]:
            note = (
                f"--group_column {request.group_column}: {len(shared):,} of "
                f"{len(values[second]):,} groups of {second} rows are in {first} too"
            )
            if request.fail_on_leak:
                raise InputError(f"--fail_on_leak: {note}. Put all rows of a group into one split.")
            notes.append(f"{note}. With --fail_on_leak this is an error.")
    return notes


def _joined_groups(
    train: LabelledRows, digests: DigestArray, request: DataRequest
) -> tuple[DigestArray, list[str]]:
    """Return the group of each training row, where equal inputs join groups; and a note on that."""
    values = [group for (group,) in cells(train.inputs, (GROUP_COLUMN,))]
    named, joined = group_equal_keys(values), group_equal_keys(values, digests.tolist())
    groups = joined.ids.astype(np.uint64)
    if len(joined) == len(named):
        return groups, []
    return groups, [
        f"--group_column {request.group_column}: equal inputs join some of the {len(named):,} "
        f"groups of training rows; {len(joined):,} remain, the largest with "
        f"{int(np.bincount(joined.ids).max()):,} rows. Where splits are made from these rows, none "
        "is divided."
    ]


def _labelled(
    rows: Mapping[str, LabelledRows], columns: DataColumns, request: DataRequest
) -> tuple[Mapping[str, LabelledRows], tuple[str, ...], list[str]]:
    """Return rows whose labels are checked, the labels in the order of the outputs, and notes."""
    given = request.model_labels
    if given is not None:
        refuse_no_rows(rows)
        renamed, notes = given.of_rows(rows)
        return renamed, given.names, notes
    if columns.labels.numbers:
        refuse_no_numbers(rows, needs_several=not request.evaluated)
        return rows, rows["train"].names, []
    names = class_names(rows, several=request.several_labels or columns.labels.per_unit)
    if request.ordered_labels:
        names = _in_order(names, split_names(request.label_order), rows["train"].origin)
    return rows, names, []


def _with_weights(part: LabelledRows, request: DataRequest) -> LabelledRows:
    """Return rows whose weights, if they have any, are numbers that float32 has exactly.

    Raises:
        InputError: A weight is missing, not a finite number, or negative; the message names its
            row.
    """
    if WEIGHT_COLUMN not in part.inputs.column_names:
        return part
    texts = [text for (text,) in cells(part.inputs, (WEIGHT_COLUMN,))]
    weights = np.array(
        [float(t) if t and NUMBER.fullmatch(t.strip()) else np.nan for t in texts], dtype=np.float64
    )
    with np.errstate(over="ignore"):
        weights = weights.astype(np.float32).astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        text = texts[wrong[0]]
        raise InputError(
            f"{part.location(wrong)}: the column of weights, {quoted(request.weight_column)}, "
            f"{'is empty' if text is None else f'holds {quoted(text)}'} in {len(wrong)} of "
            f"{len(texts)} rows. A weight is a finite number of at least 0. Correct the cells, or "
            "remove --weight_column."
        )
    inputs = part.inputs.remove_columns(WEIGHT_COLUMN)
    return replace(part, inputs=inputs.add_column(WEIGHT_COLUMN, weights))


def refuse_no_rows(rows: Mapping[str, LabelledRows]) -> None:
    """Raise InputError when a split has no rows."""
    for split, part in rows.items():
        if len(part.labels) == 0 and part.ignored:
            raise InputError(
                f"{part.origin}: no rows for the {split} split. {part.left_out_by_label} "
                "Add others, or remove --ignore_label if these labels are classes."
            )
        if len(part.labels) == 0:
            raise InputError(f"{part.origin}: no rows for the {split} split. Add at least one.")


def refuse_no_numbers(rows: Mapping[str, LabelledRows], *, needs_several: bool) -> None:
    """Raise InputError when a split has no rows, or all training rows have the same number."""
    refuse_no_rows(rows)
    train = rows["train"]
    if needs_several and len(train.names) == 1:
        raise InputError(
            f"{train.origin}: all {len(train.labels)} rows have the label {train.names[0]}, so "
            "there is nothing to learn. Check --label_column_name."
        )
    values = np.array([float(name) for name in train.names])
    spread = values.max() - values.min()
    if np.abs(values).max() > LARGEST_LABEL or (len(values) > 1 and spread < 1 / LARGEST_LABEL):
        raise InputError(
            f"{train.origin}: the labels are numbers from {values.min():g} to {values.max():g}, "
            "which the float32 outputs of a model cannot hold. Convert them to another unit, such "
            "as their logarithm."
        )


def _with_places(part: LabelledRows) -> Dataset:
    """Return the inputs with the number of each row in its file, and the file if of several."""
    inputs = part.inputs.add_column(f"ampft_{part.table.unit}", part.numbers)
    if not part.files:
        return inputs
    names_of_files = [file.origin for file, count in part.files for _ in range(count)]
    return inputs.add_column(FILE_COLUMN, names_of_files)


def _add_numbers(part: LabelledRows) -> Dataset:
    """Return the inputs with a column `label` of float64 numbers."""
    numbers = np.array([float(name) for name in part.names], dtype=np.float64)
    return _with_places(part).add_column("label", numbers[part.labels.codes])


def _checked_weights(split: str, part: Dataset, request: DataRequest) -> tuple[Dataset, list[str]]:
    """Return a split with its weights, and a note on the training weights.

    Raises:
        InputError: All are 0.
    """
    if WEIGHT_COLUMN not in part.column_names:
        return part, []
    if split != "train" and not request.weighted_metrics:
        return part.remove_columns(WEIGHT_COLUMN), []
    weights = np.asarray(part[WEIGHT_COLUMN][:])
    if not weights.any():
        raise InputError(
            f"--weight_column {request.weight_column}: all {len(part)} rows of the {split} split "
            "have the weight 0, so none would count. Correct the weights, or remove the flag."
        )
    if split != "train":
        return part, []
    zeros = np.count_nonzero(weights == 0)
    note = f"Rows count by column {request.weight_column!r}: {weights.min():g} to {weights.max():g}"
    return part, [
        f"{note}; {counted(int(zeros), 'training row')} with the weight 0." if zeros else f"{note}."
    ]


def _add_labels(
    part: LabelledRows, names: tuple[str, ...], *, several: bool, ordered: bool
) -> Dataset:
    """Return the inputs with a column `label` of indices into `names`, or of lists of indices.

    Args:
        several: Whether rows have lists of labels.
        ordered: Whether the order of a list has a meaning.
    """
    index = {name: code for code, name in enumerate(names)}
    order = np.array([index[name] for name in part.names], dtype=np.int64)
    codes, feature = order[part.labels.codes], ClassLabel(names=list(names))
    inputs = _with_places(part)
    if not several:
        return inputs.add_column("label", codes, feature=feature)
    sets = np.split(codes, np.cumsum(part.labels.counts)[:-1])
    lists = [s.tolist() if ordered else sorted(s.tolist()) for s in sets]
    return inputs.add_column("label", lists, feature=List(feature))


class PartLabels(Protocol):
    """Labels that are not in a column `label`, such as masks."""

    def fingerprint(self, part: Dataset) -> str:
        """Return the SHA-256 of the contents of a split."""

    def of_part(self, part: Dataset, name: str, split: str) -> tuple[Masks, Dataset]:
        """Return the labels of a split of the data `name`, and the split without their columns."""


def finalize(
    splits: Mapping[str, Dataset],
    request: DataRequest,
    input_columns: tuple[str, ...],
    kind: str,
    name: str,
    notes: Sequence[str] = (),
    unit_labels: PartLabels | None = None,
) -> ClassificationData:
    """Reduce the splits to the requested sizes and compute their fingerprints.

    Args:
        splits: All splits, with labels or, for example, with checked masks.
        request: The user's choices.
        unit_labels: Labels that are not in a column `label`, such as masks.
    """
    reduced, masks, prints, all_notes = {}, {}, {}, list(notes)
    if request.leave_out_test and request.folds is None:
        if not {"validation", "test"} <= splits.keys():
            raise InputError(
                "--leave_out_test: the data need test rows to leave out and validation rows to "
                f"report on, and the splits are {listed(list(splits))}. Pass --validation_file and "
                "--test_file, or let both be split off."
            )
        left_out = len(splits["test"])
        splits = {split: part for split, part in splits.items() if split != "test"}
        all_notes.append(f"--leave_out_test: {counted(left_out, 'test row')} left out.")
    if request.evaluated:  # a built-in data set has more
        asked = ("train", *request.evaluated)
        splits = {split: part for split, part in splits.items() if split in asked}
    for split, whole in splits.items():
        strata = strata_of(whole) if unit_labels is None else None
        part, limit_notes = subsample(whole, strata, split, request)
        all_notes += limit_notes
        part, weight_notes = _checked_weights(split, part, request)
        all_notes += weight_notes
        if unit_labels is None:
            prints[split] = fingerprint(part, input_columns)
        else:
            prints[split] = unit_labels.fingerprint(part)
            masks[split], part = unit_labels.of_part(part, name, split)
        reduced[split] = part
    return ClassificationData(
        splits=DatasetDict(reduced),
        input_columns=input_columns,
        kind=kind,
        name=name,
        fingerprints=prints,
        notes=tuple(all_notes),
        group_column=request.group_column,
        masks=masks or None,
    )


def class_names(rows: Mapping[str, LabelledRows], *, several: bool) -> tuple[str, ...]:
    """Return the classes: in the order that the source declares, otherwise sorted.

    Args:
        several: Whether a row can have any number of labels.

    Raises:
        InputError: A split has no rows, training has fewer than two classes, its labels are scores
            or lists of labels, or another split has a label that training lacks; the message names
            its rows.
    """
    refuse_no_rows(rows)
    train = rows["train"]
    if not train.names:
        raise InputError(
            f"{train.origin}: none of the {len(train.labels)} rows has a label. Check"
            " --label_column_name and --label_separator."
        )
    if len(train.names) < 2 and several:
        raise InputError(
            f"{train.origin}: the only label is {quoted(train.names[0])}, and several labels per"
            " row need at least two. To predict whether a text has this label, use --task text"
            " with two classes, such as yes and no."
        )
    if len(train.names) < 2 and train.ignored:
        raise InputError(
            f"{train.origin}: all {len(train.labels)} rows have the label"
            f" {quoted(train.names[0])}, and a classifier needs at least two classes."
            f" {train.left_out_by_label} If these labels are classes, remove --ignore_label."
        )
    if len(train.names) < 2:
        raise InputError(
            f"{train.origin}: all {len(train.labels)} rows have the label"
            f" {quoted(train.names[0])}. A classifier needs at least two classes. Check"
            " --label_column_name."
        )
    if train.declared is None:
        if not several:
            _refuse_scores(train)
        else:
            _refuse_complements(train)
        _refuse_lists(train, several=several)
        if not several and _have_decimal_commas(train.names):
            raise InputError(
                f"{train.origin}: the labels are numbers with decimal commas, such as"
                f" {quoted(train.names[0])}. Write points instead, and add --task regression to"
                " predict the numbers. If each number is a class, add a letter to it."
            )
    for split, part in rows.items():
        _refuse_unseen(split, part, train)
    return train.declared or sort_names(train.names)


def _in_order(names: tuple[str, ...], order: Sequence[str] | None, origin: str) -> tuple[str, ...]:
    """Return the classes from the lowest to the highest.

    Args:
        names: Classes of the data.
        order: The user's order; None for the values of names that are numbers.

    Raises:
        InputError: The order cannot be known, or has other names than the data.
    """
    if order is not None:
        if sorted(order) != sorted(names):
            missing, unknown = ([*{*a} - {*b}] for a, b in ((names, order), (order, names)))
            raise InputError(
                f"--label_order {','.join(order)}: "
                + (f"the labels {quoted_list(sorted(missing))} are missing. " if missing else "")
                + (f"{origin} has no label {quoted_list(sorted(unknown))}. " if unknown else "")
                + "Name each label of the training data once, from the lowest to the highest."
            )
        return tuple(order)
    values = [float(name) if NUMBER.fullmatch(name.strip()) else None for name in names]
    if None in values or len({*values}) < len(names):
        raise InputError(
            f"--task ordinal: the order of the labels {quoted_list(names)} in {origin} is not "
            "known, because they are not different numbers. Add --label_order with all labels "
            "from the lowest to the highest, such as --label_order bad,fair,good."
        )
    return sort_names(names)


def _refuse_scores(train: LabelledRows) -> None:
    """Raise InputError when the labels are fractional numbers: that is regression."""
    names = train.names
    if not all(NUMBER.fullmatch(name.strip()) for name in names):
        return
    fractions = [name for name in names if not float(name).is_integer()]
    many = len(names) > MAX_FRACTIONS or len(train.labels) < MIN_ROWS_PER_CLASS * len(names)
    if many and 2 * len(fractions) >= len(names):
        raise InputError(
            f"{train.origin}: the labels are {len(names)} different numbers such as"
            f" {fractions[0][:40]}. To predict numbers, add --task regression (texts). To predict"
            " classes, replace the numbers by them (such as low and high), or pass another column"
            " with --label_column_name. If each number is a class, add a letter to it (such as"
            f" v{fractions[0][:40]})."
        )


def _refuse_complements(train: LabelledRows) -> None:
    """Raise InputError when every row has both labels 0 and 1, as in lists such as `[0, 1]`."""
    if len(train.names) == 2 and set(train.names) <= YES | NO and min(train.labels.counts) == 2:
        raise InputError(
            f"{train.origin}: every row has the labels {quoted_list(train.names)}, so they seem to"
            " say which of two labels a row has. Write the names of the labels, or one column of 0"
            " and 1 per label and pass --label_column_name a,b."
        )


def _refuse_lists(train: LabelledRows, *, several: bool) -> None:
    """Raise InputError when labels seem to be lists, such as `2,5`, with any usual separator."""
    names = train.names
    if several and len(train.labels.codes) > len(train.labels):
        return
    for separator in LABEL_SEPARATORS:
        lists = [name for name in names if separator in name]
        parts = {part.strip() for name in names for part in name.split(separator)}
        shared = several and any({*name.split(separator)} & {*names} for name in lists)
        if not (2 * len(lists) >= len(names) > len(parts) or shared):
            continue
        if separator == " " and not parts <= {*names}:  # such as "very good"
            continue
        found = (
            f"{len(lists)} of {len(names)} different labels contain {separator!r}, such as"
            f" {quoted(lists[0])}, and all consist of only {len(parts)} parts."
        )
        typed = "$'\\n'" if separator == "\n" else f"'{separator}'"  # in a shell
        if several:
            raise InputError(
                f"{train.origin}: no row has more than one label, but {found} If {separator!r}"
                f" separates labels, add --label_separator {typed}. Otherwise write them"
                " without it."
            )
        is_number = separator == "," and _have_decimal_commas(names)
        numbers = " If they are numbers with decimal commas, write points." if is_number else ""
        flags = "" if separator == "," else f" --label_separator {typed}"
        raise InputError(
            f"{train.origin}: {found} If a row has several labels, add --task multi-label{flags}."
            f"{numbers} If each of them is one class, write them without {separator!r}."
        )


def _have_decimal_commas(names: Sequence[str]) -> bool:
    """Return whether all labels are numbers, and each has a comma instead of a point."""
    return all("," in n and NUMBER.fullmatch(n.strip().replace(",", ".", 1)) for n in names)


def _refuse_unseen(split: str, part: LabelledRows, train: LabelledRows) -> None:
    """Raise InputError when a split has a label that training lacks."""
    present = frozenset(train.names)
    codes = [code for code, name in enumerate(part.names) if name not in present]
    if not codes:
        return
    unseen = [part.names[code] for code in codes]
    rows = part.labels.rows_with(codes)
    known = {_canonical(name): name for name in train.names}
    pairs = [(name, known[_canonical(name)]) for name in unseen if _canonical(name) in known]
    hints = [f"{quoted(name)} may mean {quoted(other)}" for name, other in pairs]
    hint = f" ({listed(hints, separator='; ')})" if hints else ""
    known_names = sort_names(train.names)
    raise InputError(
        f"{part.location(rows)}: labels of the {split} split that training lacks:"
        f" {quoted_list(unseen)}{hint}. Training has {quoted_list(known_names)}. Fix"
        " the labels, add training rows, or leave such rows out with --ignore_label."
    )


def _label_notes(names: Sequence[str], labels: RowLabels, *, several: bool) -> list[str]:
    """Return notes on labels that may be one class in two spellings, and on very many classes."""
    training_rows = len(labels)
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in names:
        spellings[_canonical(name)].append(name)
    groups = [group for group in spellings.values() if len(group) > 1]
    notes = [
        f"The labels {quoted_list(sort_names(group))} count as different classes. Are they several"
        " spellings of one?"
        for group in groups[:MAX_GROUPS_SHOWN]
    ]
    if len(groups) > MAX_GROUPS_SHOWN:
        notes.append(f"{len(groups) - MAX_GROUPS_SHOWN} more groups of labels are spelled alike.")
    missing = [name for name in names if name.strip() in MISSING or _may_be_unlabelled(name, names)]
    if missing:
        ignored = shlex.quote(",".join(dict.fromkeys(name.strip() for name in missing)))
        notes.append(
            f"The label {quoted_list(missing)} counts as a class, though it often stands for a "
            f"missing value. If it does, pass --ignore_label {ignored}."
        )
    if training_rows < MIN_ROWS_PER_CLASS * len(names):
        notes.append(
            f"{len(names)} classes in {training_rows} training rows. Is the label column right?"
        )
    if several:
        without = int((labels.counts == 0).sum())
        notes.append(
            f"{labels.counts.mean():.2f} labels per training row; {without} of {training_rows} "
            "rows have none."
        )
    return notes


def _may_be_unlabelled(name: str, names: Sequence[str]) -> bool:
    """Return whether a class is -1 and may mean no label: not beside only 1, nor on a scale."""
    if not NUMBER.fullmatch(name.strip()) or float(name) != UNLABELLED:
        return False
    numbers = {float(other) for other in names if NUMBER.fullmatch(other.strip())}
    return min(numbers) == UNLABELLED and not (len(numbers) == len(names) == 2 and 1 in numbers)


def _few_rows_notes(train: LabelledRows, splits: Sequence[str]) -> list[str]:
    """Return the note on classes with fewer rows than the splits that are made from them."""
    counts = np.bincount(train.labels.codes, minlength=len(train.names))
    few = [
        f"{quoted(train.names[code])} ({counts[code]})"
        for code in np.argsort(counts, kind="stable")
        if counts[code] < len(splits)
    ]
    if not few:
        return []
    return [
        f"{counted(len(few), 'class')} with fewer rows than the {len(splits)} splits, so that one"
        f" of them has no example: {listed(few)}."
    ]


def _ignored_notes(rows: Mapping[str, LabelledRows], labels: Iterable[str]) -> list[str]:
    """Return notes on labels of `--ignore_label` that no split has."""
    present = frozenset().union(*(part.ignored for part in rows.values()))
    return [
        f"--ignore_label: no row has the label {quoted(label)}."
        f"{did_you_mean(label, rows['train'].names)}"
        for label in labels
        if label not in present
    ]


def _input_digests(
    inputs: Dataset, columns: tuple[str, ...], *, normalize: bool = False
) -> DigestArray:
    """Return 64 bits of BLAKE2 for each row's inputs: equal rows have equal digests.

    With `normalize`, rows whose texts are equal after `normalized_text` have equal digests too.
    With a million rows in each of two splits, the probability that two different rows have equal
    digests is 5e-8.
    """
    digests = bytearray()
    for values in cells(inputs, content_columns(inputs, columns)):
        digest = hashlib.blake2b(digest_size=8)
        for value in values:
            digest.update(value_bytes(normalized_value(value) if normalize else value))
        digests += digest.digest()
    return np.frombuffer(bytes(digests), dtype=np.uint64)


def merged_digests(
    exact: Mapping[str, DigestArray], normal: Mapping[str, DigestArray]
) -> dict[str, DigestArray]:
    """Return digests that are equal for rows with equal normalized inputs.

    These are the exact digest of the first such row, so that data without such rows keep theirs.
    """
    of_rows = np.concatenate([*normal.values()])
    distinct, first = np.unique(of_rows, return_index=True)
    merged = np.concatenate([*exact.values()])[first[np.searchsorted(distinct, of_rows)]]
    ends = np.cumsum([len(part) for part in exact.values()])
    return dict(zip(exact, np.split(merged, ends[:-1]), strict=True))


def _shared_with_train(splits: Mapping[str, Dataset], columns: DataColumns) -> dict[str, int]:
    """Return the number of rows of each other split whose inputs `train` has too."""
    normalize = columns.kind not in MEDIA
    digests = {
        split: _input_digests(part, columns.inputs, normalize=normalize)
        for split, part in splits.items()
    }
    train = digests.pop("train")
    return {split: int(np.isin(each, train).sum()) for split, each in digests.items()}


def _shared_rows(
    rows: Mapping[str, LabelledRows],
    digests: Mapping[str, DigestArray],
    exact: Mapping[str, DigestArray],
    *,
    refuse: bool,
) -> tuple[list[str], dict[str, int]]:
    """Return a note for each two splits that share inputs, and the rows that are in `train` too.

    Labels of the first row with the same inputs are compared.
    """
    notes, of_train = [], {}
    for first, second in combinations(sorted(rows, key=lambda split: split != "train"), 2):
        shared = np.flatnonzero(np.isin(digests[second], digests[first]))
        if first == "train":
            of_train[second] = len(shared)
        if not len(shared):
            continue
        alike = len(shared) - int(np.isin(exact[second][shared], exact[first]).sum())
        distinct, indices = np.unique(digests[first], return_index=True)
        twins = indices[np.searchsorted(distinct, digests[second][shared])]
        relabelled = sum(
            rows[first].names_of(twin) != rows[second].names_of(row)
            for twin, row in zip(twins.tolist(), shared.tolist(), strict=True)
        )
        spelling = f" ({alike} in another spelling: case, punctuation or spaces)" if alike else ""
        note = (
            f"{len(shared)} of {len(digests[second])} {second} rows have inputs that {first} has"
            f" too{spelling}, {relabelled} of them with a different label"
        )
        if refuse:
            raise InputError(
                f"--fail_on_leak: {note}: {rows[second].location(shared)}. Remove them from one"
                " of the splits."
            )
        notes.append(f"{note}. With --fail_on_leak this is an error.")
    return notes, of_train


def _canonical(name: str) -> str:
    """Return a spelling that is equal for labels that may mean the same.

    Examples are `1` and `1.0`, `007` and `7`, `Pos` and ` pos`, `True` and `yes`, `pos` with and
    without a zero-width space. This only warns; labels are never merged.
    """
    folded = " ".join(without_invisible(unicodedata.normalize("NFKC", name)).casefold().split())
    if NUMBER.fullmatch(folded) and abs(float(folded)) < LARGEST_EXACT:
        return repr(float(folded))
    return BOOLEANS.get(folded, folded)
