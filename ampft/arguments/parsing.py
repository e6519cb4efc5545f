"""The settings of a run, from a command line or from keyword arguments, checked for conflicts."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampft.arguments.classify import ADAFACTOR, BUILT_IN_DEFAULTS, ClassifyArguments
from ampft.arguments.extension_points import FLAGS_OF_TRANSFORMERS, OwnFlags
from ampft.arguments.flags import check_combinations, flag_problem, flag_switches, parse_flags
from ampft.arguments.help_text import HELP, Help
from ampft.arguments.suggestions import meant_flag
from ampft.data.request import CONFIGURATIONS, OF_OWN_DATA
from ampft.errors import InputError, Preempted, TrainingStopped, did_you_mean
from ampft.tasks.table import TASKS, problem_types, task_of_folder
from ampft.tasks.task_settings import check_decision_flags, check_read_settings
from ampft.text.escaping import without_credentials
from ampft.text.terminal import labelled, print_once, quiet_optional_packages

OF_IMAGES_AND_SOUNDS = (
    *("ignore_index", "augment", "image_size", "multi_scale", "channels_last"),
    "max_length_seconds",
)
FILES = ("train_file", "validation_file", "test_file")
HUB_NAMES = ("dataset_name", "model_name_or_path")
HUB_ADDRESS = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?:datasets/)?"
    r"(?P<name>[\w.-]+(?:/(?!tree/|blob/|resolve/)[\w.-]+)?)"
)
CURL = ("http://", "https://", "ftp://")  # addresses that curl reads
PATHS = (*FILES, "dataset_name", "model_name_or_path", "processor_name", "output_dir")
TRAINING_HELP = Help(
    "Fine-tune a Hugging Face classifier in the precision you request, and report the result and "
    "the precision that was measured.",
    first=(
        *("train_file", "test_file", "dataset_name", "task", "model_name_or_path"),
        *("mixed_precision", "output_dir", "per_device_train_batch_size", "num_train_epochs"),
        *("learning_rate", "max_seq_length", "max_train_samples", "seed", "use_cpu"),
    ),
)


def parse_classify_arguments(
    argv: Sequence[str] | None = None, *, program: str = "classify.py", in_memory: bool = False
) -> ClassifyArguments:
    """Parse the command line of `recipes/classify.py` or of `ampft train`.

    Args:
        argv: Command line arguments; `sys.argv[1:]` if None.
        in_memory: Whether the data are in memory, so that no source is named.

    Raises:
        InputError: A flag is unknown, has an invalid value, or conflicts with another.
    """
    words = translated(sys.argv[1:] if argv is None else argv, program, in_memory=in_memory)
    return parse_own_arguments(words, program=program, in_memory=in_memory)


def parse_own_arguments(
    words: Sequence[str], *, program: str = "classify.py", in_memory: bool = False
) -> ClassifyArguments:
    """Parse ampft's own flags, such as those of a record, without translating other scripts'."""
    arguments, given = parse_flags(
        ClassifyArguments, words, program=program, shown=TRAINING_HELP, combines=False
    )
    return complete_arguments(arguments, given, in_memory=in_memory)


def translated(
    words: Sequence[str],
    program: str,
    start: Sequence[str] = (),
    check: Callable[[ClassifyArguments], None] | None = None,
    *,
    in_memory: bool = False,
) -> list[str]:
    """Return a command line with the flags of transformers' scripts converted to ampft's.

    A line says what was converted, and another what has no effect.

    Args:
        words: Command line arguments, or a JSON file of them.
        start: Words before them in a corrected command, if it is not `program`.
        check: What the command also checks of its settings; None for nothing.
        in_memory: Whether the data are in memory, so that no source is named.

    Raises:
        InputError: Some flags cannot be converted.
    """
    others = FLAGS_OF_TRANSFORMERS.get()
    if others is None or {*HELP, "--"}.intersection(words):
        return list(words)
    if len(words) == 1 and words[0].endswith(".json") and not words[0].startswith("-"):
        words = others.arguments_of_json(words[0])
    switches = flag_switches(ClassifyArguments)

    def conflict(given: Sequence[str]) -> str | None:
        try:
            arguments = parse_classify_arguments(given, program=program, in_memory=in_memory)
            if check is not None:
                check(arguments)
        except InputError as error:
            return str(error)
        return None

    own = OwnFlags(
        switches,
        lambda given: flag_problem(ClassifyArguments, given, program),
        conflict,
        lambda name: meant_flag(name, switches),
    )
    command = None if program.startswith("ampft.") else start or program.split()
    translation = others.translate(words, own, command=command)
    print_once(translation.lines)
    return translation.words


def complete_arguments(
    arguments: ClassifyArguments, given: Collection[str], *, in_memory: bool = False
) -> ClassifyArguments:
    """Return settings with the defaults for their data, after checking them for conflicts.

    Args:
        arguments: Settings from a command line.
        given: Names of those that the user set.
        in_memory: Whether the data are in memory, so that no source is named.

    Raises:
        InputError: A setting conflicts with another.
    """
    if arguments.evaluated:
        arguments = _with_rows_for_chance(arguments, given)
    of_model = arguments.settings_of_model(given)
    name, task = arguments.dataset_name, of_model.get("task", arguments.task)
    if name is None and arguments.train_file is None and not in_memory:
        about = [f"--{flag}" for flag in (*OF_OWN_DATA, *OF_IMAGES_AND_SOUNDS) if flag in given]
        if arguments.dataset_config_name not in (None, *CONFIGURATIONS):
            about = [f"--dataset_config_name {arguments.dataset_config_name}"]
        if task is not None and not TASKS[task].kind.has_default_data:
            about = [f"--task {task}"]
        if arguments.evaluated:
            about = [f"--evaluate_only {arguments.evaluate_only}"]
        if about:
            raise InputError(
                f"{about[0]}: the data are missing. Give them with --dataset_name or --train_file."
            )
        name = "stdlib"
    if task is None and name is not None and Path(name).is_dir():
        task = task_of_folder(Path(name))
    of_kind = {} if task is None else TASKS[task].kind.defaults
    defaults = {**BUILT_IN_DEFAULTS.get(name or "", {}), **of_kind}
    defaults = {k: v for k, v in defaults.items() if k not in given}
    # They need another rate than AdamW for the whole model.
    if arguments.trains_head_or_adapters or arguments.optim == ADAFACTOR:
        defaults.pop("learning_rate", None)
    arguments = dataclasses.replace(arguments, dataset_name=name, **defaults)
    if arguments.evaluated:
        arguments, unused = arguments.without_training(given)
        arguments = dataclasses.replace(arguments, **of_model)
        if unused:
            flags = ", ".join(f"--{flag}" for flag in unused)
            print_once([labelled("unused", f"{flags}: nothing is trained")])
    problems = [*dict.fromkeys(_conflicts(arguments, given))]
    if problems:
        raise InputError("\n".join(problems))
    return arguments


def _with_rows_for_chance(
    arguments: ClassifyArguments, given: Collection[str]
) -> ClassifyArguments:
    """Return settings of a run without training, whose rows for chance are those evaluated.

    Rows are held out only if the user asks for it.
    """
    if "validation_fraction" not in given:
        arguments = dataclasses.replace(arguments, validation_fraction=0.0)
    if arguments.train_file is not None:
        return arguments
    files = {"validation": arguments.validation_file, "test": arguments.test_file}
    named = [files[split] for split in (*arguments.evaluated, *files) if files[split]]
    return dataclasses.replace(arguments, train_file=named[0]) if named else arguments


def _conflicts(arguments: ClassifyArguments, given: Collection[str]) -> Iterator[str]:
    """Yield what conflicts in the settings, before anything is loaded."""
    yield from _message(check_combinations, arguments, given)
    yield from _message(check_read_settings, arguments, arguments.task)
    yield from _message(check_decision_flags, arguments, arguments.task)
    if arguments.weighted_metrics and arguments.fitted_flags:
        yield (
            f"--weighted_metrics and {arguments.fitted_flags[0]}: temperatures, thresholds and "
            "promises count rows, not weights. Remove one of the flags."
        )
    yield from arguments.optimizer_conflicts()
    defaults = BUILT_IN_DEFAULTS.get(arguments.dataset_name or "", {})
    default_ratio = defaults.get("warmup_ratio", ClassifyArguments.warmup_ratio)
    yield from _message(arguments.check_schedule, default_ratio)
    yield from _path_conflicts(arguments)
    yield from _output_conflicts(arguments)
    yield from _evaluation_conflicts(arguments)
    yield from _message(_check_metric, arguments.metric_for_best_model)


def _message(check: Callable[..., object], *values: Any) -> Iterator[str]:
    """Yield the message of a check that fails."""
    try:
        check(*values)
    except InputError as error:
        yield str(error)


def _check_metric(name: str | None) -> None:
    """Reject a metric that no task has. The run checks later that its own task has it."""
    if name is None:
        return
    from ampft.metrics.ranking import F1, RANKING  # imports NumPy

    known = [metric for problem in problem_types().values() for metric in problem.metrics]
    known += RANKING
    if name not in (F1, *known):
        words = {*name.split("_")} - {"score"}  # scikit-learn has f1_score and f1_macro
        same = next((other for other in (F1, *known) if {*other.split("_")} == words), name)
        hint = did_you_mean(same, (F1, *known)) if len(same) > 1 else ""
        raise InputError(
            f"--metric_for_best_model: received {name!r}.{hint} "
            f"Allowed values: {', '.join(dict.fromkeys(known))}."
        )


def _path_conflicts(arguments: ClassifyArguments) -> Iterator[str]:
    """Yield which paths no shell has expanded, and which files are addresses."""
    for name in PATHS:
        value = getattr(arguments, name)
        if value is not None and Path(value).parts[:1] == ("~",):
            whole = Path(value).expanduser()
            yield (
                f"--{name} {value}: ~ stands for the home folder only in a shell, without quotes "
                f"and after a space. Write the whole path: --{name} {whole}"
            )
        elif name in FILES and value is not None and "://" in str(value):
            address = without_credentials(str(value))
            how = f", such as with `curl -LO {shlex.quote(address)}`,"
            yield (
                f"--{name} {address}: this is the address of a file, and only local files are "
                f"read. Download it{how if address.startswith(CURL) else ''} and pass the file."
            )
        elif name in HUB_NAMES and (page := HUB_ADDRESS.match(str(value))):
            yield (
                f"--{name} {value}: this is the address of a page of the hub. Pass the name "
                f"in it: --{name} {page['name']}"
            )


def _output_conflicts(arguments: ClassifyArguments) -> Iterator[str]:
    """Yield what is wrong with the folder of the results, and with checkpoints."""
    if arguments.resume_from_checkpoint is not None and arguments.output_dir is None:
        yield (
            f"--resume_from_checkpoint {arguments.resume_from_checkpoint}: --output_dir is "
            "missing. Choose a folder, the same in the first start and in each continuation."
        )


def _evaluation_conflicts(arguments: ClassifyArguments) -> Iterator[str]:
    """Yield what is wrong with the settings of a run that only evaluates."""
    if not arguments.evaluated:
        return
    asked = f"--evaluate_only {arguments.evaluate_only}"
    model, output = arguments.model_name_or_path, arguments.output_dir
    if model is None:
        yield (
            f"{asked}: the model to evaluate is missing. Give it with --model_name_or_path, or "
            "train one with --do_train."
        )
    elif output and Path(model).exists() and _is_inside(Path(model), Path(output)):
        yield (
            f"{asked}: the results would replace the model, which is in --output_dir {output}. "
            "Choose another --output_dir."
        )
    if arguments.resume_from_checkpoint is not None:
        yield (
            f"{asked} and --resume_from_checkpoint {arguments.resume_from_checkpoint}: there is no "
            "training to continue. Remove the flag, or add --do_train."
        )


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


_HELP = re.compile(r"See \S+( \S+)? --help\.")
_FLAG = re.compile(r"(?<![\w-])--(no-)?([a-z]\w*)")


def command_line_words(settings: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as words of a command line.

    Args:
        settings: Values by name of the flag. None leaves a flag out; a list of names stands for the
            names separated by commas.
    """
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            if value:
                words.append(f"--{name}")
            elif not name.startswith("no_"):  # a switch such as no_placebo can only be set
                words.append(f"--no-{name}")
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"--{name}={text}")
    return words


@contextlib.contextmanager
def messages_for_python() -> Iterator[None]:
    """Raise errors of a command without its traceback; their messages name keyword arguments."""
    quiet_optional_packages()
    try:
        yield
    except (InputError, TrainingStopped, Preempted) as error:
        error.args = (with_keyword_names(str(error)), *error.args[1:])
        raise error.with_traceback(None) from None


def with_keyword_names(message: str) -> str:
    """Return a message with keyword arguments in place of flags."""
    message = _HELP.sub("`ampft train --help` lists all settings.", message)
    parts = re.split(r"(`[^`]*`)", message)  # commands in backquotes stay commands
    parts[::2] = [
        _FLAG.sub(lambda flag: flag[2] + ("=False" if flag[1] else ""), part) for part in parts[::2]
    ]
    return "".join(parts)
