"""Compares the files of a run with each other, and with what follows from data and settings."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ampft.data.splits import dependent_groups
from ampft.data.step_batches import StepBatches
from ampft.engine.optimizer import make_schedule, rate_per_unit
from ampft.errors import InputError
from ampft.evaluation.sanity import (
    chance_loss,
    constant_outcome,
    never_predicted_warnings,
    result_warnings,
    validation_warnings,
)
from ampft.features.chosen_metrics import FLAG, compute
from ampft.features.decisions import decision_warnings
from ampft.features.nonfinite_steps import NonfiniteSkips
from ampft.features.validations import BY_METRIC, ERROR, IS_LAST, LOSS, ValidationPart, all_metrics
from ampft.files import read_hashed
from ampft.flag import split_names
from ampft.lab.audit.audit_result import (
    DIFFERS,
    MISSING,
    NOT_COMPARED,
    SUM_TOLERANCE,
    WITHIN,
    Check,
    check_from_problems,
)
from ampft.lab.audit.rebuild import RebuiltRun
from ampft.machine import versions
from ampft.metrics.paired import PairedGain
from ampft.metrics.ranking import RANKING
from ampft.runs.client_answers import SERVED_BACK
from ampft.runs.history import HistoryRow, parse_rows
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME, sealed_run
from ampft.runs.prepared import Prepared
from ampft.runs.publishing import model_card
from ampft.runs.record import RunRecord, StepIdsHash
from ampft.runs.run import BATCH_NORM
from ampft.runs.run_text import REPORT_NAME, decisions_text, problem_of, report_with_heading
from ampft.tasks.outcome import Outcome, TunableOutcome
from ampft.tasks.report import report_from_json
from ampft.tasks.task import Task
from ampft.text.escaping import inert
from ampft.text.json_io import read_json_object
from ampft.text.numbers import counted
from ampft.text.warning_names import PARTLY_COMPILED

# Warnings that do not follow from the files of a run.
NOT_REPEATED = {BATCH_NORM, SERVED_BACK, PARTLY_COMPILED}


def history_rows(folder: Path) -> tuple[HistoryRow, ...]:
    """Return the rows of the history of a run.

    Raises:
        InputError: The history cannot be read, or a value is missing or has another type.
    """
    path = folder / HISTORY_NAME
    try:
        return parse_rows(path.read_bytes(), HISTORY_NAME)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: this is not the history of a run ({error}).") from error


def check_run_files(folder: Path, record: RunRecord) -> Check:
    """Compare all files of the run with their hashes, and the record with its own."""
    problems = []
    try:
        read_hashed(folder / RECORD_NAME)
    except ValueError as error:
        problems.append(f"{RECORD_NAME} is not as the run wrote it: {error}")
    faults = sealed_run(folder, record.files).faults()
    problems += [f"{inert(name)} {problem}" for name, problem in faults]
    listed = {RECORD_NAME, *record.files}
    return check_from_problems(
        "files", problems, f"{counted(len(listed), 'file')} have the recorded hashes"
    )


def check_history(record: RunRecord, rows: Sequence[HistoryRow], prepared: Prepared) -> Check:
    """Compare every row of the history with what data and settings determine, and with the record.

    Loss, gradient norm and overflows are measured in training. All else follows: the examples of
    each step, their number and tokens, the learning rate, and the loss scale.
    """
    problems = [*_step_problems(record, rows, prepared), *_row_problems(rows, prepared)]
    return check_from_problems(
        "history",
        problems,
        "step, epoch, examples, tokens, learning rate and loss scale of "
        f"{counted(len(rows), 'row')} follow from data and settings",
    )


def _step_problems(
    record: RunRecord, rows: Sequence[HistoryRow], prepared: Prepared
) -> Iterator[str]:
    steps, skipped = record.steps, sum(row.skipped for row in rows)
    if (steps.applied, steps.skipped) != (len(rows) - skipped, skipped):
        yield (
            f"the history has {len(rows) - skipped} applied and {skipped} skipped steps, and the "
            f"record states {steps.applied} and {steps.skipped}"
        )
    if steps.total != prepared.total_steps:
        yield f"the record plans {steps.total} steps, and its settings {prepared.total_steps}"
    if len(rows) > prepared.total_steps:
        yield f"{len(rows)} steps are more than the planned {prepared.total_steps}"
    elif len(rows) < prepared.total_steps and not (
        prepared.args.early_stopping_patience or prepared.args.max_time
    ):
        yield f"{len(rows)} of {prepared.total_steps} steps were made, and nothing ended it early"


def _row_problems(rows: Sequence[HistoryRow], prepared: Prepared) -> Iterator[str]:
    batches, lengths = prepared.step_batches, prepared.step_batches.examples.lengths
    skipped = [row.skipped for row in rows]
    expected_rates = _learning_rates_and_scales(skipped, prepared)
    for index, (row, (rate, scale)) in enumerate(zip(rows, expected_rates, strict=True)):
        epoch, step_in_epoch = divmod(index, len(batches))
        ids = batches.effective_ids(epoch, step_in_epoch)
        expected = (index + 1, epoch, len(ids), int(lengths[ids].sum()), scale)
        actual = (row.step, row.epoch, row.examples, row.tokens, row.loss_scale)
        names = ("step", "epoch", "examples", "tokens", "loss_scale")
        yield from (
            f"row {index + 1} has {name} {value}, not {right}"
            for name, value, right in zip(names, actual, expected, strict=True)
            if value != right
        )
        if not math.isclose(row.learning_rate, rate, rel_tol=SUM_TOLERANCE):
            yield f"row {index + 1} has the learning rate {row.learning_rate:g}, not {rate:g}"


def _learning_rates_and_scales(
    skipped: Sequence[bool], prepared: Prepared
) -> Iterator[tuple[float, float | None]]:
    """Yield the learning rate of each step, and the loss scale after it; None without a scaler.

    Skipped steps do not advance the schedule. The scale follows `torch.amp.GradScaler`.
    """
    args, scaler = prepared.args, torch.amp.GradScaler("cpu")
    peak = max(rate_per_unit(each, each["initial_lr"]) for each in prepared.optimizer.param_groups)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=peak)
    schedule = make_schedule(optimizer, prepared.total_steps, args.schedule_settings())
    scale, good_steps = scaler.get_scale(), 0
    for was_skipped in skipped:
        rate = float(schedule.get_last_lr()[0])
        good_steps = 0 if was_skipped else good_steps + 1
        if was_skipped:
            scale *= scaler.get_backoff_factor()
        elif good_steps == scaler.get_growth_interval():
            scale, good_steps = scale * scaler.get_growth_factor(), 0
        yield rate, scale if prepared.precision.uses_scaler else None
        if not was_skipped:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the optimizer makes no steps
                schedule.step()


def check_ids(record: RunRecord, steps: int, batches: StepBatches) -> Check:
    """Compare the hash of the examples of all steps, which data and settings determine."""
    step_ids = StepIdsHash()
    for step in range(steps):
        step_ids.update(batches.effective_ids(*divmod(step, len(batches))))
    problems = (
        ["the examples of the steps, or their order, differ from the record"]
        if step_ids.hexdigest() != record.example_ids_sha256
        else []
    )
    return check_from_problems(
        "examples", problems, f"the ids of all {counted(steps, 'step')} are as recorded"
    )


def check_metrics(rebuilt: RebuiltRun, outcomes: Mapping[str, Outcome]) -> Check:
    """Compute all metrics from the predictions again, and compare them with record and report.

    Args:
        outcomes: Its predictions, by the field of the record that holds their metrics.
    """
    record, outcome = rebuilt.record, outcomes["metrics"]
    try:
        report = read_json_object(rebuilt.folder / REPORT_NAME)
    except (OSError, ValueError):
        report = {}
    parts: list[tuple[str, Any, Any]] = [
        (f"{name} of {RECORD_NAME}", getattr(record, name), all_metrics(each))
        for name, each in outcomes.items()
    ]
    expected = outcome.report().as_dict()
    parts.append((REPORT_NAME, {name: report.get(name) for name in expected}, expected))
    if record.metrics_chance is not None:
        chance = constant_outcome(rebuilt.task, outcome.split).metrics()
        parts.append(("metrics_chance", record.metrics_chance, chance))
    values = [value for part in parts for value in _value_pairs(*part)]
    problems = [
        f"{where} is {inert(str(stored))}, not {value}"
        for where, stored, value in values
        if stored != value and not _is_close(stored, value)
    ]
    problems += _best_problems(record, rebuilt.task)
    text = f"{counted(len(values), 'value')} of {RECORD_NAME} and {REPORT_NAME} follow from the "
    text += "predictions"
    if problems or all(stored == value for _, stored, value in values):
        return check_from_problems("metrics", problems, text)
    return Check("metrics", WITHIN, f"{text}, within {SUM_TOLERANCE:g}: sums in another order")


def _value_pairs(where: str, stored: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield stored and expected values in any nesting; None for a number that is not finite."""
    if isinstance(expected, Mapping):
        for name, value in expected.items():
            inner = stored.get(name) if isinstance(stored, Mapping) else None
            yield from _value_pairs(f"{where}: {name}", inner, value)
    elif isinstance(expected, list | tuple):
        same_length = isinstance(stored, list | tuple) and len(stored) == len(expected)
        for index, value in enumerate(expected):
            yield from _value_pairs(where, stored[index] if same_length else None, value)
    else:
        yield where, _finite(stored), _finite(expected)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_close(stored: Any, expected: Any) -> bool:
    """Return whether two numbers differ only by the rounding of a sum."""
    are_numbers = isinstance(stored, int | float) and isinstance(expected, int | float)
    return are_numbers and math.isclose(
        stored, expected, rel_tol=SUM_TOLERANCE, abs_tol=SUM_TOLERANCE
    )


