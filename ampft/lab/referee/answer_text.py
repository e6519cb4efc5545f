"""What the commands say about a ledger: lines for people, and values for programs."""

from __future__ import annotations

from itertools import starmap

from ampft.comparison.verdict_text import carrying_labels_text, carrying_text
from ampft.files import CHANGED, GONE, SAME
from ampft.lab.referee.judge import Judgement
from ampft.lab.referee.keep_or_drop import CandidateAnswer, Claim
from ampft.lab.referee.ledger import RUNS, SEALED, Entry, JudgedCandidate
from ampft.text.json_io import JSONValue, json_values
from ampft.text.numbers import Units, confidence_percent, counted, seed_list
from ampft.text.terminal import labelled

# Why training rows were not checked, by the state of the training files.
UNCHECKED = {
    "": "its record does not say whether it has some, and lists no training files",
    SAME: "its record does not say whether it has some, and its training files are no tables",
    CHANGED: "its training files were changed since the training",
    GONE: "its training files are gone",
}
EXIT_CODES = {CandidateAnswer.KEEP: 0, CandidateAnswer.DROP: 5, CandidateAnswer.UNDECIDED: 6}


def exit_code(judgement: Judgement) -> int:
    """Return 0 for a keep and for an entry without a candidate, 5 for a drop, 6 for undecided."""
    answer = judgement.answer
    return 0 if answer is None else EXIT_CODES[CandidateAnswer(answer)]


def judgement_text(judgement: Judgement) -> str:
    """Return the lines about what a call wrote."""
    entry, state = judgement.entry, judgement.state
    settings, test = state.settings, state.test
    seeds = seed_list([model.seed for model in entry.models])
    if entry.trial is None:
        what = "started with" if entry.number == 1 else "added seeds of"
        rows = {
            "ledger": f"{judgement.ledger}: {what} the best, {seeds}",
            "judges": f"{test.metric.title} on {counted(test.examples, 'example')}",
            "error": f"{settings.error:g} % for all keeps together, {settings.tries:,} planned "
            f"tries; {settings.answers} answers; at most "
            f"{counted(settings.max_seeds or 0, 'seed')} per candidate",
        }
        if test.shared_rows:
            rows["warning"] = (
                f"the best was trained on {test.shared_rows:,} of the test rows. Its score is too "
                "high for new rows, and a candidate that trains on them scores too high as well. "
                "Remove them and begin another ledger."
            )
    else:
        rows = _trial_rows(judgement, entry, entry.trial, seeds)
    rows["entry"] = f"{entry.number}, last hash {judgement.sha256}"
    return "\n".join(starmap(labelled, rows.items()))


def judgement_values(judgement: Judgement) -> dict[str, JSONValue]:
    """Return what `--json` prints; docs/judge.md describes it."""
    entry, state, trial = judgement.entry, judgement.state, judgement.entry.trial
    values: dict[str, JSONValue] = {
        "schema": 1,
        "answer": judgement.answer,
        "exit_code": exit_code(judgement),
        "ledger": str(judgement.ledger),
        "entry": entry.number,
        "kind": entry.kind,
        "repeated": judgement.is_repeated,
        "metric": state.settings.metric,
        "seeds": [model.seed for model in entry.models],
        "best_entry": state.best_entry,
        "best_seeds": [model.seed for model in state.best],
        "max_seeds": state.settings.max_seeds,
        "tries": len(state.trials),
        "planned_tries": state.settings.tries,
        "error": state.settings.error / 100,
        "spent": round(judgement.spent, 6),
        "sha256": judgement.sha256,
        "next": next_step(judgement),
    }
    if trial is not None:
        values |= {
            "claim": trial.claim,
            "margin": trial.margin,
            "gain_at_least": round(trial.shown_points * trial.margin, 9)
            if trial.shows_gain
            else None,
            "estimate": json_values(trial.estimate),
            "changes": json_values(trial.changes),
            "learned_nothing": trial.learned_nothing or None,
            "checked_rows": trial.checked_rows,
            "training_files": trial.training_files,
        }
    return values


