"""Compare ampft with the Trainer of transformers on one task: speed and scores.

Each run has its own process; the two systems take turns, so that drift of the machine affects both
alike. The speed is the mean time of a step without the first five: from the end of one step to that
of the next, so that waiting for data counts and validation does not. Runs that are already in the
results file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
WARMUP_STEPS = 5
SYSTEMS = ("ampft", "trainer")


@dataclass(frozen=True)
class Turn:
    """One training of one system."""

    mode: str  # "fp32" or "bf16".
    seed: int  # Seed of the head, the order of examples and dropout.
    steps: int | None  # Optimizer steps; None for all epochs.


def train_with_recipe(
    turn: Turn,
    settings: Mapping[str, Any],
    flags: Sequence[str],
    scores: Callable[[Path], dict[str, float]],
) -> dict[str, Any]:
    """Run the recipe once; the last weights are kept.

    Args:
        turn: Precision, seed and steps.
        settings: Settings of both systems, by the names of the recipe's flags.
        flags: Flags of the task and its data.
        scores: Function that returns the scores of the run in a folder.

    Returns:
        Step time, scores, peak memory and executed precision.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            *(sys.executable, str(ROOT / "recipes" / "classify.py"), *flags),
            *(f"--{name}={value}" for name, value in settings.items()),
            *(f"--mixed_precision={turn.mode}", f"--seed={turn.seed}", f"--output_dir={run}"),
            "--no-load_best_model_at_end",
            *([] if turn.steps is None else [f"--max_train_steps={turn.steps}"]),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        history = (run / "history.jsonl").read_text(encoding="utf-8").splitlines()
        seconds = [json.loads(line)["seconds"] for line in history]
        return {
            "step_seconds": float(np.mean(seconds[WARMUP_STEPS:])),
            **scores(run),
            "peak_memory_bytes": record["memory"]["peak"],
            "executed": record["precision"]["summary"],
        }


def train_with_trainer(
    turn: Turn,
    settings: Mapping[str, Any],
    splits: Mapping[str, Any],
    *,
    load_model: Callable[[], Any],
    collator: Any,
) -> tuple[dict[str, Any], Any]:
    """Train once with the Trainer, in this process, and predict the test split.

    Args:
        turn: Precision, seed and steps.
        settings: Settings of both systems, by the names of the recipe's flags.
        splits: Tokens and `labels` of "train" and "test".
        load_model: Function that loads the model in float32; called after seeding.
        collator: Pads a list of examples.

    Returns:
        Step time and peak memory, and the output of `Trainer.predict`.
    """
    import torch
    from transformers import Trainer, TrainingArguments, set_seed
    from workload import StepClock

    from ampft.machine import resident_peak

    set_seed(turn.seed)
    with tempfile.TemporaryDirectory() as folder:
        clock = StepClock()
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=settings["per_device_train_batch_size"],
            per_device_eval_batch_size=64,
            learning_rate=settings["learning_rate"],
            num_train_epochs=settings["num_train_epochs"],
            max_steps=-1 if turn.steps is None else turn.steps,
            warmup_steps=settings["warmup_ratio"],  # below 1 it is a share
            bf16=turn.mode == "bf16",
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            seed=turn.seed,
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = Trainer(
            model=load_model(),
            args=arguments,
            train_dataset=splits["train"],
            data_collator=collator,
            callbacks=[clock],
        )
        trainer.train()
        output = trainer.predict(splits["test"])
    step_seconds = float(np.mean(np.diff(clock.ends)[WARMUP_STEPS - 1 :]))
    return {"step_seconds": step_seconds, "peak_memory_bytes": resident_peak()}, output


