"""How long `ampft train` takes until its first step, and what it then decides, by the command.

The model has the size of BERT-base and random weights, the texts are random words. Seconds are
counted from the start of the process until `history.jsonl` has the first step: they contain the
imports, reading, tokenizing, the checks of kernels and the first launch of each kernel.

    python benchmarks gpu_first_step --out first-step.json
    python benchmarks gpu_first_step --out first-step.json --rehearse    # on the CPU, tiny
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from provenance import command_line, provenance, write_results
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

ROWS, STEPS, WORDS = 2000, 60, 1000
LIMIT_SECONDS = 150.0
MODES = ("bf16", "fp16", "fp8")
KEPT = ("timings", "graphs", "memory")  # parts of run.json that stand in the result


def make_files(folder: Path, *, is_tiny: bool) -> None:
    """Write a model with random weights, and texts of random words with labels."""
    draw, words = random.Random(0), [f"w{number}" for number in range(WORDS)]
    with (folder / "train.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for row in range(200 if is_tiny else ROWS):
            text = draw.choices(words[row % 2 :: 2], k=min(120, 4 + int(draw.expovariate(1 / 36))))
            writer.writerow((" ".join(text), ("ant", "bee")[row % 2]))
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = {word: number for number, word in enumerate((*special, *words))}
    BertTokenizer(vocab=vocabulary, model_max_length=128).save_pretrained(folder / "model")
    tiny = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = BertConfig(vocab_size=30522, **(tiny if is_tiny else {}))  # else BERT-base
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder / "model")


def first_step(folder: Path, mode: str, *, is_tiny: bool) -> dict[str, Any]:
    """Train by the command; return seconds and what the record says."""
    output = folder / f"run-{mode}"
    steps = 3 if is_tiny else STEPS
    words = [
        *(sys.executable, "-m", "ampft", "train"),
        *("--model_name_or_path", str(folder / "model"), "--train_file", str(folder / "train.csv")),
        *("--mixed_precision", mode, "--max_train_steps", str(steps), "--head_init", "random"),
        *("--no-baseline", "--output_dir", str(output)),
        *(["--use_cpu"] if is_tiny else []),
    ]
    log, started = folder / f"{mode}.log", time.monotonic()
    seconds: float | None = None
    root = Path(__file__).resolve().parents[1]
    with log.open("w", encoding="utf-8") as written:
        process = subprocess.Popen(words, stdout=written, stderr=subprocess.STDOUT, cwd=root)
        while process.poll() is None and time.monotonic() - started < LIMIT_SECONDS:
            history = output / "history.jsonl"
            if seconds is None and history.exists() and history.stat().st_size:
                seconds = time.monotonic() - started
            time.sleep(0.02)
        process.kill()  # nothing happens if it has ended
        code = process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    row: dict[str, Any] = {
        "exit code": code,
        "seconds to the first step": seconds,
        "seconds": time.monotonic() - started,
        "last lines": lines[-3:],
    }
    if code == 0:
        record = json.loads((output / "run.json").read_text(encoding="utf-8"))
        row |= {name: record.get(name) for name in KEPT}
    return row


def main() -> None:
    """Train in each mode, and write what was measured."""
    parser = command_line(__doc__)
    parser.add_argument("--rehearse", action="store_true", help="a tiny model, on the CPU")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    head = {"rehearsal": args.rehearse, **provenance(names)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(folder, is_tiny=args.rehearse)
        for mode in ("fp32",) if args.rehearse else MODES:
            rows[mode] = first_step(folder, mode, is_tiny=args.rehearse)
            print(f"{mode}: {rows[mode]}"[:500], flush=True)
            write_results(args.out, {**head, **rows})


if __name__ == "__main__":
    main()
