"""What a search says: the choice, what it gained, the time, and the command of the model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import later_wins
from ampft.runs.redaction import redact_command
from ampft.text.escaping import inert
from ampft.text.numbers import approximate_duration, counted, number, points, signed_number
from ampft.text.terminal import labelled

if TYPE_CHECKING:
    from ampft.lab.search.rungs import Choice
    from ampft.lab.search.state import SearchAnswer, SearchState

SHOWN = 4  # candidates


def answer_text(state: SearchState, folder: Path, argv: Sequence[str] = ()) -> str:
    """Return the lines about a finished search.

    Args:
        argv: Settings of the runs; empty to leave out the command.
    """
    answer, plan = state.answer, state.plan
    assert answer is not None, "the search has finished"
    used, budget = map(approximate_duration, (answer.seconds, plan.budget))
    stopped = "; rungs were left out because time ran out" if state.stopped is not None else ""
    lines = [
        *(("candidate", _candidate_text(each, answer)) for each in answer.choices[:SHOWN]),
        ("chosen", chosen_text(state)),
        ("gain", gain_text(state)),
        ("time", f"{used} of {budget}{stopped}"),
        ("model", str(folder / answer.model)),
    ]
    if argv and answer.settings:
        flags = [word for n, v in answer.settings.items() for word in (f"--{n}", str(v))]
        words = redact_command(["ampft", "train", *later_wins(ClassifyArguments, argv, flags)])
        lines.append(("again", inert(shlex.join(words))))
    return "\n".join(labelled(*each) for each in lines)


def _candidate_text(choice: Choice, answer: SearchAnswer) -> str:
    value = f"{100 * choice.value:.1f} %" if answer.is_share else f"{choice.value:.4f}"
    return f"{choice.name}: {answer.loss} {choice.loss:.4f}, {answer.metric} {value}"


def chosen_text(state: SearchState) -> str:
    """Return in one sentence what was chosen and why."""
    answer, plan = state.answer, state.plan
    assert answer is not None, "the search has finished"
    rows = (
        f"{counted(answer.rows, 'row')} in {plan.folds} folds"
        if plan.folds
        else (counted(answer.rows, "validation row"))
    )
    if not answer.settings:
        tried = "the other" if answer.tried == 1 else f"none of the {answer.tried} others"
        return f"the default: {tried} is better by more than chance on {rows}"
    winner = next(each for each in answer.choices if each.is_better)
    settings = ", ".join(f"{name} {value}" for name, value in answer.settings.items())
    by_loss = winner.loss_gain > winner.loss_needed and winner.value_gain >= 0
    if by_loss:
        why = (
            f"its {answer.loss} is {number(winner.loss_gain, 4)} lower than the default's, and "
            f"{number(winner.loss_needed, 4)} would be beyond chance"
        )
    else:
        why = (
            f"its {answer.metric} is {_difference(winner.value_gain, answer)} better than the "
            f"default's, and {_difference(winner.value_needed, answer)} would be beyond chance"
        )
    return f"{settings}: {why}, on {rows}"


def gain_text(state: SearchState) -> str:
    """Return in one sentence what the search gained on rows that it did not use."""
    answer, plan = state.answer, state.plan
    assert answer is not None, "the search has finished"
    if not answer.settings:
        return "none: the model has the default settings"
    if answer.estimate is None:
        return "unknown: the time did not suffice to judge the choice"
    low, high = answer.estimate.interval
    unit = f" points of {answer.metric}" if answer.is_share else f" in {answer.metric}"
    gain = _signed(answer.estimate.gain, answer)
    rows = counted(answer.judged_rows, "test row")
    ends = f"{_signed(low, answer)} to {_signed(high, answer)}"
    what = "undecided whether it is better than the default"
    if answer.answer == "keep":
        what = "better than the default"
    elif high < 0:
        what = "worse than the default: train with the default settings instead"
    return (
        f"{gain}{unit} ({ends}, 95 %) on {rows} that the search did not use, "
        f"{counted(plan.seeds, 'seed')} per side: {what}"
    )


def _difference(value: float, answer: SearchAnswer) -> str:
    return f"{number(100 * value, 1)} points" if answer.is_share else number(value, 4)


def _signed(value: float, answer: SearchAnswer) -> str:
    return points(value) if answer.is_share else signed_number(value, 4)
