"""What it costs to start the runs of a comparison: forked from a process with torch, or launched.

Each round trains the same run twice, forked and by `accelerate launch`, in alternating order: the
default model on 300 short texts, one epoch. Prints one line of JSON with the seconds of each, and
the median of the ratios; the first forked run, which waits for the imports of the process that is
forked, is listed on its own.

    python benchmarks/comparison_start.py --rounds 6
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
from pathlib import Path

from ampft.comparison.execution.launch import WHOLE_MACHINE
from ampft.comparison.execution.launchers import LocalLauncher, Program

sys.path.insert(0, str(Path(__file__).parent))
from provenance import provenance

ROWS = 300
WORDS = ("good", "bad", "fine", "poor", "great", "dull")


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=6, metavar="INT")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        argv = tuple(run_arguments(folder))
        forked, launched = LocalLauncher(WHOLE_MACHINE, None), LocalLauncher(WHOLE_MACHINE, None)
        launched.forks = False
        program = Program(argv, folder / "log", folder / "run")

        def seconds(launcher: LocalLauncher) -> float:
            return launcher.run(program, lambda: None).seconds

        first = seconds(forked)
        pairs = []
        for number in range(rounds):
            order = (forked, launched) if number % 2 == 0 else (launched, forked)
            times = {launcher: seconds(launcher) for launcher in order}
            pairs.append((times[forked], times[launched]))
        forked.close()
    result = {
        "first_forked_seconds": first,
        "forked_seconds": [pair[0] for pair in pairs],
        "launched_seconds": [pair[1] for pair in pairs],
        "ratio_median": statistics.median(a / b for a, b in pairs),
        "provenance": provenance(),
    }
    print(json.dumps(result))


def run_arguments(folder: Path) -> list[str]:
    """Write data into `folder`; return the arguments of a run on them."""
    with (folder / "train.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for number in range(ROWS):
            words = [WORDS[(number * k + k) % len(WORDS)] for k in range(1, 9)]
            writer.writerow((f"{' '.join(words)} {number}", WORDS[number % 2]))
    words = ["--train_file", str(folder / "train.csv"), "--mixed_precision", "fp32"]
    words += ["--num_train_epochs", "1", "--use_cpu"]
    output = ["--output_dir", str(folder / "run"), "--overwrite_output_dir"]
    return ["-m", "ampft", "train", *words, *output]


if __name__ == "__main__":
    main()
