"""The examples that a ledger of tables judges on: ids, labels and groups, in the ledger's folder.

The tables that start the ledger define them. What later tables say about labels, texts or groups is
not read, so that no answer and no refusal can depend on it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from ampft.comparison.analysis.foreign_predictions import SPLIT, TableCases
from ampft.comparison.analysis.run_predictions import Cases
from ampft.data.splits import group_equal_keys
from ampft.errors import InputError
from ampft.files import atomic_path, write_text_non_atomically
from ampft.lab.referee.ledger import CASES_NAME, ledger_writes
from ampft.tasks.single_label import SingleLabel
from ampft.text.json_io import (
    JSONValue,
    from_json,
    json_text,
    json_values,
    read_json_object,
    values_hash,
)


@dataclass(frozen=True, kw_only=True)
class CaseTable:
    """Labels and groups of examples, in the order of their ids."""

    ids: Sequence[str]  # Ids, sorted.
    labels: Sequence[int]  # Index of each label among the classes.
    label_names: Sequence[str]  # Classes.
    groups: Sequence[int] | None  # Index of each example's group; None if all are independent.
    # Random text, so that the hash of the table, which entries show, tells nothing about it.
    salt: str = ""

    @classmethod
    def of(cls, table: TableCases, *, salted: bool) -> CaseTable:
        """Return the table of the examples of some tables of predictions."""
        order = np.argsort(np.array(table.ids), kind="stable")
        cases, groups = table.cases, table.cases.groups
        return cls(
            ids=[table.ids[row] for row in order],
            labels=cases.truth[order].tolist(),
            label_names=cases.label_names,
            groups=None if groups is None else group_equal_keys(groups.ids[order]).ids.tolist(),
            salt=secrets.token_hex(16) if salted else "",
        )

    @property
    def sha256(self) -> str:
        """Hash of the content."""
        return values_hash(cast("dict[str, JSONValue]", json_values(self)))

    @property
    def examples(self) -> TableCases:
        """The examples as a comparison takes them, without texts."""
        names = tuple(self.label_names)
        cases = Cases(
            path=Path(CASES_NAME),
            kind=SingleLabel.name,
            split=SPLIT,
            truth=np.array(self.labels, dtype=np.int64),
            label_names=names,
            class_names=names,
            groups=None if self.groups is None else group_equal_keys(self.groups),
        )
        return TableCases(ids=self.ids, cases=cases, texts={})


def write_case_table(folder: Path, table: CaseTable) -> None:
    """Write the examples of a new ledger."""
    with ledger_writes(folder), atomic_path(folder / CASES_NAME) as temporary:
        write_text_non_atomically(temporary, json_text(table))


def read_case_table(folder: Path, sha256: str) -> CaseTable:
    """Read the examples of a ledger.

    Args:
        sha256: Hash of the table, as the first entry of the ledger states it.

    Raises:
        InputError: The file is missing, damaged or edited.
    """
    path = folder / CASES_NAME
    try:
        table = from_json(CaseTable, read_json_object(path), CASES_NAME)
        if table.sha256 != sha256:
            raise ValueError("its hash is not that of the first entry")
    except (OSError, ValueError) as error:
        raise InputError(
            f"LEDGER {folder}: {CASES_NAME}, which holds the labels of the test rows, is missing, "
            f"damaged or edited ({type(error).__name__}). Restore the folder from a copy."
        ) from error
    return table
