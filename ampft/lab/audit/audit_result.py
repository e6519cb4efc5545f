"""What an audit compared, with its tolerances and its verdict: as data, as text, and as a badge.

The tolerances say how much a repeated number may differ on another machine. On the machine of a
run (the same CPU, versions, threads and processes) equal code gives equal digits, and nothing may
differ. Elsewhere, other kernels add in another order, and round each product of a 16-bit dtype
differently.

Measured: 20 steps of MiniLM on docstrings (batch 16, learning rate 2e-4), with AVX-512 against the
kernels for AVX2. Largest relative difference of the loss, of the gradient norm, and largest
difference of a probability:

    float32     1e-7     1e-7     2e-8
    float16     5e-6     7e-5     1e-5
    bfloat16    4e-5     8e-4     9e-5

The tolerances are about 40 to 500 times that, because models and machines differ more. They are
far below the effect of another seed, learning rate or data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import torch

from ampft.text.numbers import counted
from ampft.text.terminal import labelled

EQUAL = "equal"
WITHIN = "within tolerance"
DIFFERS = "differs"
NOT_COMPARED = "not compared"  # nothing that this machine or version could compare
MISSING = "missing"  # what the comparison needs is gone, or may not be run

CONFIRMED = "confirmed"
CONFIRMED_WITHIN = "confirmed within tolerance"
PARTLY_CONFIRMED = "partly confirmed"
NOT_CONFIRMED = "not confirmed"

COLOURS = {
    CONFIRMED: "#2e7d32",
    CONFIRMED_WITHIN: "#2e7d32",
    PARTLY_CONFIRMED: "#8d6e00",
    NOT_CONFIRMED: "#b71c1c",
}
CHARACTER = 6.6  # mean width in pixels at 11 px
PADDING = 8


@dataclass(frozen=True)
class Check:
    """One comparison of the record with what the audit found."""

    name: str  # What was compared, in one word.
    status: str  # `EQUAL`, `WITHIN`, `DIFFERS`, `MISSING` or `NOT_COMPARED`.
    text: str  # What was found, without a full stop.


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit."""

    run: str  # Folder of the run, as the user named it.
    checks: Sequence[Check]  # Comparisons, in the order in which they were made.
    machine: Sequence[str]  # Differences between this machine and the run's machine.
    steps: int  # Optimizer steps that were repeated.
    steps_of_run: int  # Optimizer steps of the run.
    # `ampft.machine.versions()` of this machine.
    versions: dict[str, str] = field(default_factory=dict)
    # Date of the audit, ISO 8601 in UTC.
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    schema: int = 1  # Version of this layout.

    @property
    def different(self) -> tuple[Check, ...]:
        """The checks that the record failed."""
        return tuple(check for check in self.checks if check.status == DIFFERS)

    @property
    def verdict(self) -> str:
        """`CONFIRMED`, `CONFIRMED_WITHIN`, `PARTLY_CONFIRMED` or `NOT_CONFIRMED`."""
        if self.different:
            return NOT_CONFIRMED
        if any(check.status == MISSING for check in self.checks):
            return PARTLY_CONFIRMED
        is_exact = all(check.status != WITHIN for check in self.checks)
        return CONFIRMED if is_exact else CONFIRMED_WITHIN


def check_from_problems(name: str, problems: Iterable[str], equal: str) -> Check:
    """Return a check that fails if there are problems.

    Args:
        equal: Text of the check if there are no problems.
    """
    listed = list(problems)
    if not listed:
        return Check(name, EQUAL, equal)
    more = f"; and {len(listed) - 3} more" if len(listed) > 3 else ""
    return Check(name, DIFFERS, "; ".join(listed[:3]) + more)