def check_chosen_metrics(record: RunRecord, outcome: Outcome) -> Check:
    """Compute the metrics of `--metric` again, whose modules may have changed since."""
    found: dict[str, float] = {}
    for name in split_names(str(record.arguments["metric"])) or ():
        try:
            found |= compute(name, outcome)
        except Exception as error:  # the module is somebody else's code
            reason = inert(" ".join(str(error).split()))
            return Check("chosen", MISSING, f"{FLAG} {inert(name)}: {reason}")
    problems = [
        f"{where} is {inert(str(stored))}, not {value}"
        for where, stored, value in _value_pairs("metrics_chosen", record.metrics_chosen, found)
        if stored != value and not _is_close(stored, value)
    ]
    text = f"{counted(len(found), 'value')} of {FLAG} follow from the predictions"
    return check_from_problems("chosen", problems, text)


def _best_problems(record: RunRecord, task: Task) -> Iterator[str]:
    """Yield why the kept weights do not belong to the validation that the rule chooses."""
    best, parts = record.best, record.validations
    if best is None:
        return
    metric = task.problem.metrics.get(best.metric) or RANKING.get(best.metric)
    if metric is None:
        yield f"best: {inert(best.metric)} is not a metric of the task"
        return
    if not parts:
        yield "best: the record has no validation"
        return

    def value(part: ValidationPart, name: str, sign: int) -> float:
        found = part.metrics.get(name)
        return -math.inf if found is None or math.isnan(found) else sign * found

    sign = 1 if metric.higher_is_better else -1
    # Of equal values, the first one with the lowest log loss.
    loss = LOSS if LOSS in parts[-1].metrics else ERROR
    highest = max(parts, key=lambda part: (value(part, best.metric, sign), value(part, loss, -1)))
    lowest, last = max(parts, key=lambda part: value(part, loss, -1)), parts[-1]
    expected = {BY_METRIC: highest, IS_LAST: last}.get(best.by, lowest)
    # Validations record the log loss without the weights of classes, by which it chooses.
    is_weighted = record.arguments.get("class_weights") is not None
    if is_weighted and best.by != IS_LAST:
        when = best.epoch if best.step is None else best.step
        of_step = (p for p in parts if when == (p.epoch if best.step is None else p.step))
        expected = next(of_step, expected)
    found = (best.epoch, best.step, best.value)
    step = expected.step if best.step is not None else None
    if found != (expected.epoch, step, expected.metrics.get(best.metric)):
        yield (
            f"best: {best.metric} {best.value} in epoch {best.epoch}, but the validation to keep "
            f"has {expected.metrics.get(best.metric)} after step {expected.step}"
        )
    if is_weighted or best.by == BY_METRIC or best.gain is None or best.gain_error is None:
        return
    title = task.problem.metrics[loss].title
    if not _is_close(best.gain, value(lowest, loss, -1) - value(last, loss, -1)):
        yield f"best: the {title} is lower by {best.gain}, but not by the recorded validations"
    gain = PairedGain(best.gain, best.gain_error, best.rows or 0)
    is_lower = value(lowest, best.metric, sign) >= value(last, best.metric, sign)
    if (best.by != IS_LAST) != (gain.is_beyond_chance and is_lower):
        yield f"best: {best.reason}, but the recorded losses say otherwise"


