"""The folder of a comparison: how its runs ended, which arm they choose, and comparing them."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.execution.plan import PLAN_NAME, Plan, PlannedRun, set_by_flags
from ampft.comparison.extension_points import TABLES
from ampft.comparison.findings import PlanFacts
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.settings import MIN_SEEDS
from ampft.errors import InputError
from ampft.files import CHANGED, Recorded, atomic_path, read_hashed
from ampft.runs.manifest import check_files
from ampft.runs.record import RunRecord, read_record
from ampft.runs.run_text import problem_of
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison

LOGS_NAME = "logs"
TABLES_NAME = "tables"  # folder of the joined tables
YARDSTICK_NAME = "yardstick.json"
COMPLETE = ("finished", "diverged")
ORIGINS = ("file", "file_line", "file_row", "position")
READ = (*ORIGINS, "label", "prediction", "probabilities", "group_id")
_ERROR = "error: "
_TAIL = 2**16  # bytes read from the end of a log


@dataclass(frozen=True)
class RunEnding:
    """How a run ended."""

    status: str  # "finished", "diverged", or "failed" for anything else.
    record: RunRecord | None = None  # Run record; None if there is none.
    input_error: str | None = None  # Message of an `InputError`; None if there is none.

    @property
    def is_complete(self) -> bool:
        """Whether the run has a result. That it diverged is a result, too."""
        return self.status in COMPLETE

    def summary(self, metric: str) -> str:
        """Return the ending in a clause for readers."""
        if self.status == "finished" and self.record is not None:
            return f"{metric} {self.record.metrics.get(metric, float('nan')):z.4f}"
        reason = self.record.reason if self.record is not None else None
        reason = self.input_error or reason
        return f"{self.status} ({inert(reason)})" if reason else self.status


def run_folder(folder: Path, run: PlannedRun) -> Path:
    """Return the folder of a run."""
    return folder / RUNS_NAME / run.name


def log_file(folder: Path, run: PlannedRun) -> Path:
    """Return the log file of a run."""
    return folder / LOGS_NAME / f"{run.name}.log"


def run_ending(folder: Path, log: Path | None = None) -> RunEnding:
    """Return how the run in `folder` ended.

    Args:
        folder: Folder of the run, which need not exist.
        log: Output of the run, to be searched for the message of an `InputError`.
    """
    try:
        record = read_record(folder)
    except InputError:
        record = None
    if record is not None and record.status in COMPLETE:
        return RunEnding(record.status, record)
    if record is not None and record.parts:  # its reason says more than the log
        return RunEnding("failed", record)
    errors: list[str] = []
    with contextlib.suppress(OSError):
        if log is not None:
            with log.open("rb") as file:  # the launcher hides the exit code 2
                file.seek(max(0, log.stat().st_size - _TAIL))
                lines = file.read().decode("utf-8", "replace").splitlines()
            errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return RunEnding("failed", record, errors[-1] if errors else None)


def planned_ending(folder: Path, run: PlannedRun, log: Path | None = None) -> RunEnding:
    """Return how a planned run ended; see `run_ending`.

    Raises:
        InputError: Its folder holds a run with other settings than the planned ones.
    """
    place = run_folder(folder, run)
    ending = run_ending(place, log)
    if ending.record is not None:
        recorded = ending.record.arguments
        for name, value in set_by_flags(run.flags).items():
            if name in recorded and recorded[name] != value:
                raise InputError(
                    f"{place}: the run in this folder has {inert(f'--{name} {recorded[name]}')}, "
                    f"and {run.name} has {inert(str(value))}: folders were renamed or exchanged. "
                    "Restore them from a copy, or delete this one to train the run again."
                )
    return ending


def runs_without_result(runs: Sequence[PlannedRun], folder: Path) -> tuple[PlannedRun, ...]:
    """Return the runs that have no result yet in the comparison's folder."""
    return tuple(run for run in runs if not planned_ending(folder, run).is_complete)


def with_selected_arm(plan: Plan, folder: Path) -> Plan:
    """Return the plan with the arm that has the best mean validation metric; ties by order.

    Examples or training runs that choose an arm overstate its gain: of equal arms, the luckiest one
    is chosen. The compared runs therefore have other seeds than the runs that choose, and are
    evaluated on test instead of validation. Given the choice, their comparison with the baseline is
    as valid as if both arms had been chosen in advance: unbiased, with the usual intervals and no
    correction for the number of arms (`benchmarks/LOG.md`, "Choosing one of several arms").

    Args:
        plan: Plan whose selection runs have ended.

    Raises:
        InputError: No arm finished with every seed, or no validation has the metric.
    """
    scores: dict[str, float] = {}
    higher_is_better = True
    for arm in plan.arms:
        runs = [run for run in plan.selection_runs if run.arm == arm]
        records = [planned_ending(folder, run).record for run in runs]
        finished = [each for each in records if each is not None and each.status == "finished"]
        if not finished or len(finished) < len(runs):
            continue  # the placebo, or an arm that is unstable
        scores[arm.name] = statistics.fmean(_validation_score(r, plan.metric) for r in finished)
        higher_is_better = problem_of(finished[0]).metrics[plan.metric].higher_is_better
    if not scores:
        raise InputError(
            f"--select validation: no arm finished with every seed in {folder}. Repeat the command "
            "to train the missing runs, or change the arms."
        )
    sign = 1 if higher_is_better else -1
    selected = max(scores, key=lambda name: sign * scores[name])
    return replace(plan, selected=selected, selection_scores=scores)


