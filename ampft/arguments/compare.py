"""The settings of `recipes/compare_precision.py`, and behind `--` those of classify.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ampft.arguments.classify import LARGEST_SEED, ClassifyArguments, parse_classify_arguments
from ampft.arguments.flags import flag, parse_flags
from ampft.errors import InputError, nearest
from ampft.precision.modes import BASELINE, MODES
from ampft.tasks import TASKS

WHAT, HOW, OUTPUT = "what is compared", "time and processes", "output"

LEAST_SEEDS = 3
PROGRAM = "compare_precision.py"

# What the comparison itself sets for each run, and where to say it instead.
OWN = {
    "mixed_precision": "name the precisions before it: --modes fp32,bf16",
    "output_dir": "name the folder of the comparison before it: --output_dir DIR",
    "overwrite_output_dir": "runs that finished are kept, and unfinished ones begin again; for all "
    "runs anew, name another --output_dir",
    "perturb_initial_weights": "the placebo arm does it, unless --no_placebo is given",
}

_DURATION = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)min)?(?:([0-9]+)s)?")


@dataclass(frozen=True)
class CompareArguments:
    """Every setting of a comparison. See `--help` for what each means."""

    modes: str | None = flag(
        None,
        f"precisions, comma separated, of {', '.join(MODES)}; none: fp32,bf16,fp16 as far as this "
        "machine has them",
        group=WHAT,
    )
    seeds: str = flag(
        "5",
        "number of seeds, at least 3; 5,10: look after 5, and go on to 10 where that decides "
        "nothing",
        group=WHAT,
    )
    metric: str | None = flag(
        None, "the metric that decides; none: the task's primary one (accuracy)", group=WHAT
    )
    margin: float = flag(1.0, "differences within it count as none, in points", group=WHAT)
    no_placebo: bool = flag(
        False, "leave out the twin of fp32 that shows how much chance alone changes", group=WHAT
    )
    yardstick: bool = flag(
        False, "measure each mode's gradient error against the noise of a batch too", group=WHAT
    )
    budget: str | None = flag(
        None,
        "time for all runs, such as 90s, 15min or 1h30min: trains less to keep it, never on fewer "
        "seeds",
        group=HOW,
    )
    config_file: str | None = flag(
        None, "configuration of accelerate launch for every run", group=HOW
    )
    output_dir: str | None = flag(
        None, "folder of the comparison; none: one under comparisons/", group=OUTPUT
    )


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """A parsed command line.

    Attributes:
        modes: The baseline first; None for the default.
        looks: Numbers of seeds at which results are looked at; the last one is all.
        metric: The primary one.
        margin: A fraction (0.01 is one point).
        placebo: Whether the baseline gets a twin.
        yardstick: Whether the noise yardstick is measured.
        budget: Seconds; None for as long as it takes.
        config_file: Of Accelerate.
        output_dir: None for a folder of the default.
        words: Those behind `--`, for classify.py.
        classify: What they mean.
        notes: Sentences to print.
    """

    modes: tuple[str, ...] | None
    looks: tuple[int, ...]
    metric: str
    margin: float
    placebo: bool
    yardstick: bool
    budget: float | None
    config_file: str | None
    output_dir: Path | None
    words: tuple[str, ...]
    classify: ClassifyArguments
    notes: tuple[str, ...] = ()


def parse_compare_arguments(argv: Sequence[str] | None = None) -> CompareCommand:
    """Parse the command line of `recipes/compare_precision.py`.

    Args:
        argv: The words after the program's name; None takes `sys.argv`.

    Raises:
        InputError: A flag, of the comparison or of its runs, is unknown, has a wrong value, or
            contradicts another.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    place = given.index("--") if "--" in given else len(given)
    own, words = given[:place], given[place + 1 :]
    _refuse_misplaced(own)
    settings, _ = parse_flags(
        CompareArguments,
        own,
        program=PROGRAM,
        description="Compare precisions by several seeds of each, one process per run, with "
        "statistics and a report. After ` -- ` come the settings of classify.py that all runs "
        "share.",
        more="[-- settings of classify.py]",
    )
    classify = parse_classify_arguments(words)
    _refuse_own(classify)
    looks = _looks(settings.seeds)
    if classify.seed + looks[-1] - 1 > LARGEST_SEED:
        raise InputError(
            f"--seed {classify.seed}: {looks[-1]} seeds from there on pass {LARGEST_SEED}. "
            "Begin lower."
        )
    if not 0 < settings.margin < 100:
        raise InputError(
            f"--margin: received {settings.margin}; it must be above 0 and below 100 points."
        )
    if settings.config_file is not None and not Path(settings.config_file).is_file():
        raise InputError(f"--config_file {settings.config_file}: there is no such file.")
    modes, notes = _modes(settings.modes)
    return CompareCommand(
        modes=modes,
        looks=looks,
        metric=_metric(settings.metric, classify.task),
        margin=settings.margin / 100,
        placebo=not settings.no_placebo,
        yardstick=settings.yardstick,
        budget=None if settings.budget is None else _seconds(settings.budget),
        config_file=settings.config_file,
        output_dir=None if settings.output_dir is None else Path(settings.output_dir),
        words=tuple(words),
        classify=classify,
        notes=notes,
    )


