"""Groups of examples that are not independent of each other, such as the reviews of one user."""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ampft.data.dataset import ClassificationData

IntArray = npt.NDArray[np.int64]

INVISIBLE = "Cf"  # Unicode's category of characters of format
GROUP_COLUMN = "ampft_group"  # of a split, where the user named a group column
ID_COLUMN = "ampft_id"  # the same for the column of ids
FILE_COLUMN = "ampft_file"  # the file of each example, if a split has several
# Of a split: where each example is, by line or row of its file from 1, or by position from 0.
NUMBER_COLUMNS = {"ampft_line": "file_line", "ampft_row": "file_row", "ampft_position": "position"}


@dataclass(frozen=True)
class Groups:
    """Groups of the examples of a split.

    Attributes:
        ids: (n,) index of each example's group, 0..G-1, in the order of first occurrence.
        column: Column whose values are the groups; None if a group is a set of duplicates.
    """

    ids: IntArray
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

    Without a group column, examples whose inputs are equal after `normalized` form a group.
    """
    from ampft.data.dataset import cells, content_columns, value_bytes

    part = data.splits[split]
    if data.group_column is not None:
        return numbered((group for (group,) in cells(part, (GROUP_COLUMN,))), data.group_column)

    def key(value: Any) -> str | bytes:
        text = comparable(value)
        if isinstance(text, str):
            return text
        return hashlib.blake2b(value_bytes(value), digest_size=16).digest()

    rows = cells(part, content_columns(part, data.input_columns))
    groups = numbered(tuple(map(key, row)) for row in rows)
    return groups if len(groups) < len(part) else None


def numbered(keys: Iterable[Hashable | None], column: str | None = None) -> Groups:
    """Return the groups of examples with equal keys; an example with the key None has its own."""
    index: dict[Any, int] = {}
    ids = [index.setdefault(object() if key is None else key, len(index)) for key in keys]
    return Groups(np.array(ids, dtype=np.int64), column)


def comparable(value: Any) -> Any:
    """Return the normalized text of a text or of a list of words or numbers; others unchanged."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return normalized(value) if isinstance(value, str) else value


def normalized(text: str) -> str:
    """Return a text without differences in case, punctuation, white space and Unicode form.

    A text that consists only of punctuation is returned unchanged.
    """
    words = unicodedata.normalize("NFKC", text).casefold().translate(_punctuation()).split()
    return " ".join(words) or text


def without_invisible(text: str) -> str:
    """Return a text without its characters of format, such as zero-width spaces."""
    return "".join(c for c in text if unicodedata.category(c) != INVISIBLE)


@cache
def _punctuation() -> dict[int, str]:
    categories = ((code, unicodedata.category(chr(code))) for code in range(sys.maxunicode + 1))
    return {
        code: "" if category == INVISIBLE else " "
        for code, category in categories
        if category == INVISIBLE or category.startswith("P")
    }