def _validation_score(record: RunRecord, metric: str) -> float:
    """Return the validation metric of the weights that a run reports on."""
    best = record.best
    validations = [v for v in record.validations if best is None or v.epoch == best.epoch]
    if best is not None and best.step is not None:
        validations = [v for v in validations if v.step == best.step] or validations
    value = validations[-1].metrics.get(metric) if validations else None
    if value is None or not math.isfinite(value):
        raise InputError(
            f"--select validation: a run has no validation {metric}. Use another --metric, or "
            "remove --no-load_best_model_at_end."
        )
    return value


def selection_remark(plan: Plan) -> Remark | None:
    """Return how the arm was chosen; None if all arms are compared."""
    if plan.selected is None:
        return None
    first, count = plan.design.first_seed, plan.design.select_seeds
    return remark(
        "chosen",
        arm=plan.selected,
        metric=plan.metric,
        seeds=list(range(first, first + count)),
        scores=dict(plan.selection_scores),
    )


def compare_planned_runs(
    folder: Path,
    plan: Plan,
    *,
    metric: str | None = None,
    margin: float | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Compare the runs of a folder according to its plan, at the last analysis it has reached.

    Args:
        metric: Metric that the user requested; None if not set.
        margin: Margin that the user requested, in points; None if not set.
        baseline: Baseline that the user requested; None if not set.

    Raises:
        InputError: The request differs from the plan, the comparison has not reached its first
            analysis, or the runs cannot be compared.
    """
    planned = {"metric": plan.metric, "margin": f"{100 * plan.design.margin:g}"}
    planned["baseline"] = plan.arms[0].name
    margin_text = None if margin is None else f"{margin:g}"
    requested = {"metric": metric, "margin": margin_text, "baseline": baseline}
    runs = folder / RUNS_NAME
    without_plan = f"pass the runs themselves ({runs}/*) for a comparison without a plan"
    for name, value in requested.items():
        if value is not None and value != planned[name]:
            raise InputError(
                f"--{name} {value}: the plan in {folder / PLAN_NAME} specifies {planned[name]}, "
                f"and its verdicts hold only for that. Remove the flag, or {without_plan}."
            )
    if plan.design.select_seeds and plan.selected is None:
        raise InputError(
            f"RUN {folder}: no arm has been chosen yet. Repeat its command to continue, or "
            f"{without_plan}."
        )
    reached = [
        seeds
        for seeds in plan.design.seed_counts
        if all(
            log_file(folder, run).exists() or planned_ending(folder, run).record is not None
            for run in plan.runs(seeds)
        )
    ]
    if not reached:
        raise InputError(
            f"RUN {folder}: the comparison has not reached its first planned analysis, at "
            f"{plan.design.seed_counts[0]} seeds. Repeat its command to continue, or "
            f"{without_plan}."
        )
    seeds = max(reached)
    return compare_planned(plan, folder, complete_runs(plan, folder, seeds), seeds)


def complete_runs(plan: Plan, folder: Path, seeds: int) -> list[PlannedRun]:
    """Return the runs of the first `seeds` seeds, without incomplete seeds.

    Arms are compared seed by seed, so a seed at which any run left no record is omitted in every
    arm.

    Raises:
        InputError: Too few seeds remain.
    """
    missing = _arms_without_record(plan, folder, seeds)
    if seeds - len(missing) < MIN_SEEDS:
        raise InputError(
            f"{folder}: {len(missing)} of {seeds} seeds lack a run, but at least {MIN_SEEDS} "
            "complete seeds are needed. Repeat the command of the comparison to train the missing "
            "runs."
        )
    return [run for run in _by_seed(plan, seeds) if run.seed not in missing]


def check_inputs_unchanged(plan: Plan, folder: Path) -> None:
    """Check that this command names the inputs that the complete runs have read.

    Raises:
        InputError: A file of the data or of a local model was changed since, or added to the model.
    """
    checked: set[Recorded] = set()
    for run in plan.all_runs():
        record = planned_ending(folder, run).record
        inputs = record.inputs() if record and record.status in COMPLETE else ()
        for recorded in (each for each in inputs if each not in checked):
            checked.add(recorded)
            if recorded.state == CHANGED:
                raise InputError(
                    f"--output_dir: {recorded.path} was changed since {run.name} was "
                    "trained, and runs on different data or from different models cannot be "
                    "compared. Restore the file, or choose another folder."
                )


def compare_planned(plan: Plan, folder: Path, runs: Sequence[PlannedRun], seeds: int) -> Comparison:
    """Compare the runs of a plan: as they are, or the folds of each seed as one.

    Args:
        runs: Runs of the first `seeds` seeds that count, from `complete_runs`.
        seeds: Number of seeds of the analysis.

    Raises:
        InputError: The runs cannot be compared.
    """
    from ampft.comparison.analysis.compare_folders import compare_folders

    facts = plan_facts(plan, folder, seeds)
    if plan.design.folds:
        return _compare_folds(plan, folder, runs, facts.remarks)
    return compare_folders(
        [run_folder(folder, run) for run in runs],
        metric=plan.metric,
        margin=plan.design.margin,
        baseline=plan.arms[0].name,
        plan=facts,
    )


def plan_facts(plan: Plan, folder: Path, seeds: int) -> PlanFacts:
    """Return what the analysis of the first `seeds` seeds needs from the plan and its folder."""
    yardstick = None
    try:
        yardstick, _ = read_hashed(folder / YARDSTICK_NAME)
    except FileNotFoundError:  # it is optional
        pass
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / YARDSTICK_NAME}: the file is damaged ({error}). Delete it, and repeat the "
            "command of the comparison to measure it again."
        ) from error
    chosen = selection_remark(plan)
    return PlanFacts(
        planned=True,
        seed_counts=plan.design.seed_counts,
        added_after_analysis=plan.added_after_analysis,
        remarks=(
            *([chosen] if chosen else []),
            *(
                remark("omitted_seed", seed=seed, arms=arms)
                for seed, arms in _arms_without_record(plan, folder, seeds).items()
            ),
            *plan.reductions,
        ),
        overhead_share=plan.overhead_share,
        yardstick=yardstick,
        arm_names=plan.arm_names,
        runs_at_a_time=plan.design.jobs,
        nodes=plan.nodes,
    )


def _by_seed(plan: Plan, seeds: int) -> list[PlannedRun]:
    """Return the runs of the first `seeds` seeds by seed, then in the order of the arms."""
    return sorted(plan.runs(seeds), key=lambda run: (run.seed, plan.arms.index(run.arm)))


def _arms_without_record(plan: Plan, folder: Path, seeds: int) -> dict[int, list[JSONValue]]:
    """Return the names of the arms without a run record, by ascending seed."""
    arms: dict[int, list[JSONValue]] = {}
    for run in _by_seed(plan, seeds):
        if planned_ending(folder, run).record is None:
            arms.setdefault(run.seed, []).append(run.arm.name)
    return arms


def _compare_folds(
    plan: Plan, folder: Path, runs: Sequence[PlannedRun], remarks: Sequence[Remark]
) -> Comparison:
    """Compare by repeated cross-validation: the folds of a seed become one table of all rows."""
    from ampft.comparison.analysis.stamps import group_stamps

    folds: dict[PlannedRun, dict[int, Path]] = {}
    for run in runs:
        folds.setdefault(replace(run, fold=0), {})[run.fold] = run_folder(folder, run)
    (folder / TABLES_NAME).mkdir(exist_ok=True)
    sources = []
    for joined in sorted(folds, key=lambda run: (plan.arms.index(run.arm), run.seed)):
        path = folder / TABLES_NAME / f"{joined.name}.parquet"
        _write_joined(path, folds[joined])
        sources.append(f"{joined.arm.name}:{joined.seed}={path}")
    compared = TABLES.require().compare(
        sources, metric=plan.metric, margin=plan.design.margin, baseline=plan.arms[0].name
    )
    # The plan trained all arms alike, and the tables call any column of groups "group".
    stamps = (s for s in compared.stamps if s.kind not in ("no_record", "grouped", "duplicates"))
    column = plan.arguments.get("group_column")
    grouped = group_stamps(compared.examples, compared.groups, column)
    return replace(compared, stamps=(*stamps, *grouped, *remarks))


def _write_joined(path: Path, runs: Mapping[int, Path]) -> None:
    """Write the predictions of all folds as one table, for `ampft compare --predictions`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ampft.runs.finished import PREDICTIONS_NAME
    from ampft.runs.predictions import is_input, read_predictions, read_rows

    def is_read(name: str) -> bool:
        return is_input(name) or name in READ

    columns: dict[str, list[str]] = {}
    for fold, run in sorted(runs.items()):
        source = run / PREDICTIONS_NAME
        check_files(run, read_record(run).files, [PREDICTIONS_NAME])
        outcome = read_predictions(source)
        for row, values in read_rows(source, range(len(outcome)), is_read).items():
            probabilities = map(float, values["probabilities"])
            inputs = [str(value) for name, value in values.items() if is_input(name)]
            found = {
                "id": ":".join(str(values[name]) for name in ORIGINS if name in values),
                "label": values["label"],
                "prediction": values["prediction"],
                "probabilities": json.dumps(
                    dict(zip(outcome.label_names, probabilities, strict=True))
                ),
                "text": " | ".join(inputs),
                "group": f"{fold}:{values.get('group_id', f'row {row}')}",
                "fold": str(fold),
            }
            for name, value in found.items():
                columns.setdefault(name, []).append(value)
    # Each seed numbers groups in its own way.
    named = TABLES.require().groups_by_row(columns.pop("group"), columns["id"])
    columns |= {} if named is None else {"group": named}
    with atomic_path(path.absolute()) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
