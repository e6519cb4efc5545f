"""The result of an audit as text, and as a badge for a model card."""

from __future__ import annotations

from ampft.runs.audit.findings import (
    CONFIRMED,
    CONFIRMED_WITHIN,
    EQUAL,
    NOT_COMPARED,
    NOT_CONFIRMED,
    Audit,
)
from ampft.text.numbers import counted
from ampft.text.terminal import labelled

COLOURS = {CONFIRMED: "#2e7d32", CONFIRMED_WITHIN: "#2e7d32", NOT_CONFIRMED: "#b71c1c"}
CHARACTER = 6.6  # mean width in pixels at 11 px
PADDING = 8


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
    skipped = ", ".join(check.name for check in audit.checks if check.status == NOT_COMPARED)
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
        audit: Result of the audit.
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
