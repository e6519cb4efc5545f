"""What a certificate states: all figures that its page and its texts show.

`certificate.json` is this module's `Certificate` as JSON. Shares and differences are fractions
(0.01 is one point), times are in seconds and sizes in bytes. `None` means not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from ampft.comparison.findings import ArmResult, BatchTiming, Comparison
from ampft.comparison.verdict_text import carrying_labels_text, carrying_text
from ampft.runs.client_answers import ServedPart
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue, one_of
from ampft.text.numbers import counted, percent

SCHEMA = 1
LISTED = 6  # entries in a sentence
FLOAT32 = "fp32"
# Largest difference of float32 logits, as a share of their range, with which they are equal, and
# the fewest rows. Kernels that add in another order differ by up to 3e-5 (OpenVINO).
EQUAL, EQUAL_ROWS = 1e-4, 100
# Two equal numbers may also differ by this many steps between neighbouring float32 numbers. For a
# regression of years near 2,000, a step is 0.00012.
STEPS = 2
PASSED, FAILED, UNDECIDED = "passed", "failed", "undecided"
KEPT, WORSE, OPEN, TOO_FEW = "kept", "worse", "open", "too few"


def _labels(missing: Sequence[str], added: Sequence[str]) -> str:
    parts = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
    parts += [f"has {', '.join(map(repr, added))} in addition"] if added else []
    return f"the artifact's labels are not the model's: it {' and '.join(parts)}"


def _logits(largest: float, tolerance: float, rows: int, precision: str) -> str:
    return (
        f"the logits of {counted(rows, 'example')} differ by more than rounding to {precision} "
        f"explains: by up to {100 * largest:.2g} % of their range, and {100 * tolerance:.2g} % is "
        "allowed"
    )


def _batch_rows(changed: int, rows: int, largest: float, sizes: Sequence[int]) -> str:
    one, other = sizes
    return (
        f"predictions depend on the batch: from batches of {one} to batches of {other}, "
        f"{changed:,} of {counted(rows, 'prediction')} change, and logits by up to "
        f"{100 * largest:.2g} % of their range"
    )


def _classes(classes: Sequence[str], losses: Sequence[float]) -> str:
    listed = ", ".join(
        f"{name!r} ({100 * loss:.1f} points)" for name, loss in zip(classes, losses, strict=True)
    )
    return f"F1 falls beyond chance in {counted(len(classes), 'class')}: {listed}"


SENTENCES: Mapping[str, Callable[..., str]] = {
    # Failures; a single one decides
    "labels": _labels,
    "label_order": lambda found, expected: (
        f"config.json of the artifact has the labels in another order: {', '.join(found)}, not "
        f"{', '.join(expected)}"
    ),
    "processor": lambda names: f"these files of the artifact are not the run's: {', '.join(names)}",
    "contract": lambda entries: (
        f"decision.json of the artifact, which says how it decides, is not the run's: "
        f"{'; '.join(entries[:LISTED])}"
    ),
    "config": lambda entries: (
        f"config.json of the artifact is not the run's: {'; '.join(entries[:LISTED])}"
    ),
    "manifest": lambda entries: (
        f"artifact.json does not state what the run has: {'; '.join(entries[:LISTED])}"
    ),
    "modules": lambda names: (
        f"these files are not of this version of ampft: {', '.join(names)}; export the run again"
    ),
    "added": lambda names: (
        f"these files of weights or code were added to the artifact, and other programs may load "
        f"them: {', '.join(names)}"
    ),
    "answers": lambda rows, examples: (
        f"with equal logits, the artifact gives {rows:,} of {counted(examples, 'example')} another "
        "label, probability or answer: it decides otherwise than its model"
    ),
    "probes": lambda rows, largest, tolerance: (
        f"on {rows:,} made-up rows, which have tokens and lengths that the examples lack, logits "
        f"differ by up to {100 * largest:.2g} % of their range, and {100 * tolerance:.2g} % is "
        "allowed"
    ),
    "not_finite": lambda rows: f"{counted(rows, 'prediction')} of the artifact are not finite",
    "inputs": lambda rows, examples: (
        f"the inputs of the artifact differ from the model's for {rows:,} of "
        f"{counted(examples, 'example')}: its tokenizer, truncation or preprocessing differs"
    ),
    "logits": _logits,
    "rounding": lambda ratio, limit: (
        f"the logits differ {ratio:.1f} times as much as rounding to int8 explains, and {limit:g} "
        "times is allowed: its calibration or its computation differs from the model's"
    ),
    "batch": _batch_rows,
    "difference": lambda verdict, metric: (
        f"the {metric} of the artifact is {verdict} than the model's"
    ),
    "other_model": lambda metric, margin: (
        f"the artifact predicts otherwise than its model: its {metric} is better by more than "
        f"{margin}"
    ),
    "classes": _classes,
    "weights": lambda precision, stored: (
        f"the precision of the artifact is {precision}, but its weights are stored as {stored}"
    ),
    "values": lambda names, precision: (
        f"{counted(len(names), 'weight')} in the artifact {'is' if len(names) == 1 else 'are'} not "
        f"the run's, rounded to {precision}: {', '.join(names[:LISTED])}"
    ),
    "products": lambda precision, executed: (
        f"the precision of the artifact is {precision}, but its products ran as {executed}"
    ),
    "served": lambda text: f"its answers differ from the run's predictions.parquet: {text}",
    # Notes
    "pipeline": lambda text, causes: (
        f"a pipeline gives other answers: {text}. {' '.join(causes)}".rstrip(". ")
    ),
    "equal": lambda examples, probes, share: (
        f"the outputs equal the model's to rounding, so no difference is estimated: all answers "
        f"of {counted(examples, 'example')}, and logits within {100 * share:.1g} % of "
        f"their range, also on {probes:,} made-up rows"
    ),
    "gain": lambda metric: (
        f"the artifact has a better {metric} than its model beyond chance, so its predictions are "
        "not quite the model's; the size of the gain is uncertain"
    ),
    "carrying": lambda carrying, cases: carrying_text(carrying, cases),
    "carrying_labels": lambda carrying, cases: carrying_labels_text(carrying, cases),
    "learned_nothing": lambda warning: (
        f"the metric has no verdict, because the models did not train well: {warning.rstrip('.')}"
    ),
    "too_few": lambda classes, rows, limit: (
        f"not tested, because fewer than {rows} examples cannot exclude a loss of "
        f"{percent(limit)}: class {', '.join(map(repr, classes))}"
    ),
    "wider": lambda precision, executed: (
        f"weights are stored in {precision}, and products ran as {executed} on this machine"
    ),
    "seen": lambda split: (
        f"the best epoch was chosen on {split}, so both sides look too good; differences are fair"
    ),
    "drawn": lambda rows, available: (
        f"verified on {rows:,} of {available:,} examples, drawn at random (--max_verify_samples)"
    ),
    "kept": lambda modules: (
        f"{counted(len(modules), 'module')} of the artifact in float32: {', '.join(modules)}"
    ),
}


@dataclass(frozen=True)
class Finding:
    """A failure or a note of a certificate: its kind, with the values of its sentence."""

    kind: Annotated[str, one_of(tuple(SENTENCES))]
    values: Mapping[str, JSONValue] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The sentence, without a full stop, in which no name has control characters."""
        return inert(SENTENCES[self.kind](**self.values))


