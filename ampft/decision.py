"""From an input to the answer that is shown: all decisions of a saved classifier, in one place.

`decision.json`, beside the model, is a `Contract`: how texts become tokens, how logits become
probabilities, and how probabilities become answers. This module carries it out with numpy, and for
texts with a `tokenizers.Tokenizer`. `ampft predict`, reports, certificates and audits call it, and
`ampft export` puts a copy of it into every artifact, so that a server answers with the same code.
Therefore it imports nothing else, of ampft neither.

Probabilities are computed in float64 and rounded once to float32, so that they do not depend on
the device or the language that computes them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

SCHEMA = 1
CONTRACT_NAME = "decision.json"
TOKENIZER_NAME = "tokenizer.json"

TEMPERATURE = "logit_temperature"
THRESHOLDS = "label_thresholds"
POSITIVE_LABEL = "threshold_label"
POSITIVE_THRESHOLD = "threshold_of_label"
ABSTENTION = "abstention"
PROMISE_CONFIDENCE = 0.95

OUTSIDE, BEGIN, INSIDE = "O", "B", "I"
ENTITIES = "entities"
OTHER_SEPARATORS = (";", "|")  # of shown labels, if a label contains the chosen one
ROUNDED = 6  # decimals of a shown probability

JOIN = "+"
BLANK = " "  # between the parts of a joined text
UNKNOWN = "unknown"  # stands for a missing value
# A number with a point or an exponent, which files of other types write in other ways.
DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")
LARGEST_EXACT = 2**53  # from here on, different integers are the same float

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Run = Callable[[Mapping[str, IntArray]], npt.NDArray[Any]]


@dataclass(frozen=True)
class Abstention:
    """Which rows a model answers."""

    error: float  # Promised error among the answered rows.
    # Confidence from which a row is answered; None answers none, because the promise could not be
    # proven.
    least_confidence: float | None
    confidence: float = PROMISE_CONFIDENCE  # Probability with which the promise holds.


@dataclass(frozen=True)
class Decisions:
    """What was fitted on a validation split."""

    temperature: float | None = None  # Number by which logits are divided; None for 1.
    # Probability from which each of several labels is predicted; None if not tuned.
    thresholds: tuple[float, ...] | None = None
    positive: int | None = None  # Index of the class of two that `positive_threshold` is for.
    # Probability from which this class is predicted; None if not tuned.
    positive_threshold: float | None = None
    abstention: Abstention | None = None  # Which rows are answered; None answers all.

    def entries(self, label_names: Sequence[str]) -> dict[str, Any]:
        """Return the decisions as JSON values; none if unset."""
        of_two = self.positive is not None and self.positive_threshold is not None
        values = {
            TEMPERATURE: self.temperature,
            THRESHOLDS: None if self.thresholds is None else list(self.thresholds),
            POSITIVE_LABEL: label_names[self.positive or 0] if of_two else None,
            POSITIVE_THRESHOLD: self.positive_threshold,
            ABSTENTION: None if self.abstention is None else asdict(self.abstention),
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_entries(cls, entries: Mapping[str, Any], label_names: Sequence[str]) -> Decisions:
        """Return the decisions from a mapping that has the result of `entries` among others.

        Raises:
            ValueError: An entry has another form.
        """
        thresholds, label = entries.get(THRESHOLDS), entries.get(POSITIVE_LABEL)
        temperature, abstention = entries.get(TEMPERATURE), entries.get(ABSTENTION)
        return cls(
            temperature=None if temperature is None else float(temperature),
            thresholds=None if thresholds is None else tuple(map(float, thresholds)),
            positive=None if label is None else list(label_names).index(label),
            positive_threshold=None if label is None else float(entries[POSITIVE_THRESHOLD]),
            abstention=None if abstention is None else Abstention(**abstention),
        )

    def classes(self, probabilities: FloatArray) -> IntArray:
        """Return the (n,) predicted classes from (n, K) probabilities of one class each.

        It is the most probable class, or of equally probable ones the first; or with a threshold
        for one class of two, this class from the threshold on.
        """
        if self.positive is None or self.positive_threshold is None:
            return probabilities.argmax(axis=1).astype(np.int64)
        is_positive = probabilities[:, self.positive] >= np.float32(self.positive_threshold)
        return np.where(is_positive, self.positive, 1 - self.positive).astype(np.int64)

    def labels(self, probabilities: FloatArray, threshold: float) -> BoolArray:
        """Return (n, K) which labels are predicted from their probabilities.

        Args:
            probabilities: (n, K) of labels that do not exclude each other.
            threshold: Probability from which a label is predicted, if none was tuned.
        """
        limits = threshold if self.thresholds is None else self.thresholds
        return probabilities >= np.asarray(limits, dtype=np.float32)

    def answered(self, confidence: npt.NDArray[np.floating[Any]]) -> BoolArray | None:
        """Return (n,) whether rows with these confidences are answered; None without abstention."""
        if self.abstention is None:
            return None
        least = self.abstention.least_confidence
        if least is None:
            return np.zeros(len(confidence), dtype=bool)
        return confidence >= np.float32(least)


UNTOUCHED = Decisions()


@dataclass(frozen=True)
class Answers:
    """What is shown of n rows."""

    # The class, the labels with a separator between them, or the number.
    labels: list[Any]
    # (n,) probability of the class, or of the least certain decision for or against a label; None
    # of numbers.
    confidence: Any = None
    answered: BoolArray | None = None  # (n,) whether a row is answered; None without abstention.

    def columns(self) -> dict[str, list[Any]]:
        """Return the shown columns. A row that is not answered has an empty prediction."""
        columns: dict[str, list[Any]] = {"prediction": list(self.labels)}
        if self.confidence is not None:
            columns["confidence"] = [round(float(value), ROUNDED) for value in self.confidence]
        if self.answered is not None:
            pairs = zip(self.labels, self.answered, strict=True)
            columns["prediction"] = [label if is_answered else "" for label, is_answered in pairs]
            columns["answered"] = self.answered.tolist()
        return columns


class Units(Protocol):
    """How texts are divided into words, each with its `text`, its `start` and its `end`."""

    def split(self, text: str) -> Sequence[Any]:
        """Return the words of a text."""

    def joined(self, words: Sequence[str]) -> tuple[str, Sequence[Any]]:
        """Return the text of a list of words, and the words with their places in it."""


@dataclass(frozen=True)
class Sentence:
    """A row: its text, or its words with a blank between them, and the places of the words."""

    text: str
    words: tuple[Any, ...]

    def entities(
        self, tags: Sequence[str], best: FloatArray, decimals: int | None = ROUNDED
    ) -> list[dict[str, Any]]:
        """Return the entities; their confidence is the mean over their words.

        Args:
            best: (w,) probability of each.
            decimals: Decimal places of the confidences; None does not round.
        """
        found = []
        for label, first, end in entities(tags):
            inside = self.words[first:end]
            found.append(
                {
                    "start": inside[0].start,
                    "end": inside[-1].end,
                    "label": label,
                    "text": self.text[inside[0].start : inside[-1].end],
                    "confidence": _shown(best[first:end].mean(), decimals),
                }
            )
        return found


@dataclass(frozen=True)
class Rule:
    """How logits become probabilities and answers."""

    label_names: tuple[str, ...]  # Names of the K classes, in the order of the logits.
    several: bool = False  # Whether a case can have any number of labels; otherwise it has one.
    threshold: float = 0.5  # Probability from which one of several labels is predicted.
    separator: str = ","  # Text between several shown labels, unless a label contains it.
    decisions: Decisions = UNTOUCHED  # What was fitted.
    numbers: bool = False  # Whether the only output is a number, which is the answer.
    # Whether labels are named `column=value`, and each case has exactly one value per column.
    exclusive: bool = False

    def probabilities(self, logits: npt.NDArray[Any]) -> FloatArray:
        """Return (n, K) probabilities of (n, K) logits; numbers stay as they are."""
        if self.numbers:
            return logits.astype(np.float32)
        if self.exclusive:
            parts = np.split(logits, column_starts(self.label_names)[1:], axis=1)
            return np.concatenate([softmax(part) for part in parts], axis=1).astype(np.float32)
        shares = sigmoid if self.several else softmax
        temperature = self.decisions.temperature
        return shares(logits, 1.0 if temperature is None else temperature).astype(np.float32)

    def answers(self, probabilities: FloatArray) -> Answers:
        """Return what is shown for (n, K) probabilities, or (n, 1) numbers."""
        if self.numbers:
            return Answers(list(map(float, probabilities[:, 0])))
        names = np.asarray(self.label_names, dtype=object)
        if self.several:
            has = self.decisions.labels(probabilities, self.threshold)
            if self.exclusive:
                has = most_probable_of_columns(probabilities, self.label_names)
            between = unambiguous_separator(self.separator, self.label_names)
            labels = [between.join(names[row]) for row in has]
            confidence = least_certain(probabilities, has)
        else:
            chosen = self.decisions.classes(probabilities)
            labels = names[chosen].tolist()
            confidence = probabilities[np.arange(len(chosen)), chosen]
        return Answers(labels, confidence, self.decisions.answered(confidence))

    def word_columns(
        self,
        sentences: Sequence[Sentence],
        probabilities: Sequence[FloatArray],
        decimals: int | None = ROUNDED,
    ) -> dict[str, list[Any]]:
        """Return the shown columns of sentences; entities only if tags form them.

        Args:
            probabilities: (w, K) array of the w words of each.
            decimals: Decimal places of the confidences; None does not round.
        """
        names = self.label_names
        tags = [[names[code] for code in each.argmax(axis=1)] for each in probabilities]
        best = [each.max(axis=1) for each in probabilities]
        columns: dict[str, list[Any]] = {
            "words": [[word.text for word in sentence.words] for sentence in sentences],
            "prediction": tags,
            "confidence": [_shown(each.min(), decimals) for each in best],
        }
        if is_bio(names):
            rows = zip(sentences, tags, best, strict=True)
            columns[ENTITIES] = [
                sentence.entities(row_tags, shares, decimals) for sentence, row_tags, shares in rows
            ]
        return columns


def joined_parts(name: str) -> tuple[str, ...]:
    """Return the columns of `title+body`; a name without two of them is one column."""
    parts = tuple(part.strip() for part in name.split(JOIN))
    return parts if len(parts) > 1 and all(parts) else (name,)


def join_texts(texts: Iterable[str | None], delimiter: str = BLANK) -> str | None:
    """Return the texts that exist, with the delimiter between them; None if none exists."""
    return delimiter.join(text for text in texts if text is not None) or None


def with_features(features: Mapping[str, object], text: str) -> str:
    """Return a text after its features: `age: 42. country: FR. The text`.

    A value that is missing, NaN or blank is `unknown`. Numbers with a point or an exponent have at
    most six digits, and none after the point if they are whole, so that 42, 42.0 and 4.2e1 are the
    same from every kind of file. Plain digits, such as 007, stay as they are.

    Args:
        features: Values by the names of their columns, in the order of the training.
    """
    parts = [f"{name}: {_feature_text(value)}." for name, value in features.items()]
    return BLANK.join([*parts, text])


def _feature_text(value: object) -> str:
    text = "" if value is None else BLANK.join(str(value).split())
    if text.lower() in ("", "nan"):
        return UNKNOWN
    if not DECIMAL.fullmatch(text) or not math.isfinite(number := float(text)):
        return text
    if number.is_integer() and abs(number) < LARGEST_EXACT:
        return str(int(number))
    return np.format_float_positional(float(f"{number:.6g}"), trim="-")


def is_described(features: Sequence[str], text: str) -> bool:
    """Return whether a text has its features before it."""
    said = r"\. ".join(f"{re.escape(name)}: .*?" for name in features)
    return re.match(rf"{said}\. ", text, re.DOTALL) is not None


def template(features: Sequence[str]) -> str:
    """Return the form of a text with its features: `age: AGE. country: COUNTRY. TEXT`."""
    return with_features({name: name.upper() for name in features}, "TEXT")


def _shown(probability: float, decimals: int | None) -> float:
    value = float(probability)
    return value if decimals is None else round(value, decimals)


def softmax(logits: npt.NDArray[Any], temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the (n, K) probabilities of classes that exclude each other, float64."""
    scaled = logits.astype(np.float64) / temperature
    with np.errstate(invalid="ignore"):  # an infinite logit gives NaN, which the caller names
        powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        shares: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def sigmoid(logits: npt.NDArray[Any], temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the (n, K) probabilities of labels that do not exclude each other, float64."""
    scaled = logits.astype(np.float64) / temperature
    power = np.exp(-np.abs(scaled))  # at most 1, so nothing overflows
    return np.where(scaled >= 0, 1.0, power) / (1 + power)


def column_starts(label_names: Sequence[str]) -> IntArray:
    """Return the index of the first label of each column; labels are named `column=value`."""
    columns = np.array([name.partition("=")[0] for name in label_names], dtype=object)
    return np.flatnonzero(np.append(True, columns[1:] != columns[:-1]))


def most_probable_of_columns(probabilities: FloatArray, label_names: Sequence[str]) -> BoolArray:
    """Return (n, K) which labels are the most probable of their column, or the first of those."""
    parts = np.split(probabilities, column_starts(label_names)[1:], axis=1)
    return np.concatenate([np.arange(p.shape[1]) == p.argmax(1)[:, None] for p in parts], axis=1)


def decision_confidence(probabilities: FloatArray, has: BoolArray) -> FloatArray:
    """Return the probability of each decision for or against a label, (n, K)."""
    return np.where(has, probabilities, 1 - probabilities)


def least_certain(probabilities: FloatArray, has: BoolArray) -> FloatArray:
    """Return the probability of the least certain decision of each row, (n,).

    A joint probability would approach 0 with the number of labels, however certain the model.
    """
    return decision_confidence(probabilities, has).min(axis=1)


def unambiguous_separator(first: str, label_names: Sequence[str]) -> str:
    """Return the first separator that no label contains, or `first`."""
    every = "".join(label_names)
    return next((each for each in (first, *OTHER_SEPARATORS) if each not in every), first)


def bio_tags(types: Sequence[str]) -> tuple[str, ...]:
    """Return all tags over these types: O, then B- and I- of each."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in (BEGIN, INSIDE)))


def is_bio(tags: Sequence[str]) -> bool:
    """Return whether these are all tags of BIO over some types, in the order of `bio_tags`."""
    return len(tags) > 1 and tuple(tags) == bio_tags([name[2:] for name in tags[1::2]])


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield type, first word and word after the last of each entity, by the strict rule of BIO.

    An entity begins with B-. An I- that does not continue an entity of its type belongs to none, as
    in the mode "strict" of seqeval with the scheme IOB2.
    """
    start, current = 0, ""
    for word, text in enumerate([*tags, OUTSIDE]):
        if current and text != f"{INSIDE}-{current}":
            yield current, start, word
            current = ""
        if text.startswith(f"{BEGIN}-"):
            start, current = word, text[2:]


@dataclass(frozen=True)
class Tokens:
    """Rows of tokens, of which several can belong to one input."""

    columns: dict[str, list[list[int]]]  # Lists of rows by name, such as `input_ids`.
    owners: list[int]  # Input that each row belongs to, ascending.
    # Of words, places in each row of the first tokens of the words that it predicts.
    positions: list[list[int]] | None = None
    replaced: int = 0  # Number of words without a token, read as the unknown token.
    truncated: list[bool] = field(default_factory=list)  # Of each input, unless it has windows.


@dataclass(frozen=True)
class Tokenization:
    """How texts, pairs of texts or words become tokens.

    Longer inputs are truncated if `stride` is None; otherwise they are split into windows that
    share `stride` tokens. The logits of a text are then the mean over its windows; a word is
    predicted in the window with most context.
    """

    max_length: int  # Largest number of tokens of a row, special tokens included.
    stride: int | None = None
    words: bool = False  # Whether an input is a list of words, whose first tokens are predicted.
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")  # What the tokenizer gives.
    truncation_side: str = "right"  # Side of a text that is cut off.
    splits_special_tokens: bool = False  # Whether "[SEP]" in a text is read as characters.
    unknown: str | None = None  # Token for words without a token; None raises an error.

    def __post_init__(self) -> None:
        if self.words and self.truncation_side != "right":  # as `word_positions` counts them
            raise ValueError("words are cut off at the right only")

    def encode(self, tokenizer: Any, inputs: Sequence[Any]) -> Tokens:
        """Return the tokens of inputs.

        Args:
            tokenizer: A `tokenizers.Tokenizer`, whose truncation and padding are replaced.
            inputs: Texts, pairs of texts, or lists of words.

        Raises:
            ValueError: A word has no token, and there is no unknown token; the message names it.
        """
        tokenizer.no_padding()
        tokenizer.enable_truncation(
            self.max_length, stride=self.stride or 0, direction=self.truncation_side
        )
        tokenizer.encode_special_tokens = self.splits_special_tokens
        if not self.words:
            encoded = tokenizer.encode_batch(list(inputs))
            return self._rows(encoded)
        words, replaced = [list(each) for each in inputs], 0
        while True:
            encoded = tokenizer.encode_batch(words, is_pretokenized=True)
            ids = [[_word_ids(row) for row in (each, *each.overflowing)] for each in encoded]
            missing = [
                (sentence, int(word))
                for sentence, rows in enumerate(ids)
                for word in _absent(rows, len(words[sentence]))
            ]
            if not missing:
                break
            if self.unknown is None or replaced:
                sentence, word = missing[0]
                raise ValueError(f"no token for the word {inputs[sentence][word]!r}")
            for sentence, word in missing:
                words[sentence][word] = self.unknown
            replaced = len(missing)
        positions = [each for rows in ids for each in word_positions(rows, self.stride or 0)]
        return self._rows(encoded, positions, replaced)

    def _rows(
        self, encoded: Sequence[Any], positions: list[list[int]] | None = None, replaced: int = 0
    ) -> Tokens:
        has_windows = self.stride is not None
        pairs = [
            (owner, row)
            for owner, each in enumerate(encoded)
            for row in ((each, *each.overflowing) if has_windows else (each,))
        ]
        names = {"input_ids": "ids", "token_type_ids": "type_ids"}
        columns = {
            name: [getattr(row, names.get(name, name)) for _, row in pairs] for name in self.inputs
        }
        truncated = [] if has_windows else [bool(each.overflowing) for each in encoded]
        return Tokens(columns, [owner for owner, _ in pairs], positions, replaced, truncated)


def _word_ids(row: Any) -> IntArray:
    """Return the word of each token of a row, -1 for special tokens."""
    return np.array([-1 if i is None else i for i in row.word_ids], dtype=np.int64)


def _absent(rows: Sequence[IntArray], words: int) -> IntArray:
    """Return the words of a sentence that have no token in its rows."""
    seen = np.zeros(words + 1, dtype=bool)
    seen[np.concatenate(rows)] = True  # special tokens have -1, the last entry
    return np.flatnonzero(~seen[:-1])


def word_positions(windows: Sequence[IntArray], stride: int) -> list[list[int]]:
    """Return for each window of a sentence the positions of the words that it predicts.

    A word is predicted at its first token, in the window with the most tokens on the side where it
    has fewer; the ends of the sentence count as unlimited context. Of equal windows, it is the
    first.

    Args:
        windows: Word of each token of each window, -1 for special tokens.
        stride: Number of tokens that neighbouring windows share.
    """
    contents = [ids[ids >= 0] for ids in windows]
    prefixes = [int(np.argmax(ids >= 0)) for ids in windows]
    starts = np.arange(len(windows)) * (len(contents[0]) - stride)
    ends = starts + [len(content) for content in contents]
    words = np.full(int(ends[-1]), -1)
    for start, content in zip(starts, contents, strict=True):
        words[start : start + len(content)] = content
    firsts = np.flatnonzero(np.diff(words, prepend=-1))
    left = np.where(starts > 0, firsts[:, None] - starts, np.inf)
    right = np.where(ends < ends[-1], ends - 1 - firsts[:, None], np.inf)
    context = np.minimum(left, right)
    context[(firsts[:, None] < starts) | (firsts[:, None] >= ends)] = -1
    chosen = context.argmax(axis=1)
    return [
        (firsts[chosen == window] - starts[window] + prefixes[window]).tolist()
        for window in range(len(windows))
    ]


def combined_logits(logits: npt.NDArray[Any], tokens: Tokens) -> npt.NDArray[Any]:
    """Return the logits of inputs, (n, K), or of all their words, (m, K).

    Args:
        logits: (R, K) of the rows of `tokens`, or (R, T, K) of their tokens.
    """
    if tokens.positions is not None:
        return np.concatenate(
            [row[places] for row, places in zip(logits, tokens.positions, strict=True)]
        )
    counts = np.bincount(tokens.owners)
    sums = np.add.reduceat(logits, np.cumsum(counts) - counts, axis=0)
    return sums / counts[:, None].astype(logits.dtype)


@dataclass(frozen=True)
class Contract:
    """Everything between the input of a user and the answer that is shown."""

    task: str  # Name of the task, such as "text".
    input_columns: tuple[str, ...]  # Input columns of the training.
    rule: Rule
    # How texts become tokens; None for other inputs, or if only transformers has the tokenizer.
    tokenization: Tokenization | None = None
    # How a text becomes the words that are predicted; None if the model reads no words.
    units: Mapping[str, Any] | None = None
    feature_columns: tuple[str, ...] = ()  # Columns that `with_features` writes before a text.
    text_column_delimiter: str = BLANK  # Text between the columns of a text of several.

    def values(self) -> dict[str, Any]:
        """Return the contract as JSON values."""
        rule = {each.name: getattr(self.rule, each.name) for each in fields(Rule)}
        for name in ("numbers", "exclusive"):
            if not rule[name]:
                del rule[name]
        rule["label_names"] = list(self.rule.label_names)
        rule["decisions"] = self.rule.decisions.entries(self.rule.label_names)
        tokenization = None if self.tokenization is None else asdict(self.tokenization)
        more: dict[str, Any] = {}
        if self.feature_columns:
            more["feature_columns"] = list(self.feature_columns)
        if self.text_column_delimiter != BLANK:
            more["text_column_delimiter"] = self.text_column_delimiter
        return {
            "schema": SCHEMA,
            "task": self.task,
            "input_columns": list(self.input_columns),
            **more,
            "units": self.units,
            "tokenization": tokenization
            and {**tokenization, "inputs": list(tokenization["inputs"])},
            "rule": rule,
        }

    def text(self) -> str:
        """Return the content of decision.json."""
        return json.dumps(self.values(), ensure_ascii=False, indent=2) + "\n"

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Contract:
        """Return the contract from its JSON values.

        Raises:
            ValueError: It has another schema, or a value is missing, unknown or of another form.
        """
        if values.get("schema") != SCHEMA:
            raise ValueError(f"schema {values.get('schema')!r} instead of {SCHEMA}")
        try:
            rest = {name: value for name, value in values.items() if name != "schema"}
            rule, read = dict(rest.pop("rule")), rest.pop("tokenization")
            names = tuple(rule.pop("label_names"))
            decisions = Decisions.from_entries(rule.pop("decisions"), names)
            if read is not None:
                read = Tokenization(**{**read, "inputs": tuple(read["inputs"])})
            rest["input_columns"] = tuple(rest["input_columns"])
            rest["feature_columns"] = tuple(rest.get("feature_columns", ()))
            return cls(**rest, rule=Rule(names, **rule, decisions=decisions), tokenization=read)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    @classmethod
    def read(cls, folder: Path) -> Contract:
        """Return the contract of the model in a folder.

        Raises:
            OSError: The folder has none.
            ValueError: It is damaged.
        """
        return cls.from_values(json.loads((folder / CONTRACT_NAME).read_text(encoding="utf-8")))

    def texts(self, row: Mapping[str, object]) -> str | tuple[str, ...]:
        """Return the text, or the pair of texts, of a row of cells by column.

        Raises:
            KeyError: The row lacks a column.
            ValueError: It has no text.
        """
        parts = [(n,) if n in row else joined_parts(n) for n in self.input_columns]
        first, *second = (
            join_texts(
                (None if row[n] is None else str(row[n]) for n in part), self.text_column_delimiter
            )
            for part in parts
        )
        if first is None or None in second:
            raise ValueError(f"a row has no text in {', '.join(self.input_columns)}")
        if self.feature_columns:
            first = with_features({name: row[name] for name in self.feature_columns}, first)
        return (first, *map(str, second)) if second else first

    def _as_typed(self, row: Any) -> Any:
        """Return the texts of a row of cells by column; another row must have its features."""
        if isinstance(row, Mapping):
            return self.texts(row)
        first = row if isinstance(row, str) else row[0]
        if self.feature_columns and not is_described(self.feature_columns, first):
            raise ValueError(
                f"received {first[:40]!r} without its columns. Pass a mapping of columns to values,"
                f" or a text such as {template(self.feature_columns)!r}"
            )
        return row

    def rows(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return texts as inputs: for a model of pairs, each two.

        Raises:
            ValueError: Their number is odd.
        """
        if len(self.input_columns) == 1:
            return texts
        return list(zip(texts[::2], texts[1::2], strict=True))

    def answer(
        self,
        inputs: Sequence[Any],
        tokenizer: Any,
        run: Run,
        *,
        units: Units | None = None,
        batch_size: int = 32,
    ) -> dict[str, list[Any]]:
        """Return the shown columns of inputs, as `ampft predict` writes them.

        Rows of equal length form a batch, so that nothing is padded.

        Args:
            inputs: Texts, pairs of texts, lists of words, or rows of cells by column.
            tokenizer: The `tokenizers.Tokenizer` of the model.
            run: Function that returns the logits of a batch from its arrays by name.
            units: What divides texts into words, for a model that reads words.
            batch_size: Largest number of rows of a batch.

        Raises:
            KeyError: A row lacks a column.
            ValueError: The model reads other inputs, or a text lacks its features.
        """
        read = self.tokenization
        if read is None:
            raise ValueError(f"a model of the task {self.task!r} needs more than a tokenizer")
        if not read.words:
            inputs = [self._as_typed(each) for each in inputs]
        sentences = [_sentence(each, units) for each in inputs] if read.words else []
        texts = [[word.text for word in each.words] for each in sentences] or inputs
        tokens = read.encode(tokenizer, texts)
        logits = combined_logits(_row_logits(tokens.columns, run, batch_size), tokens)
        probabilities = self.rule.probabilities(logits)
        if not read.words:
            return self.rule.answers(probabilities).columns()
        ends = np.cumsum([len(each.words) for each in sentences])
        return self.rule.word_columns(sentences, np.split(probabilities, ends[:-1]))


def _sentence(row: Any, units: Units | None) -> Sentence:
    if units is None:
        raise ValueError("the model reads words; pass `units`, which find them in a text")
    if isinstance(row, str):
        return Sentence(row, tuple(units.split(row)))
    text, words = units.joined(row)
    return Sentence(text, tuple(words))


def _row_logits(
    columns: Mapping[str, Sequence[Sequence[int]]], run: Run, batch_size: int
) -> npt.NDArray[Any]:
    """Return the logits of rows of tokens; those of words are padded to one length."""
    lengths = np.array([len(row) for row in columns["input_ids"]])
    parts: dict[int, npt.NDArray[Any]] = {}
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        for rows in np.split(alike, range(batch_size, len(alike), batch_size)):
            arrays = {n: np.array([each[row] for row in rows]) for n, each in columns.items()}
            parts |= dict(zip(rows.tolist(), run(arrays), strict=True))
    shape = (len(lengths), *np.max([part.shape for part in parts.values()], axis=0))
    logits = np.zeros(shape, dtype=np.float32)
    for row, part in parts.items():
        logits[row][tuple(map(slice, part.shape))] = part
    return logits
