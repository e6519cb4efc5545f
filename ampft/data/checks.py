"""What has to hold between the splits, and what is worth saying of them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ampft.data.dataset import batches, value_bytes
from ampft.data.intake import LabelledRows
from ampft.data.row_labels import RowLabels
from ampft.errors import InputError

DigestArray = npt.NDArray[np.uint64]

MOST_LABELS_SHOWN = 12
FEWEST_ROWS_PER_CLASS = 2  # below this on average, the column may not hold classes


def class_names(rows: Mapping[str, LabelledRows]) -> tuple[str, ...]:
    """Return the classes in order: as the source declares them, else those of training, sorted.

    Raises:
        InputError: For a split without rows, for fewer than two classes in training, and for a
            label in another split that training lacks, with its rows.
    """
    for split, part in rows.items():
        if len(part.labels) == 0:
            raise InputError(
                f"{part.origin}: no rows for the {split} split; at least one is wanted."
            )
    train = rows["train"]
    if not train.names:
        raise InputError(
            f"{train.origin}: none of {len(train.labels)} rows has a label. Check "
            "--label_column_name and --label_separator."
        )
    if len(train.names) < 2:
        raise InputError(
            f"{train.origin}: all {len(train.labels)} rows have the label {train.names[0]!r}. A"
            " classifier wants two classes at least; is it the right --label_column_name?"
        )
    for split, part in rows.items():
        refuse_unseen(split, part, train)
    return train.declared or in_order(train.names)


def refuse_unseen(split: str, part: LabelledRows, train: LabelledRows) -> None:
    """Raise InputError when a split has a label that training lacks."""
    unseen = [name for name in part.names if name not in train.names]
    if not unseen:
        return
    bad = part.labels.having([part.names.index(name) for name in unseen])
    alike = {canonical(name): name for name in train.names}
    hints = [f"{n!r} may mean {alike[canonical(n)]!r}" for n in unseen if canonical(n) in alike]
    hint = f" ({'; '.join(hints)})" if hints else ""
    raise InputError(
        f"{part.places(bad)}: labels of the {split} split that training lacks: {listed(unseen)}"
        f"{hint}. Training has {listed(in_order(train.names))}. Mend the labels, add training rows,"
        " or leave such rows out with --ignore_label."
    )


def listed(names: Sequence[str]) -> str:
    """Return names in quotes, the first twelve of them and how many more."""
    more = len(names) - MOST_LABELS_SHOWN
    shown = ", ".join(map(repr, names[:MOST_LABELS_SHOWN]))
    return shown + (f" and {more} more" if more > 0 else "")


def label_notes(names: Sequence[str], labels: RowLabels, *, several: bool) -> list[str]:
    """Say which labels may be one class in two spellings, and when there are very many."""
    training_rows = len(labels)
    notes = [
        f"The labels {listed(group)} are different classes here; are they one in several spellings?"
        for group in near_duplicates(names)
    ]
    if training_rows < FEWEST_ROWS_PER_CLASS * len(names):
        notes.append(
            f"{len(names)} classes in {training_rows} training rows: is the label column right?"
        )
    if several:
        without = int((labels.counts == 0).sum())
        notes.append(
            f"{labels.counts.mean():.2f} labels per training row; {without} of {training_rows} "
            "rows have none."
        )
    return notes


def digests(part: LabelledRows, columns: tuple[str, ...]) -> DigestArray:
    """Return 64 bits of BLAKE2 for each row's inputs: equal rows have equal digests.

    Two different rows among a million times a million pairs are taken for equal with a
    probability of 5e-8. Images are decoded, so that one that cannot be is found before training.

    Raises:
        InputError: For an image that cannot be decoded, with its place.
    """
    found = bytearray()
    try:
        for batch in batches(part.inputs):
            for values in zip(*(batch[name] for name in columns), strict=True):
                digest = hashlib.blake2b(digest_size=8)
                for value in values:
                    encoded = value_bytes(value)
                    digest.update(len(encoded).to_bytes(8, "little"))
                    digest.update(encoded)
                found += digest.digest()
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for broken files
        raise InputError(undecodable(part, error)) from error
    return np.frombuffer(bytes(found), dtype=np.uint64)


def undecodable(part: LabelledRows, error: Exception) -> str:
    """Say which rows cannot be decoded."""
    broken = []
    for row in range(len(part.inputs)):
        try:
            part.inputs[row]
        except (OSError, SyntaxError, ValueError):
            broken.append(row)
    where = part.places(np.array(broken, dtype=np.int64)) if broken else part.origin
    return f"{where}: cannot be decoded ({type(error).__name__}: {error}). Mend or remove them."


def shared_rows(
    rows: Mapping[str, LabelledRows], seen: Mapping[str, DigestArray], *, refuse: bool
) -> list[str]:
    """Count the rows whose inputs stand in two splits.

    Args:
        rows: The splits.
        seen: The digests of their rows.
        refuse: Whether such rows are an error.

    Returns:
        A sentence for each two splits that share rows.

    Raises:
        InputError: With the rows' places, when `refuse`.
    """
    notes = []
    for first, second in combinations(rows, 2):
        shared = np.flatnonzero(np.isin(seen[second], seen[first]))
        if not len(shared):
            continue
        said = (
            f"{len(shared)} of {len(seen[second])} {second} rows have inputs that {first} has too,"
            f" {relabelled(rows, seen, first, second, shared)} of them with another label"
        )
        if refuse:
            raise InputError(
                f"--fail_on_leak: {said}: {rows[second].places(shared)}. Remove them from one"
                " split."
            )
        notes.append(f"{said}. --fail_on_leak refuses this.")
    return notes


def relabelled(
    rows: Mapping[str, LabelledRows],
    seen: Mapping[str, DigestArray],
    first: str,
    second: str,
    shared: npt.NDArray[np.intp],
) -> int:
    """Count the shared rows of `second` whose label their first twin in `first` does not have."""
    distinct, places = np.unique(seen[first], return_index=True)
    twins = places[np.searchsorted(distinct, seen[second][shared])]
    one, other = rows[first], rows[second]
    pairs = zip(twins.tolist(), shared.tolist(), strict=True)
    return sum(one.names_of(twin) != other.names_of(row) for twin, row in pairs)


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
TRUTH = {"true": "true", "yes": "true", "false": "false", "no": "false"}


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort label names: numbers by their value, first, then the rest by their characters."""

    def key(name: str) -> tuple[bool, float, str]:
        is_number = NUMBER.fullmatch(name.strip()) is not None
        return (not is_number, float(name) if is_number else 0.0, name)

    return tuple(sorted(names, key=key))


def canonical(name: str) -> str:
    """Return what a label may mean: equal for `1` and `1.0`, `007` and `7`, `Pos` and ` pos`.

    `True` and `yes` are one, `False` and `no` are one. Labels are never merged by this.
    """
    folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if NUMBER.fullmatch(folded):
        return repr(float(folded))
    return TRUTH.get(folded, folded)


def near_duplicates(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of labels that differ in spelling alone, each in order."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[canonical(name)].append(name)
    return [in_order(group) for group in groups.values() if len(group) > 1]
