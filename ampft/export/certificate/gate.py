"""The gate: is an artifact the model that it came from, as far as the verified rows can tell?

It is judged like a finished model beside another (`ampft compare RUN_A RUN_B`): paired on the same
rows, over the rows only, with allowance for losses too rare for the test set. It passes only if it
is shown to be equivalent at the margin, and nothing else speaks against it; too few rows pass
nothing. What rounding cannot explain fails it even if the metric is the same: other labels, other
inputs, logits beyond the tolerance of the precision, and predictions that depend on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.comparison.analysis.predictions import (
    ALPHA,
    ArmPredictions,
    check_margin,
    with_prediction_results,
)
from ampft.comparison.analysis.run_predictions import (
    CaseInputs,
    Cases,
    RunPredictions,
    cases_from_outcome,
    predictions_from_outcome,
    primary_metric,
)
from ampft.comparison.findings import ArmResult, ClassFigures, Comparison, RunOutcome, metric_infos
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.comparison.statistics.power import draws_to_exclude
from ampft.comparison.statistics.verdict import EQUIVALENT, Verdict
from ampft.comparison.statistics.verdict import WORSE as WORSE_OUTCOME
from ampft.data.splits import Groups
from ampft.export.certificate.certificate import (
    FAILED,
    KEPT,
    OPEN,
    PASSED,
    TOO_FEW,
    UNDECIDED,
    WORSE,
    ArtifactDtypes,
    BatchInvariance,
    Certificate,
    ClassCheck,
    Finding,
    LogitDifferences,
    beyond_float32,
    finding,
)
from ampft.export.formats import BLOCKS, INT8
from ampft.metrics.sums import ACCURACY, CaseSums, single_label_sums
from ampft.runs.client_answers import PIPELINE
from ampft.tasks.outcome import Outcome
from ampft.tasks.table import problem_types

MODEL = "the model"  # name of the arm that the artifact is compared with
CLASS_MARGIN = 0.05  # loss of a class that 59 unchanged cases exclude
BATCH_SIZES = (1, 32)
INTEGERS = frozenset({"int8", "uint8"})
# Dtypes of the weights that an artifact of a precision stores.
STORED = {"fp32": {"float32"}, "fp16": {"float16"}, "bf16": {"bfloat16"}, "int8": INTEGERS}

# Largest difference of logits that rounding explains, as a share of their range. float32: kernels
# add in another order; measured up to 3e-5 (OpenVINO). 16 bits: 40 units of rounding, 2^-11 and
# 2^-8, for the accumulated rounding of about 40 layers of products.
TOLERANCES = {"fp32": 1e-3, "fp16": 40 * 2.0**-11, "bf16": 40 * 2.0**-8}
# Largest ratio of an int8 artifact's differences to the differences that rounding the model's
# products, with a scale per row, causes: for artifacts with such scales, and with fewer. Seen on
# MiniLM and a tiny BERT: up to 0.7, and up to 5.1 (static ranges). Planted faults: 6 and more.
ROUNDING_LIMIT, COARSE_ROUNDING_LIMIT = 3.0, 15.0


def compare_outcomes(
    model: Outcome,
    artifact: Outcome,
    *,
    name: str = "artifact",
    metric: str | None = None,
    margin: float = 0.01,
    groups: Groups | None = None,
    inputs: CaseInputs | None = None,
) -> tuple[Comparison, tuple[ClassCheck, ...]]:
    """Return the comparison of an artifact with its model, and what each class shows.

    Args:
        artifact: Predictions of the artifact, of the same rows with the same labels.
        name: Name of the artifact, such as "onnx int8".
        metric: Primary metric; None for the first one of the problem.
        margin: Equivalence margin as a fraction (0.01 is one point).
        groups: Groups of rows that are not independent; None if all are.
        inputs: Inputs of the rows, for the examples on the page; None for none.

    Raises:
        InputError: The margin is out of range, or the problem lacks the metric.
    """
    check_margin(margin)
    problem = problem_types()[model.kind]
    metric = primary_metric(metric, problem)
    cases = cases_from_outcome(Path(name), model, groups, inputs)
    sides = {
        side: predictions_from_outcome(outcome, metric, groups)
        for side, outcome in ((MODEL, model), (name, artifact))
    }
    draft = Comparison(
        title=name,
        metric=metric,
        metrics=metric_infos(problem),
        margin=margin,
        alpha=ALPHA,
        seed_counts=(1,),
        seeds=(0,),
        split=cases.split,
        examples=len(cases.truth),
        groups=cases.group_count,
        label_names=cases.class_names,
        arms=tuple(
            ArmResult(
                name=side,
                mode=side,
                is_placebo=False,
                execution="unknown",
                executed=None,
                status="complete",
                runs=(
                    RunOutcome(seed=0, status="finished", reason=None, folder=side, warnings=None),
                ),
            )
            for side in sides
        ),
        setup={},
        environment={},
        varied=(),
    )
    predictions = {arm: ArmPredictions([side]) for arm, side in sides.items()}
    comparison = with_prediction_results(draft, predictions, cases)
    model_side, artifact_side = sides.values()
    return comparison, tuple(
        _class_check(cases, index, figures, model_side, artifact_side)
        for index, figures in enumerate(comparison.arms[1].classes)
    )


def _class_check(
    cases: Cases, index: int, figures: ClassFigures, model: RunPredictions, artifact: RunPredictions
) -> ClassCheck:
    rows = np.flatnonzero(cases.problem.has_class(cases.truth, cases.label_names, index))
    before, after = model.correct[rows], artifact.correct[rows]
    count, ids = len(rows), None
    if cases.groups is not None:
        groups, ids = np.unique(cases.groups.ids[rows], return_inverse=True)
        count = len(groups)
    hidden = _hidden_loss(before, after, ids) if count > 1 else 1.0
    each = figures.difference
    is_worse = (
        each is not None
        and each.estimate < 0
        and each.p_difference_holm is not None
        and each.p_difference_holm <= ALPHA
    )
    status = OPEN
    if is_worse:
        status = WORSE
    elif hidden <= CLASS_MARGIN:
        status = KEPT
    elif count < draws_to_exclude(CLASS_MARGIN):
        status = TOO_FEW
    return ClassCheck(
        name=figures.name,
        rows=len(rows),
        groups=None if ids is None else count,
        lost=int((before & ~after).sum()),
        gained=int((after & ~before).sum()),
        hidden_loss=hidden,
        status=status,
    )


def _hidden_loss(
    before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_], ids: npt.NDArray[np.intp] | None
) -> float:
    """Return the one-sided 95 % limit of the share of a class that is lost.

    Args:
        before: Whether the model is right in each row of the class.
        after: Whether the artifact is.
        ids: Group of each row; None if the rows are independent.
    """

    def sums(correct: npt.NDArray[np.bool_]) -> CaseSums:
        wrong = (~correct).astype(np.int64)
        each = single_label_sums(np.zeros_like(wrong), wrong, 2)
        return each if ids is None else each.grouped(ids)

    low, _ = estimate_of_sums([sums(after)], [sums(before)], ACCURACY).interval(1 - 2 * ALPHA)
    return min(max(-low, 0.0), 1.0)


class LogitTally:
    """Collects the differences between two predictions of the same rows, batch by batch."""

    def __init__(self, tolerance: float | None = None) -> None:
        """Collect nothing yet.

        Args:
            tolerance: Share of the range that rounding explains; None for no bound.
        """
        self._tolerance = tolerance
        self._rows: list[npt.NDArray[np.float64]] = []
        self._low, self._high = np.inf, -np.inf

    def add(self, model: npt.NDArray[Any], other: npt.NDArray[Any]) -> None:
        """Add the (m, ...) logits of a batch from both; a value that is not finite is ignored."""
        one, two = (np.asarray(side, dtype=np.float64) for side in (model, other))
        is_finite = np.isfinite(one) & np.isfinite(two)
        differences = np.where(is_finite, np.abs(one - two), 0.0)
        self._rows.append(differences.reshape(len(one), -1).max(axis=1, initial=0.0))
        if is_finite.any():
            self._low = min(self._low, float(one[is_finite].min()))
            self._high = max(self._high, float(one[is_finite].max()))

    @property
    def large(self) -> float:
        """90th percentile over the rows of the largest difference of a row."""
        return float(np.quantile(np.concatenate(self._rows), 0.9)) if self._rows else 0.0

    @property
    def width(self) -> float:
        """Largest minus smallest logit of the model."""
        return float(max(self._high - self._low, 0.0))

    @property
    def step(self) -> float:
        """Distance between neighbouring float32 numbers at the largest logit."""
        largest = max(abs(self._low), abs(self._high))
        return float(np.spacing(np.float32(largest))) if np.isfinite(largest) else 0.0

    def beyond(self, share: float) -> int:
        """Return the number of rows that differ by more than a share of the range and rounding."""
        rows = np.concatenate(self._rows) if self._rows else np.zeros(0)
        return sum(beyond_float32(row, self.step) > share * self.width for row in rows.tolist())

    def differences(self, rounding: LogitTally | None = None) -> LogitDifferences:
        """Return the differences over all rows.

        Args:
            rounding: What rounding of all products does to some of these rows, if it is known.
        """
        rows = np.concatenate(self._rows) if self._rows else np.zeros(1)
        return LogitDifferences(
            largest=float(rows.max()),
            typical=float(np.median(rows)),
            range=self.width,
            tolerance=self._tolerance,
            rows_beyond=0 if self._tolerance is None else self.beyond(self._tolerance),
            rounding=self.large / rounding.large if rounding and rounding.large else None,
            step=self.step,
        )


def with_verdict(draft: Certificate) -> Certificate:
    """Return a certificate with its verdict, its failures and its notes.

    Args:
        draft: Certificate with all figures, of which the verdict is not read. Its failures, such as
            other labels, and notes are known without statistics.
    """
    failures = (*draft.failures, *_failures(draft))
    if not failures:  # otherwise, what clients answer has the same cause
        failures = tuple(_served_failures(draft))
    verdict = UNDECIDED
    if failures:
        verdict = FAILED
    elif draft.arm.outcome == EQUIVALENT or draft.is_equal:
        verdict = PASSED
    return replace(draft, verdict=verdict, failures=failures, notes=(*_notes(draft), *draft.notes))


def _served_failures(draft: Certificate) -> Iterator[Finding]:
    if draft.served is None:
        return
    for each in draft.served.clients:
        is_int8_row = draft.artifact["precision"] == INT8 and each.problem is None
        if each.client != PIPELINE and not each.agrees and not is_int8_row:
            yield finding("served", text=each.text())


def _failures(draft: Certificate) -> Iterator[Finding]:
    precision = draft.artifact["precision"]
    yield from dtype_failures(precision, draft.dtypes)
    logits, batches = draft.logits, draft.batches
    if logits is not None and logits.tolerance is not None and logits.rows_beyond:
        yield finding(
            "logits",
            largest=logits.share,
            tolerance=logits.tolerance,
            rows=logits.rows_beyond,
            precision=precision,
        )
    answers, probes = draft.answers, draft.probes
    if answers is not None and answers.decided:
        yield finding("answers", rows=answers.decided, examples=answers.rows)
    if probes is not None and probes.unexplained > TOLERANCES[precision]:
        limit = TOLERANCES[precision]
        yield finding("probes", rows=probes.rows, largest=probes.share, tolerance=limit)
    # Whether int8 activations have a scale per row, or more.
    scales_rows = draft.artifact.get("int8") == BLOCKS or draft.artifact["format"] == "torch"
    limit = ROUNDING_LIMIT if scales_rows else COARSE_ROUNDING_LIMIT
    if logits is not None and logits.rounding is not None and logits.rounding > limit:
        yield finding("rounding", ratio=logits.rounding, limit=limit)
    if batches is not None and depends_on_batch(batches, draft.comparison.margin):
        yield finding(
            "batch",
            changed=batches.changed,
            rows=batches.rows,
            largest=batches.logits.share,
            sizes=list(batches.sizes),
        )
    metric, difference = draft.comparison.primary.title, draft.arm.difference
    if draft.arm.outcome == WORSE_OUTCOME:
        yield finding("difference", verdict=draft.arm.outcome, metric=metric)
    elif difference is not None and difference.verdict == Verdict.BETTER_BEYOND:
        margin = draft.comparison.units.margin_with_unit
        yield finding("other_model", metric=metric, margin=margin)
    worse = [each.name for each in draft.classes if each.status == WORSE]
    if worse:
        falls = {each.name: each.f1_difference or 0.0 for each in draft.arm.classes}
        yield finding("classes", classes=worse, losses=[falls[name] for name in worse])


def depends_on_batch(batches: BatchInvariance, margin: float) -> bool:
    """Return whether the batch size changes more than rounding, or than the margin, explains.

    With a tolerance, every logit must lie within it. Without one, as in int8, whose activations
    are scaled by the largest of a batch, the share of changed predictions must not be shown to
    exceed the margin (one-sided 95 %, exact).
    """
    from scipy.stats import binom

    if batches.logits.tolerance is not None:
        return batches.logits.rows_beyond > 0
    return bool(binom.sf(batches.changed - 1, batches.rows, margin) <= ALPHA)


def dtype_failures(precision: str, dtypes: ArtifactDtypes) -> Iterator[Finding]:
    """Yield how the dtypes of an artifact contradict the precision that it states.

    At least half of the bytes of the weights must be stored in the stated dtype, or narrower: an
    embedding, norms and a head may stay in float32. For int8, a product must have run on integers.
    Products of 16-bit weights may run in float32, which is a note, because the rounding of the
    weights is what was asked for.

    Args:
        precision: fp32, fp16, bf16 or int8.
    """
    total = sum(dtypes.weights.values())
    expected = STORED[precision]
    stored = sum(size for name, size in dtypes.weights.items() if name in expected)
    if total and 2 * stored < total and precision != "int8":
        yield finding("weights", precision=precision, stored=dtypes.weight_summary)
    if precision == "int8":
        executed = [row for row in dtypes.products if set(row.inputs) & INTEGERS]
        if dtypes.products and not executed:
            yield finding("products", precision=precision, executed=dtypes.product_summary)
        elif total and not stored:
            yield finding("weights", precision=precision, stored=dtypes.weight_summary)


def _notes(draft: Certificate) -> Iterator[Finding]:
    if draft.is_equal and draft.logits is not None:
        probes = 0 if draft.probes is None else draft.probes.rows
        examples, share = draft.comparison.examples, draft.logits.share
        yield finding("equal", examples=examples, probes=probes, share=share)
    difference = draft.arm.difference
    if difference is not None and difference.carrying_cases is not None:
        yield finding("carrying", carrying=difference.carrying_cases, cases=difference.cases)
    if difference is not None and difference.carrying_labels is not None:
        carrying, cases = difference.carrying_labels, difference.cases
        yield finding("carrying_labels", carrying=carrying, cases=cases)
    suspects = [each for arm in draft.comparison.arms for each in arm.suspect_runs]
    if suspects and not draft.arm.outcome and suspects[0].warnings:
        yield finding("learned_nothing", warning=suspects[0].warnings[0])
    if draft.arm.difference is not None and draft.arm.difference.verdict == Verdict.BETTER:
        yield finding("gain", metric=draft.comparison.primary.title)
    if (served := draft.served) is not None:
        for each in served.clients:
            if each.client == PIPELINE and not each.agrees:
                yield finding("pipeline", text=each.text(), causes=list(served.causes))
    few = [each.name for each in draft.classes if each.status == TOO_FEW]
    if few:
        rows = draws_to_exclude(CLASS_MARGIN)
        yield finding("too_few", classes=few, rows=rows, limit=CLASS_MARGIN)
    precision, dtypes = draft.artifact["precision"], draft.dtypes
    if precision in ("fp16", "bf16"):
        with_weights = [row for row in dtypes.products if row.with_weights]
        if with_weights and not any(STORED[precision] & set(row.inputs) for row in with_weights):
            yield finding("wider", precision=precision, executed=dtypes.product_summary)
