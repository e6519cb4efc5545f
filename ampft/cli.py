"""The command `ampft`: `train`, `predict`, `report`, `audit`, `compare`, `yardstick`, `env`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ampft.arguments.compare import RAY, is_comparison_to_run
from ampft.arguments.completion import print_completions
from ampft.arguments.flags import ArgumentParser
from ampft.arguments.predict import add_predict_command, check_model_and_inputs
from ampft.errors import InputError
from ampft.laboratory import laboratory
from ampft.precision.modes import BASELINE
from ampft.text.escaping import inert_lines
from ampft.text.terminal import discard_output, run_main

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    print_completions(_parser)
    try:
        return run_main(lambda: _run(list(sys.argv[1:] if argv is None else argv)))
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        discard_output()
        return 0


# Module and help of the commands that parse their own arguments: argparse would consume a ` -- `.
_WITH_OWN_PARSERS = {
    "yardstick": (
        "ampft.lab.yardstick.yardstick",
        "measure the gradient error of each precision relative to batch noise",
    ),
    "doctor": (
        "ampft.lab.doctor.doctor",
        "find what breaks a precision for a model and its data, and a cure",
    ),
    "export": (
        "ampft.lab.certificate.verified_export",
        "write the model of a run for onnxruntime, OpenVINO or PyTorch",
    ),
    "estimate": (
        "ampft.comparison.execution.duration",
        "time a few steps, and say how long a training will take, and what it needs",
    ),
    "errors": (
        "ampft.lab.mistakes.errors",
        "show the most confident errors of a run, and the classes that it confuses",
    ),
    "ops": (
        "ampft.lab.operations.ops",
        "show which operations autocast casts to which dtype, also for a model",
    ),
    "judge": (
        "ampft.lab.referee.judge_command",
        "keep or drop each of many changes tried on one test set, with the error held over all of "
        "them",
    ),
    "curve": (
        "ampft.lab.curve.curve",
        "train on parts of the labels, and say what twice the labels would add to the score",
    ),
    "resume-check": (
        "ampft.lab.resume_check",
        "prove that a training continues exactly after being killed",
    ),
    "audit": (
        "ampft.lab.audit.targets",
        "repeat a run from its record, or verify a ledger, and confirm or refute what it states",
    ),
}


def _run(argv: Sequence[str]) -> None:
    if argv and argv[0] in _WITH_OWN_PARSERS:
        name, _ = _WITH_OWN_PARSERS[argv[0]]
        if argv[0] == "audit":
            name = _audit_of(argv[1:], name)
        module, _, function = name.partition(":")
        getattr(_command_module(module, argv[0]), function or "main")(argv[1:])
        return
    if argv[:1] == ["train"]:
        _train(argv[1:])
        return
    if argv[:1] == ["compare"] and is_comparison_to_run(argv[1:]):
        _run_comparison(argv[1:])
        return
    args = _parser().parse_args(argv)
    commands = {
        "env": _env,
        "predict": _predict,
        "report": _report,
        "compare": _compare,
        "checkpoint": _checkpoint,
        "push": _push,
        "recipe": _recipe,
    }
    commands[args.command](args)


def _command_module(name: str, command: str) -> ModuleType:
    """Import the module of a command, which may be in the laboratory."""
    inner = name.removeprefix("ampft.lab.")
    return import_module(name) if inner == name else laboratory(inner, f"ampft {command}")


# Flags after which a word is not their value.
_AUDIT_SWITCHES = ("--use_cpu", "--trust_remote_code", "--no_measure", "--json")


def _audit_of(argv: Sequence[str], of_runs: str) -> str:
    """Return the module that audits what the arguments name: a ledger, an artifact or a run."""
    marks = {
        "entry-000001.json": "ampft.lab.referee.audit",
        "artifact.json": "ampft.lab.certificate.verified_export:audit",
        "run.json": of_runs,
    }
    words = [
        word
        for before, word in pairwise(["", *argv])
        if word[:1] != "-" and (before[:1] != "-" or before in _AUDIT_SWITCHES)
    ]
    files = [(Path(word) / name, module) for name, module in marks.items() for word in words]
    found = [module for file, module in files if file.is_file()]
    if words and not found and not {"-h", "--help"}.intersection(argv):
        raise InputError(
            f"audit {words[0]}: there is no run (run.json), ledger (entry-000001.json) or artifact "
            "(artifact.json). Pass the folder of one."
        )
    return [*found, of_runs][0]


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft",
        description="Fine-tune classifiers in mixed precision, predict with them and compare them.",
    )
    parser.add_argument("--version", action="version", version=f"ampft {version('ampft')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "train", help="fine-tune a classifier; ampft train --help lists all settings"
    )
    env = commands.add_parser(
        "env",
        help="show hardware and versions, and how each precision would run on this machine",
    )
    env.add_argument("--json", action="store_true", help="print JSON")
    env.add_argument(
        "--no_measure",
        action="store_true",
        help="skip the measurement of matrix product rates, which takes a few seconds",
    )
    add_predict_command(commands)
    for name, (_, summary) in _WITH_OWN_PARSERS.items():
        commands.add_parser(name, help=summary)
    report = commands.add_parser("report", help="print the report of a run or a comparison")
    report.add_argument("run", metavar="RUN", help="output folder of a run or of a comparison")
    report.add_argument(
        "--output_file", metavar="FILE", help="also write the page of a comparison (HTML)"
    )
    _add_compare(commands)
    recipe = commands.add_parser(
        "recipe", help="print a recipe, a training script to copy and change, or list all of them"
    )
    recipe.add_argument(
        "name", metavar="NAME", nargs="?", help="such as classify (default: list the names)"
    )
    push = commands.add_parser(
        "push", help="push the model of a run, its card and its report to the Hugging Face hub"
    )
    push.add_argument("run", metavar="RUN", help="output folder of a run")
    push.add_argument(
        "--hub_model_id",
        metavar="USER/NAME",
        help="name on the hub (default: that of the folder, under your user name)",
    )
    push.add_argument("--private", action="store_true", help="make a new repository private")
    checkpoint = commands.add_parser("checkpoint", help="list or verify the checkpoints of a run")
    checkpoint.add_argument(
        "action",
        metavar="list|verify",
        choices=("list", "verify"),
        help="list them by their manifests, or check the SHA-256 of every file",
    )
    checkpoint.add_argument("path", metavar="PATH", help="output folder of a run, or a checkpoint")
    return parser


def _add_compare(commands: argparse._SubParsersAction[ArgumentParser]) -> None:
    compare = commands.add_parser(
        "compare",
        help="train in several precisions and compare them, or compare runs that differ in "
        "precision or in other settings",
        epilog="To train and compare: ampft compare --modes fp32,bf16 -- --train_file FILE. "
        "Its settings: ampft compare --modes fp32,bf16 --help",
    )
    compare.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="output folders of runs or of a comparison; all arms need runs with the same seeds: "
        "at least 3, or one run each, which compares these models only",
    )
    compare.add_argument(
        "--predictions",
        metavar="FILE",
        nargs="+",
        help="instead of runs, tables of predictions from any framework (CSV, TSV, JSON, JSON "
        "Lines or Parquet) with the columns id, label, and prediction, probabilities (an object "
        "by class) or one probability_CLASS per class; text and group are optional. Arm and seed "
        "come from columns arm and seed, from names like ARM-seed1.csv, or from ARM:SEED=FILE; "
        "with ARM=FILE, each arm is one model",
    )
    compare.add_argument(
        "--inference",
        metavar="MODES",
        help="let the trained models of RUN predict their test split in several of fp32, tf32, "
        "bf16, fp16, bf16-true, int8, or batch sizes (fp32@1,fp32@32), and compare predictions, "
        "latency and size; with one run, the verdict holds for that model only",
    )
    compare.add_argument(
        "--label_names",
        metavar="a,b",
        help="with --predictions, all classes (default: those that occur as labels or have "
        "probabilities)",
    )
    compare.add_argument(
        "--metric",
        metavar="NAME",
        help="metric to compare, such as accuracy, macro_f1 or log_loss (default: the task's "
        "primary metric, or that of the comparison's plan)",
    )
    compare.add_argument(
        "--margin",
        type=float,
        metavar="POINTS",
        help="equivalence margin: the largest difference that does not matter, in points (default: "
        "1, or that of the comparison's plan)",
    )
    compare.add_argument(
        "--baseline",
        metavar="NAME",
        help="arm that all others are compared with (default: fp32 if the arms are precisions, "
        "otherwise the arm of the first RUN; with --predictions, the first arm; with --inference, "
        "always fp32)",
    )
    compare.add_argument(
        "--by",
        metavar="a[,b]",
        help="settings that distinguish the arms, such as learning_rate (default: the precision if "
        "the runs have several, otherwise all settings in which they differ)",
    )
    compare.add_argument(
        "--output_dir",
        metavar="DIR",
        help="folder for comparison.html, comparison.md and comparison.json (default: print only)",
    )


def _train(argv: Sequence[str]) -> None:
    from ampft.arguments import parse_classify_arguments

    arguments = parse_classify_arguments(argv, program="ampft train")
    from ampft.runs.start import check_start

    check_start(arguments)
    from ampft.runs.show import next_step_line
    from ampft.runs.train import train

    run = train(arguments)
    if run.folder is not None:
        print(inert_lines(next_step_line(run.folder.path)))


def _run_comparison(argv: Sequence[str]) -> None:
    from ampft.arguments import parse_compare_arguments, parse_compare_arms_arguments

    has_arms = any(argument.split("=")[0] == "--arm" for argument in argv)
    parse = parse_compare_arms_arguments if has_arms else parse_compare_arguments
    command = parse(argv, program="ampft compare", trainer="ampft train")
    from ampft.comparison.execution.train_and_compare import compare
    from ampft.comparison.report.files import next_step_line

    session = compare(command)
    print(inert_lines(next_step_line(session.folder.path)))


def _env(args: argparse.Namespace) -> None:
    from ampft.runs.environment import collect_environment, format_environment

    environment = collect_environment(measure=not args.no_measure)
    print(
        json.dumps(environment, indent=2)
        if args.json
        else inert_lines(format_environment(environment))
    )


def _predict(args: argparse.Namespace) -> None:
    check_model_and_inputs(args)
    from ampft.kinds.prediction import PredictRequest

    others = ("command", "model", "text", "output_dir", "engine")
    settings = {name: value for name, value in vars(args).items() if name not in others}
    request = PredictRequest(texts=args.text, **settings)
    from ampft.runs.predict import predict_file, run_classifier

    classifier = run_classifier
    if (Path(args.model) / "artifact.json").is_file():
        artifact = laboratory("export.artifact", f"--model {args.model}")
        classifier = artifact.artifact_classifier
    if args.output_dir is None:
        predict_file(args.model, request, classifier)
        return
    from ampft.comparison.execution.launch import interruptible
    from ampft.runs.predict_shards import ShardJob, predict_folder, predict_here

    predict = predict_here
    if args.engine == RAY:
        predict = laboratory("cluster.shard_pool", f"--engine {RAY}").predict_on_cluster
    job = ShardJob(args.model, classifier, request)
    with interruptible(lambda: "what was written is complete. Repeat the command to continue."):
        predict_folder(job, Path(args.output_dir), predict)


def _checkpoint(args: argparse.Namespace) -> None:
    from ampft.runs.resume import list_checkpoints, verify_checkpoints

    show = list_checkpoints if args.action == "list" else verify_checkpoints
    print(inert_lines(show(Path(args.path))))


def _recipe(args: argparse.Namespace) -> None:
    package = Path(__file__).parent  # a wheel has the recipes in the package, a clone beside it
    root = next(path for path in (package / "recipes", package.parent / "recipes") if path.is_dir())
    files = {path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.py")}
    if args.name is None:
        for name in sorted(files, key=lambda name: ("/" in name, name)):
            print(f"{name:40} {files[name].read_text(encoding='utf-8')[3:].splitlines()[0]}")
        return
    if args.name not in files:
        raise InputError(
            f"recipe {args.name}: this recipe does not exist. Choose one of "
            f"{', '.join(sorted(files))}."
        )
    print(files[args.name].read_text(encoding="utf-8"), end="")


def _push(args: argparse.Namespace) -> None:
    from ampft.comparison.report.files import comparison_section
    from ampft.runs.publishing import push_run
    from ampft.text.terminal import labelled, quiet_libraries

    quiet_libraries()
    url = push_run(
        args.run,
        hub_model_id=args.hub_model_id,
        private=args.private,
        comparison=comparison_section(Path(args.run)),
    )
    print(labelled("pushed", url))


def _report(args: argparse.Namespace) -> None:
    from ampft.comparison.findings import COMPARISON_NAME

    folder = Path(args.run)
    if (folder / COMPARISON_NAME).is_file():
        from ampft.comparison.report.files import read_comparison, terminal_text, write_page

        comparison = read_comparison(folder)
        print(inert_lines(terminal_text(comparison)), end="")
        if args.output_file is not None:
            write_page(comparison, Path(args.output_file))
        return
    from ampft.comparison.execution.plan import PLAN_NAME
    from ampft.runs.show import format_run

    if (folder / "curve.json").is_file():
        asked = f"ampft report {folder}"
        findings = laboratory("curve.learning_curve", asked)
        curve = findings.read_curve(folder / findings.CURVE_NAME)
        print(inert_lines(laboratory("curve.curve_page", asked).curve_text(curve)))
        return
    if (folder / PLAN_NAME).is_file():
        _refuse_unfinished(folder)
    if args.output_file is not None and folder.is_dir():
        raise InputError(f"--output_file: {folder} is not a comparison. Remove the flag.")
    print(inert_lines(format_run(args.run)))


def _refuse_unfinished(folder: Path) -> None:
    """Say how far a comparison without results has come."""
    from ampft.comparison.execution.folder import run_folder, runs_without_result
    from ampft.comparison.execution.plan import read_plan

    plan = read_plan(folder)
    assert plan is not None, "its file exists"
    runs, missing = plan.all_runs(), runs_without_result(plan.all_runs(), folder)
    complete = [run_folder(folder, run) for run in runs if run not in missing]
    show = f" To see one of them: ampft report {complete[0]}" if complete else ""
    raise InputError(
        f"RUN {folder}: the comparison has not finished: {len(complete)} of {len(runs)} runs are "
        f"complete. Repeat its command with --output_dir {folder} to continue.{show}"
    )


def _compare(args: argparse.Namespace) -> None:
    from ampft.comparison.report.files import terminal_text, write_comparison

    if args.output_dir is not None:
        _refuse_results(Path(args.output_dir))
    kind = "--predictions" if args.predictions else "--inference" if args.inference else "RUN"
    for name, owner in (("by", "RUN"), ("label_names", "--predictions")):
        if getattr(args, name) is not None and kind != owner:
            raise InputError(f"--{name} has no effect with {kind}. Remove the flag.")
    if args.predictions:
        comparison = _compare_tables(args)
    elif args.inference:
        comparison = _compare_inference(args)
    else:
        comparison = _compare_runs(args, [Path(run) for run in args.runs])
    print(inert_lines(terminal_text(comparison)), end="")
    if args.output_dir is None:
        print("\nAdd --output_dir DIR to write comparison.html, comparison.md and comparison.json.")
        return
    write_comparison(comparison, Path(args.output_dir))
    print(f"\nwrote {args.output_dir}: comparison.html, comparison.md, comparison.json")


def _compare_tables(args: argparse.Namespace) -> Comparison:
    """Compare tables of predictions."""
    from ampft.comparison.analysis.foreign_predictions import compare_tables

    if args.runs or args.inference:
        raise InputError(
            f"--predictions and {'RUN' if args.runs else '--inference'}: a comparison reads either "
            "tables or runs. Pass only one kind."
        )
    names = args.label_names
    return compare_tables(
        args.predictions,
        metric=args.metric,
        margin=_margin(args),
        baseline=args.baseline,
        label_names=None if names is None else [name.strip() for name in names.split(",")],
    )


def _compare_inference(args: argparse.Namespace) -> Comparison:
    """Let trained models predict in several precisions, and compare."""
    inference = laboratory("inference.compare_inference", "--inference")
    modes = inference.parse_inference_modes(args.inference)
    if args.baseline not in (None, BASELINE):
        raise InputError(
            f"--baseline {args.baseline}: with --inference, the baseline is {BASELINE}. Remove the "
            "flag."
        )
    if not args.runs:
        raise InputError("--inference: RUN is missing. Give the folder of a finished run.")
    comparison: Comparison = inference.compare_inference(
        [Path(run) for run in args.runs], modes, metric=args.metric, margin=_margin(args)
    )
    return comparison


def _margin(args: argparse.Namespace) -> float:
    """Return the margin as a fraction."""
    return (1.0 if args.margin is None else float(args.margin)) / 100


def _compare_runs(args: argparse.Namespace, folders: list[Path]) -> Comparison:
    """Compare runs. A single folder with a plan is compared as planned."""
    if not folders:
        raise InputError(
            "compare: RUN is missing. Pass folders of runs, or tables with --predictions FILE."
        )
    from ampft.comparison.execution.plan import read_plan

    plan = read_plan(folders[0]) if len(folders) == 1 else None
    if plan is not None:
        from ampft.comparison.execution.folder import compare_planned_runs

        if args.by is not None:
            raise InputError(
                f"--by {args.by}: {folders[0]} holds a plan, which names the arms. Remove the flag."
            )
        requested = {"metric": args.metric, "margin": args.margin, "baseline": args.baseline}
        return compare_planned_runs(folders[0], plan, **requested)
    from ampft.comparison.analysis.compare_folders import compare_folders

    return compare_folders(
        folders,
        metric=args.metric,
        margin=_margin(args),
        baseline=args.baseline,
        by=[name.strip() for name in (args.by or "").split(",") if name.strip()],
    )


def _refuse_results(folder: Path) -> None:
    """Reject a folder that holds a run or a comparison, whose records would be overwritten."""
    from ampft.comparison.execution.plan import PLAN_NAME
    from ampft.comparison.report.files import RESULT_NAMES
    from ampft.ownership import check_replaceable
    from ampft.runs.manifest import RECORD_NAME

    for name, owner in ((PLAN_NAME, "a comparison"), (RECORD_NAME, "a run")):
        if (folder / name).exists():
            raise InputError(
                f"--output_dir {folder}: the folder holds {name}, the record of {owner}, whose "
                "results must not be overwritten. Choose another folder."
            )
    check_replaceable("--output_dir", folder, RESULT_NAMES)


if __name__ == "__main__":
    sys.exit(main())
