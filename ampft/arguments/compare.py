"""The settings of a comparison, and after `--` its runs' settings."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import parse_duration, parse_flags, split_at_dashes
from ampft.arguments.parsing import parse_classify_arguments
from ampft.errors import InputError, did_you_mean
from ampft.flag import MAX_SEED, flag
from ampft.precision.modes import BASELINE, MODES, is_fp32, mode_hint
from ampft.tasks import TASKS, problem_types
from ampft.text.json_io import Count, NotNegative, Positive, ValueRule, is_ascending, one_of

T = TypeVar("T")
COMPARISON, EXECUTION, OUTPUT = "comparison", "time and processes", "output"

MIN_SEEDS = 3
MOST_SEEDS = 10_000
Seeds = Annotated[int, ValueRule(lambda count: 0 <= count <= MOST_SEEDS, f"0 to {MOST_SEEDS}")]
PLACEBO = "placebo"  # name of the arm
PROGRAM = "compare_precision.py"
ENGINES = (LOCAL, RAY) = ("local", "ray")
KEPT_MODELS = ("none", "baseline", "all")

# Settings of classify.py that the comparison chooses for each run, and what to do instead.
SET_BY_COMPARISON = {
    "mixed_precision": "give the precisions before ` -- `, as in --modes fp32,bf16",
    "output_dir": "give the folder of the comparison before ` -- `, as in --output_dir DIR",
    "overwrite_output_dir": "finished runs are kept and unfinished ones start again; to repeat all "
    "runs, choose another --output_dir",
    "max_time": "all runs train for the same number of steps; limit the time of the comparison "
    "with --budget before ` -- `",
    "push_to_hub": "push one of the runs afterwards, with ampft push RUN",
    "check_precision": "fp32 has nothing to compare; --yardstick before ` -- ` measures how "
    "exact the gradient of each mode is",
    "folds": "give it before ` -- `, as in --folds 5",
    "perturb_initial_weights": "the placebo arm does this unless --no_placebo is set",
}


@dataclass(frozen=True)
class ComparisonFlags:
    """The settings of every comparison. `--help` describes each."""

    seeds: str = flag(
        "5",
        "number of seeds, at least 3; 5,10 plans an interim analysis after 5 seeds and continues "
        "to 10 only if a verdict is still undecided",
        group=COMPARISON,
    )
    metric: str | None = flag(
        None, "metric to compare; if none, the task's primary metric (accuracy)", group=COMPARISON
    )
    margin: float = flag(
        1.0,
        "equivalence margin: the largest difference that does not matter, in points",
        group=COMPARISON,
    )
    no_placebo: bool = flag(
        False,
        "skip the placebo: the baseline trained again from slightly perturbed weights",
        group=COMPARISON,
    )
    anyway: bool = flag(
        False,
        "train even if the test data are too few for any verdict at the margin",
        group=COMPARISON,
    )
    folds: int | None = flag(
        None,
        "number of folds, for data without a test split: each seed divides the training data "
        "anew, and every row is predicted by a model that was not trained on it; the interval does "
        "not take folds for independent",
        group=COMPARISON,
        at_least=2,
    )
    budget: str | None = flag(
        None,
        "time limit for all runs, such as 90s, 15min or 1h30min; shortens training to stay within "
        "it, but never reduces the number of seeds",
        group=EXECUTION,
    )
    jobs: int = flag(
        1,
        "number of runs that train at the same time, each on GPUs of its own, or on its share of "
        "the CPU cores; on a CPU, speeds are then not ranked",
        group=EXECUTION,
        at_least=1,
    )
    gpus_per_run: int = flag(
        1, "GPUs of each run, with --jobs or --engine ray", group=EXECUTION, at_least=1
    )
    engine: str = flag(
        "local",
        "where runs train: local (this machine), or ray (the Ray cluster of RAY_ADDRESS, --jobs "
        "runs at a time, each on a node that is free)",
        group=EXECUTION,
        choices=ENGINES,
    )
    config_file: str | None = flag(
        None, "configuration file that accelerate launch uses for every run", group=EXECUTION
    )
    keep_models: str = flag(
        "all",
        "whose weights stay in the folder: none, baseline, or all; records, reports and "
        "predictions always stay",
        group=OUTPUT,
        choices=KEPT_MODELS,
    )
    output_dir: str | None = flag(
        None, "folder for the comparison; if none, one under comparisons/", group=OUTPUT
    )


@dataclass(frozen=True)
class ModeFlags:
    """The precisions of a comparison."""

    modes: str | None = flag(
        None,
        f"comma-separated precisions out of {', '.join(MODES)}; if none, those of fp32,bf16,fp16 "
        "that this machine supports",
        group=COMPARISON,
    )


@dataclass(frozen=True)
class CompareArguments(ComparisonFlags, ModeFlags):
    """The settings of a comparison of precisions."""

    yardstick: bool = flag(
        False,
        "also measure the gradient error of each mode relative to the batch noise",
        group=COMPARISON,
    )


@dataclass(frozen=True)
class ArmSettings:
    """The name of an arm and its settings, as a user wrote them."""

    name: str  # Name of the arm, also in names of folders.
    flags: tuple[str, ...]  # Flags of classify.py that differ from those that all arms share.
    mode: str  # Precision of its runs.

    def __str__(self) -> str:
        return f"{self.name}: {shlex.join(self.flags)}".rstrip(": ")


@dataclass(frozen=True, kw_only=True)
class ComparisonDesign:
    """What is compared, and how: fixed before the first run, and kept in the plan."""

    # Precisions, the baseline first; None if the arms have other settings, and in a command for the
    # default.
    modes: tuple[Annotated[str, one_of(MODES)], ...] | None
    # Settings of the arms, the baseline first; empty if the arms are precisions.
    arm_settings: tuple[ArmSettings, ...]
    first_seed: Count  # Seed of the first run of each arm; the other seeds follow consecutively.
    metric: str | None  # Name of the primary metric; None in a command for the task's metric.
    margin: float  # Equivalence margin as a fraction (0.01 is one point).
    placebo: bool  # Whether the baseline is also trained from perturbed initial weights.
    config_file: str | None  # Configuration file of Accelerate.
    budget: NotNegative | None  # Time limit in seconds; None for no limit.
    # Number of seeds, before the others, that choose one of the arms on validation; 0 compares all.
    select_seeds: Seeds
    # Numbers of seeds at which the results are analysed; the last is the total.
    seed_counts: Annotated[tuple[Seeds, ...], ValueRule(is_ascending, "ascending, and not empty")]
    jobs: Positive = 1  # Number of runs that train at the same time.
    gpus_per_run: Positive = 1  # GPUs of each run if several train at the same time.
    draws: bool = False  # Whether each seed also draws its own rows, as `--data_seed`.
    engine: Annotated[str, one_of(ENGINES)] = LOCAL  # Where runs train, one of `ENGINES`.
    folds: Count = 0  # Number of folds, each a run of its own; 0 for none.


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """A parsed command line."""

    design: ComparisonDesign  # What is compared, and how; the plan of the comparison keeps it.
    settings: ComparisonFlags  # What the user set, for what the plan does not keep.
    yardstick: bool  # Whether the noise yardstick is measured.
    classify_argv: tuple[str, ...]  # Command line arguments after `--`, for classify.py.
    classify: ClassifyArguments  # Settings of classify.py, parsed from `classify_argv`.
    notes: tuple[str, ...] = ()  # Notes to print.
    # Time at which the command began, in seconds since the epoch; None for the start of the
    # process.
    started: float | None = None


def parse_compare_arguments(
    argv: Sequence[str] | None = None, *, program: str = PROGRAM, trainer: str = "classify.py"
) -> CompareCommand:
    """Parse the command line of `recipes/compare_precision.py` or of `ampft compare`.

    Args:
        argv: Command line arguments; `sys.argv[1:]` if None.
        program: Name of the program in messages.
        trainer: Name of the program that trains one run.

    Raises:
        InputError: A flag of the comparison or of its runs is unknown, has an invalid value, or
            conflicts with another.
    """
    settings, classify_argv, classify = parse_with_runs(
        CompareArguments,
        argv,
        program=program,
        trainer=trainer,
        description="Compare precisions statistically: train every mode with several seeds, one "
        f"process per run, and write a report. Settings of {trainer} that all runs share follow "
        "after ` -- `.",
        usage_suffix=f"[-- settings of {trainer}]",
    )
    modes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    if settings.modes is not None:
        named = parse_mode_list("--modes", settings.modes, MODES)
        modes = baseline_first(named)
        if BASELINE not in named:
            notes = (f"{BASELINE} was added as the baseline.",)
    return comparison_command(
        settings, classify_argv, classify, modes=modes, notes=notes, yardstick=settings.yardstick
    )


def parse_with_runs(
    kind: type[T],
    argv: Sequence[str] | None,
    *,
    program: str,
    trainer: str,
    description: str,
    usage_suffix: str,
    allowed: Collection[str] = (),
) -> tuple[T, list[str], ClassifyArguments]:
    """Return the settings of a comparison, and its runs' settings as flags and parsed.

    Args:
        kind: Dataclass of the settings of the comparison.
        argv: Command line arguments; `sys.argv[1:]` if None.
        program: Name of the program in messages.
        trainer: Name of the program that trains one run.
        description: First paragraph of the help.
        usage_suffix: End of the usage line, after the flags.
        allowed: Names in `SET_BY_COMPARISON` that the runs may set all the same.

    Raises:
        InputError: A flag is unknown, has an invalid value, is on the wrong side of ` -- `, or is
            set by the comparison.
    """
    compare_argv, classify_argv = split_at_dashes(argv)
    _refuse_misplaced(compare_argv, kind, program, trainer)
    settings, _ = parse_flags(
        kind, compare_argv, program=program, description=description, usage_suffix=usage_suffix
    )
    classify = parse_classify_arguments(classify_argv, program=trainer)
    for name, remedy in SET_BY_COMPARISON.items():  # from a flag or a --config file
        value = getattr(classify, name)
        if name not in allowed and value not in (None, False):
            value_text = "" if value is True else f" {value}"
            raise InputError(f"--{name}{value_text} after ` -- `: {remedy}.")
    return settings, classify_argv, classify


def _refuse_misplaced(
    compare_argv: Sequence[str], kind: type[Any], program: str, trainer: str
) -> None:
    """Reject settings of the runs before ` -- `."""
    classify_names = {f.name for f in fields(ClassifyArguments)} - {f.name for f in fields(kind)}
    names = [argument.removeprefix("--").removeprefix("no-").split("=")[0]
             for argument in compare_argv if argument.startswith("--")]  # fmt: skip
    misplaced = [name for name in names if name in classify_names]
    # Finished runs are compared with a --baseline, so that another flag is the mistake.
    misplaced.sort(key=lambda name: name == "baseline")
    if not misplaced:
        return
    name = misplaced[0]
    if compare_argv[0][:1] != "-" or {"predictions", "inference", "by"}.intersection(names):
        replaced = ": files of an earlier comparison in --output_dir are replaced"
        raise InputError(
            f"--{name} is a setting of {trainer}, and a comparison of finished runs or tables "
            f"trains nothing. Remove it{replaced * (name == 'overwrite_output_dir')}."
        )
    has_arms = {"modes", "arm"}.intersection(names)
    arms = "..." if has_arms else "--modes fp32,bf16"
    argument = next(each for each in compare_argv if each.startswith((f"--{name}", f"--no-{name}")))
    remedy = f"write it after ` -- `: {program} {arms} -- {argument} ..."
    raise InputError(f"--{name} is a setting of {trainer}: {SET_BY_COMPARISON.get(name, remedy)}.")


def comparison_command(
    settings: ComparisonFlags,
    classify_argv: Sequence[str],
    classify: ClassifyArguments,
    *,
    modes: tuple[str, ...] | None = None,
    arms: tuple[ArmSettings, ...] = (),
    notes: tuple[str, ...] = (),
    yardstick: bool = False,
    select_seeds: int = 0,
) -> CompareCommand:
    """Return the command with these settings, after checking them.

    Args:
        settings: Settings of the comparison.
        classify_argv: Command line arguments that all runs share.
        classify: Settings of the runs of the baseline.
        modes: Precisions.
        arms: Settings of the arms.
        notes: Notes to print.
        yardstick: Whether the noise yardstick is measured.
        select_seeds: Number of seeds that choose one of the arms.

    Raises:
        InputError: A setting is out of range.
    """
    seed_counts = _parse_seeds(settings.seeds)
    total = select_seeds + seed_counts[-1]
    if classify.seed + total - 1 > MAX_SEED:
        raise InputError(
            f"--seed {classify.seed}: {total} seeds starting there exceed {MAX_SEED}. "
            "Use a smaller first seed."
        )
    if not 0 < settings.margin < 100:
        raise InputError(
            f"--margin: received {settings.margin}; it must be above 0 and below 100 points."
        )
    if yardstick and settings.engine != LOCAL:
        raise InputError(
            f"--yardstick with --engine {settings.engine}: it is measured on this machine, not on "
            "a node. Use ampft yardstick instead."
        )
    if settings.config_file is not None and not Path(settings.config_file).is_file():
        raise InputError(f"--config_file {settings.config_file}: the file does not exist.")
    if settings.folds is not None:
        if select_seeds:
            raise InputError("--folds does not choose between arms. Remove --select.")
        classify_argv = (*classify_argv, "--folds", str(settings.folds))
        classify = replace(classify, folds=settings.folds)
    design = ComparisonDesign(
        modes=modes,
        arm_settings=arms,
        first_seed=classify.seed,
        metric=_requested_metric(settings.metric, classify.task),
        margin=settings.margin / 100,
        placebo=not settings.no_placebo and settings.folds is None,
        config_file=settings.config_file,
        budget=None if settings.budget is None else parse_duration("budget", settings.budget),
        select_seeds=select_seeds,
        seed_counts=seed_counts,
        jobs=settings.jobs,
        gpus_per_run=settings.gpus_per_run,
        engine=settings.engine,
        draws=settings.folds is not None,
        folds=settings.folds or 0,
    )
    return CompareCommand(
        design=design,
        settings=settings,
        yardstick=yardstick,
        classify_argv=tuple(classify_argv),
        classify=classify,
        notes=notes,
    )


def is_comparison_to_run(argv: Sequence[str]) -> bool:
    """Return whether arguments of `ampft compare` ask for trainings, not for existing runs."""
    shared = {"metric", "margin", "output_dir"}  # with the comparison of existing runs
    every = {f.name for kind in (CompareArguments, ClassifyArguments) for f in fields(kind)}
    names = {f"--{name}" for name in every - shared - {"baseline"}} | {"--arm"}
    return any(argument == "--" or argument.split("=")[0] in names for argument in argv)


def _requested_metric(name: str | None, task: str | None) -> str | None:
    """Return the metric to compare; None for the primary one of a task that the data will show."""
    if task is not None:
        return chosen_metric(name, list(TASKS[task].problem_type().metrics))
    if name is None:
        return None
    known = [metric for problem in problem_types().values() for metric in problem.metrics]
    return chosen_metric(name, list(dict.fromkeys(known)))


def chosen_metric(name: str | None, metrics: Sequence[str]) -> str:
    """Return `name`, or the first metric if `name` is None.

    Raises:
        InputError: `name` is not among the metrics.
    """
    if name is None:
        return metrics[0]
    if name not in metrics:
        raise InputError(
            f"--metric: received {name!r}.{did_you_mean(name, metrics)} Choose from "
            f"{', '.join(metrics)}."
        )
    return name


def _parse_seeds(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    if len(numbers) != len(parts) or list(numbers) != sorted(set(numbers)):
        raise InputError(
            f"--seeds: received {text!r}; use a number such as 5, or increasing numbers for "
            "planned interim analyses, such as 5,10."
        )
    if numbers[0] < MIN_SEEDS:
        raise InputError(
            f"--seeds: received {text!r}; it must be at least {MIN_SEEDS}, because fewer seeds "
            "cannot tell a difference from chance. Use 3 for screening; the default "
            "is 5."
        )
    return numbers


def parse_mode_list(flag: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the modes of a comma-separated list.

    Args:
        flag: Flag that was set, for messages.
        text: Its value.
        allowed: Names of the modes that it can list.

    Raises:
        InputError: A mode is unknown or listed twice, or only the baseline is listed.
    """
    listed = (part.strip().lower() for part in text.split(","))
    modes = tuple(BASELINE if is_fp32(mode) else mode for mode in listed)
    for mode in modes:
        check_mode(flag, text, mode, allowed)
        if modes.count(mode) > 1:
            raise InputError(f"{flag}: received {text!r}; {mode} appears twice.")
    if set(modes) == {BASELINE}:
        raise InputError(
            f"{flag}: received {text!r}; give a precision to compare with {BASELINE}, such as "
            f"{flag} fp32,bf16."
        )
    return modes


def check_mode(flag: str, text: str, mode: str, allowed: Sequence[str]) -> None:
    """Check that a mode in the value `text` of a flag is one of `allowed`.

    Raises:
        InputError: It is not.
    """
    if mode not in allowed:
        hint = mode_hint(mode) or did_you_mean(mode, allowed)
        raise InputError(
            f"{flag}: received {text!r}; {mode!r} is not a precision.{hint} Choose from "
            f"{', '.join(allowed)}."
        )


def baseline_first(modes: Sequence[str]) -> tuple[str, ...]:
    """Return the baseline and then the other modes."""
    return (BASELINE, *(mode for mode in modes if mode != BASELINE))
