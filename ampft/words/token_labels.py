"""One label per word of a sentence: cross entropy over words, entities, and their report.

A case is a sentence. Nothing here imports torch until a loss is computed or logits are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ampft.data.row_labels import UnitLabels, padded_codes
from ampft.decision import Rule, entities, is_bio
from ampft.metrics.calibration import calibration_sums, expected_calibration_error
from ampft.metrics.ranking import class_ranking_metrics
from ampft.metrics.scores import (
    Scores,
    case_log_losses,
    confusion,
    flat_averages,
    output_dict,
    report_scores,
)
from ampft.metrics.sums import (
    LOG_LOSS,
    MACRO_F1,
    MICRO_F1,
    WEIGHTED_F1,
    CaseSums,
    class_counts,
    f1_per_class,
    mean_metric,
)
from ampft.tasks.outcome import (
    FloatArray,
    IntArray,
    OutcomeMistakes,
    check_arrays,
    confusion_mistakes,
    list_column,
    read_probabilities,
)
from ampft.tasks.report import HubMetric, Report, as_tuples, score_cells, with_added_metrics
from ampft.tasks.single_label import SUM_TOLERANCE, SingleLabel
from ampft.text.page import Cell, Name, Table
from ampft.words.entities import SentenceLayout, entity_sums, unit_mean_sums, word_sums
from ampft.words.tags import entity_types

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from ampft.tasks.loss_settings import LossSettings


NO_TYPE = "O"
MAX_SHOWN_TYPES = 20  # whose confusion is printed


@dataclass(frozen=True)
class TokenReport(Report):
    """All metrics of one split of sentences whose words have one tag each."""

    words: int  # Number of words.
    label_names: tuple[str, ...]  # The tags; the rows of `per_tag`.
    # The types of entities, or the tags if they are plain; the rows of `per_type`.
    types: tuple[str, ...]
    per_type: tuple[Scores, ...]  # Scores of the entities of each type, by seqeval's strict rule.
    micro_avg: Scores  # Scores of all entities together.
    macro_avg: Scores  # Mean over the types.
    weighted_avg: Scores  # Mean over the types, weighted by support.
    per_tag: tuple[Scores, ...]  # Scores of the words by tag.
    # Counts of words: row = type of the label, column = type of the prediction, in the order of
    # `types`, then O.
    type_confusion: tuple[tuple[int, ...], ...]
    # `accuracy` (also called `token_accuracy`: share of words with the right tag),
    # `sentence_accuracy` (share of sentences with all tags right), `log_loss` (nats per word) and
    # `expected_calibration_error` (of the words, 15 bins).
    metrics_of_words: Mapping[str, float]

    @property
    def averages(self) -> dict[str, Scores]:
        """The averages over entities by name."""
        return {"micro": self.micro_avg, "macro": self.macro_avg, "weighted": self.weighted_avg}

    def own_metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name, without added ones."""
        words = self.metrics_of_words
        return {**flat_averages(self.averages), **words}

    def output_dict(self) -> dict[str, Any]:
        """Return what `seqeval.metrics.classification_report` returns with `output_dict=True`."""
        rows = dict(zip(self.types, self.per_type, strict=True))
        return output_dict(rows | {f"{name} avg": row for name, row in self.averages.items()})

    def tables(self) -> tuple[Table, ...]:
        """Return the scores of entities and of words, and the confusion of types."""
        return (self._entities(), self._words(), *self._confusion())

    def _entities(self) -> Table:
        rows: list[tuple[Cell, ...]] = [
            (Name(name), *score_cells(scores))
            for name, scores in zip(self.types, self.per_type, strict=True)
        ]
        rows += [(f"{name} average", *score_cells(s)) for name, s in self.averages.items()]
        return Table(
            title="Entities: right if their type, first and last word are (seqeval, strict IOB2)",
            header=("type", "precision", "recall", "F1", "support"),
            rows=rows,
        )

    def _words(self) -> Table:
        rows: list[tuple[Cell, ...]] = [
            (Name(name), *score_cells(scores))
            for name, scores in zip(self.label_names, self.per_tag, strict=True)
        ]
        values = self.metrics_of_words
        return Table(
            title=f"Words: {self.words:,} in {self.examples:,} sentences",
            header=("tag", "precision", "recall", "F1", "support"),
            rows=rows,
            note=f"Token accuracy {values['token_accuracy']:.4f}; sentences with all tags right "
            f"{values['sentence_accuracy']:.4f}; log loss (nats per word) "
            f"{values['log_loss']:.4f}; expected calibration error (15 bins) "
            f"{values['expected_calibration_error']:.4f}.{self.added_text}",
        )

    def _confusion(self) -> tuple[Table, ...]:
        """Return the confusion of types in words; nothing for very many types."""
        names = [*self.types, NO_TYPE][: len(self.type_confusion)]
        if len(names) > MAX_SHOWN_TYPES:
            return ()
        return (
            Table(
                title="Confusion of types, in words: row = label, column = prediction",
                header=("", *map(Name, names)),
                rows=[
                    (Name(name), *(f"{count:,}" for count in row))
                    for name, row in zip(names, self.type_confusion, strict=True)
                ],
            ),
        )

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return micro F1 of entities, its precision and recall, and the accuracy of words."""
        micro = self.micro_avg
        return (
            HubMetric("f1", "Entity F1", micro.f1, {"average": "micro"}),
            HubMetric("precision", "Entity precision", micro.precision, {"average": "micro"}),
            HubMetric("recall", "Entity recall", micro.recall, {"average": "micro"}),
            HubMetric("accuracy", "Token accuracy", self.metrics_of_words["token_accuracy"]),
        )


LISTED_WORDS = 8  # wrong words of a sentence
RANKING = (
    "The number is the probability of the most confident wrong tag of the sentence. Label and "
    "prediction agree on spans with a solid green line, and not on those with a dashed red one. "
    "The list of wrong words begins with the one whose label was least probable."
)
TOKEN_ACCURACY = mean_metric(
    "token_accuracy",
    "token accuracy",
    higher_is_better=True,
    is_share=True,
    values=lambda p: p.word_is_correct.astype(np.float64),
)
WORD_LOSS = replace(LOG_LOSS, values=lambda p: case_log_losses(p.labels, p.probabilities))
METRICS = {
    metric.name: metric for metric in (MICRO_F1, MACRO_F1, WEIGHTED_F1, TOKEN_ACCURACY, WORD_LOSS)
}


@dataclass(frozen=True)
class TokenPredictions:
    """Tag probabilities of a model for every word of a split.

    Raises:
        ValueError: A shape, a dtype or a value is wrong.
    """

    labels: IntArray  # Shape (m,), int64: tag of each word, sentence after sentence.
    counts: IntArray  # Shape (n,), int64: number of words of each sentence, at least 1.
    probabilities: FloatArray  # Shape (m, K), float32: softmax in float32.
    label_names: tuple[str, ...]  # The K tags.
    split: str  # Name of the split, such as "test".

    kind: ClassVar[str] = "token_labels"

    def __post_init__(self) -> None:
        words = int(self.counts.sum())
        check_arrays(
            self,
            {
                "labels": (self.labels, (words,), np.int64),
                "probabilities": (self.probabilities, (words, len(self.label_names)), np.float32),
            },
            cases="sentences",
        )
        off = np.abs(self.probabilities.sum(axis=1, dtype=np.float64) - 1)
        wrong = ~(off <= SUM_TOLERANCE) | (self.probabilities < 0).any(axis=1)
        if wrong.any():
            raise ValueError(
                f"the probabilities of {int(wrong.sum())} of {words} words do not sum to one; the "
                f"first is word {int(wrong.argmax())} of the split"
            )

    @cached_property
    def sentences(self) -> SentenceLayout:
        """How the words form sentences, and what the tags mean."""
        return SentenceLayout(self.counts, len(self.class_names), is_bio(self.label_names))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The types of entities, or the tags if they are plain."""
        return entity_types(self.label_names)

    @cached_property
    def predicted(self) -> IntArray:
        """The most probable tag of each word, shape (m,), int64; the lowest of equal tags."""
        return self.probabilities.argmax(axis=1).astype(np.int64)

    @property
    def word_is_correct(self) -> npt.NDArray[np.bool_]:
        """Whether the predicted tag of each word is its label, shape (m,)."""
        return self.predicted == self.labels

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def truth(self) -> npt.NDArray[np.int32]:
        """The labels, shape (n, L); -1 after the last word of a sentence."""
        return padded_codes(self.labels, self.counts)

    @property
    def choices(self) -> npt.NDArray[np.int32]:
        """The predicted tags, shape (n, L); -1 after the last word of a sentence."""
        return padded_codes(self.predicted, self.counts)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether all tags of a sentence are predicted, shape (n,)."""
        wrong = self.sentences.sums(~self.word_is_correct)
        return wrong == 0

    @property
    def confidence(self) -> FloatArray:
        """Probability of the least certain tag of a sentence, shape (n,), float32.

        A joint probability would approach 0 with the number of words, however certain the model.
        """
        largest = self.probabilities.max(axis=1)
        return np.minimum.reduceat(largest, self.sentences.starts)

    @property
    def only_prediction(self) -> str | None:
        """The predicted tag if all words have the same; otherwise None."""
        found = np.unique(self.predicted)
        return self.label_names[found[0]] if len(found) == 1 else None

    def report(self) -> TokenReport:
        totals = self.sums(MICRO_F1.name).totals()
        rows = self.scores()
        report = TokenReport(
            split=self.split,
            examples=len(self),
            words=len(self.labels),
            label_names=self.label_names,
            types=self.class_names,
            per_type=rows,
            micro_avg=_micro_scores(totals),
            macro_avg=_average(rows, weighted=False),
            weighted_avg=_average(rows, weighted=any(row.support for row in rows)),
            per_tag=report_scores(self.labels, self.predicted, len(self.label_names))[0],
            type_confusion=as_tuples(self._type_confusion()),
            metrics_of_words=self._word_metrics(),
        )
        ranking = class_ranking_metrics(self.labels, self.probabilities)
        return with_added_metrics(report, METRICS, self.metrics(), ranking)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that are functions of sums, and the calibration error."""
        values = {name: metric.value(self.sums(name)) for name, metric in METRICS.items()}
        return {**values, **self._word_metrics()}

    def _word_metrics(self) -> dict[str, float]:
        losses, correct = case_log_losses(self.labels, self.probabilities), self.word_is_correct
        error = expected_calibration_error(self.probabilities.max(axis=1), correct)
        return {
            "accuracy": float(correct.mean()),
            TOKEN_ACCURACY.name: float(correct.mean()),
            "sentence_accuracy": float(self.correct.mean()),
            LOG_LOSS.name: float(losses.mean()),
            "expected_calibration_error": error,
        }

    def _type_confusion(self) -> IntArray:
        """Return counts of words: row = type of the label, column = predicted; the last is O."""
        classes = len(self.class_names) + self.sentences.is_bio
        return confusion(*self.word_types(), classes)

    def word_types(self) -> tuple[IntArray, IntArray]:
        """Return (m,) the types of labels and of predictions; O is the last type."""
        types = len(self.class_names)
        found = map(self.sentences.type_of, (self.labels, self.predicted))
        labels, predicted = (np.where(codes < 0, types, codes) for codes in found)
        return labels, predicted

    def sums(self, metric: str) -> CaseSums:
        values = METRICS[metric].values
        return self._entity_sums if values is None else unit_mean_sums(values(self), self.sentences)

    @cached_property
    def _entity_sums(self) -> CaseSums:
        return entity_sums(self.labels, self.predicted, self.sentences)

    @property
    def unit_sums(self) -> CaseSums:
        """The class counts over the tags of the words of each sentence."""
        return word_sums(self.labels, self.predicted, self.sentences, len(self.label_names))

    def scores(self) -> tuple[Scores, ...]:
        """Return precision, recall, F1 and support of each type of entity."""
        counts = class_counts(self._entity_sums.totals())
        f1 = map(float, f1_per_class(counts))
        parts = zip(counts.true_positives, counts.predicted, counts.labelled, f1, strict=True)
        return tuple(_scores(*part) for part in parts)

    def confusion(self) -> IntArray:
        """Return (T, T) counts of words that have a type and are predicted to have one."""
        types = len(self.class_names)
        return self._type_confusion()[:types, :types]

    def calibration(self, bins: int) -> npt.NDArray[np.float64]:
        """Return (3, bins) sums over the words: count, confidence, number correct."""
        return calibration_sums(self.probabilities.max(axis=1), self.word_is_correct, bins=bins)

    def mistakes(self) -> OutcomeMistakes:
        """Return the mistakes, ranked by the probability of the most confident wrong tag.

        Pairs of types are counted in words; where tags form entities, the last type is O.
        """
        matrix = self._type_confusion()
        labels, predicted = self.word_types()
        probabilities = np.where(self.word_is_correct, 0, self.probabilities.max(axis=1))
        largest = np.maximum.reduceat(probabilities, self.sentences.starts)
        return OutcomeMistakes(
            scores=largest.astype(np.float64),
            names=(*self.class_names, NO_TYPE)[: len(matrix)],
            support=matrix.sum(axis=1).tolist(),
            counts=confusion_mistakes(matrix),
            confused=lambda label, other: (
                self.sentences.sums((labels == label) & (predicted == other)) > 0
            ),
            unit="words",
            details=self._wrong_words,
            ranking=RANKING,
        )

    def _wrong_words(self, case: int) -> str:
        """Return the wrong words of a sentence by number, the least probable label first."""
        end = int(self.counts[: case + 1].sum())
        words = np.arange(end - self.counts[case], end)
        of_label = self.probabilities[words, self.labels[words]]
        wrong = np.flatnonzero(~self.word_is_correct[words])
        order = wrong[np.argsort(of_label[wrong], kind="stable")]
        names, predicted = self.label_names, self.predicted[words]
        listed = [
            f"word {i + 1}: {names[predicted[i]]} "
            f"({self.probabilities[words[i], predicted[i]]:.2f}) for "
            f"{names[self.labels[words[i]]]} ({of_label[i]:.2f})"
            for i in order[:LISTED_WORDS].tolist()
        ]
        more = len(order) - LISTED_WORDS
        return "; ".join(listed) + (f"; and {more} more" if more > 0 else "")

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return lists of tags, of their indices, and of the probabilities of all tags."""
        import pyarrow as pa

        ends = np.cumsum(self.counts)
        first, last, _ = rows.indices(len(self))
        start = int(ends[first] - self.counts[first])
        words, counts = slice(start, int(ends[last - 1])), self.counts[rows]
        names = np.asarray(self.label_names, dtype=object)
        labels, predicted = self.labels[words], self.predicted[words]
        return {
            "label": list_column(names[labels], counts),
            "prediction": list_column(names[predicted], counts),
            "label_id": list_column(labels, counts),
            "prediction_id": list_column(predicted, counts),
            "confidence": pa.array(self.confidence[rows]),
            "probabilities": list_column(self.probabilities[words].ravel(), counts * len(names)),
        }

    def metadata(self) -> dict[str, Any]:
        """Return the split and the tags."""
        return {"split": self.split, "label_names": list(self.label_names)}

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> TokenPredictions:
        """Return the predictions from a table of `columns` and the result of `metadata`."""
        names = metadata["label_names"]
        labels = table["label_id"].combine_chunks()
        return cls(
            labels=labels.flatten().to_numpy(zero_copy_only=False),
            counts=labels.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64),
            probabilities=read_probabilities(table, len(names)),
            label_names=tuple(names),
            split=metadata["split"],
        )


@dataclass(frozen=True)
class TokenLabels:
    """Classification in which each word of a sentence has one label."""

    words: SingleLabel  # The same problem for single words: its loss is summed over all words.

    name: ClassVar[str] = "token_labels"
    transformers_type: ClassVar[str | None] = None
    metrics: ClassVar = METRICS
    printed: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "token_accuracy")
    outcome_type: ClassVar = TokenPredictions
    report_type: ClassVar = TokenReport

    @property
    def label_names(self) -> tuple[str, ...]:
        """The K tags, in the order of the logits."""
        return self.words.label_names

    @classmethod
    def from_settings(
        cls, label_names: tuple[str, ...], targets: UnitLabels, settings: LossSettings
    ) -> TokenLabels:
        """Return the problem for the tags of the data; class weights are counted over words.

        Args:
            label_names: The K tags.
            targets: Labels of the words of the training split.
            settings: The user's choices.

        Raises:
            InputError: `--class_weights` does not fit the tags.
        """
        return cls(SingleLabel.from_settings(label_names, targets.codes, settings))

    @classmethod
    def from_arguments(
        cls, label_names: tuple[str, ...], arguments: Mapping[str, Any]
    ) -> TokenLabels:
        """Return the problem of a saved model; prediction needs only the tags."""
        return cls(SingleLabel.from_arguments(label_names, arguments))

    @property
    def class_weights(self) -> npt.NDArray[np.float32] | None:
        """Weights of the tags in the loss, (K,); None for equal weights."""
        return self.words.class_weights

    def weights(self, targets: UnitLabels) -> npt.NDArray[np.float64]:
        """Return the (n,) weights of the sentences in the loss: of their words together."""
        starts = np.cumsum(targets.counts) - targets.counts
        return np.add.reduceat(self.words.weights(targets.codes), starts)

    def loss(self, logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """Return the cross entropy summed over the words, a float32 scalar.

        Args:
            logits: (m, K) float32 of all words of the sentences.
            targets: (m,) int64 tags.
            weights: (m,) factors of the losses of the words; None for 1.
        """
        return self.words.loss(logits, targets, weights=weights)

    @property
    def rule(self) -> Rule:
        """How the logits of words become probabilities and answers."""
        return self.words.rule

    def decode(self, logits: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return for each sentence the softmax probabilities of its words.

        Args:
            logits: (m, K) float32 of all words of the sentences.
            inputs: The collated batch, which has the number of words of each sentence.
        """
        from ampft.kinds.windows import WORD_COUNTS

        assert inputs is not None, "a batch of sentences says how many words each has"
        probabilities = self.words.decode(logits)["probabilities"]
        return {"probabilities": _per_sentence(probabilities, inputs[WORD_COUNTS].numpy())}

    def outcome(
        self, split: str, targets: UnitLabels, decoded: Mapping[str, npt.NDArray[Any]]
    ) -> TokenPredictions:
        return TokenPredictions(
            labels=targets.codes,
            counts=targets.counts,
            probabilities=np.concatenate(list(decoded["probabilities"])),
            label_names=self.label_names,
            split=split,
        )

    def constant(self, train: UnitLabels, targets: UnitLabels) -> dict[str, npt.NDArray[Any]]:
        """Return the shares of the tags in `train` for each word of the sentences."""
        decoded = self.words.constant(train.codes, targets.codes)
        return {"probabilities": _per_sentence(decoded["probabilities"], targets.counts)}

    def constant_loss(self, train: UnitLabels) -> float:
        """Return the loss per word if each has the logits of the shares of the tags."""
        return self.words.constant_loss(train.codes)

    def predicted(self, decoded: Mapping[str, npt.NDArray[Any]]) -> list[tuple[str, float]]:
        """Return the tags of each sentence with a space between them, and its confidence."""
        outcome = self.outcome_of(decoded)
        tags = np.asarray(self.label_names, dtype=object)[outcome.predicted]
        ends = np.cumsum(outcome.counts)
        return [
            (" ".join(tags[end - count : end]), float(confidence))
            for end, count, confidence in zip(ends, outcome.counts, outcome.confidence, strict=True)
        ]

    def outcome_of(self, decoded: Mapping[str, npt.NDArray[Any]]) -> TokenPredictions:
        """Return predictions of sentences whose labels are unknown."""
        counts = np.array([len(rows) for rows in decoded["probabilities"]], dtype=np.int64)
        unknown = np.zeros(int(counts.sum()), dtype=np.int64)
        return self.outcome("prediction", UnitLabels(unknown, counts), decoded)

    @staticmethod
    def has_class(
        truth: npt.NDArray[Any], label_names: Sequence[str], index: int
    ) -> npt.NDArray[np.bool_]:
        """Return (n,) whether a sentence has an entity of a type, or a word with a plain tag."""
        tags = [1 + 2 * index, 2 + 2 * index] if is_bio(label_names) else [index]
        return np.asarray(np.isin(truth, tags).any(axis=1))

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        """Return the entities of a sentence with the numbers of their words, or its plain tags."""
        tags = [label_names[code] for code in choice if code >= 0]
        if not is_bio(label_names):
            return " ".join(tags)
        spans = [*entities(tags)]
        found = [
            f"{name} {first + 1}" + (f" to {end}" if end > first + 1 else "")
            for name, first, end in spans
        ]
        inside = {word for _, first, end in spans for word in range(first, end)}
        found += [  # otherwise a wrong sentence could look like the right one
            f"{tag} {word + 1} without B-{tag[2:]}"
            for word, tag in enumerate(tags)
            if word not in inside and tag.startswith("I-")
        ]
        return ", ".join(found) or "(no entity)"

    truth_text = choice_text


