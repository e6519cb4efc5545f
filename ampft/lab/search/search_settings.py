"""The settings of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ampft.arguments.flags import parse_duration
from ampft.comparison.settings import COMPARISON, EXECUTION, MIN_SEEDS
from ampft.errors import InputError
from ampft.flag import OUTPUT, REQUIRED, flag


def parse_rates(name: str, text: str) -> tuple[float, ...]:
    """Return the learning rates of a comma-separated list.

    Args:
        name: Name of the flag, for the message.

    Raises:
        InputError: It is not such a list.
    """
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or len(set(rates)) < len(rates) or not all(0 < each < math.inf for each in rates):
        raise InputError(
            f"--{name}: received {text!r}; use different learning rates above 0, such as "
            "1e-5,1e-4,1e-3."
        )
    return rates


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search."""

    time_budget: str = flag(
        REQUIRED,
        "time for everything, such as 10min or 1h: the search, the runs that judge it, and the "
        "training of the model",
        group=COMPARISON,
        metavar="TIME",
        check=parse_duration,
    )
    learning_rates: str | None = flag(
        None,
        "learning rates to try beside the default; if none, 0.1, 0.3, 3 and 10 times the default",
        group=COMPARISON,
        metavar="a,b",
        joined=True,
        check=parse_rates,
    )
    folds: int | None = flag(
        None,
        "number of folds on which the search chooses, made of all rows but the test rows; if none, "
        "5 if there are fewer than 200 validation rows and the time allows; otherwise the "
        "validation rows choose",
        group=COMPARISON,
        at_least=2,
    )
    seeds: int = flag(
        MIN_SEEDS,
        "number of seeds with which the choice and the default are judged",
        group=COMPARISON,
        at_least=MIN_SEEDS,
    )
    metric: str | None = flag(
        None,
        "metric of the choice and of its judgement; if none, the task's primary metric",
        group=COMPARISON,
    )
    config_file: str | None = flag(
        None, "configuration file that accelerate launch uses for every run", group=EXECUTION
    )
    output_dir: str | None = flag(
        None, "folder for the search; if none, one under searches/", group=OUTPUT
    )
