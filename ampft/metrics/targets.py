"""What a threshold is chosen for: F1, a precision, a recall, or costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ampft.errors import InputError

FLAG = "--tune_thresholds"


@dataclass(frozen=True)
class ThresholdTarget:
    """What a threshold is chosen for."""

    name: str = "f1"  # "f1", "precision", "recall" or "cost".
    least: float = 0.0  # Least precision or recall, above 0 and at most 1.
    miss: float = 1.0  # Cost of an example that has the label, without the prediction of it.
    # Cost of a prediction of the label for an example that does not have it.
    false_alarm: float = 1.0

    @property
    def rule(self) -> str:
        """What is chosen, as a clause: "the best F1"."""
        share = f"{100 * self.least:g} %"
        return {
            "f1": "the best F1",
            "precision": f"the best recall with a precision of at least {share}",
            "recall": f"the best precision with a recall of at least {share}",
            "cost": f"the lowest cost, {self.miss:g} for a miss and {self.false_alarm:g} for a "
            "false alarm",
        }[self.name]


def parse_threshold_target(text: str) -> ThresholdTarget:
    """Return a target from f1, precision=0.95, recall=0.99 or cost=10:1.

    Raises:
        InputError: The text is none of them.
    """
    name, _, value = text.strip().lower().partition("=")
    try:
        if name == "f1" and not value:
            return ThresholdTarget()
        if name in ("precision", "recall") and 0 < float(value) <= 1:
            return ThresholdTarget(name, least=float(value))
        if name == "cost":
            miss, false_alarm = map(float, value.split(":"))
            if 0 < miss < math.inf and 0 < false_alarm < math.inf:
                return ThresholdTarget(name, miss=miss, false_alarm=false_alarm)
    except ValueError:
        pass
    raise InputError(
        f"{FLAG}: received {text!r}. Use f1, precision=0.95 or recall=0.99 (a share above 0), or "
        "cost=10:1 (the cost of a miss, then of a false alarm, both above 0)."
    )
