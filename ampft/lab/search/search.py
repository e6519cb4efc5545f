"""`ampft search -- FLAGS`: choose learning rate and length within a time, and judge the choice."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.flags import later_wins, parse_duration
from ampft.arguments.help_text import Help
from ampft.comparison.settings import SET_BY_COMPARISON
from ampft.errors import InputError, check_type
from ampft.lab.search.search_settings import SearchSettings, parse_rates
from ampft.precision.modes import BASELINE, canonical_mode

if TYPE_CHECKING:
    from ampft.comparison.execution.plan import TrialResult
    from ampft.lab.search.rungs import SearchPlan
    from ampft.lab.search.search_record import SearchState
    from ampft.runs.finished import FinishedRun

SET_BY_SEARCH = SET_BY_COMPARISON | {
    "leave_out_test": "a search leaves the test rows out until it judges. Remove the flag",
    "max_time": "limit the time of the whole search with --time_budget before ` -- `",
}


def run_search(line: CommandLine[SearchSettings], started: float | None = None) -> Path:
    """Search, judge, and print the answer; return the folder.

    Args:
        started: When it began, in seconds since the epoch; None for the start of the process.

    Raises:
        InputError: A setting is invalid, the time is too short, or the default did not train.
    """
    from ampft.lab.search.running import Search
    from ampft.lab.search.search_answer import answer_text
    from ampft.lab.search.search_record import SEARCH_NAME
    from ampft.runs.folder import RunFolder
    from ampft.text.terminal import print_line

    settings, classify = line.flags, line.training
    began = psutil.Process().create_time() if started is None else started
    folder, state = _place(settings, line.after, classify)
    state = state or _planned(settings, line.after, classify, folder)
    with RunFolder(folder, keep_files=True) as locked:
        if (folder / SEARCH_NAME).exists():
            locked.adopt(SEARCH_NAME)
        running = Search(settings, line.after, classify, locked, state, began)
        if running.state.answer is None:
            running.run()
        else:
            running.check_inputs_unchanged()
        print_line(answer_text(running.state, folder, line.after))
    return folder


def _place(
    settings: SearchSettings, argv: Sequence[str], classify: ClassifyArguments
) -> tuple[Path, SearchState | None]:
    """Return the folder of a search, and its state if it is continued.

    Raises:
        InputError: The folder holds something else.
    """
    from ampft.comparison.execution.planning import check_new_folder
    from ampft.data.sources.file_names import data_stem
    from ampft.lab.search.search_record import read_state

    asked = _asked(settings), _arguments(settings, argv, classify)
    if settings.output_dir is not None:
        folder = Path(settings.output_dir)
        state = read_state(folder)
        if state is None:
            check_new_folder(folder)
        elif found := _difference(state, *asked):
            raise InputError(
                f"--output_dir {folder}: the folder holds a search with other settings: {found}. "
                "Choose another folder, or use the settings of that search to continue it."
            )
        return folder, state
    stem = data_stem(classify.dataset_name or classify.train_file or "data")
    for number in itertools.count(1):
        folder = Path("searches", stem if number == 1 else f"{stem}-{number}")
        state = read_state(folder)
        if not folder.exists() or (state is not None and not _difference(state, *asked)):
            return folder, state
    raise AssertionError("unreachable")


def _asked(settings: SearchSettings) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if name != "output_dir"}


def _arguments(
    settings: SearchSettings, argv: Sequence[str], classify: ClassifyArguments
) -> dict[str, Any]:
    from ampft.comparison.execution.planning import redacted_settings
    from ampft.lab.search.running import comparison

    return dict(redacted_settings(comparison(settings, argv, classify, seeds=settings.seeds)))


def _difference(state: SearchState, asked: dict[str, Any], arguments: dict[str, Any]) -> str:
    """Return the first setting that differs from a search's; empty if none does."""
    for known, now in ((state.settings, asked), (state.arguments, arguments)):
        for name in sorted(known.keys() & now.keys()):
            if known[name] != now[name]:
                return f"--{name} was {known[name]} and is now {now[name]}"
    return ""


def _planned(
    settings: SearchSettings, argv: Sequence[str], classify: ClassifyArguments, folder: Path
) -> SearchState:
    """Time a few steps, and return the state of a new search.

    Raises:
        InputError: The data have no test rows or too few others, or the time is too short.
    """
    from ampft.comparison.execution.planning import metric_of_task, run_trial
    from ampft.exit_codes import interruptible
    from ampft.lab.search.search_record import SearchState
    from ampft.runs.start import check_data_files
    from ampft.text.terminal import print_line

    check_data_files(classify)
    if settings.config_file is not None and not Path(settings.config_file).is_file():
        raise InputError(f"--config_file {settings.config_file}: the file does not exist.")
    print_line("trial      reading the data, then timing a few steps to plan the search")
    timed = later_wins(ClassifyArguments, argv, ("--load_best_model_at_end",))
    started = time.perf_counter()
    with interruptible(lambda: "nothing has been written yet."):
        trial = run_trial(
            timed, (canonical_mode(classify.mixed_precision or BASELINE),), settings.config_file
        )
    plan = _plan(settings, classify, trial, time.perf_counter() - started)
    metric = metric_of_task(settings.metric, trial)
    arguments = _arguments(settings, argv, classify)
    return SearchState(arguments=arguments, settings=_asked(settings), metric=metric, plan=plan)


