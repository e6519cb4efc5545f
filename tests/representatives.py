"""Which of many cases of one mechanism run with every push; the others run with --full."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

# Absolute positions, causal attention with rotary positions, and a relative bias.
TEXT_FAMILIES = ("bert", "llama", "deberta-v2")


def full_except(cases: Iterable[Any], kept: Sequence[Any]) -> list[Any]:
    """Return parameters of a test, of which all but `kept` run only with --full.

    Args:
        cases: The parameters. A case of several is a tuple.
        kept: The cases that run with every push.

    Raises:
        ValueError: A case that is kept does not exist.
    """
    cases = list(cases)
    if missing := [case for case in kept if case not in cases]:
        raise ValueError(f"{missing} are not among {cases}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in kept else pytest.mark.full,
        )
        for case in cases
    ]
