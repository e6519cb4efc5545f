"""Text for a run: its settings, its report, and how it ended."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ampft.engine.launch_bound import launch_bound_note
from ampft.errors import InputError
from ampft.evaluation.simple_methods import answer, better_probabilities, methods_table
from ampft.features.decision_figures import USE
from ampft.features.resources import PeakMemory
from ampft.metrics.sums import LOG_LOSS
from ampft.runs.completing_command import completing_command, lacks_secrets
from ampft.runs.history import read_history
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME, check_files
from ampft.runs.record import ResumePart, RunRecord, read_record, value_text
from ampft.tasks import TaskRow
from ampft.tasks.outcome import Problem, main_metrics_text
from ampft.tasks.rare_classes import rare_classes_text
from ampft.tasks.report import Report, outputs_text, report_from_json
from ampft.tasks.table import OWN_TASKS, TASKS
from ampft.text.escaping import inert, inert_lines
from ampft.text.json_io import read_json_object
from ampft.text.numbers import byte_size, counted, duration
from ampft.text.page import Block, Notices, Paragraph, Table, terminal_table
from ampft.text.terminal import labelled

REPORT_NAME = "report.json"


def format_run(folder: str | os.PathLike[str]) -> str:
    """Return the text that `ampft report` prints for a run: heading, report and last line.

    Args:
        folder: Output folder of the run, which may have diverged or still be running.

    Raises:
        InputError: The folder does not hold a run, or its report cannot be read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InputError(
            f"RUN {path}: this is not a folder. Give the --output_dir of a run, which holds "
            f"{RECORD_NAME} and {REPORT_NAME}."
        )
    record = read_record(path)
    report = read_report(path, record)
    selected = bool(record.metrics.get("selected"))
    table = ""
    if report is not None:
        table = f"{report_with_heading(report, selected=selected)}{decisions_text(record)}\n"
    if record.status == "running" and (path / HISTORY_NAME).is_file():
        rows = read_history(path / HISTORY_NAME)  # of a run that was killed, perhaps
        skipped = sum(bool(row.get("skipped")) for row in rows)
        steps = replace(record.steps, applied=len(rows) - skipped, skipped=skipped)
        record = replace(record, steps=steps)
    notes = [("warning:", inert(text)) for text in record.warnings.values()]
    if record.metrics_chance is not None and not record.simple_methods:
        chance = main_metrics_text(problem_of(record), record.metrics_chance)
        notes.insert(0, ("chance:", f"{chance}, from the {_constant(record)} of train"))
    lines = [f"{line}\n" for line in simple_methods_text(record)]
    lines += [f"{name} {text}\n" for name, text in notes]
    lines.append(inert_lines(served_text(record)))
    return f"{heading(record)}\n\n{table}{''.join(lines)}{closing_line(record, report, path)}"


def read_report(folder: Path, record: RunRecord) -> Report | None:
    """Read report.json; return `None` if the run has not written one.

    Raises:
        InputError: The file is not the report of this run.
    """
    path = folder / REPORT_NAME
    if record.status != "finished" and not path.exists():  # ended before it was published
        return None
    check_files(folder, record.files, [REPORT_NAME])
    if not path.exists():
        return None
    try:
        report = report_from_json(problem_of(record).report_type, read_json_object(path))
        report.text()  # values can contradict each other
        return report
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"{path}: this is not the report of a run ({type(error).__name__}: {error})."
        ) from error