def audit_text(audit: Audit) -> str:
    """Return a line per comparison, what was not repeated, and the verdict."""
    machine = "; ".join(audit.machine) or "as in the record"
    lines = [labelled("machine", machine)]
    for check in audit.checks:
        # "Equal" is the rule, and would be repeated in every line.
        prefix = "" if check.status == EQUAL else f"{check.status}: "
        lines.append(labelled(check.name, f"{prefix}{check.text}"))
    steps = f"all {counted(audit.steps, 'step')} of the training"
    if audit.steps != audit.steps_of_run:
        steps = (
            f"{audit.steps} of {counted(audit.steps_of_run, 'step')} of the training; losses after "
            "that are as recorded (--steps all repeats them)"
        )
    verdict = audit.verdict
    not_compared = {NOT_COMPARED, MISSING}
    skipped = ", ".join(check.name for check in audit.checks if check.status in not_compared)
    if audit.different:
        verdict += f": {', '.join(dict.fromkeys(check.name for check in audit.different))}"
    elif skipped:
        verdict += f" (not compared: {skipped})"
    return "\n".join([*lines, labelled("repeated", steps), labelled("verdict", verdict)])


def badge_markdown(audit: Audit, name: str) -> str:
    """Return the line that shows the badge in a model card."""
    return f"![{_title(audit)}]({name})"


def _title(audit: Audit) -> str:
    return (
        f"ampft audit: {audit.verdict}, {audit.steps} of {counted(audit.steps_of_run, 'step')} "
        f"repeated, {audit.date}"
    )


def badge_svg(audit: Audit, record_sha256: str) -> str:
    """Return the badge as SVG; its title binds it to a record by the hash of run.json.

    Args:
        record_sha256: SHA-256 of run.json.
    """
    left, right = "audit", audit.verdict
    split = 2 * PADDING + CHARACTER * len(left)
    width = split + 2 * PADDING + CHARACTER * len(right)
    title = f"{_title(audit)}, run.json {record_sha256}"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="20" role="img">
<title>{title}</title>
<rect width="{width:.0f}" height="20" rx="3" fill="{COLOURS[audit.verdict]}"/>
<path d="M3 0h{split - 3:.0f}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444"/>
<g fill="#fff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11" text-anchor="middle">
<text x="{split / 2:.0f}" y="14">{left}</text>
<text x="{(split + width) / 2:.0f}" y="14">{right}</text>
</g>
</svg>
"""


@dataclass(frozen=True)
class RoundingTolerance:
    """Largest differences that rounding explains."""

    loss: float  # Relative difference of the loss of a step.
    grad_norm: float  # Relative difference of the gradient norm of a step.
    probability: float  # Difference of a probability.


TOLERANCES = {
    torch.float32: RoundingTolerance(loss=1e-5, grad_norm=1e-5, probability=1e-5),
    torch.float16: RoundingTolerance(loss=2e-4, grad_norm=3e-3, probability=1e-3),
    torch.bfloat16: RoundingTolerance(loss=2e-3, grad_norm=3e-2, probability=1e-2),
}
# TF32 keeps 10 bits of a fraction, like float16; fp8 keeps 3.
TF32_TOLERANCE = TOLERANCES[torch.float16]
FP8_TOLERANCE = RoundingTolerance(loss=3e-2, grad_norm=0.3, probability=0.1)

# Counted metrics are equal on every machine. Means of logarithms differ by the order of a sum.
SUM_TOLERANCE = 1e-9

# An overflow depends on the largest of all gradients, so that rounding can move it to the step
# before or after, between which the scale differs by one halving.
LOSS_SCALE_FACTOR = 2.0

# AdamW amplifies rounding from step to step, the more the higher the learning rate. By how much is
# measured: the replay is repeated from weights that differ by one rounding to the compute dtype.
AMPLIFIED_REPLAYS = 2
AMPLIFICATION = 4.0  # other machines round in every step, not only once

# Dropout draws other masks on another kind of device or with another number of processes. Then the
# replay is repeated with other masks. The record must not be further from their mean than this
# many standard deviations; by chance, one of 20 normal values is beyond 6 once in 25 million runs.
MASK_REPLAYS = 4
MASK_DEVIATIONS = 6.0
NEIGHBOURS = 2  # steps before and after, whose variances are averaged
