"""A running comparison: its folder, its runs and their results."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import later_wins
from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.execution.comparison_folder import (
    LOGS_NAME,
    YARDSTICK_NAME,
    check_inputs_unchanged,
    compare_planned,
    complete_runs,
    log_file,
    planned_ending,
    run_folder,
    runs_without_result,
    selection_remark,
    with_selected_arm,
)
from ampft.comparison.execution.launch import (
    EndedProgram,
    Launcher,
    LocalLauncher,
    Program,
    SideBySide,
    command_slots,
    run_command,
    wait_for_runs_left,
)
from ampft.comparison.execution.plan import PLAN_NAME, Arm, Plan, PlannedRun, keeps_model, read_plan
from ampft.comparison.execution.plan_text import plan_lines
from ampft.comparison.execution.planning import command_seconds
from ampft.comparison.extension_points import CLUSTER
from ampft.comparison.remarks import choice_text
from ampft.comparison.settings import CompareCommand
from ampft.engine.checkpoints.store import CheckpointStore
from ampft.errors import InputError, check_type
from ampft.exit_codes import interruptible
from ampft.files import hashed_text, write_errors_explained
from ampft.ownership import is_plain_folder
from ampft.precision.modes import MODE_TABLE
from ampft.processes import RAY
from ampft.runs.folder import RunFolder, check_output_folder
from ampft.runs.manifest import remove_weights
from ampft.runs.resume import checkpoint_damage
from ampft.text.escaping import inert
from ampft.text.numbers import approximate_duration, counted, percent
from ampft.text.terminal import labelled, print_line, progress_bar

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison


MAX_SHARE = 0.99  # of a run that has not ended yet
LAST_ROWS = 2**16  # bytes at the end of a history that hold at least its last row


@dataclass
class RunTimeForecast:
    """Expected duration of runs: the estimate, corrected by the runs that have ended."""

    plan: Plan  # Plan with the estimate.
    # Number of runs that have ended, their seconds and their estimated ones, by the flags of their
    # arm.
    ended: dict[tuple[str, ...], tuple[int, float, float]] = field(default_factory=dict)

    def add(self, run: PlannedRun, seconds: float) -> None:
        """Add the duration of a run that finished."""
        count, actual, expected = self.ended.get(run.arm.flags, (0, 0.0, 0.0))
        expected += self.plan.expected_seconds(run)
        self.ended[run.arm.flags] = count + 1, actual + seconds, expected

    def seconds(self, run: PlannedRun) -> float:
        """Return the expected seconds of a run.

        This is the mean of the runs with the same settings. Before any of them has ended, it is the
        estimate times the ratio of actual to estimated seconds of the runs that have ended.
        """
        if run.arm.flags in self.ended:
            count, seconds, _ = self.ended[run.arm.flags]
            return seconds / count
        actual = sum(seconds for _, seconds, _ in self.ended.values())
        expected = sum(seconds for _, _, seconds in self.ended.values())
        return self.plan.expected_seconds(run) * (actual / expected if expected else 1.0)


def steps_in_history(path: Path) -> int:
    """Return the number of the last step in a history that may be growing; 0 without one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_ROWS))
            last = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        return int(json.loads(last)["step"])
    except (OSError, LookupError, TypeError, ValueError):  # no history, or not a whole row yet
        return 0