def next_step(judgement: Judgement) -> str:
    """Return what to do next, in one sentence."""
    entry, state, trial = judgement.entry, judgement.state, judgement.entry.trial
    if trial is None:
        return f"Judge a change: ampft judge {judgement.ledger} --candidate RUN RUN RUN"
    if trial.number == 0:
        return "The ledger has ended. Report this claim with its interval."
    if trial.answer == CandidateAnswer.KEEP:
        return "Build on this candidate: it is the best now."
    if trial.answer == CandidateAnswer.DROP:
        return "Go back to the best, and try another change."
    used, most = len(entry.models), state.settings.max_seeds or 0
    order = [model.seed for model in state.best]
    if len(order) > used:
        following = ", ".join(map(str, order[used:most]))
        return f"Train the candidate with the next seeds, {following}, and judge all its runs."
    return (
        f"Train best and candidate with more seeds, at most {most}; add the best's first: ampft "
        f"judge {judgement.ledger} --best RUN"
    )


def _trial_rows(
    judgement: Judgement, entry: Entry, trial: JudgedCandidate, seeds: str
) -> dict[str, str]:
    """Return the lines about a try or the final claim: text by label."""
    state, settings = judgement.state, judgement.state.settings
    units = state.test.units(trial.margin)
    claim = "better than" if trial.claim == Claim.BETTER else "not worse than"
    other = f"the best (entry {trial.best_entry})" if trial.number else "what it must beat"
    beyond = "" if trial.claim == Claim.BETTER else f" by {units.margin_with_unit} or more"
    examples = counted((entry.test or state.test).examples, "example")
    final = "" if trial.number else "the final claim, on new rows: "
    repeated = ". It was judged before; nothing was written" if judgement.is_repeated else ""
    what = f"{final}{claim} {other}{beyond}, {units.title} on {examples}, {seeds}{repeated}"
    rows = {trial.answer: what}
    if trial.number and state.test.source == RUNS and not trial.checked_rows:
        rows["training"] = (
            f"not checked for rows of the test set: {UNCHECKED[trial.training_files]}"
        )
    if trial.learned_nothing:
        rows["warning"] = f"no keep, because a model learned nothing: {trial.learned_nothing}"
    if trial.changes:
        changes = [f"{name} {pair[0]} to {pair[1]}" for name, pair in trial.changes.items()]
        rows["changed"] = "; ".join(changes)
    if trial.shows_gain:
        rows["gain"] = f"more than {_points(trial, units)}"
    if trial.estimate is not None:
        found = trial.estimate
        limit = units.difference_with_unit(found.lower)
        rows["estimate"] = (
            f"{units.difference_with_unit(found.gain)} (95 % interval "
            f"{units.interval(found.interval)} if it were the only try); the limit that "
            f"decides is {limit}"
        )
        if found.carrying_cases is not None and found.cases is not None:
            rows["errors"] = carrying_text(found.carrying_cases, found.cases)
        if found.carrying_labels is not None and found.cases is not None:
            rows["errors"] = carrying_labels_text(found.carrying_labels, found.cases)
        if found.seeds_to_decide:
            low, high = found.seeds_to_decide
            rows["decides"] = f"{low} to {high} seeds may decide"
        if found.cases_to_show:
            rows["cases"] = f"about {found.cases_to_show:,} would show a gain of this size"
    elif settings.answers == SEALED and trial.answer != CandidateAnswer.KEEP:
        rows["numbers"] = (
            "not shown: the answers of a sealed ledger say nothing else about its rows, so "
            "that changes may be tuned to them"
        )
    if trial.number:
        rows["spent"] = (
            f"try {trial.number} of {settings.tries} planned, at the level "
            f"{confidence_percent(trial.level)}; "
            f"{confidence_percent(judgement.spent * settings.error / 100)} of "
            f"{settings.error:g} % in all"
        )
    else:
        rows["level"] = f"{confidence_percent(trial.level)}, for this claim only"
    rows["next"] = next_step(judgement)
    return rows


def _points(trial: JudgedCandidate, units: Units) -> str:
    gain = round(units.factor * trial.shown_points * trial.margin, 6)
    if not units.is_share:
        return f"{gain:g}"
    return f"{gain:g} points" if gain != 1 else "1 point"