def heading(record: RunRecord) -> str:
    """Return one line per setting: start, device, precision, model, data, steps, ..."""
    sizes = ", ".join(f"{inert(name)} {size:,}" for name, size in record.data.examples.items())
    topology = record.topology
    placebo = ""
    if record.model.perturbed:
        placebo = ", placebo: each initial weight changed by one unit in the last place"
    lines = {
        "started": record.started,
        "device": f"{topology.device}, {counted(topology.num_processes, 'process')}, "
        f"{counted(topology.cpu_threads, 'CPU thread')}"
        + (" each" if topology.num_processes > 1 else "")
        + (", weights sharded (FSDP2)" if topology.sharded else "")
        + (f", compiled by {inert(topology.compiled)}" if topology.compiled else ""),
        "precision": describe_precision(record),
        "executed": f"{record.precision.summary or 'not measured'}{describe_lost_updates(record)}",
        "model": f"{inert(record.model.name)}, {record.model.architecture}, "
        f"{record.model.parameters / 1e6:.1f} M parameters" + placebo,
        "data": f"{inert(record.data.name)}: {sizes}"
        + (f"; {outputs_text(record.label_names)}" if record.label_names else ""),
        "steps": describe_steps(record),
    }
    memory = describe_memory(record.memory)
    if memory is not None:
        lines["memory"] = memory
    if note := launch_bound_note(record.timings):
        lines["speed"] = note
    if record.best is not None:
        best = record.best
        lines["weights"] = (
            f"{best_moment(record)}, {inert(best.reason)}: {best.metric} {best.value:z.4f}"
        )
    if record.head_scale is not None:
        lines["scaled"] = record.head_scale.text
    if record.resumes:
        lines["resumed"] = describe_resumes(record.resumes)
    return "\n".join(f"{name:<10} {text}" for name, text in lines.items())


def describe_resumes(resumes: Sequence[ResumePart]) -> str:
    """Return how often and after which steps a run was resumed, and what changed."""
    steps = ", ".join(str(part.step) for part in resumes)
    changes = [
        f"; from step {part.step} on, {inert(name)} {inert(value_text(now))}, "
        f"before {inert(value_text(before))}"
        for part in resumes
        for name, (before, now) in {**part.topology, **part.environment, **part.settings}.items()
    ]
    return f"{counted(len(resumes), 'time')}, after step {steps}{''.join(changes)}"


def best_moment(record: RunRecord) -> str:
    """Return when the kept weights were validated: "epoch 3" or, validated by steps, "step 120"."""
    assert record.best is not None
    by_steps = record.arguments.get("eval_steps") is not None
    return f"step {record.best.step}" if by_steps else f"epoch {record.best.epoch}"


def _constant(record: RunRecord) -> str:
    """Return what a model predicts that knows only the labels."""
    return "mean label" if task_row(record).number_labels else "class frequencies"


def report_with_heading(report: Report, *, selected: bool) -> str:
    """Return the report under a line that names its split.

    Args:
        selected: Whether the epoch was also chosen on that split.
    """
    line = f"{report.title}, {inert(report.split)}, {counted(report.examples, 'example')}"
    top5 = report.metrics().get("top5_accuracy")
    if top5 is not None:
        line += f"; top-5 accuracy {top5:z.4f}"
    if selected:
        line += "; the epoch was also chosen on this split, so expect lower scores on new data"
    rare = rare_classes_text(report)
    return "\n\n".join(filter(None, (line, rare, report.text().rstrip("\n")))) + "\n"


def decisions_text(record: RunRecord) -> str:
    """Return what was fitted on validation, and what it changes; empty if nothing was."""
    return "" if record.decisions is None else f"\n{record.decisions.text()}\n"


def simple_methods_table(record: RunRecord) -> Table | None:
    """Return the table of the fine-tuned model and simple methods; None without any."""
    if not record.simple_methods:
        return None
    seconds = record.timings.get("training_seconds")
    shown = seconds if isinstance(seconds, float) else None  # timings are not checked when read
    return methods_table(problem_of(record), record.metrics, shown, record.simple_methods)


def simple_methods_answer(record: RunRecord) -> str | None:
    """Return whether the best simple method is worse, and whether probabilities of one are better.

    The latter is said where `--calibrate` can help and was not used. With class weights, no
    probability is meant to be a frequency.
    """
    methods, part = record.simple_methods, record.decisions
    is_calibrated = part is not None and LOG_LOSS.name in part.figures
    has_one_label = task_row(record).decides_per_case
    can_begin_nearer = has_one_label and record.arguments.get("probe_scale") is None
    truncated = record.data.truncated / max(record.data.examples.get("train", 0), 1)
    problem = problem_of(record)
    split = record.metrics.get("split")
    says = [
        answer(
            problem,
            methods,
            can_begin_nearer=can_begin_nearer,
            truncated=truncated,
            rows=record.data.examples.get(str(split)),
        )
    ]
    is_weighted = record.arguments.get("class_weights") is not None
    if has_one_label and not (is_calibrated or is_weighted):
        says.append(better_probabilities(methods))
    return "; ".join(filter(None, says)) or None