def _metric(name: str | None, task: str | None) -> str:
    """Return the metric that decides: the one named, or the primary one of the task."""
    problem = TASKS[task or next(iter(TASKS))].problem_type()
    if name is None:
        return next(iter(problem.metrics))
    if name not in problem.metrics:
        raise InputError(
            f"--metric: received {name!r}.{nearest(name, problem.metrics)} Choose from "
            f"{', '.join(problem.metrics)}."
        )
    return name


def _refuse_misplaced(own: Sequence[str]) -> None:
    """Refuse settings of classify.py before the `--` that they belong behind."""
    ours = {f.name for f in fields(CompareArguments)}
    theirs = {f.name for f in fields(ClassifyArguments)} - ours
    for word in own:
        name = word.removeprefix("--").removeprefix("no-").split("=")[0]
        if word.startswith("--") and name in theirs:
            cure = OWN.get(name, f"write it behind: {PROGRAM} ... -- {word} ...")
            raise InputError(f"--{name}: is a setting of classify.py; {cure}.")


def _refuse_own(classify: ClassifyArguments) -> None:
    """Refuse what the comparison sets for each run, given by a flag or in a `--config` file."""
    for name, cure in OWN.items():
        value = getattr(classify, name, None)
        if value not in (None, False):
            shown = "" if value is True else f" {value}"
            raise InputError(f"--{name}{shown}, behind ` -- `: {cure}.")


def _looks(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    looks = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    if len(looks) != len(parts) or list(looks) != sorted(set(looks)):
        raise InputError(
            f"--seeds: received {text!r}; write a number such as 5, or rising numbers of planned "
            "looks such as 5,10."
        )
    if looks[0] < LEAST_SEEDS:
        raise InputError(
            f"--seeds: received {text!r}; it has to be {LEAST_SEEDS} or more: fewer cannot tell a "
            "precision from chance. 3 is a screening, 5 the default."
        )
    return looks


def _modes(text: str | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the modes, the baseline first, and what was added to them."""
    if text is None:
        return None, ()
    wanted = [part.strip().lower() for part in text.split(",")]
    wanted = [BASELINE if mode == "no" else mode for mode in wanted]
    for mode in wanted:
        if mode not in MODES:
            raise InputError(
                f"--modes: received {text!r}; {mode!r} is no precision.{nearest(mode, MODES)} "
                f"Choose from {', '.join(MODES)}."
            )
        if wanted.count(mode) > 1:
            raise InputError(f"--modes: received {text!r}; {mode} stands there twice.")
    others = tuple(mode for mode in wanted if mode != BASELINE)
    if not others:
        raise InputError(
            f"--modes: received {text!r}; name a precision to compare with {BASELINE}, such as "
            "--modes fp32,bf16."
        )
    notes = () if BASELINE in wanted else (f"{BASELINE} was added: it is what others differ from.",)
    return (BASELINE, *others), notes


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if total == 0:
        raise InputError(
            f"--budget: received {text!r}; write hours, minutes or seconds with their unit, such "
            "as 2h, 15min, 90s or 1h30min."
        )
    return float(total)
