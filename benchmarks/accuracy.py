"""Measure accuracy over seeds: the default job, or TREC compared with the Trainer of transformers.

Each run has its own process. The runs of one seed follow each other, so that drift of the machine
affects all modes alike. Runs that are already in the results file are not repeated.

    python benchmarks/accuracy.py default --modes fp32,bf16,fp16 --seeds 5 --out default.json
    python benchmarks/accuracy.py trec --data_dir TREC --modes fp32,bf16,fp16,trainer-bf16 \
        --seeds 5 --out trec.json
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
TREC_FLAGS = {
    "per_device_train_batch_size": 32,
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "max_seq_length": 128,
    # The Trainer has no validation split here and keeps its last epoch.
    "load_best_model_at_end": False,
}


def trec_files(data_dir: Path, folder: Path) -> list[str]:
    """Write TREC's two splits as CSV files and return the flags that pass them to the recipe."""
    for split, source in (("train", "train_5500.label"), ("test", "TREC_10.label")):
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            for line in (data_dir / source).read_text(encoding="latin-1").splitlines():
                label, text = line.split(" ", 1)
                rows.writerow([text, label.split(":")[0]])
    # Without a validation file, a tenth of the training rows would be split off.
    names = {"train_file": "train", "validation_file": "test", "test_file": "test"}
    return [f"--{flag}={folder / name}.csv" for flag, name in names.items()]


def run_recipe(mode: str, seed: int, flags: list[str], threads: int | None) -> dict[str, object]:
    """Run the recipe once and return the results from its run record."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"),
            str(ROOT / "recipes" / "classify.py"),
            f"--mixed_precision={mode}",
            f"--seed={seed}",
            f"--output_dir={folder}/run",
            *flags,
            *([] if threads is None else [f"--cpu_threads={threads}"]),
        ]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        launch_to_report = time.perf_counter() - started
        record = json.loads(Path(folder, "run", "run.json").read_text(encoding="utf-8"))
    return {
        "accuracy": record["metrics"]["accuracy"],
        "macro_f1": record["metrics"]["macro_f1"],
        "log_loss": record["metrics"]["log_loss"],
        "launch_to_report_seconds": launch_to_report,
        "total_seconds": record["timings"]["total_seconds"],
        "step_seconds_median": record["timings"]["step_seconds_median"],
        "steps_skipped": record["steps"]["skipped"],
        "peak_memory_bytes": record["memory"]["peak"],
        "example_ids_sha256": record["example_ids_sha256"],
        "initial_weights_sha256": record["model"]["initial_weights_sha256"],
        "fingerprints": record["data"]["fingerprints"],
        "execution": record["precision"]["resolved"]["execution"],
        "executed": record["precision"]["summary"],
        "cpu_threads": record["topology"]["cpu_threads"],
    }


def run_trainer(mode: str, seed: int, data_dir: Path) -> dict[str, object]:
    """Run the Trainer once on TREC and return its results."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "row.jsonl")
        command = [sys.executable, str(ROOT / "benchmarks" / "trec_trainer.py")]
        command += [f"--data_dir={data_dir}", f"--mode={mode}", f"--seed={seed}", f"--out={out}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return dict(json.loads(out.read_text(encoding="utf-8")))


def bag_of_words() -> dict[str, float]:
    """Return the test metrics of TF-IDF with logistic regression on the default job."""
    from ampft.arguments import ClassifyArguments
    from ampft.evaluation.baseline import bag_of_words_baseline
    from ampft.runs.prepare import load_task

    return bag_of_words_baseline(load_task(ClassifyArguments()), "test").metrics()


def summary(rows: list[dict[str, object]]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation of the metrics, and median seconds, per mode."""
    summaries: dict[str, dict[str, float]] = {}
    for mode in dict.fromkeys(str(row["mode"]) for row in rows):
        mode_rows = [row for row in rows if row["mode"] == mode]
        summaries[mode] = {"seeds": len(mode_rows)}
        for metric in ("accuracy", "macro_f1"):
            values = [float(str(row[metric])) for row in mode_rows]
            summaries[mode][f"{metric}_mean"] = statistics.fmean(values)
            summaries[mode][f"{metric}_sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
        seconds = [float(str(row.get("launch_to_report_seconds", "nan"))) for row in mode_rows]
        summaries[mode]["launch_to_report_seconds_median"] = statistics.median(seconds)
    return summaries


def main() -> None:
    """Run what is missing, update the results file after every run, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("case", choices=("default", "trec"))
    parser.add_argument(
        "--modes", default="fp32,bf16,fp16", help="comma-separated, run in this order"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, starting at 0")
    parser.add_argument("--data_dir", type=Path, help="folder that contains TREC's two files")
    parser.add_argument("--cpu_threads", type=int, help="threads per run (default: all cores)")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON file of results; runs in it are not repeated"
    )
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = json.loads(args.out.read_text(encoding="utf-8"))["runs"] if args.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--dataset_name=stdlib"]
        if args.case == "trec":
            values = {k: v for k, v in TREC_FLAGS.items() if not isinstance(v, bool)}
            flags = [f"--{name}={value}" for name, value in values.items()]
            flags += ["--no-load_best_model_at_end", *trec_files(args.data_dir, Path(folder))]
        for seed in range(args.seeds):
            for mode in args.modes.split(","):
                if any(row["mode"] == mode and row["seed"] == seed for row in rows):
                    continue
                if mode.startswith("trainer-"):
                    row = run_trainer(mode.removeprefix("trainer-"), seed, args.data_dir)
                else:
                    row = run_recipe(mode, seed, flags, args.cpu_threads)
                rows.append({**row, "mode": mode, "seed": seed})
                result = {
                    **provenance(),
                    "case": args.case,
                    "flags": [f for f in flags if folder not in f],
                }
                if args.case == "default":
                    result["bag_of_words"] = bag_of_words()
                result |= {"summary": summary(rows), "runs": rows}
                args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