def finding(kind: str, **values: Any) -> Finding:
    """Return a finding of a kind in `SENTENCES`, with the values that its sentence needs."""
    return Finding(kind, values)


@dataclass(frozen=True, kw_only=True)
class ClassCheck:
    """What the examples of one class show."""

    name: str  # The class.
    rows: int  # Number of its examples.
    groups: int | None = None  # Number of their groups; None if the examples are independent.
    lost: int  # Number that only the model predicts correctly.
    gained: int  # Number that only the artifact predicts correctly.
    # Largest share of the class that the artifact may lose by these examples (one-sided 95 %).
    hidden_loss: float
    # "kept" (a loss of `class_margin` is excluded), "worse" (its F1 falls beyond chance), "too few"
    # (with so few examples or groups, no result could have excluded it) or "open".
    status: Annotated[str, one_of((KEPT, WORSE, OPEN, TOO_FEW))]


@dataclass(frozen=True, kw_only=True)
class LogitDifferences:
    """Differences between the logits of two predictions of the same rows."""

    largest: float  # Largest absolute difference.
    typical: float  # Median over the rows of the largest difference of a row.
    range: float  # Largest minus smallest logit of the model.
    # Largest difference that rounding explains, as a share of `range`; None if the precision bounds
    # none.
    tolerance: float | None = None
    rows_beyond: int = 0  # Number of rows beyond the tolerance.
    # For int8, 90th percentile over the rows of the largest difference of a row, relative to what
    # rounding all products of the model to 8 bits does; None otherwise.
    rounding: float | None = None
    step: float = 0.0  # Distance between neighbouring float32 numbers at the largest logit.

    @property
    def share(self) -> float:
        """The largest difference as a share of the range."""
        return share_of_range(self.largest, self.range)

    @property
    def unexplained(self) -> float:
        """Like `share`, less what the steps of float32 explain."""
        return share_of_range(beyond_float32(self.largest, self.step), self.range)