def _plan(
    settings: SearchSettings, classify: ClassifyArguments, trial: TrialResult, seconds: float
) -> SearchPlan:
    from ampft.comparison.execution.plan import KIND_OF_LABELS
    from ampft.lab.search import rungs
    from ampft.tasks.single_label import SingleLabel

    estimate = replace(trial.estimate, evaluates_fp32=classify.evaluate_fp32)
    rows = estimate.validation_examples
    if trial.compared["reported split"] != "test" or not rows:
        raise InputError(
            "--test_file: a search needs validation rows, which choose, and test rows, which judge "
            "the choice. Pass files, or let both be split off from the training file "
            "(--validation_fraction, --test_fraction)."
        )
    can_fold = trial.compared[KIND_OF_LABELS] == SingleLabel.name and (
        classify.train_file is not None or classify.dataset_name not in (None, "stdlib", "digits")
    )
    if settings.folds and not can_fold:
        raise InputError(
            "--folds supports only tasks with one label per example, and data of your own. Remove "
            "the flag."
        )
    setting, length = rungs.default_length(estimate)
    rate = trial.learning_rate or 0.0
    if settings.learning_rates is None and not rate:
        raise InputError("--learning_rate 0: there is nothing to multiply. Pass --learning_rates.")
    own = settings.learning_rates
    rates = (
        [float(f"{rate * factor:.2g}") for factor in rungs.RATES]
        if own is None
        else parse_rates("learning_rates", own)
    )
    lengths = sorted({max(1, round(length * factor)) for factor in rungs.LENGTHS})
    largest = rungs.SearchPlan(
        rates=tuple(rates),
        lengths=tuple(lengths),
        setting=setting,
        default=length,
        default_rate=rate or None,
        folds=settings.folds or 0,
        validation_rows=rows,
        test_rows=estimate.final_examples,
        seeds=settings.seeds,
        budget=parse_duration("time_budget", settings.time_budget),
        trial_seconds=seconds,
        mode=canonical_mode(classify.mixed_precision or BASELINE),
        has_server=settings.config_file is None,
        import_seconds=trial.import_seconds,
        estimate=estimate,
    )
    few = not settings.folds and can_fold and rows < rungs.FEW_ROWS
    return rungs.fitting_plan(
        largest, few=few, own_rates=own is not None, asked=settings.time_budget
    )


class FinishedSearch:
    """A finished search; `ampft.search` returns one."""

    def __init__(self, folder: str | Path) -> None:
        from ampft.lab.search.search_record import read_state

        check_type("FinishedSearch", "folder", folder, (str, Path))
        self.folder = Path(folder)  # Folder of the search.
        state = read_state(self.folder)
        if state is None or state.answer is None:
            raise InputError(f"{self.folder}: this is not the folder of a finished search.")
        self.answer = state.answer  # Chosen settings, gain and interval.
        self._state = state

    @property
    def model(self) -> FinishedRun:
        """The run with the chosen settings: `predict(texts)`, `report`, `folder`."""
        from ampft.runs.finished import FinishedRun

        return FinishedRun(self.folder / self.answer.model)

    def __repr__(self) -> str:
        from ampft.lab.search.search_answer import answer_text

        return answer_text(self._state, self.folder)


def search(
    train: Any = None,
    *,
    validation: Any = None,
    test: Any = None,
    time_budget: str,
    **settings: Any,
) -> FinishedSearch:
    """Choose learning rate and length within a time, as `ampft search` does.

    Each run is a separate process, started in turn. The same call continues a search that was
    interrupted.

    Args:
        train: Training data, as for `finetune`; data in memory are written beside the folder first.
        validation: Validation data of the same kind; None splits some off the training data.
        test: Test data of the same kind, which only judge; None splits some off the training data.
        time_budget: Time for everything, such as "10min".
        **settings: Settings with the names of the flags of the search (`learning_rates`,
            `output_dir`, ...) and of the runs (`learning_rate`, ...).

    Returns:
        The finished search: `model`, `answer`, `folder`.

    Raises:
        InputError: The data or a setting must be corrected, or the time is too short.
    """
    from ampft.arguments.parsing import command_line_words, messages_for_python
    from ampft.integrations.compare_data import save_by_content
    from ampft.integrations.finetune import data_settings
    from ampft.runs.caller_state import caller_state_kept

    with messages_for_python(), caller_state_kept():
        data, named = data_settings(settings, train=train, validation=validation, test=test)
        own_names = {each.name for each in fields(SearchSettings)}
        own = {"time_budget": time_budget} | {k: v for k, v in settings.items() if k in own_names}
        if data is not None:
            named = {"dataset_name": save_by_content(data, own.get("output_dir"))}
        runs = {**named, **{k: v for k, v in settings.items() if k not in own_names}}
        words = [*command_line_words(own), "--", *command_line_words(runs)]
        try:
            return FinishedSearch(run_search(SEARCH.parse(words, "ampft.search"), time.time()))
        except SystemExit:
            raise KeyboardInterrupt from None


SEARCH = Command(
    SearchSettings,
    run_search,
    Help(
        "Choose learning rate and length within a time, by successive halving on validation rows "
        "or folds, and train the model. The default is kept unless another is better by more than "
        "chance. What the search gained is measured on test rows that it did not use, with an "
        "interval. A repeated command continues where it was interrupted.",
        usage="-- settings of ampft train",
    ),
    TrainingSettings(SET_BY_SEARCH),
    reads_config=True,
)