def simple_methods_text(record: RunRecord) -> list[str]:
    """Return the table of simple methods and the answer, as printed; empty without any."""
    table = simple_methods_table(record)
    if table is None:
        return []
    text = simple_methods_answer(record)
    parts = filter(None, (table.title, terminal_table(table), table.note))
    lines = ["\n\n".join(parts) + "\n"]
    return lines if text is None else [*lines, labelled("answer", text)]


def result_blocks(record: RunRecord, report: Report) -> list[Block]:
    """Return the results of a run: warnings, the report, and simple methods or chance."""
    blocks: list[Block] = []
    if record.warnings:
        blocks.append(Notices("", tuple(record.warnings.values()), "warning"))
    if rare := rare_classes_text(report):
        blocks.append(Paragraph(rare))
    blocks += report.tables()
    if (table := simple_methods_table(record)) is not None:
        blocks.append(table)
        if (text := simple_methods_answer(record)) is not None:
            blocks.append(Paragraph(f"{text[0].upper()}{text[1:]}."))
    elif record.metrics_chance is not None:
        chance = main_metrics_text(problem_of(record), record.metrics_chance)
        text = f"Predicting the {_constant(record)} of the training data gives {chance}."
        blocks.append(Paragraph(text))
    return blocks


def decision_blocks(record: RunRecord) -> list[Block]:
    """Return what was fitted on validation, and how it is used; empty if nothing was."""
    part = record.decisions
    if part is None:
        return []
    return [*part.tables(), *map(Paragraph, part.sentences()), Paragraph(USE)]


def task_row(record: RunRecord) -> TaskRow:
    """Return the row of `TASKS` of a run's task.

    Raises:
        InputError: This version does not have the task.
    """
    known = {**TASKS, **OWN_TASKS}
    if record.task not in known:
        raise InputError(
            f"{RECORD_NAME}: the task is {inert(record.task)!r}, which this version of ampft does "
            f"not have (it has {', '.join(TASKS)}). Use the version that made the run."
        )
    return known[record.task]


def problem_of(record: RunRecord) -> type[Problem]:
    """Return the type of problem of a run's task; see `task_row`."""
    return task_row(record).problem_type()


def holds_adapters(record: RunRecord) -> bool:
    """Return whether the folder of a run holds adapters (LoRA) without their base model."""
    given = record.arguments
    merges = given.get("merge_lora")
    if merges is None:
        merges = not given.get("load_in_4bit")
    return bool(given.get("lora_r")) and not merges


def pipeline_arguments(record: RunRecord) -> dict[str, Any]:
    """Return the arguments, besides the case, with which a pipeline reads it as the run did."""
    row = task_row(record)
    truncates = row.kind.has_texts and record.arguments.get("long_text") != "windows"
    return {**row.pipeline_arguments, **({"truncation": True} if truncates else {})}


def served_text(record: RunRecord) -> str:
    """Return what plain clients answered from the folder, and notes; empty if none was asked."""
    part = record.served_back
    if part is None:
        return ""
    return "".join(f"{line}\n" for line in (f"served back: {part.text()}", *part.notes))


def result_line(record: RunRecord) -> str:
    """Return the last line that a run prints, unwrapped so that programs can parse it."""
    resolved = record.precision.resolved
    peak = None if record.memory is None else record.memory.peak
    memory = "unknown" if peak is None else f"{peak / 2**20:.0f} MiB"
    seconds = record.timings.get("total_seconds")  # missing if measuring the speed failed
    time = "" if seconds is None else f"{seconds:.0f} s, "
    return (
        f"result     {main_metrics_text(problem_of(record), record.metrics)}, "
        f"{time}peak memory {memory}, "
        f"{counted(record.steps.skipped, 'step')} skipped, "
        f"{resolved['mode']} {resolved['execution']}{describe_lost_updates(record)}"
    )