class Progress:
    """The progress display, a context manager."""

    def __init__(self, plan: Plan, todo: tuple[PlannedRun, ...]) -> None:
        """Show `todo`, the remaining runs of the plan."""
        self._pace = RunTimeForecast(plan)
        self.follow(plan, todo)
        self._bar = progress_bar(total=1, bar_format="{desc}", leave=False)
        self._running: dict[PlannedRun, tuple[Path, float]] = {}
        self._refreshed = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def follow(self, plan: Plan, todo: tuple[PlannedRun, ...]) -> None:
        """Show the runs of a plan in which an arm was chosen."""
        self._plan = self._pace.plan = plan
        self._todo = dict.fromkeys(todo)
        self._left = Counter(run.arm for run in todo)
        self._numbers = {run: number for number, run in enumerate(plan.all_runs(), start=1)}

    def start(self, run: PlannedRun, history: Path) -> None:
        """Start showing a run whose history grows at `history`."""
        self._running[run] = history, time.perf_counter()
        self._refreshed = 0.0
        self.watch()

    def watch(self) -> None:
        """Show the progress of the runs, about once a second."""
        now = time.perf_counter()
        if self._bar.disable or now - self._refreshed < 1 or not self._running:
            return
        self._refreshed = now
        states = [
            (run, steps_in_history(history), now - started)
            for run, (history, started) in self._running.items()
        ]
        self._bar.set_description_str(self.line(*states))

    def line(self, *states: tuple[PlannedRun, int, float]) -> str:
        """Return the line for runs, each with its optimizer steps and seconds so far."""
        running = {run for run, _, _ in states}
        left = self._seconds(Counter(run.arm for run in self._todo if run not in running))
        left += sum(max(self._pace.seconds(run) - seconds, 0.0) for run, _, seconds in states)
        shown = "; ".join(self._state(run, steps) for run, steps, _ in states)
        return f"{shown}, {approximate_duration(left / self._plan.design.jobs)} left"

    def finish(self, run: PlannedRun, end: EndedProgram, summary: str, *, finished: bool) -> str:
        """Return the line for a run that ended."""
        del self._running[run]
        if run in self._todo:
            del self._todo[run]
            self._left[run.arm] -= 1
        if finished:
            self._pace.add(run, end.seconds)
        later = self._seconds(self._left) / self._plan.design.jobs
        left = f"; about {approximate_duration(later)} left" if self._todo else ""
        node = f" on {inert(end.node)}" if end.node is not None else ""
        return f"{self._heading(run)}: {summary}, {end.seconds:.0f} s{node}{left}"

    def _state(self, run: PlannedRun, steps: int) -> str:
        size, estimate = self._plan.size_of(run.arm), self._plan.estimate_of(run.arm)
        total, per_epoch = estimate.total_steps(size), estimate.steps_per_epoch(size)
        epoch, epochs = min(steps, total - 1) // per_epoch + 1, -(-total // per_epoch)
        done = min(MAX_SHARE, max(steps / total * MAX_SHARE, 0.0))
        return f"{self._heading(run)}, epoch {epoch}/{epochs}, {percent(done)}"

    def _heading(self, run: PlannedRun) -> str:
        return f"run {self._numbers[run]}/{len(self._numbers)} {run.title}"

    def _seconds(self, runs: Counter[Arm]) -> float:
        return sum(n * self._pace.seconds(PlannedRun(arm, 0)) for arm, n in runs.items())


UNDECIDED = "undecided"
BETWEEN_PLANS = 20  # times as long as writing plan.json takes until a run that ends writes it again
# So rare that the cost does not show, and none in runs of less than ten minutes. The clock of the
# steps stops while a checkpoint is written.
CHECKPOINTING = ("--checkpointing_steps", "10min", "--checkpoint_total_limit", "1")


