"""Entities in sentences of tagged words, by the strict rule of seqeval, as sums over sentences.

An entity is right if its type, its first and its last word are. Its first word has the tag B-TYPE
and the others I-TYPE; an I- that continues no entity of its type belongs to none (seqeval's mode
"strict" with the scheme IOB2). With plain tags, each word is an entity whose type is its tag.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampft.metrics.sums import CaseSums

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SentenceLayout:
    """How the words of a split form sentences, and what their tags mean."""

    counts: IntArray  # (n,) number of words of each sentence, at least 1.
    types: int  # Number of types of entities, or of tags if they are plain.
    is_bio: bool  # Whether tag 0 is O, 1 + 2 t is B- and 2 + 2 t is I- of type t; otherwise plain.

    @property
    def sentence_of(self) -> IntArray:
        """(m,) sentence of each word."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def starts(self) -> IntArray:
        """(n,) index of the first word of each sentence."""
        return np.cumsum(self.counts) - self.counts

    def sums(self, values: npt.NDArray[np.generic]) -> FloatArray:
        """Return (n,) the sums of (m,) values over the words of each sentence."""
        return np.add.reduceat(values.astype(np.float64), self.starts)

    def type_of(self, tags: IntArray) -> IntArray:
        """Return (m,) the type of each tag: -1 for O; a plain tag is its type."""
        return (tags + 1) // 2 - 1 if self.is_bio else tags

    def entities(self, tags: IntArray) -> tuple[IntArray, IntArray]:
        """Return (m,) the type of the entity that begins at each word, -1 for none, and its end.

        Args:
            tags: (m,) tags of all words.

        Returns:
            The types, and the indices of the words after the last ones of the entities.
        """
        words = np.arange(len(tags))
        types = self.type_of(tags)
        if not self.is_bio:
            return types, words + 1
        same = np.zeros(len(tags), dtype=bool)
        same[1:] = types[1:] == types[:-1]
        same[self.starts] = False
        is_inside = (tags > 0) & (tags % 2 == 0)
        is_begin = tags % 2 == 1
        continues = is_inside & same
        # An entity ends before the next word that does not continue it.
        breaks = np.append(np.where(continues, len(tags), words), len(tags))
        following = np.minimum.accumulate(breaks[::-1])[::-1][1:]
        return np.where(is_begin, types, -1), following


def entity_sums(labels: IntArray, predicted: IntArray, sentences: SentenceLayout) -> CaseSums:
    """Return the class counts of the entities of each sentence, over their types.

    Args:
        labels: (m,) true tags of all words.
        predicted: (m,) predicted tags.
    """
    true_types, true_ends = sentences.entities(labels)
    types, ends = sentences.entities(predicted)
    is_right = (types >= 0) & (types == true_types) & (ends == true_ends)
    return _count_sums(
        (np.where(is_right, types, -1), true_types, types),
        sentences,
        sentences.types,
        np.ones(len(sentences.counts), dtype=np.int64),
    )


def word_sums(
    labels: IntArray, predicted: IntArray, sentences: SentenceLayout, tags: int
) -> CaseSums:
    """Return the class counts of the words of each sentence, over the tags.

    Args:
        labels: (m,) true tags of all words.
        predicted: (m,) predicted tags.
        tags: Number of tags.
    """
    right = np.where(labels == predicted, labels, -1)
    return _count_sums((right, labels, predicted), sentences, tags, sentences.counts)


def _count_sums(
    columns: tuple[IntArray, ...], sentences: SentenceLayout, classes: int, sizes: IntArray
) -> CaseSums:
    """Return the sums of the classes in each column, -1 for none, and the sizes of the cases.

    Cases with the same vector share a pattern, so that each vector is kept once.
    """
    from scipy.sparse import csr_array

    n, width = len(sentences.counts), len(columns) * classes + 1
    sentence_of = sentences.sentence_of
    rows, entries = [np.arange(n)], [np.full(n, width - 1)]
    values = [sizes]
    for index, column in enumerate(columns):
        counted = np.flatnonzero(column >= 0)
        rows.append(sentence_of[counted])
        entries.append(index * classes + column[counted])
        values.append(np.ones(len(counted), dtype=np.int64))
    cells = (np.concatenate(rows), np.concatenate(entries))
    array = csr_array((np.concatenate(values).astype(np.float64), cells), shape=(n, width))
    array.sum_duplicates()
    bounds = array.indptr
    known: dict[bytes, int] = {}
    pattern_of = np.empty(n, dtype=np.int64)
    first = []
    for row in range(n):
        part = slice(bounds[row], bounds[row + 1])
        key = array.indices[part].tobytes() + array.data[part].tobytes()
        if key not in known:
            known[key] = len(known)
            first.append(row)
        pattern_of[row] = known[key]
    return CaseSums(array[first], pattern_of)


def unit_mean_sums(values: FloatArray, sentences: SentenceLayout) -> CaseSums:
    """Return the sums of a mean over words: of (m,) values, and of words."""
    columns = (sentences.sums(values), sentences.counts)
    return CaseSums.of_cases(np.stack(columns, axis=1))
