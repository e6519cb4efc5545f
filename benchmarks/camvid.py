"""ERFNet on CamVid: ampft beside the Trainer of transformers with the same settings, in turns.

    python benchmarks/camvid.py --data_dir CAMVID --out benchmarks/results/camvid.json

Both train from random weights with AdamW (5e-4, linear schedule, clipped to 1), batches of 4 frames
and no augmentation, and are evaluated with the last weights on masks in their own size.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent


def run(command: list[str]) -> None:
    """Run a command in the root of the repository; show what it printed if it fails."""
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"{' '.join(command)}\n{completed.stdout}\n{completed.stderr}")


def ampft_row(args: argparse.Namespace, mode: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed with ampft; return its result."""
    output = folder / f"{mode}-{seed}"
    run(
        [
            *(sys.executable, "recipes/classify.py", "--task", "pixels", "--mixed_precision", mode),
            *("--dataset_name", str(args.data_dir), "--ignore_index", "11"),
            *("--model_name_or_path", "erfnet", "--image_size", args.image_size),
            *("--learning_rate", "5e-4", "--max_train_steps", str(args.steps)),
            *("--no-load_best_model_at_end", "--seed", str(seed), "--output_dir", str(output)),
        ]
    )
    record = json.loads((output / "run.json").read_text(encoding="utf-8"))
    return {
        "system": "ampft",
        "mode": mode,
        "seed": seed,
        **{name: record["metrics"][name] for name in ("mean_iou", "pixel_accuracy")},
        "step_seconds": record["timings"]["training_seconds"] / args.steps,
    }


def trainer_row(args: argparse.Namespace, mode: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed with the Trainer; return its result."""
    out = folder / f"trainer-{mode}-{seed}.jsonl"
    run(
        [
            *(sys.executable, "benchmarks/camvid_trainer.py", "--data_dir", str(args.data_dir)),
            *("--mode", mode, "--seed", str(seed), "--image_size", args.image_size),
            *("--steps", str(args.steps), "--out", str(out)),
        ]
    )
    row: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return row


def summary(rows: list[dict[str, Any]], mode: str) -> dict[str, float]:
    """Return the median ratio of step times (Trainer to ampft) and the mean IoUs of a mode."""
    by = {
        system: [row for row in rows if (row["system"], row["mode"]) == (system, mode)]
        for system in ("ampft", "trainer")
    }
    ratios = [
        theirs["step_seconds"] / ours["step_seconds"]
        for ours, theirs in zip(by["ampft"], by["trainer"], strict=True)
    ]
    means = {
        f"{system}_mean_iou": statistics.mean(row["mean_iou"] for row in part)
        for system, part in by.items()
    }
    return {"speed_ratio": statistics.median(ratios), **means}


def main() -> None:
    """Run both systems in turns, print the ratios, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder of CamVid")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--modes", default="fp32,bf16", help="precisions, comma-separated")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, which are turns")
    parser.add_argument("--steps", type=int, default=276, help="optimizer steps (12 epochs)")
    parser.add_argument("--image_size", default="180,240", help="height,width of the input")
    args = parser.parse_args()
    args.data_dir = args.data_dir.resolve()
    rows: list[dict[str, Any]] = []
    modes = args.modes.split(",")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for mode in modes:
                systems = (ampft_row, trainer_row)
                for system in systems if seed % 2 == 0 else reversed(systems):
                    rows.append(system(args, mode, seed, Path(folder)))
                    print(rows[-1], flush=True)
    results = {mode: summary(rows, mode) for mode in modes}
    for mode, result in results.items():
        print(mode, json.dumps(result))
    document = {**provenance(), "summary": results, "rows": rows}
    args.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
