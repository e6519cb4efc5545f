"""What plain clients answered from the folder of a run, and the sentences about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SERVED_BACK = "served_back"  # name of its warning
PIPELINE, PREDICT = "transformers.pipeline", "ampft predict"
SERVER = "its decision.py"  # of an artifact, which a server runs without ampft


@dataclass(frozen=True, kw_only=True)
class ServedClient:
    """The answers of one client about some rows of the final split."""

    client: str  # `PIPELINE`, `PREDICT` or `SERVER`.
    source: str  # What it read, as a clause: "test.csv".
    asked: int  # Rows that it was asked about.
    equal: int  # Rows for which it gave the answer of the run.
    # Largest difference of a probability, or largest share of the pixels of a mask that differ;
    # None if nothing was asked.
    difference: float | None
    tolerance: float  # Largest difference that rounding explains in the precision of the run.
    problem: str | None = None  # Why it gave no answer; None if it did.

    @property
    def agrees(self) -> bool:
        """Whether it gave the answers of the run, as far as it was asked."""
        return self.problem is None and self.equal == self.asked

    def text(self) -> str:
        """Return a clause: "40 of 40 rows equal in transformers.pipeline (within 5e-7)"."""
        name = self.client + (f" on {self.source}" if self.source else "")
        if self.problem is not None:
            return f"{name} failed: {self.problem}"
        if not self.asked or self.difference is None:
            return f"no row was asked in {name}"
        if self.agrees:
            within = f"within {_rounded_up(self.difference)}" if self.difference > 0 else "exactly"
        elif math.isfinite(self.difference):
            within = f"differences up to {self.difference:.2g}"
        else:
            within = "other classes or sizes"
        return f"{self.equal} of {self.asked} rows equal in {name} ({within})"


@dataclass(frozen=True, kw_only=True)
class ServedPart:
    """What clients answered about some rows of the final split from the folder of a run."""

    split: str  # Name of the split.
    clients: Sequence[ServedClient]  # The clients.
    causes: Sequence[str] = ()  # Why answers differ, in sentences.
    notes: Sequence[str] = ()  # What a pipeline does not do, in sentences.

    def text(self) -> str:
        """Return the result in a clause."""
        return "; ".join(each.text() for each in self.clients)

    def warning(self) -> str | None:
        """Return the warning if a client or a file disagrees with the run; otherwise None."""
        if all(each.agrees for each in self.clients) and not self.causes:
            return None
        causes = " ".join(self.causes) or "The cause is unknown."
        is_shown = not all(each.agrees for each in self.clients)
        what = "answers differ" if is_shown else "saved files differ"
        return (
            f"Served back from the saved folder, {what} from the run's: {self.text()}. "
            f"{causes} Whoever loads this folder does not get the results of this report."
        )


def _rounded_up(value: float) -> str:
    """Return a positive number with one digit, such as "5e-7", that is not below it."""
    exponent = math.floor(math.log10(value))
    digit = math.ceil(value / 10.0**exponent - 1e-9)
    return f"1e{exponent + 1}" if digit == 10 else f"{digit}e{exponent}"
