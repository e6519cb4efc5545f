"""Verifies an artifact: it and its model predict the same rows, each in its own runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.certificate.cost import measured_cost
from ampft.certificate.dtypes import artifact_dtypes
from ampft.certificate.findings import (
    BatchInvariance,
    Certificate,
    Finding,
    LogitDifferences,
    finding,
)
from ampft.certificate.gate import (
    BATCH_SIZES,
    CLASS_MARGIN,
    TOLERANCES,
    Evidence,
    GateSettings,
    LogitTally,
    compare_outcomes,
    verdict,
)
from ampft.certificate.predicted import (
    BATCH_SIZE,
    INVARIANCE_ROWS,
    Decoded,
    Parts,
    batches,
    columns_of,
    forward,
    predicted,
)
from ampft.certificate.rounding import round_products
from ampft.certificate.rows import VerifiedRows, verified_rows
from ampft.comparison.analysis.predictions import check_margin
from ampft.comparison.analysis.run_predictions import CaseInputs, primary_metric
from ampft.errors import InputError
from ampft.export.artifact import Artifact, opened
from ampft.export.formats import BLOCKS, INT8
from ampft.export.manifest import SOURCE_NAME
from ampft.files import describe_file
from ampft.kinds.prediction import PredictRequest
from ampft.machine import hardware
from ampft.runs.card import published_data_name, published_model_name
from ampft.runs.manifest import MODEL_FILES, RECORD_NAME, WEIGHT_FILES, matches
from ampft.runs.predict import run_classifier
from ampft.runs.predictor import Predictor
from ampft.runs.record import RunRecord, hashed_values, read_record
from ampft.runs.redaction import published_record
from ampft.runs.show import problem_of
from ampft.tasks.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """What an artifact is verified on, and how.

    Attributes:
        verify: "test", "validation" or a file with labels; None for the split that the run reports.
        metric: Primary metric; None for the task's.
        margin: Equivalence margin as a fraction (0.01 is one point).
        data_flags: Flags of a training that replace recorded settings, such as paths of files.
        measure: Whether times and memory are measured.
    """

    verify: str | None = None
    metric: str | None = None
    margin: float = 0.01
    data_flags: Sequence[str] = ()
    measure: bool = True


def check_verification(record: RunRecord, request: VerifyRequest) -> VerifiedRows:
    """Return the rows to verify on, before anything is exported.

    Raises:
        InputError: The margin is out of range, the task lacks the metric, or the rows cannot be
            read.
    """
    check_margin(request.margin)
    primary_metric(request.metric, problem_of(record))
    return verified_rows(record, request.verify, request.data_flags)


def certify(
    folder: Path, run: Path, request: VerifyRequest, rows: VerifiedRows | None = None
) -> Certificate:
    """Return the certificate of an artifact.

    Args:
        folder: Folder of the artifact.
        run: Folder of the run that it was made from.
        request: What it is verified on, and how.
        rows: The rows of the request, if they have been read.

    Raises:
        InputError: The folder does not hold an artifact, one of its files was changed, it was made
            from another run, or the rows cannot be read.
    """
    classifier = run_classifier(run)
    record = classifier.record
    artifact = opened(folder)
    run_sha256 = describe_file(run / RECORD_NAME).sha256
    if artifact.manifest.run_sha256 != run_sha256:
        raise InputError(
            f"{folder}: this artifact was made from another run than {run}: it names the record "
            f"{artifact.manifest.run_sha256[:12]}, and this run has {run_sha256[:12]}. Name the "
            "run that it was made from, or export this one."
        )
    rows = rows or check_verification(record, request)
    load = partial(classifier.load, PredictRequest(batch_size=BATCH_SIZE))
    model, rounded = load(), None
    if artifact.manifest.precision == INT8:
        rounded = round_products(load(), artifact.manifest.keep_float)
    with model.numerics:
        return _certificate(artifact, model, run, request, rows, rounded)


def _certificate(
    artifact: Artifact,
    model: Predictor,
    run: Path,
    request: VerifyRequest,
    rows: VerifiedRows,
    rounded: Predictor | None,
) -> Certificate:
    """Return the certificate of an artifact of this run, within the numerics of its model."""
    record, manifest = artifact.record, artifact.manifest
    pair = _Pair(
        model=model,
        artifact=artifact.predictor(BATCH_SIZE),
        label_names=artifact_labels(artifact),
        tolerance=TOLERANCES.get(manifest.precision),
        rounded=rounded,
    )
    refused = list(_label_findings(pair.label_names, record.label_names))
    refused += _processor_findings(artifact, run)
    both = pair.predict(rows)
    refused += both.findings(len(rows))
    name = f"{manifest.format} {manifest.precision}"
    settings = GateSettings(
        metric=request.metric,
        margin=request.margin,
        groups=rows.groups,
        inputs=CaseInputs(lambda some: {row: rows.text(row) for row in some}, has_words=False),
        name=name,
        title=f"{published_model_name(record)} on {published_data_name(record)}",
        setup={"task": record.task},
        environment={"CPU": str(hardware(()).get("cpu"))},
    )
    comparison, classes = compare_outcomes(
        pair.outcome(rows, both.model, pair.model), pair.outcome(rows, both.artifact), settings
    )
    batch = [rows.rows[row] for row in range(min(len(rows), BATCH_SIZE))]
    dtypes = artifact_dtypes(artifact, batch)
    batches = pair.invariance(rows)
    evidence = Evidence(
        comparison=comparison,
        classes=classes,
        precision=manifest.precision,
        logits=both.logits,
        batches=batches,
        dtypes=dtypes,
        scales_rows=manifest.int8 == BLOCKS or manifest.format == "torch",
        refused=refused,
    )
    word, failures, notes = verdict(evidence)
    if rows.was_chosen_on:
        notes = (*notes, finding("seen", split=rows.name))
    if manifest.keep_float:
        notes = (*notes, finding("kept", modules=list(manifest.keep_float)))
    return Certificate(
        verdict=word,
        failures=failures,
        notes=notes,
        comparison=comparison,
        classes=classes,
        class_margin=CLASS_MARGIN,
        logits=both.logits,
        batches=batches,
        dtypes=dtypes,
        cost=measured_cost(artifact, pair.model, run, rows, measure=request.measure),
        artifact=_facts(artifact),
        artifact_sha256=manifest.files_sha256,
        run_sha256=manifest.run_sha256,
        rows_sha256=rows.sha256,
        verify=request.verify or rows.name,
    )


def artifact_labels(artifact: Artifact) -> tuple[str, ...]:
    """Return the labels in config.json, where every other program reads them."""
    found = dict(artifact.config.id2label)
    return tuple(str(found[index]) for index in sorted(found))


def _label_findings(found: Sequence[str], expected: Sequence[str]) -> Iterator[Finding]:
    if set(found) != set(expected) or len(found) != len(expected):
        missing, added = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        yield finding("labels", missing=missing, added=added)
    elif tuple(found) != tuple(expected):
        yield finding("label_order", found=list(found), expected=list(expected))


def _processor_findings(artifact: Artifact, run: Path) -> Iterator[Finding]:
    """Yield which copies of the run's tokenizer, processor and record are not copies."""
    pairs = {
        name: run / name
        for name in artifact.manifest.files
        if matches(name, MODEL_FILES)
        and not matches(name, ("config.json", "generation_config.json", *WEIGHT_FILES))
        and (run / name).is_file()
    }
    changed = [
        name
        for name, original in pairs.items()
        if describe_file(artifact.folder / name) != describe_file(original)
    ]
    if hashed_values(artifact.record) != hashed_values(published_record(read_record(run))):
        changed.append(f"{SOURCE_NAME}/{RECORD_NAME}")
    if changed:
        yield finding("processor", names=changed)


