"""The smallest set of modules that must stay in float32 for an artifact to be its model.

Artifacts with other modules in float32 predict labelled rows of the run that are not verified
later (delta debugging over the tree of modules, on paired predictions). An artifact holds if its
harmful flips, less the beneficial ones, do not exceed the margin. Ordinary rounding flips rows too,
so the mildest of three rules is taken that the artifact without such modules breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampft.export.artifact import load_artifact
from ampft.export.certificate.gate import BATCH_SIZES, TOLERANCES, depends_on_batch
from ampft.export.certificate.verified_rows import VerifiedRows, VerifyRequest, split_rows
from ampft.export.certificate.verify import (
    BATCH_SIZE,
    INVARIANCE_ROWS,
    RowPredictions,
    batches_by_length,
    predict_rows,
)
from ampft.export.export import write_artifact
from ampft.export.formats import FORMATS, Write
from ampft.export.module_search import shortest_patterns, smallest_sufficient_modules
from ampft.export.source import ExportRequest, ExportSource, load_source
from ampft.kinds.prediction import PredictRequest
from ampft.ownership import TemporaryFolder
from ampft.runs.predict import load_run_classifier
from ampft.runs.predictor import Predictor
from ampft.tasks.outcome import Outcome

Z = 1.645  # one-sided 95 %


@dataclass(frozen=True, kw_only=True)
class FloatRegion:
    """What a search found."""

    modules: tuple[str, ...] | None  # Paths of the modules; None if no set of modules helps.
    patterns: tuple[str, ...]  # Short globs that match these modules and no others.
    tests: int  # Number of artifacts that were written and compared.
    rows: int  # Number of examples that they predicted.
    split: str  # Split of these examples.


def smallest_region(
    request: ExportRequest, verification: VerifyRequest, verified: VerifiedRows
) -> FloatRegion:
    """Search the smallest set of modules that must stay in float32.

    No module of it can be left out, nor be replaced by the modules inside it.

    Args:
        request: Export whose artifact does not pass.
        verified: Rows of the verification, which the search does not use.

    Raises:
        InputError: The other rows of the run cannot be read.
    """
    classifier = load_run_classifier(request.run)
    record = classifier.record
    has_validation = verified.name != "validation" and record.data.examples.get("validation")
    split = "validation" if has_validation else "train"
    rows = split_rows(classifier, split, verification.data_flags)
    model = classifier.load(PredictRequest(batch_size=BATCH_SIZE))
    source = load_source(request, record)
    with model.numerics, FORMATS[request.format].code.model_writer(source) as write:
        search = _Search(source, write, rows, model, verification.margin)
        broken = [rule for rule, holds in enumerate(search.holds(())) if not holds]
        found = None
        if broken:
            found = smallest_sufficient_modules(
                source.model, lambda paths: search.holds(paths)[broken[0]]
            )
    return FloatRegion(
        modules=found,
        patterns=shortest_patterns(source.model, found) if found else (),
        tests=len(search.results),
        rows=len(rows),
        split=split,
    )


class _Search:
    """Writes artifacts and compares their predictions with the model's."""

    def __init__(
        self,
        source: ExportSource,
        write: Write,
        rows: VerifiedRows,
        model: Predictor,
        margin: float,
    ) -> None:
        self._source, self._write, self._rows, self._margin = source, write, rows, margin
        self._order = np.concatenate(batches_by_length(model, rows, range(len(rows)), BATCH_SIZE))
        # Whether each artifact holds by each rule, by the set of its modules in float32.
        self.results: dict[frozenset[str], tuple[bool, ...]] = {}
        self._expected = predict_rows(model, rows, self._order, BATCH_SIZE)
        self._outcome = self._outcome_of(model, self._expected)

    def holds(self, paths: Sequence[str]) -> tuple[bool, ...]:
        """Return whether the artifact with these modules in float32 holds, by each of three rules.

        From the mildest: the loss is not shown to exceed the margin; it does not exceed it; no more
        predictions differ than the margin allows. No rule holds unless the logits are finite and
        within the tolerance of the precision, and predictions do not depend on the batch.
        """
        key = frozenset(paths)
        if key not in self.results:
            self.results[key] = self._compared((*self._source.kept, *paths))
        return self.results[key]

    def _compared(self, kept: tuple[str, ...]) -> tuple[bool, ...]:
        source = replace(self._source, kept=kept)
        with TemporaryFolder("export") as folder:
            manifest = write_artifact(folder, source, self._write)
            artifact = load_artifact(folder, manifest, source.record).predictor(BATCH_SIZE)
            together = predict_rows(artifact, self._rows, self._order, BATCH_SIZE)
            step = max(len(self._order) // INVARIANCE_ROWS, 1)
            alone = predict_rows(artifact, self._rows, self._order[::step], BATCH_SIZES[0])
        outcome = self._outcome_of(artifact, together)
        before, after = self._outcome.correct, outcome.correct
        differ = self._outcome.choices != outcome.choices
        tolerance = TOLERANCES.get(manifest.precision)
        close = self._expected.tally(together, tolerance).differences()
        is_sound = (
            together.is_finite
            and alone.is_finite
            and not close.rows_beyond
            and not depends_on_batch(together.against(alone, tolerance), self._margin)
        )
        lost, gained = int((before & ~after).sum()), int((after & ~before).sum())
        changed = int(differ.reshape(len(differ), -1).any(axis=1).sum())
        loss = lost - gained
        allowed = self._margin * len(self._rows)
        found = (loss - Z * (lost + gained) ** 0.5, loss, changed)
        return tuple(is_sound and each <= allowed for each in found)

    def _outcome_of(self, predictor: Predictor, found: RowPredictions) -> Outcome:
        return predictor.problem.outcome(self._rows.name, self._rows.targets, found.decoded)
