"""What an audit compared, and its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

EQUAL = "equal"
WITHIN = "within tolerance"
DIFFERS = "differs"
NOT_COMPARED = "not compared"

CONFIRMED = "confirmed"
CONFIRMED_WITHIN = "confirmed within tolerance"
NOT_CONFIRMED = "not confirmed"


@dataclass(frozen=True)
class Check:
    """One comparison of the record with what the audit found.

    Attributes:
        name: What was compared, in one word.
        status: `EQUAL`, `WITHIN`, `DIFFERS` or `NOT_COMPARED`.
        text: What was found, without a full stop.
    """

    name: str
    status: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        run: Folder of the run, as the user named it.
        checks: Comparisons, in the order in which they were made.
        machine: Differences between this machine and the run's machine.
        steps: Optimizer steps that were repeated.
        steps_of_run: Optimizer steps of the run.
        versions: `ampft.machine.versions()` of this machine.
        date: Date of the audit, ISO 8601 in UTC.
        schema: Version of this layout.
    """

    run: str
    checks: Sequence[Check]
    machine: Sequence[str]
    steps: int
    steps_of_run: int
    versions: dict[str, str] = field(default_factory=dict)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    schema: int = 1

    @property
    def different(self) -> tuple[Check, ...]:
        """The checks that the record failed."""
        return tuple(check for check in self.checks if check.status == DIFFERS)

    @property
    def verdict(self) -> str:
        """`CONFIRMED`, `CONFIRMED_WITHIN` or `NOT_CONFIRMED`."""
        if self.different:
            return NOT_CONFIRMED
        is_exact = all(check.status != WITHIN for check in self.checks)
        return CONFIRMED if is_exact else CONFIRMED_WITHIN


def judged(name: str, problems: Iterable[str], equal: str) -> Check:
    """Return a check that fails if there are problems.

    Args:
        name: Name of the check.
        problems: Differences, as text.
        equal: Text of the check if there are no problems.
    """
    listed = list(problems)
    if not listed:
        return Check(name, EQUAL, equal)
    more = f"; and {len(listed) - 3} more" if len(listed) > 3 else ""
    return Check(name, DIFFERS, "; ".join(listed[:3]) + more)
