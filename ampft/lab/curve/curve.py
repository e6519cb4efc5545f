"""`ampft curve -- FLAGS`: train on nested subsets, and say what twice the labels would add."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.help_text import Help
from ampft.comparison.settings import (
    COMPARISON,
    EXECUTION,
    KEPT_MODELS,
    SET_BY_COMPARISON,
    ArmSettings,
    CompareCommand,
    ComparisonFlags,
    comparison_command,
    parse_seeds,
)
from ampft.errors import InputError
from ampft.flag import OUTPUT, flag
from ampft.precision.modes import BASELINE, canonical_mode
from ampft.runs.redaction import redact_command
from ampft.text.terminal import print_line

if TYPE_CHECKING:
    from ampft.comparison.execution.plan import Plan, TrialResult
    from ampft.lab.curve.learning_curve import LearningCurve

HALVINGS = 5  # of the labels, by default
FEWEST_LABELS = 16  # of the smallest subset, by default
PREFIX = "labels-"  # of an arm
_SIZE = "--sizes before ` -- ` sets it. Remove the flag"
SET_BY_CURVE = SET_BY_COMPARISON | {
    "folds": "all subsets of a curve are tested on the same rows. Remove the flag, and pass "
    "--test_file",
    "max_train_samples": _SIZE,
    "max_eval_samples": _SIZE,
    "data_seed": "a curve sets it by the seed. Remove the flag",
}


def parse_sizes(name: str, text: str) -> list[int]:
    """Return numbers of labels, ascending.

    Args:
        name: Name of the flag, for the message.

    Raises:
        InputError: It is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    counts = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if len(counts) != len(parts) or counts != sorted(set(counts)):
        raise InputError(
            f"--{name}: received {text!r}; use ascending numbers of labels, such as 100,200,400."
        )
    return counts


@dataclass(frozen=True)
class LearningCurveSettings:
    """The settings of a learning curve."""

    sizes: str | None = flag(
        None,
        "numbers of labels, ascending, such as 100,200,400,800; if none, all labels and up to "
        f"{HALVINGS} halvings",
        group=COMPARISON,
        metavar="a,b",
        check=parse_sizes,
    )
    seeds: str = flag(
        "5",
        "number of seeds, at least 3; each draws its own subsets",
        group=COMPARISON,
        metavar="N",
        check=parse_seeds,
    )
    metric: str | None = flag(
        None, "metric of the curve; if none, the task's primary metric (accuracy)", group=COMPARISON
    )
    jobs: int = flag(
        1,
        "number of runs that train at the same time, each on GPUs of its own, or on its share of "
        "the CPU cores",
        group=EXECUTION,
        at_least=1,
    )
    gpus_per_run: int = flag(1, "GPUs of each run, with --jobs", group=EXECUTION, at_least=1)
    config_file: str | None = flag(
        None, "configuration file that accelerate launch uses for every run", group=EXECUTION
    )
    keep_models: str = flag(
        "none",
        "whose weights stay in the folder: none, baseline (all labels), or all",
        group=OUTPUT,
        choices=KEPT_MODELS,
    )
    output_dir: str | None = flag(
        None, "folder for the curve; if none, one under comparisons/", group=OUTPUT
    )


def measure_curve(line: CommandLine[LearningCurveSettings]) -> None:
    """Train on nested subsets, write the curve and print it.

    Raises:
        InputError: A flag or the input of the runs is invalid, or too few runs finished.
    """
    settings, classify_argv, classify = line.flags, line.after, line.training
    check_curve(settings, classify)
    from ampft.comparison.execution.plan import read_plan
    from ampft.comparison.execution.planning import plan_comparison
    from ampft.comparison.execution.session import open_comparison

    existing = None if settings.output_dir is None else read_plan(Path(settings.output_dir))
    trial, share = None, 0.0
    if existing is not None:
        arms = existing.design.arm_settings
        _check_same_sizes(settings.sizes, arms)
    else:
        trial, share = _measured(settings, classify_argv, classify)
        arms = _arms(settings.sizes, trial, share, classify)
    command = _command(settings, classify_argv, classify, arms)

    def scaled(_: CompareCommand) -> dict[str, TrialResult]:
        assert trial is not None, "a new plan has measured it"
        return {arm.name: _scaled(trial, arm) for arm in arms}

    folder, plan = plan_comparison(command, scaled)
    with open_comparison(command, folder, plan) as session:
        session.train(session.missing())
        curve = _written(command, session.plan, folder)
        session.write_plan()
    from ampft.lab.curve.curve_page import curve_text

    print_line(curve_text(curve))
    print_line(f"wrote      {folder}: curve.html, curve.json, runs, logs")


def check_curve(settings: LearningCurveSettings, classify: ClassifyArguments) -> None:
    """Check what a curve needs of its settings and of those of its runs.

    Raises:
        InputError: There is an interim analysis, or the test rows may differ between subsets.
    """
    if len(parse_seeds("seeds", settings.seeds)) > 1:
        raise InputError(
            f"--seeds {settings.seeds}: a curve has no interim analyses. Use a number."
        )
    if classify.number_labels:
        raise InputError(
            f"--task {classify.task}: a learning curve draws rows by their classes, and labels are "
            "numbers. Use a task with classes."
        )
    if classify.test_file is None and classify.dataset_name is None:
        raise InputError(
            "--test_file: a learning curve needs test rows that are the same for all subsets, and "
            "rows split off from the training file differ from draw to draw. Pass a file after "
            "` -- `."
        )