@dataclass
class ComparisonSession:
    """A running comparison; open it with `open_comparison`."""

    command: CompareCommand  # Command of the user.
    folder: RunFolder  # Folder of the comparison, locked by this process.
    plan: Plan  # Plan with its progress so far.
    progress: Progress  # Progress display.
    recipe: Path | None  # Path of classify.py; None trains with `ampft train`.
    launchers: tuple[Launcher, ...]  # Each trains one run at a time.
    describes: bool = True  # Whether it prints its plan and the warnings of its runs.
    _plan_before: Plan = field(init=False)
    _complete: set[PlannedRun] = field(init=False, default_factory=set)
    _plan_due: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._plan_before = self.plan

    def missing(self, seeds: int | None = None) -> tuple[PlannedRun, ...]:
        """Return the runs of the first `seeds` seeds without a result, in execution order.

        A run that was found complete is not read again.
        """
        runs = self.plan.all_runs() if seeds is None else self.plan.runs(seeds)
        unknown = [run for run in runs if run not in self._complete]
        missing = runs_without_result(unknown, self.folder.path)
        self._complete.update(set(unknown) - set(missing))
        return missing

    def missing_for_selection(self) -> tuple[PlannedRun, ...]:
        """Return the runs without a result that choose an arm; none if it has been chosen."""
        if self.plan.selected is not None:
            return ()
        chosen_by = set(self.plan.selection_runs)
        return tuple(run for run in self.missing() if run in chosen_by)

    def select_arm(self) -> None:
        """Choose the arm to compare by validation, if the plan says so, and print it.

        Raises:
            InputError: No arm finished with every seed.
            SystemExit: The baseline was chosen, and nothing else is compared.
        """
        if not self.plan.design.select_seeds or self.plan.selected is not None:
            return
        self.plan = with_selected_arm(self.plan, self.folder.path)
        self.write_plan()
        self.progress.follow(self.plan, self.missing())
        chosen = selection_remark(self.plan)
        assert chosen is not None
        print_line(labelled("selected", choice_text(**chosen.values)))
        if len(self.plan.compared_arms) == 1:
            raise SystemExit(0)

    def train(self, runs: Sequence[PlannedRun]) -> None:
        """Train runs in separate processes, in order, and print how each ended.

        With `--jobs`, several train at the same time.

        Raises:
            InputError: The input of a run is invalid and no run of its arm is complete, or another
                process writes to the folder of one.
        """
        for run in runs:
            check_output_folder(run_folder(self.folder.path, run), overwrite=True)
        queue = deque(runs)
        with SideBySide[PlannedRun](self.launchers) as side:
            while queue or side.running:
                while queue and not side.is_full:
                    run = queue.popleft()
                    self._remove_damaged_checkpoints(run)
                    program = self.program(run)
                    self.progress.start(run, side.start(run, program).history(program))
                started = time.perf_counter()
                try:
                    ended = side.ended()
                finally:
                    self.count_as_run(time.perf_counter() - started)
                self.progress.watch()
                for run, end in ended:
                    self._end(run, end)

    def _end(self, run: PlannedRun, end: EndedProgram) -> None:
        """Print how a run ended, and remove what is not kept of it.

        Raises:
            InputError: Its input is invalid and no run of its arm is complete.
        """
        ending = planned_ending(self.folder.path, run, log_file(self.folder.path, run))
        if ending.is_complete:
            self._complete.add(run)
            self.remove_checkpoints([run])
            self.remove_models([run])
        summary, is_finished = ending.summary(self.plan.metric), ending.status == "finished"
        print_line(self.progress.finish(run, end, summary, finished=is_finished))
        if end.node is not None:
            self.plan = replace(self.plan, nodes={**self.plan.nodes, run.name: end.node})
        lost = "no arm" if run.arm == self.plan.arms[0] else f"{run.arm.name} no longer"
        consequence = f"With this run, {lost} can get a verdict. Ctrl-C stops the comparison."
        if self.plan.design.draws:  # a few labels may teach nothing, which a curve shows
            consequence = ""
        warnings = ending.record.training_warnings if ending.record and self.describes else ()
        for warning in warnings:
            print_line(labelled("warning", f"{inert(warning)} {consequence}".rstrip()))
        if time.perf_counter() > self._plan_due:
            self.write_plan()
        is_first = not any(other.arm == run.arm for other in self._complete)
        if ending.input_error and is_first:
            raise InputError(ending.input_error)

    def program(self, run: PlannedRun) -> Program:
        """Return what trains a run."""
        place = self.folder.path
        return Program(
            tuple(self.argv(run)), log_file(place, run), run_folder(place, run), group=run.seed
        )

    def argv(self, run: PlannedRun) -> list[str]:
        """Return the recipe, or `-m ampft train`, and all its arguments for a run."""
        overrides = [a for name, v in self.plan.overrides.items() for a in (f"--{name}", str(v))]
        # A run that was killed continues, and any other one begins.
        continuation = ["--resume_from_checkpoint", "latest"]
        if MODE_TABLE[run.arm.mode].replaces_layers:  # such models cannot be resumed
            continuation = ["--overwrite_output_dir"]
        elif not self._user_wants_checkpoints:
            continuation = [*CHECKPOINTING, *continuation]
        output = ["--output_dir", str(run_folder(self.folder.path, run))]
        if not keeps_model(self.plan, run, self.command.settings.keep_models):
            output.append("--no-serve_back")  # nobody loads a model that is removed
        is_asked = self.command.classify.baseline is not None
        if not is_asked and run.seed != self.plan.design.first_seed:
            output.append("--no-baseline")  # once per arm is enough to know
        if self.plan.design.draws:
            output += ["--data_seed", str(run.seed)]
        program = ("-m", "ampft", "train") if self.recipe is None else (str(self.recipe),)
        shared = self.command.classify_argv
        own = (overrides, run.flags, [*output, *continuation])
        return [*program, *later_wins(ClassifyArguments, shared, *own)]

    def _remove_damaged_checkpoints(self, run: PlannedRun) -> None:
        """Let a run continue from its last intact checkpoint, or begin again without one."""
        store = CheckpointStore(run_folder(self.folder.path, run))
        for checkpoint in reversed(store.complete()):
            error = checkpoint_damage(checkpoint)
            if error is None:
                return
            is_removed = store.remove(checkpoint)
            print_line(labelled("damaged", f"{error}{' It is removed.' if is_removed else ''}"))

    def complete(self) -> list[PlannedRun]:
        """Return the runs with a result, in execution order."""
        missing = set(self.missing())
        return [run for run in self.plan.all_runs() if run not in missing]

    def remove_checkpoints(self, complete: Sequence[PlannedRun]) -> None:
        """Remove the checkpoints of complete runs, unless the user asked for them."""
        if self._user_wants_checkpoints:
            return
        for run in complete:
            CheckpointStore(run_folder(self.folder.path, run)).remove_all()

    def remove_models(self, complete: Sequence[PlannedRun]) -> None:
        """Remove the weights of complete runs that the command does not keep.

        Runs that choose an arm lose theirs too: only records and predictions are read later.
        """
        for run in complete:
            if not keeps_model(self.plan, run, self.command.settings.keep_models):
                remove_weights(run_folder(self.folder.path, run))

    @property
    def _user_wants_checkpoints(self) -> bool:
        return self.command.classify.checkpointing_steps is not None

    def count_as_run(self, seconds: float) -> None:
        """Add the duration of a run to the plan."""
        self.plan = replace(self.plan, runs_seconds=self.plan.runs_seconds + seconds)

    def measure_yardstick(self) -> None:
        """Measure the noise yardstick in a separate process, unless the folder already has it."""
        target, log = self.folder / YARDSTICK_NAME, self.folder.path / LOGS_NAME / "yardstick.log"
        if target.exists():
            return
        print_line(
            "yardstick  measuring the gradient error of each mode relative to the batch noise"
        )
        # There is no reference gradient for weights that are stored in fewer bits.
        modes = [
            mode for mode in self.plan.design.modes or () if not MODE_TABLE[mode].stores_16_bits
        ]
        words = ["yardstick", "--modes", ",".join(modes), "--output", str(target), "--"]
        _, seconds = run_command(("-m", "ampft", *words, *self.command.classify_argv), log)
        self.plan = replace(self.plan, yardstick_seconds=self.plan.yardstick_seconds + seconds)
        if not target.exists():
            print_line(labelled("yardstick", f"the measurement failed; see {log}"))

    def analysed(self, seeds: int) -> Comparison:
        """Return the comparison of the first `seeds` seeds, without incomplete seeds.

        Arms are compared seed by seed, so a seed at which any run failed without a record is
        omitted in every arm. A stamp and the last line of output list these seeds.

        Raises:
            InputError: Too few seeds remain, or the runs cannot be compared.
        """
        try:
            runs = complete_runs(self.plan, self.folder.path, seeds)
        except InputError as error:
            raise InputError(f"{error} {self._failed_text(seeds)}") from error
        self._update_own_seconds()
        return compare_planned(self.plan, self.folder.path, runs, seeds)

    def record_analysis(self, seeds: int) -> None:
        """Record that the results of the first `seeds` seeds were analysed and written."""
        complete = seeds - len({run.seed for run in self.missing(seeds)})
        self.plan = self.plan.with_analysis(complete)
        self.write_plan()

    def write_plan(self) -> None:
        """Write plan.json, which takes as long as there are runs."""
        self._update_own_seconds()
        started = time.perf_counter()
        self.folder.write_text(PLAN_NAME, hashed_text(self.plan))
        ended = time.perf_counter()
        self._plan_due = ended + BETWEEN_PLANS * (ended - started)

    def close(self, seeds: int) -> None:
        """Print where the results are, the overhead, and which runs failed.

        Raises:
            SystemExit: A run failed; the exit code is 1.
        """
        self.write_plan()
        names = "comparison.html, comparison.md, comparison.json"
        print_line(labelled("wrote", f"{self.folder.path}: {names}, runs, logs"))
        if self.plan.overhead_share is not None:
            share = percent(self.plan.overhead_share, 1)
            print_line(
                labelled("overhead", f"the comparison added {share} to the time of the runs")
            )
        if self.missing(seeds):
            print_line(labelled("failed", self._failed_text(seeds)))
            raise SystemExit(1)

    def how_to_continue(self) -> str:
        """Return how many runs are complete, and how to continue."""
        todo = len(self.missing())
        done = len(self.plan.all_runs()) - todo
        with contextlib.suppress(OSError):
            self.write_plan()
        return (
            f"{done} of {counted(len(self.plan.all_runs()), 'run')} are complete. Repeat the "
            f"command with --output_dir {self.command.settings.output_dir or self.folder.path} to "
            "continue."
        )

    def _failed_text(self, seeds: int) -> str:
        failed = self.missing(seeds)
        logs = ", ".join(str(log_file(self.folder.path, run)) for run in failed)
        return f"{counted(len(failed), 'run')} failed. Repeat the command to retry. Logs: {logs}"

    def _update_own_seconds(self) -> None:
        """Set the comparison's own time: the time of its processes minus their waiting time."""
        before = self._plan_before
        waited = self.plan.runs_seconds - before.runs_seconds
        waited += self.plan.yardstick_seconds - before.yardstick_seconds
        own_seconds = before.own_seconds + command_seconds(self.command) - waited
        self.plan = replace(self.plan, own_seconds=own_seconds)


