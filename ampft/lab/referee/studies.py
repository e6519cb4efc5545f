"""Judge a finished study of Optuna, whose trials have their runs or tables of predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from ampft.errors import InputError, check_type, quoted
from ampft.lab.referee.checks import IdenticalPredictions
from ampft.lab.referee.judge import Judgement, judge
from ampft.lab.referee.keep_or_drop import CandidateAnswer
from ampft.lab.referee.ledger import LedgerSettings

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

Runs = Callable[["FrozenTrial"], Sequence[str | Path]]
RUNS_ATTRIBUTE = "runs"  # of a trial, where the objective kept its runs


def judge_study(
    study: Study,
    ledger: str | Path,
    *,
    runs: Runs | None = None,
    baseline: int = 0,
    settings: LedgerSettings | None = None,
) -> list[Judgement]:
    """Judge the trials of a finished study in their order, in a new ledger.

    The ledger starts with the baseline. A trial whose value is better than the best so far
    is judged against it, as if a referee had been there; the others would not have been chosen and
    cost nothing. The values must come from other rows than the predictions, such as a validation
    split: a study that chose by scores on these rows has fitted them, and only
    `ampft.judge(..., final=True)` on new rows can tell.

    Args:
        study: Finished study with one objective.
        ledger: Folder of the new ledger.
        runs: Function that returns the run folders or tables of a trial, one per seed; None for
            its user attribute "runs".
        baseline: Number of the trial that is the first best.
        settings: Settings of the ledger; None plans a try for each trial.

    Returns:
        The start of the ledger and each judgement. A trial that predicts as the best does is left
        out.

    Raises:
        InputError: The study has several objectives, the baseline has no value, a trial has no
            runs, or `judge` refuses them.
    """
    check_type("judge_study", "baseline", baseline, int)
    check_type("judge_study", "settings", settings, (LedgerSettings, NoneType))
    if not hasattr(study, "directions"):
        raise InputError(
            f"judge_study: study must be a finished study of Optuna; received {quoted(study)}."
        )
    if len(study.directions) != 1:
        raise InputError(
            f"study: it has {len(study.directions)} objectives, and a ledger judges one metric. "
            "Judge the trials that you would choose, one by one, with ampft.judge."
        )
    finished = {trial.number: trial for trial in study.trials if trial.state.name == "COMPLETE"}
    if baseline not in finished:
        raise InputError(
            f"baseline {baseline}: the study has no finished trial of this number. Choose one of "
            f"{', '.join(map(str, finished)) or 'none, because none has finished'}."
        )
    settings = settings or LedgerSettings(tries=max(len(finished) - 1, 1))
    sign = 1.0 if study.direction.name == "MAXIMIZE" else -1.0
    best = finished.pop(baseline)
    found = [_judged(ledger, best, runs, settings)]
    for trial in finished.values():
        if sign * _value(trial) <= sign * _value(best):
            continue
        try:
            found.append(_judged(ledger, trial, runs, None))
        except IdenticalPredictions:
            continue
        if found[-1].answer == CandidateAnswer.KEEP:
            best = trial
    return found


def _judged(
    ledger: str | Path, trial: FrozenTrial, runs: Runs | None, settings: LedgerSettings | None
) -> Judgement:
    """Start a ledger with a trial if there are settings, and judge it otherwise."""
    files = trial.user_attrs.get(RUNS_ATTRIBUTE, ()) if runs is None else runs(trial)
    if not files:
        raise InputError(
            f"trial {trial.number}: it has no runs. Set them in the objective, with "
            f'trial.set_user_attr("{RUNS_ATTRIBUTE}", [...]), or pass a function as `runs`.'
        )
    parameters = ", ".join(f"{name} {value:z.4g}" if isinstance(value, float) else f"{name} {value}"
                           for name, value in trial.params.items())  # fmt: skip
    note = f"trial {trial.number}: {parameters}".rstrip(": ")
    if settings is not None:
        return judge(ledger, best=files, note=note, settings=settings)
    return judge(ledger, candidate=files, note=note)


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None, "it has finished"
    return trial.value
