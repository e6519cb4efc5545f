"""Which rows belong to which split: splits made from training rows or made smaller, and groups."""

from __future__ import annotations

import hashlib
import heapq
import shlex
import unicodedata
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ampft.data.request import DataRequest, refuse_unused_options
from ampft.data.sources.file_names import named_files
from ampft.errors import InputError
from ampft.text.scripts import without_script_spaces

if TYPE_CHECKING:
    from datasets import Dataset

    from ampft.data.dataset import ClassificationData

NORMAL_95 = 1.96  # half width of a 95 % interval, in standard errors
IntArray = npt.NDArray[np.int64]

LIMITS = {
    "train": "max_train_samples",
    "validation": "max_eval_samples",
    "test": "max_predict_samples",
}


def stratified_choice(
    labels: IntArray, count: int, *, seed: int, leave_one: bool = False, take_one: bool = False
) -> IntArray:
    """Choose rows at random so that each class keeps its share.

    Shares are rounded by the largest-remainder method; ties are broken at random.

    Args:
        labels: (n,) class of each row.
        count: Number of rows to choose, at most n.
        leave_one: Whether one row of each class is left behind, even if fewer than `count` rows
            are then chosen.
        take_one: Whether one row of each class is chosen, even if its share is smaller; `count`
            must be at least the number of classes.

    Returns:
        (count,) row indices, ascending; fewer if `leave_one` requires it.
    """
    generator = np.random.default_rng(seed)
    _, sizes = np.unique(labels, return_counts=True)
    available = sizes - 1 if leave_one else sizes
    exact = [Fraction(int(size) * count, len(labels)) for size in sizes]
    shares = np.array([float(share) for share in exact])
    quota = np.array([int(share) for share in exact], dtype=np.int64)
    remainders = np.array([float(share - int(share)) for share in exact])
    by_remainder = np.lexsort((generator.random(len(sizes)), -remainders))
    quota = np.minimum(quota, available)
    growing = by_remainder[quota[by_remainder] < available[by_remainder]]
    quota[growing[: max(count - int(quota.sum()), 0)]] += 1
    if take_one:
        quota = _without_excess(np.maximum(quota, 1), shares, count)
    of_classes = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    chosen = [
        generator.permutation(rows)[:size] for rows, size in zip(of_classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _without_excess(quota: IntArray, shares: npt.NDArray[np.float64], count: int) -> IntArray:
    """Return quotas that sum to `count`: the one furthest above its share loses a row each time."""
    heap = [
        (share - size, index)
        for index, (size, share) in enumerate(zip(quota, shares, strict=True))
        if size > 1
    ]
    heapq.heapify(heap)
    for _ in range(int(quota.sum()) - count):
        _, index = heap[0]
        quota[index] -= 1
        if quota[index] > 1:
            heapq.heapreplace(heap, (shares[index] - quota[index], index))
        else:
            heapq.heappop(heap)
    return quota


def split_off(
    labels: IntArray, groups: npt.NDArray[np.uint64], count: int, *, seed: int
) -> tuple[IntArray, IntArray]:
    """Split rows in two, stratified, so that rows of one group stay together.

    Args:
        labels: (n,) class of each row.
        groups: (n,) equal for rows with equal inputs, which must not be in both parts. A group has
            the class of its first row.
        count: Number of groups in the second part; fewer where that takes the last row of a class.

    Returns:
        Row indices of the first and of the second part, ascending. Each class keeps a row in the
        first.
    """
    _, firsts, membership = np.unique(groups, return_index=True, return_inverse=True)
    second = stratified_choice(labels[firsts], count, seed=seed, leave_one=True)
    is_second = np.isin(membership, second)
    # A class may occur only in groups whose first row has another class.
    for missing in np.setdiff1d(labels, labels[~is_second]):
        holders, sizes = np.unique(membership[is_second], return_counts=True)
        has = np.isin(holders, membership[labels == missing])
        is_second &= membership != holders[has][sizes[has].argmin()]
    return np.flatnonzero(~is_second), np.flatnonzero(is_second)


def with_missing_splits(
    parts: Mapping[str, Dataset],
    strata: IntArray | None,
    groups: npt.NDArray[np.uint64],
    request: DataRequest,
) -> tuple[dict[str, Dataset], list[str]]:
    """Return the splits of a source and those made from its training rows, and notes.

    Args:
        strata: (n,) class of each training row; None for images with masks.
        groups: (n,) equal for training rows that must be in one split.
        request: The user's choices.

    Raises:
        InputError: See `missing_splits` and `fold_splits`; or a setting of a split that is not made
            was passed.
    """
    if request.evaluated:
        return _evaluated_splits(parts, strata, groups, request)
    divides, leaves_out = request.folds is not None, request.leave_out_test
    not_made = {
        "validation_fraction": "validation" in parts,
        "test_fraction": (divides and not leaves_out)
        or not {"validation", "test"}.isdisjoint(parts),
    }
    not_made["max_drawn_samples"] = all(not_made.values())
    # 0 asks for no such split, so nothing is ignored.
    ignored = [name for name in not_made if not_made[name] and getattr(request, name)]
    own_notes = _own_validation_notes(parts, request)
    ignored = [name for name in ignored if name != "validation_fraction"]
    refuse_unused_options(request, ignored, "data with splits of their own, or with --folds")
    limits = (request.max_train_samples, request.max_eval_samples, request.max_predict_samples)
    seed_notes = []
    is_whole = "validation" in parts and not divides and limits == (None, None, None)
    if is_whole and request.data_seed != DataRequest.data_seed:
        seed_notes = [
            f"--data_seed {request.data_seed} has no effect: the data have splits of their own, "
            "used whole. The order of the examples follows --seed."
        ]
    if not divides:
        refuse_unused_options(request, ("fold",), "data that are not divided by --folds")
    if divides and leaves_out:
        if "test" not in parts:
            asked = replace(request, validation_fraction=0.0)
            rows = missing_splits(strata, groups, frozenset(parts), asked)[0]["train"]
            if len(rows) == len(groups):
                raise InputError(
                    "--leave_out_test: the data have no test rows. Pass --test_file, or "
                    "remove --validation_file or --test_fraction 0, so that rows are split off."
                )
            strata, groups = None if strata is None else strata[rows], groups[rows]
            parts = {**parts, "train": parts["train"].select(rows)}
        parts = {split: part for split, part in parts.items() if split != "test"}
    make = fold_splits if divides else missing_splits
    made, notes = make(strata, groups, frozenset(parts), request)
    train = parts["train"]
    splits = {
        split: train if len(rows) == len(train) else train.select(rows)
        for split, rows in made.items()
    }
    splits = {**parts, **splits}
    every = [*notes, *own_notes, *seed_notes]
    return {split: splits[split] for split in LIMITS if split in splits}, every


def _own_validation_notes(parts: Mapping[str, Dataset], request: DataRequest) -> list[str]:
    """Return a note if the data have the validation split that was to be held out.

    Scripts of transformers hold rows out only where the data have no such split.
    """
    fraction = request.validation_fraction
    if "validation" not in parts or fraction in (0, DataRequest.validation_fraction):
        return []
    return [
        f"--validation_fraction {fraction:g} holds nothing out: the data have a validation split "
        "of their own, which is used."
    ]


def _evaluated_splits(
    parts: Mapping[str, Dataset],
    strata: IntArray | None,
    groups: npt.NDArray[np.uint64],
    request: DataRequest,
) -> tuple[dict[str, Dataset], list[str]]:
    """Return the splits of a run without training, and notes; see `with_missing_splits`.

    Rows of the only file are not held out unless a fraction was asked for: the model may have been
    trained on the others. Without a validation split, the test split is taken for it, as
    run_classification of transformers does.

    Raises:
        InputError: A split is missing.
    """
    splits, notes = dict(parts), _own_validation_notes(parts, request)
    holds_out = request.validation_fraction > 0 and not request.trains_on_evaluated
    if holds_out and "validation" in request.evaluated and "validation" not in parts:
        made, notes = missing_splits(
            strata, groups, frozenset(parts), replace(request, test_fraction=0.0)
        )
        splits |= {split: parts["train"].select(rows) for split, rows in made.items()}
    elif "validation" in request.evaluated and "validation" not in parts and "test" in parts:
        splits["validation"] = parts["test"]
        notes = ["No validation split: the test split is evaluated in its place."]
    asked = list(request.evaluated)
    has_source = request.test_file is not None or request.dataset_name is not None
    if asked == ["validation", "test"] and "test" not in splits and has_source:
        asked.remove("test")
        notes.append(
            f"No test row has a label, so the report has no test split. "
            f"{unlabelled_advice(request)}"
        )
    for split in asked:
        if split not in splits:
            flag = {"validation": "--do_eval", "test": "--do_predict"}[split]
            fraction = "" if split == "test" else ", or rows held out with --validation_fraction"
            raise InputError(
                f"--evaluate_only {','.join(request.evaluated)} ({flag} without --do_train): there "
                f"are no {split} rows with labels. Add --{split}_file{fraction}, or train with "
                f"--do_train. {unlabelled_advice(request)}"
            )
    return {split: splits[split] for split in ("train", *asked)}, notes


def unlabelled_advice(request: DataRequest) -> str:
    """Return the sentence that says what predicts rows without labels."""
    model, file = request.evaluated_run, request.test_file
    if model is None or file is None:
        return (
            "`ampft predict` predicts rows without labels, with the folder that a training, or an "
            "evaluation on rows with labels, has written; `ampft train --do_eval --do_predict` "
            "predicts them after such an evaluation."
        )
    files = map(str, named_files(file, "--test_file"))
    command = shlex.join(["ampft", "predict", "--model", model, *files])
    return f"To predict rows without labels: {command}"


def missing_splits(
    labels: IntArray | None,
    groups: npt.NDArray[np.uint64],
    existing: frozenset[str],
    request: DataRequest,
) -> tuple[dict[str, IntArray], list[str]]:
    """Split off the splits that the source lacks from its training rows.

    Without validation, it is made; without both, test is made too. A source that has only
    training and validation reports on validation.

    Args:
        labels: (n,) class of each training row; None for images with masks, which have no class.
        groups: (n,) equal for rows with equal inputs.
        request: Fractions of the rows to split off, 0 for none, and seed.

    Returns:
        Indices of the training rows by split, and a note if a split was made.

    Raises:
        InputError: The fractions leave nothing to train on, or there are too few rows to split.
    """
    fractions = {"validation": request.validation_fraction, "test": request.test_fraction}
    for split, value in fractions.items():
        if not 0 <= value < 1:
            raise InputError(
                f"--{split}_fraction: received {value}; it must be at least 0 (no such split) and "
                "below 1."
            )
    if sum(fractions.values()) >= 1:
        raise InputError(
            f"--validation_fraction and --test_fraction: received {request.validation_fraction} and"
            f" {request.test_fraction}, which leaves nothing for training. Their sum must be below"
            " 1."
        )
    strata = np.zeros(len(groups), dtype=np.int64) if labels is None else labels
    rest = np.arange(len(groups))
    if "validation" in existing:
        note = "No test split: the validation split chooses the best model and is reported on."
        return {"train": rest}, [] if "test" in existing else [note]
    if "test" in existing:
        del fractions["test"]
    new: dict[str, IntArray] = {}
    distinct = len(np.unique(groups))
    wanted = {split: round(share * distinct) for split, share in fractions.items()}
    counts = {split: _limited(count, request) for split, count in wanted.items()}
    limited = [split for split, count in counts.items() if count < wanted[split]]
    for split in reversed(fractions):
        if fractions[split]:
            first, second = split_off(
                strata[rest], groups[rest], counts[split], seed=request.data_seed
            )
            rest, new[split] = rest[first], rest[second]
            # Of two rows, none could be split off whatever their labels are.
            if not len(second) and counts[split] and len(np.unique(strata)) == len(strata):
                raise InputError(
                    f"--label_column_name: each of the {len(strata)} training rows has another "
                    "label, so no class can be learned. Pass the column of the classes, or add "
                    "rows of each class."
                )
            if not len(second):
                rows, different = len(groups), len(np.unique(groups))
                what = "different " if different != rows else ""
                which = f" ({different} different)" if what else ""
                raise InputError(
                    f"--{split}_fraction: {rows} training rows{which} are too few for a {split}"
                    f" split. Add {what}rows, pass --{split}_file, or set --{split}_fraction 0."
                )
    if not new:
        return {"train": rest}, []
    sizes = ", ".join(f"{split} {len(new[split])}" for split in fractions if split in new)
    what = "images" if labels is None else "rows, stratified"
    note = (
        f"Splits made from the {len(groups)} training {what}, seed {request.data_seed}: {sizes}; "
        f"train keeps {len(rest)}."
    )
    notes = [_limit_note(limited, strata[new[limited[0]]], request)] if limited else []
    return {"train": rest, **new}, [note, *notes]


def _limited(count: int, request: DataRequest) -> int:
    """Return how many rows of a split are drawn: `max_drawn_samples` at most, 0 for any number."""
    return min(count, request.max_drawn_samples or count)


def _limit_note(limited: Sequence[str], labels: IntArray, request: DataRequest) -> str:
    """Return what a limited split shows: the widest interval of a share, and its rarest class."""
    points = 100 * NORMAL_95 * 0.5 / len(labels) ** 0.5
    _, counts = np.unique(labels, return_counts=True)
    rarest = f", and the rarest class has {counts.min()} rows" if len(counts) > 1 else ""
    return (
        f"--max_drawn_samples {request.max_drawn_samples} limits {' and '.join(limited)}, and the "
        f"other rows are trained on. {len(labels)} rows give a share such as the accuracy with an "
        f"interval of at most ±{points:.1f} points (95 %){rarest}."
    )


def fold_splits(
    labels: IntArray | None,
    groups: npt.NDArray[np.uint64],
    existing: frozenset[str],
    request: DataRequest,
) -> tuple[dict[str, IntArray], list[str]]:
    """Divide the training rows into folds, and split off one of them for testing.

    The folds of one seed do not depend on which of them is asked for.

    Args:
        labels: (n,) class of each training row; None for images with masks, which have no class.
        groups: (n,) equal for rows that must be in one fold.
        request: Number of folds, the fold for testing, seed, and the fraction of the rows of the
            other folds for validation, 0 for none.

    Returns:
        Indices of the training rows by split, and a note.

    Raises:
        InputError: The source has a test split, there is no such fold, or there are too few rows.
    """
    folds, fold, seed = request.folds, request.fold, request.data_seed
    assert folds is not None, "the rows are divided"
    distinct = len(np.unique(groups))
    if "test" in existing:
        raise InputError(
            f"--folds {folds}: the data have a test split, and folds take theirs from the training "
            "data. Remove --folds or the test data."
        )
    if fold > folds or folds > distinct:
        raise InputError(
            f"--folds {folds} and --fold {fold}: a fold is one of 1 to {folds}, and there are "
            f"{distinct} different training rows, at least one for each."
        )
    strata = np.zeros(len(groups), dtype=np.int64) if labels is None else labels
    rest = test = np.arange(len(groups))
    for number in range(1, fold + 1):
        if number == folds:
            test, rest = rest, rest[:0]
            break
        count = round(len(np.unique(groups[rest])) / (folds - number + 1))
        first, second = split_off(strata[rest], groups[rest], count, seed=seed)
        test, rest = rest[second], rest[first]
    train = np.setdiff1d(np.arange(len(groups)), test)
    splits = {"train": train, "test": test}
    if "validation" not in existing and request.validation_fraction:
        count = round(request.validation_fraction * len(np.unique(groups[train])))
        first, second = split_off(strata[train], groups[train], _limited(count, request), seed=seed)
        splits |= {"train": train[first], "validation": train[second]}
    sizes = ", ".join(f"{split} {len(rows)}" for split, rows in splits.items())
    return splits, [f"Fold {fold} of {folds} of {len(groups)} training rows, seed {seed}: {sizes}."]


def subsample(
    part: Dataset, labels: IntArray | None, split: str, request: DataRequest
) -> tuple[Dataset, list[str]]:
    """Choose as many rows of a split as `max_..._samples` allows.

    The choice is random and stratified, because the first n rows of a file sorted by label would
    have one class. Training keeps a row of each class. The rows keep their order.

    Args:
        labels: (n,) class of each row; None for images with masks, which have no class.
        request: The user's choices.

    Returns:
        The rows to keep, and a note if some are left out.

    Raises:
        InputError: The limit is below 1 or, for training, below the number of classes.
    """
    limit, count, flag = getattr(request, LIMITS[split]), len(part), f"--{LIMITS[split]}"
    if limit is not None and limit < 1:
        raise InputError(f"{flag}: received {limit}; it must be at least 1.")
    if limit is None or limit >= count:
        return part, []
    strata = np.zeros(count, dtype=np.int64) if labels is None else labels
    classes = len(np.unique(strata))
    if split == "train" and limit < classes:
        raise InputError(
            f"{flag}: received {limit}, but the training rows have {classes} classes,"
            f" and each needs a row. It must be at least {classes}."
        )
    seed = request.data_seed
    rows = stratified_choice(strata, limit, seed=seed, take_one=split == "train")
    how = "chosen" if labels is None else "a stratified choice"
    return part.select(rows), [f"{flag}: {limit} of {count} {split} rows, {how} with seed {seed}."]


INVISIBLE = "Cf"  # Unicode's category of characters of format
GROUP_COLUMN = "ampft_group"  # of a split, where the user named a group column
ID_COLUMN = "ampft_id"  # the same for the column of ids
FILE_COLUMN = "ampft_file"  # the file of each example, if a split has several
# Of a split: where each example is, by line or row of its file from 1, or by position from 0.
NUMBER_COLUMNS = {"ampft_line": "file_line", "ampft_row": "file_row", "ampft_position": "position"}


@dataclass(frozen=True)
class Groups:
    """Groups of the examples of a split."""

    ids: IntArray  # (n,) index of each example's group, 0..G-1, in the order of first occurrence.
    # Column whose values are the groups, joined where inputs are equal; None if a group is a set of
    # duplicates.
    column: str | None

    def __len__(self) -> int:
        """Number of groups, G."""
        return int(self.ids.max()) + 1

    def __eq__(self, other: object) -> bool:
        """Whether the same examples form groups for the same reason."""
        if not isinstance(other, Groups):
            return NotImplemented
        return self.column == other.column and np.array_equal(self.ids, other.ids)

    __hash__ = None  # type: ignore[assignment]


def dependent_groups(data: ClassificationData, split: str) -> Groups | None:
    """Return the groups of a split's examples; None if all its examples are independent.

    Examples are in one group if they share a value of the group column, or if their inputs are
    equal after `normalized_text`, directly or through other examples.
    """
    from ampft.data.dataset import cells, content_columns, value_bytes

    part = data.splits[split]

    def key(value: Any) -> str | bytes:
        text = normalized_value(value)
        if isinstance(text, str):
            return text
        return hashlib.blake2b(value_bytes(value), digest_size=16).digest()

    rows = cells(part, content_columns(part, data.input_columns))
    inputs = (tuple(map(key, row)) for row in rows)
    if data.group_column is not None:
        named = (group for (group,) in cells(part, (GROUP_COLUMN,)))
        return group_equal_keys(named, inputs, column=data.group_column)
    groups = group_equal_keys(inputs)
    return groups if len(groups) < len(part) else None


def group_equal_keys(*keys: Iterable[Hashable | None], column: str | None = None) -> Groups:
    """Return the groups of examples that share a key, directly or through other examples.

    Args:
        keys: One or more keys of each example, each kind in its own sequence, in the order of the
            examples. None is a key that no other example shares.
        column: Column that the groups are named after.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    index: dict[Any, int] = {}
    examples, found, count = [], [], 0
    for kind, sequence in enumerate(keys):
        for count, key in enumerate(sequence, 1):
            examples.append(count - 1)
            found.append(index.setdefault(object() if key is None else (kind, key), len(index)))
    size = count + len(index)
    edges = (np.ones(len(found)), (examples, np.array(found, dtype=np.int64) + count))
    _, components = connected_components(csr_array(edges, shape=(size, size)), directed=False)
    _, first, ids = np.unique(components[:count], return_index=True, return_inverse=True)
    return Groups(np.argsort(np.argsort(first))[ids].astype(np.int64), column)


def normalized_value(value: Any) -> Any:
    """Return the normalized text of a text or of a list of words or numbers; others unchanged."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return normalized_text(value) if isinstance(value, str) else value


def normalized_text(text: str) -> str:
    """Return a text without differences in case, punctuation, white space and Unicode form.

    Scripts without spaces between words, such as Chinese, keep none. A text that consists
    only of punctuation is returned unchanged.
    """
    words = unicodedata.normalize("NFKC", text).casefold().translate(_WITHOUT_PUNCTUATION).split()
    return without_script_spaces(" ".join(words)) or text


def without_invisible(text: str) -> str:
    """Return a text without its characters of format, such as zero-width spaces."""
    return "".join(c for c in text if unicodedata.category(c) != INVISIBLE)


class _WithoutPunctuation(dict[int, str]):
    """A table for `str.translate`, filled with the characters that occur: there are a million."""

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        self[code] = " " if category[0] == "P" else chr(code)
        if category == INVISIBLE:
            self[code] = ""
        return self[code]


_WITHOUT_PUNCTUATION = _WithoutPunctuation()