def share_of_range(difference: float, width: float) -> float:
    """Return a difference of logits as a share of their range."""
    return difference / width if width > 0 else float(difference > 0)


def beyond_float32(difference: float, step: float) -> float:
    """Return how much a difference exceeds what the steps of float32 explain."""
    return max(difference - STEPS * step, 0.0)


@dataclass(frozen=True, kw_only=True)
class AnswerDifferences:
    """Differences between what people get from the artifact and from the model."""

    rows: int  # Number of rows, or of words.
    labels: int  # Number with another label.
    answered: int  # Number that only one of both answers.
    probability: float  # Largest difference of a probability, or of a number.
    decided: int  # Number whose answer differs if the logits are equal.
    are_numbers: bool = False  # Whether answers are numbers, not labels.

    def text(self) -> str:
        """Return the differences in a clause."""
        if self.are_numbers:
            by = f"by up to {self.probability:.2g}"
            return f"{self.labels:,} of {self.rows:,} numbers differ by more than rounding, {by}"
        return (
            f"{self.labels:,} of {self.rows:,} labels differ, {self.answered:,} are answered by "
            f"one side only, and probabilities differ by up to {self.probability:.2g}"
        )


@dataclass(frozen=True, kw_only=True)
class ProbeDifferences:
    """Differences between logits on made-up rows of tokens."""

    rows: int  # Number of rows.
    coverage: float  # Share of the vocabulary that is in one of them.
    largest: float  # Largest absolute difference.
    range: float  # Largest minus smallest logit of the model.
    step: float = 0.0  # Distance between neighbouring float32 numbers at the largest logit.

    @property
    def share(self) -> float:
        """The largest difference as a share of the range."""
        return share_of_range(self.largest, self.range)

    @property
    def unexplained(self) -> float:
        """Like `share`, less what the steps of float32 explain."""
        return share_of_range(beyond_float32(self.largest, self.step), self.range)


@dataclass(frozen=True, kw_only=True)
class BatchInvariance:
    """How predictions depend on the batch size only."""

    sizes: tuple[int, int]  # The two batch sizes.
    rows: int  # Number of rows that were predicted with both.
    changed: int  # Number of predictions that differ.
    logits: LogitDifferences  # Differences of the logits.
    # Number of the model's own predictions that differ; None if not measured.
    model_changed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProductCount:
    """Executed products of one kind: operator, dtypes of the operands, and their number."""

    operator: str
    inputs: tuple[str, ...]
    count: int
    with_weights: bool