def _measured(
    settings: LearningCurveSettings, classify_argv: Sequence[str], classify: ClassifyArguments
) -> tuple[TrialResult, float]:
    """Return a trial with all labels, and the share of them that are for validation."""
    from ampft.comparison.execution.planning import check_new_folder, run_trial
    from ampft.exit_codes import interruptible
    from ampft.runs.start import check_data_files

    check_data_files(classify)
    if settings.output_dir is not None:
        check_new_folder(Path(settings.output_dir))
    _command(settings, classify_argv, classify, ())  # refuses invalid settings before the trial
    print_line("trial      timing a few steps with all labels to plan the curve")
    with interruptible(lambda: "nothing has been written yet."):
        trial = run_trial(
            classify_argv,
            (canonical_mode(classify.mixed_precision or BASELINE),),
            settings.config_file,
        )
    if trial.compared["reported split"] != "test":
        raise InputError(
            "--test_file: the data have no test split, and rows that choose the epoch cannot also "
            "be the score of a curve. After ` -- `, pass files with --train_file and --test_file, "
            "or a --dataset_name with a test split."
        )
    estimate = replace(trial.estimate, evaluates_fp32=classify.evaluate_fp32)
    validation = estimate.validation_examples if classify.validation_file is None else 0
    train = estimate.size.train_examples
    return replace(trial, estimate=estimate), validation / (train + validation)


def _arms(
    sizes: str | None, trial: TrialResult, share: float, classify: ClassifyArguments
) -> tuple[ArmSettings, ...]:
    """Return an arm for each number of labels, the largest first."""
    estimate = trial.estimate
    every = round(estimate.size.train_examples / (1 - share))
    fewest = max(FEWEST_LABELS, 2 * estimate.classes)
    if sizes is None:
        counts = [every >> halving for halving in range(HALVINGS + 1)]
        counts = [count for count in counts if count >= fewest or count == every]
    else:
        counts = sorted(parse_sizes("sizes", sizes), reverse=True)
    least = estimate.classes
    if counts[0] > every or round(counts[-1] * (1 - share)) < least or len(counts) < 2:
        raise InputError(
            f"--sizes {sizes or 'not set'}: there are {every:,} labels of {least} classes. A curve "
            f"needs at least two sizes from {round(least / (1 - share))} to {every:,}."
        )
    arms = []
    for count in counts:
        train = round(count * (1 - share))
        flags = ["--max_train_samples", str(train)]
        if share:
            flags += ["--max_eval_samples", str(max(count - train, 1))]
        arms.append(
            ArmSettings(
                f"{PREFIX}{count}",
                tuple(flags),
                canonical_mode(classify.mixed_precision or BASELINE),
            )
        )
    return tuple(arms)


def label_counts_by_arm(arms: Sequence[ArmSettings]) -> dict[str, int]:
    """Return the number of labels by arm, ascending."""
    found = {arm.name: int(arm.name.removeprefix(PREFIX)) for arm in arms}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _check_same_sizes(sizes: str | None, arms: Sequence[ArmSettings]) -> None:
    if any(not arm.name.startswith(PREFIX) for arm in arms) or not arms:
        raise InputError(
            "--output_dir: the folder holds a comparison of other settings. Choose another folder."
        )
    planned = list(label_counts_by_arm(arms).values())
    if sizes is not None and parse_sizes("sizes", sizes) != planned:
        raise InputError(
            f"--sizes {sizes}: the folder holds a curve with the sizes "
            f"{','.join(map(str, planned))}. Remove the flag to continue it, or choose another "
            "--output_dir."
        )


def _command(
    settings: LearningCurveSettings,
    classify_argv: Sequence[str],
    classify: ClassifyArguments,
    arms: tuple[ArmSettings, ...],
) -> CompareCommand:
    shared = {
        f.name: getattr(settings, f.name)
        for f in fields(LearningCurveSettings)
        if f.name != "sizes"
    }
    flags = ComparisonFlags(**shared, no_placebo=True, anyway=True)
    command = comparison_command(flags, classify_argv, classify, arms=arms)
    return replace(command, design=replace(command.design, draws=True))


def _scaled(trial: TrialResult, arm: ArmSettings) -> TrialResult:
    """Return what the trial says about a subset: only its size differs."""
    limits: Mapping[str, int] = {
        name.removeprefix("--"): int(value)
        for name, value in zip(arm.flags[::2], arm.flags[1::2], strict=True)
    }
    estimate = trial.estimate
    size = replace(estimate.size, train_examples=limits["max_train_samples"])
    validation = min(limits.get("max_eval_samples", 10**9), estimate.validation_examples)
    return replace(trial, estimate=replace(estimate, size=size, validation_examples=validation))


def _written(command: CompareCommand, plan: Plan, folder: Path) -> LearningCurve:
    """Return the curve of the runs, after writing it."""
    from ampft.data.sources.file_names import data_stem
    from ampft.lab.curve.curve_page import write_curve
    from ampft.lab.curve.learning_curve import learning_curve

    arms = plan.design.arm_settings
    labels = label_counts_by_arm(arms)
    largest = plan.arm_estimates[arms[0].name]
    counted = any("--max_eval_samples" in arm.flags for arm in arms)
    curve = learning_curve(
        plan,
        folder,
        labels,
        name=data_stem(command.classify.dataset_name or command.classify.train_file or "data"),
        validation_share=largest.validation_examples / max(labels.values()) if counted else 0.0,
        settings=shlex.join(redact_command(["ampft", *command.classify_argv])[1:]),
    )
    write_curve(curve, folder)
    return curve


CURVE = Command(
    LearningCurveSettings,
    measure_curve,
    Help(
        "Train on nested subsets of the labels, each with several seeds, and draw the score "
        "against the number of labels. Says with an interval what twice the labels would add. A "
        "repeated command continues where it was interrupted.",
        usage="-- settings of ampft train",
    ),
    TrainingSettings(SET_BY_CURVE),
    reads_config=True,
)