def check_warnings(
    record: RunRecord, rows: Sequence[HistoryRow], task: Task, outcome: Outcome
) -> Check:
    """Compare the reasons not to trust the result with the recorded ones."""
    if record.versions.get("ampft") != versions().get("ampft"):
        return Check("warnings", NOT_COMPARED, "another version of ampft has other rules")
    losses, skips = [row.loss for row in rows if not row.skipped], NonfiniteSkips()
    for row in rows:
        skips.add(row.step, row)
    constant = constant_outcome(task, outcome.split)
    groups = dependent_groups(task.data, outcome.split)
    expected = {
        **result_warnings(losses, chance_loss(task), outcome, constant, groups),
        **never_predicted_warnings(task, outcome),
        **validation_warnings([part.metrics for part in record.validations]),
        **skips.warnings(are_saved=True),
    }
    if isinstance(outcome, TunableOutcome):
        expected |= decision_warnings(task.settings, outcome.decisions)
    problems = [
        f"the warning {name!r} is {'missing' if name in expected else 'unfounded'}"
        for name in sorted(expected.keys() ^ record.warnings.keys() - NOT_REPEATED)
    ]
    return check_from_problems(
        "warnings", problems, f"{counted(len(expected), 'warning')}, as recorded"
    )


def check_card(rebuilt: RebuiltRun) -> Check:
    """Compare facts of model card and text report with those that record and report give."""
    folder, record = rebuilt.folder, rebuilt.record
    if record.versions.get("ampft") != versions().get("ampft"):
        return Check("card", NOT_COMPARED, "another version of ampft wrote it")
    try:
        values = read_json_object(folder / REPORT_NAME)
        report = report_from_json(problem_of(record).report_type, values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Check("card", DIFFERS, f"{REPORT_NAME} cannot be read ({error})")
    expected = {
        "report.txt": report_with_heading(report, selected=bool(record.metrics.get("selected")))
        + decisions_text(record),
        "README.md": model_card(record, report),
    }
    problems = [
        f"{name} does not state what {RECORD_NAME} and {REPORT_NAME} do"
        for name, text in expected.items()
        if not (folder / name).is_file()
        or not state_the_same(
            (folder / name).read_text("utf-8", "replace"),
            text.encode("utf-8", "backslashreplace").decode(),
            record.label_names,
        )
    ]
    return check_from_problems(
        "card", problems, f"{' and '.join(expected)} state what {RECORD_NAME} does"
    )


# What a text states, in whatever words: numbers and names with digits, code, warnings, and how
# the precision ran.
_FACT = re.compile(
    r"(?s:```.*?```)|`[^`\n]+`|[-+]?[\w.,%:/-]*\d[\w.,%:/-]*|\bWarning:|\b[A-Z]\w*[a-z][A-Z]\w*"
    r"|\b(?:native|emulated|unproven)\b"
)
_ROW = re.compile(r"\|.*|\s*\S.*(?:\s{2,}[\d.,%+-]+){2,}.*")  # of Markdown, and of a terminal
_RULE = re.compile(r"\|[ :|-]+\|")  # below the header of a table, which is wording


class Facts(NamedTuple):
    """What a model card or a text report states, without its wording."""

    metadata: str  # The YAML of a card.
    rows: list[list[str]]  # Cells of the rows of its tables, without headers.
    prose: list[str]  # Numbers, names and warnings of its other lines, sorted.


def facts(text: str) -> Facts:
    """Return what a text states."""
    metadata, body = "", text
    if text.startswith("---\n"):
        metadata, _, body = text[4:].partition("\n---")
    lines = body.splitlines()
    rules = {number for number, line in enumerate(lines) if _RULE.fullmatch(line)}
    headers = rules | {number - 1 for number in rules}
    rows = {n: line for n, line in enumerate(lines) if _ROW.fullmatch(line)}
    prose = "\n".join(line for n, line in enumerate(lines) if n not in rows)
    return Facts(
        metadata,
        [_cells(row) for n, row in rows.items() if n not in headers],
        sorted(fact.rstrip(".,:") for fact in _FACT.findall(prose)),
    )


def _cells(row: str) -> list[str]:
    parts = row.strip("|").split("|") if row.startswith("|") else re.split(r"\s{2,}", row.strip())
    return [part.strip() for part in parts]


def state_the_same(stored: str, expected: str, names: Sequence[str]) -> bool:
    """Return whether two texts state the same, whatever their words.

    Words in a table may differ where they name no class, unless the other ones stand elsewhere in
    the tables: then rows were exchanged.

    Args:
        names: Names of the classes.
    """
    found, due = facts(stored), facts(expected)
    if (found.metadata, found.prose) != (due.metadata, due.prose):
        return False
    if [len(row) for row in found.rows] != [len(row) for row in due.rows]:
        return False
    classes = {*names, *(name[2:] for name in names)}  # also the types of B- and I- tags
    known = classes.union(*due.rows)
    return all(
        ours == theirs
        or (
            ours not in known
            and theirs not in classes
            and _is_wording(ours)
            and _is_wording(theirs)
        )
        for ours, theirs in zip(chain(*found.rows), chain(*due.rows), strict=True)
    )


def _is_wording(text: str) -> bool:
    """Return whether a cell has words and states nothing."""
    return _FACT.search(text) is None and re.search(r"[^\W\d]", text) is not None
