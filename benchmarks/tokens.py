"""Compare ampft with the Trainer of transformers on WNUT-17: speed and entity F1.

The Trainer runs as in transformers' `run_ner.py`: DataCollatorForTokenClassification, -100 for all
but the first token of a word, sentences cut at the maximum length. Both get the same model, batches
of the same size, learning rate, schedule and number of epochs, and keep the last weights. Each run
has its own process; the two systems take turns, so that drift of the machine affects both alike.

The speed is the mean time of a step without the first five: from the end of one step to that of the
next, so that waiting for data counts. F1 is that of entities by seqeval's strict rule, computed by
the same code for both. Runs that are already in the results file are not repeated.

    python benchmarks/tokens.py --data_dir DATA/wnut17 --modes bf16,fp32 --seeds 5 --out tokens.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "train": "wnut17train.conll",
    "validation": "emerging.dev.conll",
    "test": "emerging.test.annotated",
}
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "learning_rate": 3e-4,
    "num_train_epochs": 5,
    "warmup_ratio": 0.1,
    "max_seq_length": 128,
}
WARMUP_STEPS = 5
SYSTEMS = ("ampft", "trainer")


def run_ampft(data_dir: Path, mode: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Run the recipe once and return the results from its folder."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            *(sys.executable, str(ROOT / "recipes" / "classify.py"), "--task=tokens"),
            *(f"--{split}_file={data_dir / name}" for split, name in FILES.items()),
            *(f"--{name}={value}" for name, value in SETTINGS.items()),
            *(f"--mixed_precision={mode}", f"--seed={seed}", f"--output_dir={run}"),
            "--no-load_best_model_at_end",
            *([] if steps is None else [f"--max_train_steps={steps}"]),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (run / "history.jsonl").open(encoding="utf-8")]
    return {
        "step_seconds": float(np.mean([row["seconds"] for row in rows[WARMUP_STEPS:]])),
        "micro_f1": record["metrics"]["micro_f1"],
        "token_accuracy": record["metrics"]["token_accuracy"],
        "peak_memory_bytes": record["memory"]["peak"],
        "executed": record["precision"]["summary"],
    }


def run_trainer(data_dir: Path, mode: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Train once with the Trainer, in this process."""
    import torch
    from transformers import (
        AutoModelForTokenClassification,
        DataCollatorForTokenClassification,
        Trainer,
        TrainingArguments,
        set_seed,
    )
    from workload import StepClock

    from ampft.data.load import load_data
    from ampft.data.request import DataRequest
    from ampft.machine import resident_peak
    from ampft.models.minilm import default_model
    from ampft.models.tokenizer import load_tokenizer
    from ampft.text.terminal import quiet_libraries

    quiet_libraries()
    set_seed(seed)
    data = load_data(
        DataRequest(
            train_file=data_dir / FILES["train"],
            validation_file=data_dir / FILES["validation"],
            test_file=data_dir / FILES["test"],
            data_kind="token",
        )
    )
    folder, _ = default_model(None)
    tokenizer = load_tokenizer(folder, reads_words=True)

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenizer(
            batch["tokens"],
            is_split_into_words=True,
            truncation=True,
            max_length=SETTINGS["max_seq_length"],
        )
        encoded["labels"] = [
            first_tokens(encoded.word_ids(row), tags) for row, tags in enumerate(batch["label"])
        ]
        return dict(encoded)

    encoded = {
        split: data.splits[split].map(
            encode, batched=True, remove_columns=data.splits[split].column_names
        )
        for split in ("train", "test")
    }
    model = AutoModelForTokenClassification.from_pretrained(
        folder, num_labels=len(data.label_names), dtype=torch.float32
    )
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=SETTINGS["per_device_train_batch_size"],
            per_device_eval_batch_size=64,
            learning_rate=SETTINGS["learning_rate"],
            num_train_epochs=SETTINGS["num_train_epochs"],
            max_steps=-1 if steps is None else steps,
            warmup_steps=SETTINGS["warmup_ratio"],  # below 1 it is a share
            bf16=mode == "bf16",
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            seed=seed,
            disable_tqdm=True,
            logging_strategy="no",
        )
        clock = StepClock()
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=encoded["train"],
            data_collator=DataCollatorForTokenClassification(tokenizer),
            callbacks=[clock],
        )
        trainer.train()
        output_of_test = trainer.predict(encoded["test"])
    step_seconds = float(np.mean(np.diff(clock.ends)[WARMUP_STEPS - 1 :]))
    scores = trainer_scores(data, output_of_test.predictions, output_of_test.label_ids)
    return {"step_seconds": step_seconds, **scores, "peak_memory_bytes": resident_peak()}