def _per_sentence(rows: npt.NDArray[Any], counts: IntArray) -> npt.NDArray[np.object_]:
    """Return an array of n objects: the rows of the words of each sentence."""
    result = np.empty(len(counts), dtype=object)
    result[:] = np.split(rows, np.cumsum(counts)[:-1])
    return result


def _micro_scores(totals: npt.NDArray[np.float64]) -> Scores:
    """Return the scores of all classes together from sums of class counts, (3 K + 1,)."""
    counts = class_counts(totals)
    right, found, given = (
        float(part.sum()) for part in (counts.true_positives, counts.predicted, counts.labelled)
    )
    return _scores(right, found, given, 2 * right / (found + given) if found + given else 0.0)


def _scores(right: float, found: float, given: float, f1: float) -> Scores:
    precision, recall = (float(right / part) if part else 0.0 for part in (found, given))
    return Scores(precision, recall, f1, int(given))


def _average(rows: Sequence[Scores], *, weighted: bool) -> Scores:
    """Return the average over the types of entities, by support if `weighted`."""
    support = [row.support for row in rows]
    precision, recall, f1 = (
        float(np.average([getattr(row, name) for row in rows], weights=support * weighted or None))
        for name in ("precision", "recall", "f1")
    )
    return Scores(precision, recall, f1, sum(support))