def _facts(artifact: Artifact) -> dict[str, str]:
    manifest = artifact.manifest
    return {
        "format": manifest.format,
        "precision": manifest.precision,
        "model file": manifest.model,
        "runtime": f"{manifest.runtime} {manifest.versions.get(manifest.runtime, '')}".strip(),
        "made by": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "created": manifest.created,
        **({"int8": manifest.int8} if manifest.int8 else {}),
    }


@dataclass
class _Both:
    """The predictions of both sides, in the order of the rows."""

    model: Decoded
    artifact: Decoded
    logits: LogitDifferences
    not_finite: int
    other_inputs: int

    def findings(self, rows: int) -> Iterator[Finding]:
        """Yield what is known to be wrong without statistics."""
        if self.not_finite:
            yield finding("not_finite", rows=self.not_finite)
        if self.other_inputs:
            yield finding("inputs", rows=self.other_inputs, examples=rows)


@dataclass(frozen=True)
class _Pair:
    """The model and its artifact, which predict the same batches.

    Attributes:
        model: The model of the run, in float32.
        artifact: The artifact.
        label_names: Labels of the artifact, in the order of its logits.
        tolerance: Share of the range of the logits that rounding explains.
        rounded: For int8, the model with all products rounded to 8 bits.
    """

    model: Predictor
    artifact: Predictor
    label_names: Sequence[str]
    tolerance: float | None
    rounded: Predictor | None

    def predict(self, rows: VerifiedRows) -> _Both:
        """Return the predictions of all rows, in batches of similar length."""
        tally, rounding = LogitTally(self.tolerance), LogitTally()
        model, artifact = Parts(), Parts()
        not_finite = other_inputs = 0
        step = max(len(rows) // INVARIANCE_ROWS, 1)
        for number, batch in enumerate(batches(self.model, rows, range(len(rows)), BATCH_SIZE)):
            columns = columns_of(rows, batch)
            inputs, logits = forward(self.model, columns)
            own_inputs, own = forward(self.artifact, columns)
            if not _are_equal(inputs, own_inputs):
                other_inputs += self._different_inputs(rows, batch)
            finite = torch.isfinite(own)
            not_finite += int((~finite).reshape(len(own), -1).any(dim=1).sum())
            own = self._as_labels(torch.where(finite, own, torch.zeros_like(own)))
            if own.shape == logits.shape:
                tally.add(logits.numpy(), own.numpy())
            if self.rounded is not None and number % step == 0:
                rounding.add(logits.numpy(), forward(self.rounded, columns)[1].numpy())
            model.add(batch, self.model.problem.decode(logits, rows.with_masks(inputs, batch)))
            own_inputs = rows.with_masks(own_inputs, batch)
            artifact.add(batch, self.artifact.problem.decode(own, own_inputs))
        return _Both(
            model=model.joined(),
            artifact=artifact.joined(),
            logits=tally.differences(None if self.rounded is None else rounding),
            not_finite=not_finite,
            other_inputs=other_inputs,
        )

    def outcome(
        self, rows: VerifiedRows, decoded: Decoded, predictor: Predictor | None = None
    ) -> Outcome:
        """Return the outcome of one side, by default the artifact's."""
        problem = (predictor or self.artifact).problem
        return problem.outcome(rows.name, rows.targets, decoded)

    def invariance(self, rows: VerifiedRows) -> BatchInvariance:
        """Predict some rows alone and in batches, and return what changes."""
        generator = np.random.default_rng(0)
        count = min(len(rows), INVARIANCE_ROWS)
        some = np.sort(generator.choice(len(rows), count, replace=False))

        def changes(predictor: Predictor, tolerance: float | None) -> BatchInvariance:
            alone, together = (predicted(predictor, rows, some, size) for size in BATCH_SIZES)
            return together.against(alone, tolerance)

        model_changed = changes(self.model, None).changed
        return replace(changes(self.artifact, self.tolerance), model_changed=model_changed)

    def _different_inputs(self, rows: VerifiedRows, batch: npt.NDArray[np.int64]) -> int:
        """Return how many rows of a batch the two sides read differently, each row alone."""
        found = 0
        for row in batch:
            columns = columns_of(rows, [row])
            sides = (predictor.reader.collate(columns) for predictor in (self.model, self.artifact))
            found += not _are_equal(*sides)
        return found

    def _as_labels(self, logits: Tensor) -> Tensor:
        """Return logits of the artifact in the order of the model's labels."""
        names = list(self.model.problem.label_names)
        if list(self.label_names) == names or set(self.label_names) != set(names):
            return logits
        order = [list(self.label_names).index(name) for name in names]
        return logits[:, order]


def _are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two batches are the same inputs, bit for bit."""
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and bool((one[name] == other[name]).all())
        for name in one
    )
