"""Verifies an artifact: it and its model predict the same rows, each in its own runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ampft.comparison.analysis.run_predictions import CaseInputs
from ampft.errors import InputError
from ampft.evaluation.evaluate import as_array
from ampft.export.artifact import Artifact, open_uncertified
from ampft.export.certificate.artifact_clients import served_artifact
from ampft.export.certificate.certificate import (
    EQUAL,
    UNDECIDED,
    AnswerDifferences,
    BatchInvariance,
    Certificate,
    Finding,
    LogitDifferences,
    ProbeDifferences,
    finding,
)
from ampft.export.certificate.equality import AnswerTally, config_labels, exact_failures, probed
from ampft.export.certificate.gate import (
    BATCH_SIZES,
    CLASS_MARGIN,
    TOLERANCES,
    LogitTally,
    compare_outcomes,
    with_verdict,
)
from ampft.export.certificate.measured import artifact_dtypes, measured_cost
from ampft.export.certificate.stored_weights import weight_failures
from ampft.export.certificate.verified_rows import VerifiedRows, VerifyRequest, check_verification
from ampft.export.formats import FP32, INT8
from ampft.files import describe_file
from ampft.kinds.logits import forward_logits, logits_of_rows
from ampft.kinds.prediction import PredictRequest
from ampft.machine import hardware
from ampft.models.tokenizer import read_contract
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.predict import load_run_classifier
from ampft.runs.predictor import Predictor
from ampft.runs.publishing import published_data_name, published_model_name
from ampft.tasks.outcome import Outcome
from ampft.text.terminal import progress_bar

BATCH_SIZE = BATCH_SIZES[1]
INVARIANCE_ROWS = 256  # predicted twice; single rows take long
LARGEST = 127.0  # of a signed byte
MIN_SCALE = 1e-30  # of a row of zeros

Numbers = Sequence[int] | npt.NDArray[np.int64]
Decoded = dict[str, npt.NDArray[Any]]


def certify(
    folder: Path, run: Path, request: VerifyRequest, rows: VerifiedRows | None = None
) -> Certificate:
    """Return the certificate of an artifact.

    Args:
        rows: The rows of the request, if they have been read.

    Raises:
        InputError: The folder does not hold an artifact, one of its files was changed, it was made
            from another run, it fails on the rows because a setting is not the run's, or the rows
            cannot be read.
    """
    classifier = load_run_classifier(run)
    artifact = open_uncertified(folder)
    run_sha256 = describe_file(run / RECORD_NAME).sha256
    if artifact.manifest.run_sha256 != run_sha256:
        raise InputError(
            f"{folder}: this artifact was made from another run than {run}: its manifest states "
            f"the record {artifact.manifest.run_sha256[:12]}, and this run has {run_sha256[:12]}. "
            "Pass the run that it was made from, or export this one."
        )
    rows = rows or check_verification(classifier, request)
    load = partial(classifier.load, PredictRequest(batch_size=BATCH_SIZE))
    model, rounded = load(), None
    if artifact.manifest.precision == INT8:
        rounded = round_products(load(), artifact.manifest.keep_float)
    with model.numerics:
        try:
            return _Verification(
                artifact, run, rows, model, artifact.predictor(BATCH_SIZE), rounded
            ).certificate(request)
        except InputError:
            raise
        except Exception as error:  # of its runtime, on inputs for which it was not made
            reasons = [each.text for each in exact_failures(artifact, run, model.config)]
            if not reasons:
                raise
            raise InputError(
                f"{folder}: the artifact cannot predict the rows ({type(error).__name__}), and "
                f"{'; '.join(reasons)}. Export the run again."
            ) from error


@dataclass(frozen=True)
class _Verification:
    """The model and its artifact, which predict the same batches."""

    opened: Artifact  # The artifact.
    run: Path  # Folder of the run that it was made from.
    rows: VerifiedRows  # Rows to predict.
    model: Predictor  # The model of the run, in float32.
    artifact: Predictor  # The predictor of the artifact.
    rounded: Predictor | None  # For int8, the model with all products rounded to 8 bits.

    @property
    def tolerance(self) -> float | None:
        """Share of the range of the logits that rounding explains."""
        return TOLERANCES.get(self.opened.manifest.precision)

    def certificate(self, request: VerifyRequest) -> Certificate:
        """Return the certificate, within the numerics of the model."""
        rows, record, manifest = self.rows, self.opened.record, self.opened.manifest
        versions = manifest.versions
        failures = [
            *exact_failures(self.opened, self.run, self.model.config),
            *weight_failures(self.opened, self.run),
        ]
        with progress_bar(total=len(rows), desc="comparing", unit="example", leave=False) as bar:
            outcomes, logits, answers, found = self._predict(bar.update)
        comparison, classes = compare_outcomes(
            *outcomes,
            name=f"{manifest.format} {manifest.precision}",
            metric=request.metric,
            margin=request.margin,
            groups=rows.groups,
            inputs=CaseInputs(lambda some: {row: rows.text(row) for row in some}, has_words=False),
        )
        notes = [finding("seen", split=rows.name)] if rows.was_chosen_on else []
        if rows.available is not None:
            notes.append(finding("drawn", rows=len(rows), available=rows.available))
        if manifest.keep_float:
            notes.append(finding("kept", modules=list(manifest.keep_float)))
        draft = Certificate(
            verdict=UNDECIDED,
            failures=(*failures, *found),
            notes=tuple(notes),
            comparison=replace(
                comparison,
                title=f"{published_model_name(record)} on {published_data_name(record)}",
                setup={"task": record.task},
                environment={"CPU": str(hardware(()).get("cpu"))},
            ),
            classes=classes,
            class_margin=CLASS_MARGIN,
            logits=logits,
            answers=answers,
            **self._examined(request),
            artifact={
                "format": manifest.format,
                "precision": manifest.precision,
                "model file": manifest.model,
                "runtime": f"{manifest.runtime} {versions.get(manifest.runtime, '')}".strip(),
                "made by": ", ".join(f"{name} {each}" for name, each in versions.items()),
                "created": manifest.created,
                **({"int8": manifest.int8} if manifest.int8 else {}),
            },
            artifact_sha256=manifest.files_sha256,
            run_sha256=manifest.run_sha256,
            rows_sha256=rows.sha256,
            verify=request.verify or rows.name,
            max_samples=None if rows.available is None else len(rows),
        )
        return with_verdict(draft)

    def _examined(self, request: VerifyRequest) -> dict[str, Any]:
        """Return the parts of the certificate besides the comparison, and show which one runs."""
        rows = self.rows
        parts: dict[str, tuple[str, Callable[[], Any]]] = {
            "probes": ("made-up rows", self._probes),
            "served": ("other clients", lambda: served_artifact(self.opened, self.run, rows)),
            "batches": ("rows alone and in batches", self._invariance),
            "dtypes": ("dtypes", lambda: artifact_dtypes(self.opened, rows.rows[:BATCH_SIZE])),
            "cost": (
                "times and memory" if request.measure else "sizes",
                lambda: measured_cost(
                    self.opened, self.model, self.run, rows, measure=request.measure
                ),
            ),
        }
        found = {}
        with progress_bar(total=len(parts), unit="part", leave=False) as bar:
            for name, (title, examine) in parts.items():
                bar.set_description(title)
                found[name] = examine()
                bar.update()
        return found

    def _probes(self) -> ProbeDifferences | None:
        """Return how the logits differ on made-up rows; None unless float32 must be equal."""
        contract = read_contract(self.run)
        if contract is None or self.opened.manifest.precision != FP32:
            return None
        return probed(self.model, self.artifact, contract)

    def _predict(
        self, report: Callable[[int], object]
    ) -> tuple[tuple[Outcome, Outcome], LogitDifferences, AnswerDifferences | None, list[Finding]]:
        """Predict all rows in batches of similar length.

        Args:
            report: Called with the number of rows of each batch that is done.

        Returns:
            Outcomes of the model and of the artifact, the differences of their logits and of their
            answers, and what is known to be wrong without statistics.
        """
        rows, sides = self.rows, (self.model, self.artifact)
        tally, rounding = LogitTally(self.tolerance), LogitTally()
        decoded = (DecodedBatches(), DecodedBatches())
        not_finite = other_inputs = 0
        # The logits of the artifact in the order of the model's labels.
        names = self.model.problem.label_names
        found = config_labels(self.opened)
        has_same = set(found) == set(names)
        order = [found.index(name) for name in names] if has_same else slice(None)
        problems = [side.problem for side in sides]
        if len(problems[1].label_names) != len(names):  # is named as a failure
            problems[1] = problems[0]
        one, other = (getattr(problem, "rule", None) for problem in problems)
        answers = None if one is None or other is None else AnswerTally(one, other)
        step = max(len(rows) // INVARIANCE_ROWS, 1)
        for number, batch in enumerate(
            batches_by_length(self.model, rows, range(len(rows)), BATCH_SIZE)
        ):
            columns = columns_of(rows, batch)
            (inputs, logits), (own_inputs, own) = (forward(side, columns) for side in sides)
            if not _are_equal(inputs, own_inputs):
                for row in batch:  # alone
                    single = columns_of(rows, [row])
                    other_inputs += not _are_equal(*(s.reader.collate(single) for s in sides))
            finite = torch.isfinite(own)
            not_finite += int((~finite).reshape(len(own), -1).any(dim=1).sum())
            raw = torch.where(finite, own, torch.zeros_like(own))
            own = raw[:, order]
            if own.shape == logits.shape:
                tally.add(logits.numpy(), own.numpy())
                if answers is not None:
                    answers.add(logits.numpy(), raw.numpy())
            if self.rounded is not None and number % step == 0:
                rounding.add(logits.numpy(), forward(self.rounded, columns)[1].numpy())
            read = ((inputs, logits), (own_inputs, own))
            for problem, parts, each in zip(problems, decoded, read, strict=True):
                parts.add(batch, problem.decode(each[1], rows.with_masks(each[0], batch)))
            report(len(batch))
        model, artifact = (
            problem.outcome(rows.name, rows.targets, parts.joined())
            for problem, parts in zip(problems, decoded, strict=True)
        )
        wrong = [finding("not_finite", rows=not_finite)] if not_finite else []
        if other_inputs:
            wrong.append(finding("inputs", rows=other_inputs, examples=len(rows)))
        differences = tally.differences(None if self.rounded is None else rounding)
        shown = None if answers is None else answers.differences()
        return (model, artifact), differences, shown, wrong

    def _invariance(self) -> BatchInvariance:
        """Predict some rows alone and in batches, and return what changes."""
        generator = np.random.default_rng(0)
        count = min(len(self.rows), INVARIANCE_ROWS)
        some = np.sort(generator.choice(len(self.rows), count, replace=False))

        def changes(predictor: Predictor, tolerance: float | None) -> BatchInvariance:
            alone, together = (predict_rows(predictor, self.rows, some, n) for n in BATCH_SIZES)
            return together.against(alone, tolerance)

        model_changed = changes(self.model, None).changed
        return replace(changes(self.artifact, self.tolerance), model_changed=model_changed)


def _are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two batches are the same inputs, bit for bit."""
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and bool((one[name] == other[name]).all())
        for name in one
    )