def first_tokens(word_ids: list[int | None], tags: list[int]) -> list[int]:
    """Return the tags of the first tokens of words, and -100 for all others, as `run_ner.py`."""
    before: list[int | None] = [None, *word_ids[:-1]]
    return [
        -100 if word is None or word == last else tags[word]
        for last, word in zip(before, word_ids, strict=True)
    ]


def trainer_scores(data: Any, logits: Any, labels: Any) -> dict[str, float]:
    """Return the scores of the Trainer over all words; those that were cut off are O."""
    from ampft.metrics.entities import Sentences, entity_sums
    from ampft.metrics.sums import MICRO_F1

    targets = data.labels("test")
    parts = []
    for row, labelled, count in zip(logits.argmax(-1), labels, targets.counts, strict=True):
        tags = np.zeros(count, dtype=np.int64)
        kept = row[labelled != -100][:count]
        tags[: len(kept)] = kept
        parts.append(tags)
    predicted = np.concatenate(parts)
    sentences = Sentences(targets.counts, len(data.label_names) // 2, is_bio=True)
    return {
        "micro_f1": MICRO_F1.value(entity_sums(targets.codes, predicted, sentences)),
        "token_accuracy": float((predicted == targets.codes).mean()),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the speed-up and the F1 of both systems, per mode."""
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
                f"{system}_micro_f1": [by_system[system][s]["micro_f1"] for s in seeds]
                for system in SYSTEMS
            },
        }
    return summaries


def print_summary(rows: list[dict[str, Any]]) -> None:
    """Print a line per mode."""
    for mode, row in summary(rows).items():
        low, high = row["ampft_times_faster_range"]
        f1 = "; ".join(
            f"{system} {statistics.fmean(row[f'{system}_micro_f1']):.4f}"
            f" (sd {statistics.pstdev(row[f'{system}_micro_f1']):.4f})"
            for system in SYSTEMS
        )
        print(
            f"{mode}: ampft {row['ampft_times_faster']:.2f} times as fast ({low:.2f} to "
            f"{high:.2f}); entity F1 {f1}"
        )


def main() -> None:
    """Run what is missing, update the results file after every run, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder of WNUT-17's files")
    parser.add_argument("--modes", default="bf16", help="comma-separated: fp32, bf16")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, starting at 0")
    parser.add_argument("--steps", type=int, help="optimizer steps (default: all epochs)")
    parser.add_argument("--only", nargs=2, metavar=("MODE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of results")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.only:  # the Trainer, in its own process
        mode, seed = args.only[0], int(args.only[1])
        print(json.dumps(run_trainer(args.data_dir, mode, seed, args.steps)))
        return
    rows = json.loads(args.out.read_text(encoding="utf-8"))["runs"] if args.out.exists() else []
    for seed in range(args.seeds):
        for mode in args.modes.split(","):
            for system in SYSTEMS if seed % 2 == 0 else SYSTEMS[::-1]:
                key = {"system": system, "mode": mode, "seed": seed, "steps": args.steps}
                if any(key.items() <= row.items() for row in rows):
                    continue
                if system == "ampft":
                    found = run_ampft(args.data_dir, mode, seed, args.steps)
                else:
                    command = [sys.executable, *sys.argv, "--only", mode, str(seed)]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    found = json.loads(done.stdout.splitlines()[-1])
                rows.append({**key, **found})
                result = {**provenance(), "settings": SETTINGS, "summary": summary(rows)}
                text = json.dumps({**result, "runs": rows}, indent=1)
                args.out.write_text(f"{text}\n", encoding="utf-8")
    print_summary(rows)


if __name__ == "__main__":
    main()
