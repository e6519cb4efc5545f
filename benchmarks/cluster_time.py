"""Wall time of a comparison with --jobs 1, with --jobs 2 and with Ray, and whether digits agree.

The comparison has fp32 and bf16 with five seeds, each run 300 short texts on one thread of the CPU.
The Ray cluster has two nodes of one core on this machine, which must be quiet. Rounds alternate the
order. Prints one line of JSON with the seconds of each, and the processor seconds of this machine.

    python benchmarks/cluster_time.py --rounds 3
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from comparison_start import run_arguments
from namespace_cluster import NamespaceCluster, in_own_network, ray_address
from provenance import provenance

WAYS = {
    "jobs 1": ("--jobs", "1"),
    "jobs 2": ("--jobs", "2"),
    "ray": ("--engine", "ray", "--jobs", "2"),
}


def compare(
    folder: Path, output: Path, own: tuple[str, ...], model: str | None
) -> dict[str, float]:
    """Run a comparison in a new folder; return its seconds, and the processor seconds meanwhile."""
    train = str(folder / "train.csv")
    settings = ["--modes", "fp32,bf16", "--seeds", "5", "--no_placebo", "--anyway", *own]
    files = ["--train_file", train, "--test_file", train, "--use_cpu", "--cpu_threads", "1"]
    files += ["--num_train_epochs", "1", *(["--model_name_or_path", model] if model else [])]
    words = ["compare", "--output_dir", str(output), *settings, "--", *files]
    began, before = time.perf_counter(), psutil.cpu_times()
    subprocess.run([sys.executable, "-m", "ampft", *words], check=True, stdout=sys.stderr)
    after = psutil.cpu_times()
    busy = after.user + after.system - before.user - before.system
    return {"seconds": time.perf_counter() - began, "processor_seconds": busy}


def digits(output: Path) -> dict[str, str]:
    """Return the SHA-256 of the predictions of each run."""
    found = sorted(output.glob("runs/*/predictions.parquet"))
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def main() -> None:
    """Measure in a network of its own, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=3, metavar="INT")
    parser.add_argument("--model_name_or_path", default=None, metavar="DIR")
    args = parser.parse_args()
    in_own_network()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    found: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="time-") as name:
        folder = Path(name)
        run_arguments(folder)  # writes the data
        with NamespaceCluster("one", "two") as cluster, ray_address(cluster):
            for number in range(args.rounds):
                for way in sorted(WAYS, reverse=bool(number % 2)):
                    output = folder / f"{way}-{number}"
                    measured[way].append(
                        compare(folder, output, WAYS[way], args.model_name_or_path)
                    )
                    found.append(digits(output))
    medians = {way: statistics.median(x["seconds"] for x in rows) for way, rows in measured.items()}
    same = all(each == found[0] and len(each) == 10 for each in found)
    result = {"median_seconds": medians, "same_digits": same, "measured": measured}
    print(json.dumps({**result, "load": os.getloadavg()[0], **provenance()}))


if __name__ == "__main__":
    main()