def next_step_line(folder: Path) -> str:
    """Return the line that says what to do with a finished run."""
    return f"next       ampft predict --model {shlex.quote(str(folder))} FILE"


def closing_line(record: RunRecord, report: Report | None, folder: Path) -> str:
    """Return the end of `ampft report`: metrics, time, peak memory, and how the run ended.

    A run that can be completed or continued also has the command for it.
    """
    parts = []
    if report is not None:
        parts.append(main_metrics_text(problem_of(record), report.metrics()))
    seconds = record.timings.get("total_seconds", record.timings.get("training_seconds"))
    if isinstance(seconds, int | float):
        parts.append(f"time {duration(seconds)}")
    if record.memory is not None and record.memory.peak is not None:
        parts.append(f"peak memory {byte_size(record.memory.peak)}")
    figures = ", ".join(parts)
    if record.status == "finished":
        return f"{figures}\nstopped: {inert(record.reason)}" if record.reason else figures
    ending = {
        "running": "running, or killed",
        "trained": "trained, but not complete",
        "diverged": "diverged: its weights and figures are not results",
        "contradicted": "stopped: what ran was not what was requested",
        "preempted": "stopped by a signal",
        "interrupted": "interrupted",
    }[record.status]
    reason = f" ({inert(record.reason)})" if record.reason else ""
    lines = [figures, f"{ending}{reason}", *_remedy_lines(record, folder)]
    return "\n".join(filter(None, lines))


def _remedy_lines(record: RunRecord, folder: Path) -> Iterator[str]:
    """Yield how a run that has not finished is completed or continued, each on one line."""
    if record.status not in ("trained", "preempted"):
        return
    name, settings = "complete", {"output_dir": str(folder)}
    if record.status == "preempted":
        name, settings["resume_from_checkpoint"] = "continue", "latest"
    command = completing_command(record, settings)
    if command is None:  # of Python, with data in memory
        named = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        yield f"{name:<10} {inert(f'repeat the call with the same data, and {named}')}"
        return
    yield f"{name:<10} {inert(command)}"
    if lacks_secrets(record):
        yield f"{'':<10} with the secrets in place of REDACTED"


def describe_precision(record: RunRecord) -> str:
    """Return the precision as text: "fp16, emulated: this CPU has no ..."."""
    resolved = record.precision.resolved
    text = ", ".join(str(resolved[name]) for name in ("mode", "execution") if name in resolved)
    return f"{text}: {resolved['reason']}" if resolved.get("reason") else text


def describe_memory(memory: PeakMemory | None) -> str | None:
    """Return peak memory and its parts: "512 MiB peak: weights 87 MiB, ..."; None without parts."""
    if memory is None or memory.peak is None or memory.weights is None:
        return None
    names = ("weights", "gradients", "optimizer_state", "activations", "rest", "baseline")
    parts = [(name.replace("_", " "), getattr(memory, name)) for name in names]
    sizes = ", ".join(f"{name} {byte_size(part)}" for name, part in parts if part is not None)
    return f"{byte_size(memory.peak)} peak: {sizes}"


def describe_lost_updates(record: RunRecord) -> str:
    """Return ", 85.7% of weight updates changed nothing", or an empty string if not measured."""
    lost = record.precision.lost_updates
    return "" if lost is None else f", {lost:.1%} of weight updates changed nothing"


def describe_steps(record: RunRecord) -> str:
    """Return the numbers of optimizer steps that were applied and skipped."""
    steps = record.steps
    if not steps.total:
        return "none: the model was evaluated as it is"
    applied = f"{steps.applied:,} of {steps.total:,} applied"
    return f"{applied}, {steps.skipped:,} skipped" if steps.skipped else applied
