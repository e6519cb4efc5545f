"""Compare the training of a part of MiniLM with that of all of it, on SST-2.

    python benchmarks/less_training.py --data_dir DATA --mode bf16 --out FILE

Every training is a separate `ampft train` command, as a user starts it. The parts take turns, so
that other load on the machine affects all of them alike. Steps are timed by the runs themselves,
and tokens per second are the median over their steps. The speed-up is that of the same turn. Only
ratios are meaningful. The learning rates are ampft's defaults; the test accuracy is that after
`--steps` steps.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from provenance import provenance

SPLITS = {"train": "train", "validation": "dev", "test": "test"}
ALL = "all"
PARTS: dict[str, tuple[str, ...]] = {
    ALL: (),
    "embeddings frozen": ("--freeze", "embeddings"),
    "LoRA, query and value": ("--lora_r", "8"),
    "LoRA, all linear layers": ("--lora_r", "8", "--lora_target_modules", "all-linear"),
    "top 2 layers": ("--train_layers", "2"),
    "head (linear probing)": ("--train_layers", "0"),
}


def main() -> None:
    """Train the parts in turns, and print and write the ratios."""
    args = parse()
    turns: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(args.data_dir) / "sst2", Path(folder))
        for turn in range(args.turns):
            runs = {}
            for name, flags in PARTS.items():
                record = train(args, files, [*flags, "--seed", str(turn)], Path(folder) / "run")
                runs[name] = figures(record)
                print(f"turn {turn + 1}, {name}: {runs[name]}", flush=True)
            turns.append(runs)
    results = {name: summary(name, turns) for name in PARTS}
    print(f"\n{'part':<26} speed-up (range)      memory  accuracy  trained")
    for name, row in results.items():
        low, high = row["speed_up_range"]
        print(
            f"{name:<26} {row['speed_up']:.2f} ({low:.2f} to {high:.2f})  "
            f"{row['peak_mib']:>8,.0f} MiB  {row['accuracy']:.3f}  {row['trained']:>10,}"
        )
    if args.out:
        values = {"mode": args.mode, "steps": args.steps, "batch_size": args.batch_size}
        document = {**provenance(), **values, "turns": turns, "parts": results}
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data_dir", required=True, help="folder with sst2/")
    parser.add_argument("--mode", default="bf16", help="precision (default: bf16)")
    parser.add_argument("--turns", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--steps", type=int, default=432, help="steps of a training (default: 432)")
    parser.add_argument("--batch_size", type=int, default=16, help="batch size (default: 16)")
    parser.add_argument("--test_rows", type=int, default=1821, help="test rows (default: all)")
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def write_files(source: Path, folder: Path) -> dict[str, Path]:
    """Write the splits with a header, and return their paths."""
    files = {}
    for split, name in SPLITS.items():
        files[split] = folder / f"{split}.csv"
        lines = (source / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        with files[split].open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            writer.writerows(line.rsplit("\t", 1) for line in lines)
    return files


def train(
    args: argparse.Namespace, files: dict[str, Path], flags: list[str], folder: Path
) -> dict[str, Any]:
    """Train in a new process, and return the record of the run."""
    settings = {
        **{f"{split}_file": path for split, path in files.items()},
        "mixed_precision": args.mode,
        "max_train_steps": args.steps,
        "per_device_train_batch_size": args.batch_size,
        "max_predict_samples": args.test_rows,
        "eval_steps": args.steps,
        "output_dir": folder,
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "ampft", "train", *words, "--overwrite_output_dir", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return record


def figures(record: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared."""
    return {
        "tokens_per_second": record["timings"]["tokens_per_second"],
        "step_seconds": record["timings"]["step_seconds_median"],
        "peak": record["memory"]["peak"],
        "accuracy": record["metrics"]["accuracy"],
        "trained": record["model"]["trainable_parameters"],
    }


def summary(name: str, turns: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians of a part over the turns."""
    rates = "tokens_per_second"
    speed_ups = [turn[name][rates] / turn[ALL][rates] for turn in turns]
    return {
        "speed_up": statistics.median(speed_ups),
        "speed_up_range": [min(speed_ups), max(speed_ups)],
        "peak_mib": statistics.median(turn[name]["peak"] for turn in turns) / 2**20,
        "accuracy": statistics.mean(turn[name]["accuracy"] for turn in turns),
        "trained": turns[0][name]["trained"],
    }


if __name__ == "__main__":
    main()