@dataclass(frozen=True, kw_only=True)
class ArtifactDtypes:
    """Dtypes read from the artifact itself, not from the settings of the export."""

    weights: Mapping[str, int]  # Bytes of the stored weights by dtype.
    # Products that the runtime executed in one batch; empty if they are unknown.
    products: tuple[ProductCount, ...]
    source: str  # Where the products come from, such as "profile of onnxruntime".

    @property
    def weight_summary(self) -> str:
        """The dtypes of the weights with their shares, the largest first."""
        total = sum(self.weights.values()) or 1
        ordered = sorted(self.weights.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {percent(size / total)}" for name, size in ordered)

    @property
    def product_summary(self) -> str:
        """The dtypes of the products with weights, with their numbers; the most frequent first."""
        counts: dict[str, int] = {}
        for row in self.products:
            if row.with_weights:
                name = " x ".join(row.inputs)
                counts[name] = counts.get(name, 0) + row.count
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} ({count:,})" for name, count in ordered) or "unknown"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What predicting costs."""

    size: int  # Bytes of the artifact's weights and graph on disk.
    model_size: int  # Bytes of the model's weights on disk.
    # Times by batch size, with the speed-up over the model in the same rounds.
    timings: tuple[BatchTiming, ...] = ()
    model_timings: tuple[BatchTiming, ...] = ()  # Times of the model, in float32 by PyTorch.
    # Peak memory of a process that loads the artifact and predicts a batch.
    peak: int | None = None
    model_peak: int | None = None  # Peak memory of such a process with the model.


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The verification of an artifact."""

    # "passed", "failed" or "undecided".
    verdict: Annotated[str, one_of((PASSED, FAILED, UNDECIDED))]
    failures: tuple[Finding, ...]  # Why it failed; empty otherwise.
    notes: tuple[Finding, ...]  # What a reader must know besides.
    comparison: Comparison  # The artifact as an arm beside the model it came from.
    classes: tuple[ClassCheck, ...]  # What the examples of each class show.
    class_margin: float  # Loss of a class that is excluded for a class that is kept.
    # Differences of the logits; None if the outputs cannot be compared.
    logits: LogitDifferences | None
    batches: BatchInvariance | None  # Dependence on the batch size; None if not measured.
    dtypes: ArtifactDtypes  # Dtypes of weights and products.
    cost: Cost  # Size, times and memory.
    artifact: Mapping[str, str]  # Facts about the artifact, as names and values for readers.
    artifact_sha256: str  # Hash over the files of the artifact.
    run_sha256: str  # Hash of the record of the run that it came from.
    rows_sha256: str  # Hash of the verified rows and their labels.
    verify: str  # Split or file that was verified, as the user named it.
    answers: AnswerDifferences | None = None  # Differences of what people get.
    probes: ProbeDifferences | None = None  # Differences on made-up rows; None if there are none.
    # What plain clients answered about rows of the run; None for other rows.
    served: ServedPart | None = None
    max_samples: int | None = None  # Verified examples, if they were drawn at random.
    schema: int = SCHEMA  # Version of this layout.

    @property
    def is_equal(self) -> bool:
        """Whether all outputs equal the model's to rounding, which no estimate has to show."""
        logits, answers, probes = self.logits, self.answers, self.probes
        if logits is None or answers is None or self.artifact["precision"] != FLOAT32:
            return False
        shares = [logits.unexplained, *([] if probes is None else [probes.unexplained])]
        return (
            max(shares) <= EQUAL
            and answers.rows + (0 if probes is None else probes.rows) >= EQUAL_ROWS
            and not (answers.labels or answers.answered or answers.decided)
        )

    @property
    def arm(self) -> ArmResult:
        """The artifact in the comparison."""
        return self.comparison.arms[1]

    @property
    def name(self) -> str:
        """The name of the artifact, such as "onnx int8"."""
        return self.arm.name