@dataclass
class DecodedBatches:
    """Decoded rows of several batches."""

    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)
    decoded: list[Decoded] = field(default_factory=list)

    def add(self, rows: npt.NDArray[np.int64], decoded: Mapping[str, Any]) -> Decoded:
        self.rows.append(rows)
        self.decoded.append({name: as_array(value) for name, value in decoded.items()})
        return self.decoded[-1]

    def joined(self) -> Decoded:
        """Return the rows in their order."""
        back = np.argsort(np.concatenate(self.rows))
        names = self.decoded[0]
        return {name: np.concatenate([d[name] for d in self.decoded])[back] for name in names}


@dataclass(frozen=True)
class RowPredictions:
    """Predictions of rows: labels and (m, ...) logits by row, and decoded outputs in order."""

    labels: Mapping[int, str]
    logits: Mapping[int, Tensor]
    decoded: Decoded
    are_numbers: bool = False  # Whether labels are numbers as text.

    @property
    def is_finite(self) -> bool:
        return all(bool(torch.isfinite(each).all()) for each in self.logits.values())

    def tally(self, other: RowPredictions, tolerance: float | None) -> LogitTally:
        """Return the differences of another prediction of some of these rows.

        Args:
            tolerance: Share of the range of the logits that rounding explains.
        """
        tally = LogitTally(tolerance)
        for row, logits in other.logits.items():
            if logits.shape == self.logits[row].shape:
                tally.add(self.logits[row].numpy(), logits.numpy())
        return tally

    def against(self, alone: RowPredictions, tolerance: float | None) -> BatchInvariance:
        """Return what changes if some of these rows are predicted alone."""
        tally = self.tally(alone, tolerance)
        changed = sum(self.labels[row] != label for row, label in alone.labels.items())
        return BatchInvariance(
            sizes=BATCH_SIZES,
            rows=len(alone.labels),
            changed=tally.beyond(EQUAL) if self.are_numbers else changed,
            logits=tally.differences(),
        )


