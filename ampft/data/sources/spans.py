"""Spans of characters in cells, as tools for annotation and pipelines write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampft.errors import quoted

# Of a span, as doccano, Label Studio, Prodigy and pipelines of transformers write it.
LABEL_KEYS = ("label", "labels", "type", "entity", "entity_group", "entity_type", "tag")
START_KEYS = ("start", "start_offset", "start_char", "begin")
END_KEYS = ("end", "end_offset", "end_char")


@dataclass(frozen=True)
class EntitySpan:
    """An entity in a text: characters `start` to `end`, exclusive, and its type."""

    start: int
    end: int
    label: str
    says: str | None = field(default=None, compare=False)  # What the source says it contains.

    @classmethod
    def of(cls, value: Any) -> EntitySpan:
        """Return the entity of a cell: an object with these keys, or a list of the three values.

        Raises:
            ValueError: A value is missing, or has another type.
        """
        start: Any = None
        end: Any = None
        label: Any = None
        says: Any = None
        if isinstance(value, Mapping):
            start, end, label = (
                next((value[key] for key in keys if value.get(key) is not None), None)
                for keys in (START_KEYS, END_KEYS, LABEL_KEYS)
            )
            says = value.get("text")
        elif isinstance(value, list | tuple) and len(value) == 3:
            start, end, label = value
        if isinstance(label, list) and len(label) == 1:  # Label Studio
            (label,) = label
        start, end = (int(p) if isinstance(p, str) and p.isdecimal() else p for p in (start, end))
        is_place = type(start) is int and type(end) is int
        if not (is_place and isinstance(label, str) and label):
            raise ValueError(f"{quoted(value)} is not a span, which needs start, end and label")
        return cls(start, end, label, says if isinstance(says, str) else None)

    def check_text(self, text: str) -> None:
        """Raise ValueError when a text has other characters there than the source says."""
        found = text[self.start : self.end]
        if self.says is not None and found != self.says:
            raise ValueError(
                f"the span {self} is said to be {quoted(self.says)}, but these characters are"
                f" {quoted(found)}. Characters count from 0, and the end is not included"
            )

    def __str__(self) -> str:
        return f"{self.start} to {self.end} ({quoted(self.label)})"


def is_span(value: object) -> bool:
    """Return whether a value is a span, as `EntitySpan.of` reads it."""
    try:
        EntitySpan.of(value)
    except ValueError:
        return False
    return True
