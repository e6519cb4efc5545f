"""How a tagged sentence is shown."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from ampft.data.dataset import ClassificationData
from ampft.decision import OUTSIDE, entities, is_bio
from ampft.kinds.receipt import SHOWN_NAME, SHOWN_TEXT, ReceiptRow, cells_of, short
from ampft.kinds.views import LABEL, Case
from ampft.text.page import ShownCase, Span, Tagging

MOST_WORDS = 200  # of a sentence

FoundSpan = tuple[str, int, int]  # type, first word, and word after the last


def show_sentence(case: Case) -> ShownCase | None:
    """Return a sentence with the spans of label and predictions; None if a word has a blank."""
    words = case.reference.split(" ")
    if len(words) != int((np.asarray(case.truth) >= 0).sum()):
        return None
    label = _spans(case.truth, case.label_names)
    predicted = {each.title: _spans(each.choice, case.label_names) for each in case.predictions}
    in_all = set(label).intersection(*predicted.values())
    return ShownCase(
        words=(*words[:MOST_WORDS], *(["…"] if len(words) > MOST_WORDS else [])),
        taggings=(
            _tagging(LABEL, label, in_all),
            *(_tagging(title, spans, set(label)) for title, spans in predicted.items()),
        ),
    )


def _spans(codes: Any, label_names: Sequence[str]) -> list[FoundSpan]:
    """Return the entities, and the words whose tag belongs to none; plain tags are of words."""
    tags = [label_names[code] for code in codes if code >= 0]
    found = list(entities(tags)) if is_bio(label_names) else []
    inside = {word for _, first, end in found for word in range(first, end)}
    lone = [
        (tag, word, word + 1)
        for word, tag in enumerate(tags)
        if word not in inside and tag != OUTSIDE
    ]
    return sorted([*found, *lone], key=lambda span: span[1])


def _tagging(title: str, spans: Sequence[FoundSpan], shared: Set[FoundSpan]) -> Tagging:
    return Tagging(
        title=title,
        spans=tuple(
            Span(
                name=span[0], first=span[1], end=min(span[2], MOST_WORDS), is_shared=span in shared
            )
            for span in spans
            if span[1] < MOST_WORDS
        ),
    )


def receipt_row(data: ClassificationData, row: int) -> ReceiptRow:
    """Return a training row: its words with their tags, without O where tags form entities."""
    cells, place = cells_of(data, row)
    names = data.label_names
    (words,) = data.splits["train"].select_columns(list(data.input_columns))[row].values()
    plain = OUTSIDE if is_bio(names) else None
    shown: list[str] = []
    for word, code in zip(words, cells["label"], strict=True):
        shown.append(short(word if names[code] == plain else f"{word}/{names[code]}", SHOWN_NAME))
        if len(" ".join(shown)) > SHOWN_TEXT:
            break
    return place, "", " ".join(shown) + (" ..." if len(shown) < len(words) else "")