def make_launchers(command: CompareCommand, plan: Plan, folder: Path) -> tuple[Launcher, ...]:
    """Return a launcher for each run that trains at the same time.

    Raises:
        InputError: There are too few GPUs, cores or nodes.
    """
    if command.design.engine == RAY:
        return CLUSTER.require().ray_launchers(command, plan, folder)
    config_file = command.design.config_file
    return tuple(LocalLauncher(slot, config_file) for slot in command_slots(command))


@contextlib.contextmanager
def open_comparison(
    command: CompareCommand,
    folder: Path,
    plan: Plan,
    recipe: Path | None = None,
    *,
    describes: bool = True,
) -> Iterator[ComparisonSession]:
    """Lock the folder, print and write the plan, and leave no process running at the end.

    A run that outlived an earlier, killed process of this comparison is waited for.

    Args:
        command: Command of the user.
        folder: Folder of the comparison.
        plan: Plan from `plan_comparison`.
        recipe: Path of classify.py, which trains one run; None uses `ampft train`.
        describes: Whether the plan is printed, and the warnings of the runs.
    """
    check_type("open_comparison", "command", command, CompareCommand)
    check_type("open_comparison", "folder", folder, (str, Path))
    check_type("open_comparison", "plan", plan, Plan)
    folder = Path(folder)
    with RunFolder(folder, keep_files=True) as locked:
        if read_plan(folder) is not None:
            locked.adopt(PLAN_NAME)
        for name in (LOGS_NAME, RUNS_NAME):
            (folder / name).mkdir(exist_ok=True)
            if not is_plain_folder(folder / name):
                raise InputError(
                    f"--output_dir {folder}: {name} is a link, but a comparison writes a folder of "
                    "this name. Move it, or choose another folder."
                )
        seconds = wait_for_runs_left(folder / LOGS_NAME)
        todo = runs_without_result(plan.all_runs(), folder)
        check_inputs_unchanged(plan, folder)
        with contextlib.ExitStack() as stack:
            progress = stack.enter_context(Progress(plan, todo))
            launchers = make_launchers(command, plan, folder)
            for launcher in launchers:
                stack.callback(launcher.close)
            session = ComparisonSession(
                command, locked, plan, progress, recipe, launchers, describes
            )
            session.count_as_run(seconds)
            session.remove_checkpoints(session.complete())
            session.remove_models(session.complete())
            session.write_plan()
            if describes:
                print_line(plan_lines(folder, plan, todo, command.settings.keep_models))
            what = f"--output_dir {folder}: the folder"
            remedy = "Free disk space and repeat the command to continue."
            with (
                interruptible(session.how_to_continue),
                write_errors_explained(what, remedy, disk_only=True),
            ):
                yield session


def is_decided(comparison: Comparison) -> bool:
    """Return whether every mode has a verdict or is unstable, so that more seeds are not needed."""
    from ampft.comparison.findings import Comparison

    check_type("is_decided", "comparison", comparison, Comparison)
    modes = [arm for arm in comparison.arms[1:] if not arm.is_placebo]
    return all(
        arm.status == "unstable"
        or (arm.difference is not None and arm.difference.verdict != UNDECIDED)
        for arm in modes
    )
