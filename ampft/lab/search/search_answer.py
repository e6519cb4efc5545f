"""What a search says: the choice, what it gained, the time, and the command of the model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import later_wins
from ampft.commands.extension_points import FolderReport
from ampft.errors import InputError
from ampft.lab.search.rungs import Choice
from ampft.lab.search.search_record import SEARCH_NAME, SearchAnswer, SearchState, read_state
from ampft.runs.redaction import redact_command
from ampft.text.escaping import inert
from ampft.text.numbers import approximate_duration, counted, or_dash, points, signed_number
from ampft.text.terminal import labelled

SHOWN = 4  # candidates


def report_text(folder: Path) -> str:
    """Return the lines about the search in a folder.

    Raises:
        InputError: It has not finished.
    """
    state = read_state(folder)
    if state is None or state.answer is None:
        raise InputError(f"{folder}: the search has not finished. Repeat its command to continue.")
    return answer_text(state, folder)


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
    value = or_dash(choice.value, lambda v: f"{100 * v:z.1f} %" if answer.is_share else f"{v:z.4f}")
    return f"{choice.name}: {answer.loss} {choice.loss:z.4f}, {answer.metric} {value}"


def chosen_text(state: SearchState) -> str:
    """Return in one sentence what was chosen and why."""
    answer, plan = state.answer, state.plan
    assert answer is not None, "the search has finished"
    rows = counted(answer.rows, "validation row")
    if plan.folds:
        rows = f"{counted(answer.rows, 'row')} in {plan.folds} folds"
    if not answer.settings:
        tried = "the other" if answer.tried == 1 else f"none of the {answer.tried} others"
        return f"the default: {tried} is better by more than chance on {rows}"
    winner = next(each for each in answer.choices if each.name == answer.chosen)
    settings = ", ".join(f"{name} {value}" for name, value in answer.settings.items())
    if winner.has_lower_loss:
        name, how, gain, needed = answer.loss, "lower", winner.loss_gain, winner.loss_needed
        numbers = [f"{each:z.4f}" for each in (gain, needed or 0.0)]
    else:
        name, how = answer.metric, "better"
        both = (winner.value_gain or 0.0, winner.value_needed or 0.0)
        numbers = [f"{100 * n:z.1f} points" if answer.is_share else f"{n:z.4f}" for n in both]
    return (
        f"{settings}: its {name} is {numbers[0]} {how} than the default's, and {numbers[1]} would "
        f"be beyond chance, on {rows}"
    )


def gain_text(state: SearchState) -> str:
    """Return in one sentence what the search gained on rows that it did not use."""
    answer, plan = state.answer, state.plan
    assert answer is not None, "the search has finished"
    if not answer.settings:
        return "none: the model has the default settings"
    if answer.estimate is None:
        return "unknown: there was not enough time to judge the choice"
    low, high = answer.estimate.interval
    unit = f" points of {answer.metric}" if answer.is_share else f" in {answer.metric}"
    gain = _signed(answer.estimate.gain, answer)
    rows = counted(answer.judged_rows, "test row")
    ends = f"{_signed(low, answer)} to {_signed(high, answer)}"
    what = "undecided whether it is better than the default"
    if low > 0:
        what = "better than the default"
    elif high < 0:
        what = "worse than the default: train with the default settings instead"
    return (
        f"{gain}{unit} ({ends}, 95 %) on {rows} that the search did not use, "
        f"{counted(plan.seeds, 'seed')} per side: {what}"
    )


def _signed(value: float, answer: SearchAnswer) -> str:
    return points(value) if answer.is_share else signed_number(value, 4)


SEARCH_REPORT = FolderReport(SEARCH_NAME, report_text)
