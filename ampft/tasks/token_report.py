"""The report of a split whose words have one label each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampft.metrics.scores import Scores, flat_averages
from ampft.tasks.report import HubMetric, Report, score_cells
from ampft.text.tables import Cell, Name, Table

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
