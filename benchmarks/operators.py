"""Count the operators of a training step, padded and without padding, on a CUDA device.

A GPU needs 5 to 8 microseconds to start an operator, whatever its size, and this bounds the speed
on short texts. The program counts the operators that compute something: no views, no allocations.
A step is a forward pass under autocast, a backward pass outside of it, clipping and AdamW; the last
two are also counted apart, and are one operator for all parameters each where torch has one. Where
torch is built without CUDA, the tests' fake device counts the same operators.

    python benchmarks/operators.py
    python benchmarks/operators.py --output benchmarks/results/operators.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FAKE_CUDA = ROOT / "tests" / "fake_cuda"
sys.path[:0] = [str(FAKE_CUDA / "preloaded"), str(FAKE_CUDA.parent / "models"), str(FAKE_CUDA)]

SIZES = {"MiniLM": (6, 384), "BERT-base": (12, 768)}
MODES = ("bf16", "fp16", "fp32")
# Six groups of similar length, as a step of 32 short texts has on average.
LENGTHS = (*[12] * 6, *[18] * 6, *[25] * 5, *[33] * 5, *[41] * 5, *[64] * 5)

COLUMNS = {
    "padded": {"packed": False},
    "packed, single casts": {"packed": True, "joint": False},
    "packed": {"packed": True},
}
UPDATE = "clipping and AdamW"


def restart_on_fake_device() -> None:
    """Run this program again with the fake CUDA device, and exit with its exit code."""
    from test_on_fake_cuda import build_guard, fake_environment  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        environment = fake_environment(build_guard(Path(folder)))
        command = [sys.executable, *sys.argv]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def bert(layers: int, width: int, *, vocabulary: int = 99) -> Any:
    """Return a BERT of this size with random weights; by default its embedding table is small."""
    from transformers import BertConfig, BertForSequenceClassification

    heads = width // 64 if width > 384 else 12
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    return BertForSequenceClassification(config).train()


def table() -> list[dict[str, object]]:
    """Return one row per size and mode: operators of a step with padding and without."""
    from fake_cuda import step_operators, update_operators  # type: ignore[import-not-found]

    rows: list[dict[str, object]] = []
    for name, shape in SIZES.items():
        update = update_operators(bert(*shape))
        for mode in MODES:
            counts = {
                column: update + step_operators(bert(*shape), LENGTHS, mode, **options)
                for column, options in COLUMNS.items()
            }
            rows.append({"model": name, "mode": mode, **counts, UPDATE: update})
    return rows


def main() -> None:
    """Print the table, and write it with its provenance if a file is given."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file of the results (default: none)")
    args = parser.parse_args()
    import torch
    from provenance import provenance

    if not torch.backends.cuda.is_built() and "AMPFT_FAKE_CUDA" not in os.environ:
        restart_on_fake_device()
    if "AMPFT_FAKE_CUDA" in os.environ:
        torch.cuda.get_device_capability = lambda device=None: (9, 0)
        torch.autograd.set_multithreading_enabled(False)
    rows = table()
    columns = (*COLUMNS, UPDATE)
    print(f"{'model':<10} {'mode':<5}", *(f"{name:>20}" for name in columns))
    for row in rows:
        print(f"{row['model']:<10} {row['mode']:<5}", *(f"{row[name]:>20}" for name in columns))
    if args.output:
        result = {"provenance": provenance(), "lengths": LENGTHS, "rows": rows}
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