def summary(rows: list[dict[str, Any]], metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the speed-up and the scores of both systems, per mode."""
    summaries = {}
    for mode in dict.fromkeys(row["mode"] for row in rows):
        by_system = {
            system: {r["seed"]: r for r in rows if (r["mode"], r["system"]) == (mode, system)}
            for system in SYSTEMS
        }
        seeds = sorted(set(by_system["ampft"]) & set(by_system["trainer"]))
        if not seeds:
            continue
        ratios = [
            by_system["trainer"][s]["step_seconds"] / by_system["ampft"][s]["step_seconds"]
            for s in seeds
        ]
        summaries[mode] = {
            "ampft_times_faster": statistics.median(ratios),
            "ampft_times_faster_range": [min(ratios), max(ratios)],
            **{
                f"{system}_{metric}": [by_system[system][s][metric] for s in seeds]
                for metric in metrics
                for system in SYSTEMS
            },
        }
    return summaries


def print_summary(
    summaries: Mapping[str, Mapping[str, Any]], metric_names: Mapping[str, str]
) -> None:
    """Print a line per mode."""
    for mode, row in summaries.items():
        low, high = row["ampft_times_faster_range"]
        scores = [
            f"{name}: "
            + ", ".join(
                f"{system} {statistics.fmean(row[f'{system}_{metric}']):.4f}"
                f" (sd {statistics.pstdev(row[f'{system}_{metric}']):.4f})"
                for system in SYSTEMS
            )
            for metric, name in metric_names.items()
        ]
        speed = f"ampft {row['ampft_times_faster']:.2f} times as fast ({low:.2f} to {high:.2f})"
        print(f"{mode}: {'; '.join([speed, *scores])}")


def comparison_parser(description: str, *, data_help: str) -> argparse.ArgumentParser:
    """Return a parser of the flags that `compare` reads."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--data_dir", type=Path, required=True, help=data_help)
    parser.add_argument("--modes", default="bf16", help="comma-separated: fp32, bf16")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, starting at 0")
    parser.add_argument("--steps", type=int, help="optimizer steps, over 5 (default: all epochs)")
    parser.add_argument("--only", nargs=2, metavar=("MODE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of results")
    return parser


def compare(
    args: argparse.Namespace,
    settings: Mapping[str, Any],
    metric_names: Mapping[str, str],
    systems: Mapping[str, Callable[[Turn], dict[str, Any]]],
) -> None:
    """Run what is missing, update the results file after every run, and print the summary.

    Args:
        args: Flags of `comparison_parser`.
        settings: Settings of both systems; a results file of other settings is refused.
        metric_names: Metrics of the summary, and the names to print.
        systems: Function per system that trains it once.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.steps is not None and args.steps <= WARMUP_STEPS:
        sys.exit(f"--steps {args.steps}: must be over {WARMUP_STEPS}, the steps that do not count.")
    if args.only:  # the Trainer, in its own process
        from ampft.text.terminal import quiet_libraries

        quiet_libraries()
        print(json.dumps(systems["trainer"](Turn(args.only[0], int(args.only[1]), args.steps))))
        return
    rows: list[dict[str, Any]] = []
    if args.out.exists():
        earlier = json.loads(args.out.read_text(encoding="utf-8"))
        if earlier["settings"] != settings:
            sys.exit(f"--out {args.out}: contains runs with other settings. Name another file.")
        rows = earlier["runs"]
    turns = [
        (system, Turn(mode, seed, args.steps))
        for seed in range(args.seeds)
        for mode in args.modes.split(",")
        for system in (SYSTEMS if seed % 2 == 0 else SYSTEMS[::-1])
    ]
    for system, turn in turns:
        key = {"system": system, **asdict(turn)}
        if any(key.items() <= row.items() for row in rows):
            continue
        found = systems["ampft"](turn) if system == "ampft" else trainer_apart(turn)
        rows.append({**key, **found})
        summaries = summary(of_length(rows, args.steps), list(metric_names))
        result = {**provenance(), "settings": settings, "summary": summaries, "runs": rows}
        args.out.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    print_summary(summary(of_length(rows, args.steps), list(metric_names)), metric_names)


def of_length(rows: list[dict[str, Any]], steps: int | None) -> list[dict[str, Any]]:
    """Return the runs with a number of steps; those of a trial are not summarized with others."""
    return [row for row in rows if row["steps"] == steps]


def trainer_apart(turn: Turn) -> dict[str, Any]:
    """Run this command for one turn of the Trainer in its own process; return its result."""
    command = [sys.executable, *sys.argv, "--only", turn.mode, str(turn.seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