def batches_by_length(
    predictor: Predictor, rows: VerifiedRows, some: Numbers, size: int
) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of some rows, in batches of similar length."""
    numbers = np.asarray(some, dtype=np.int64)
    lengths = np.array([predictor.reader.length(rows.rows[row]) for row in numbers])
    order = numbers[np.argsort(-lengths, kind="stable")]
    return np.split(order, range(size, len(order), size))


def columns_of(rows: VerifiedRows, some: Numbers) -> list[list[Any]]:
    """Return the inputs of some rows by column."""
    return [list(column) for column in zip(*(rows.rows[row] for row in some), strict=True)]


@torch.no_grad()
def forward(
    predictor: Predictor, columns: Sequence[Sequence[Any]]
) -> tuple[Mapping[str, Tensor], Tensor]:
    """Return the inputs and the logits of a batch, on the CPU."""
    inputs = predictor.reader.collate(columns)
    logits = forward_logits(predictor.model, inputs, max_rows=BATCH_SIZE)
    return inputs, logits.float().cpu()


def predict_rows(
    predictor: Predictor, rows: VerifiedRows, some: Numbers, size: int
) -> RowPredictions:
    """Predict some rows in batches of similar length."""
    labels: dict[int, str] = {}
    logits: dict[int, Tensor] = {}
    parts = DecodedBatches()
    for batch in batches_by_length(predictor, rows, some, size):
        inputs, found = forward(predictor, columns_of(rows, batch))
        with_masks = rows.with_masks(inputs, batch)
        decoded = parts.add(batch, predictor.problem.decode(torch.nan_to_num(found), with_masks))
        own = logits_of_rows(found, inputs, len(batch))
        pairs = zip(batch.tolist(), predictor.problem.predicted(decoded), own, strict=True)
        for row, (label, _), each in pairs:
            labels[row], logits[row] = str(label), each
    rule = getattr(predictor.problem, "rule", None)
    are_numbers = rule is not None and rule.numbers
    return RowPredictions(labels, logits, parts.joined(), are_numbers)


@torch.no_grad()
def round_products(predictor: Predictor, kept: Sequence[str]) -> Predictor:
    """Round the operands of a predictor's products to 8 bits, in place, and return it.

    Weights have a scale per output, and the inputs of linear layers a scale per row, which is what
    dynamic quantization with the least rounding does. Sums stay in float32.

    Args:
        predictor: A predictor that nothing else uses.
        kept: Paths of modules that are not rounded.
    """
    for path, module in predictor.model.named_modules():
        if any(f"{path}.".startswith(f"{name}.") for name in kept):
            continue
        if isinstance(module, nn.Linear | nn.Embedding | _ConvNd):
            weight = module.weight
            weight.copy_(_rounded(weight.flatten(1)).view_as(weight))
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(_round_input)
    return predictor


def _round_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    del module
    return (_rounded(inputs[0]), *inputs[1:])


def _rounded(values: Tensor) -> Tensor:
    """Return values that 8 bits can hold, with a scale for each vector of the last axis."""
    scale = values.abs().amax(-1, keepdim=True).clamp_min(MIN_SCALE) / LARGEST
    return (values / scale).round() * scale
