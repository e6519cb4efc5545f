"""How time and memory grow with rows and classes of a table, and with the runs of a comparison.

Each size is a training of five steps with a tiny BERT on short random texts, in a process of its
own, so that what grows is reading, checking, splitting, tokenizing and reporting, not the model.
`--runs` compares stored runs of two arms, each with the predictions of 1,000 rows.

    python benchmarks growth --out growth.json
    python benchmarks growth --out growth.json --rows 10000,100000 --classes 10,1000 --runs 10
    python benchmarks growth_plot growth.json --out growth.svg
"""

from __future__ import annotations

import csv
import os
import random
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from provenance import command_line, provenance, write_results
from stub_comparison import record
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from ampft.models.minilm import default_model
from ampft.runs.folder import RunFolder
from ampft.runs.predictions import write_predictions
from ampft.runs.record import write_record
from ampft.tasks.single_label import Predictions

SHORTEST, LONGEST = 4, 12  # words of a text
WORDS = [f"word{number}" for number in range(5000)]
ROWS_WITH_CLASSES = 100_000  # of the tables whose number of classes is varied
ROWS_OF_A_RUN, CLASSES_OF_A_RUN = 1000, 3  # of the predictions of a stored run
# The first words of the lines at which a part ends.
PARTS = {
    "import": "start +reading",
    "read, check, split, tokenize": "start +loading",
    "load the model": "device ",
    "until the end of the first step": "ran ",
    "the other steps, validation": "epoch 1 ",
    "test, simple methods, served back": "result ",
    "exit": "end of the process",
}


@dataclass(frozen=True)
class Size:
    """A table, and what training on it took."""

    rows: int
    classes: int
    megabytes: float  # of the file
    seconds: dict[str, float]  # by part
    processor_seconds: dict[str, float]  # the same, of all threads: other programs change it little
    peak_mib: int  # memory of the process that no file backs
    start_mib: int  # the same, when the reading begins


def write_table(path: Path, rows: int, classes: int) -> None:
    """Write random texts with labels; each class has a row, and all others have random ones."""
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for row in range(rows):
            words = draw.choices(WORDS, k=draw.randint(SHORTEST, LONGEST))
            label = row if row < classes else draw.randrange(classes)
            writer.writerow([" ".join([*words, str(row)]), f"class{label:06d}"])


def write_model(folder: Path) -> None:
    """Write a BERT of one layer with random weights and MiniLM's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(default_model(None)[0])
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def anonymous_mib(process: int) -> int:
    """Return the memory of a process that no file backs, in MiB; 0 when it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+)", status)
    return int(found[1]) // 1024 if found else 0


def processor_seconds(process: int) -> float:
    """Return what a process, which has not been waited for, and its children have computed."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def train(folder: Path, rows: int, classes: int) -> Size:
    """Train on a table of this size; return what it took."""
    table = folder / f"{rows}-{classes}.csv"
    write_table(table, rows, classes)
    command = [
        *(sys.executable, "-m", "ampft", "train", "--train_file", str(table)),
        *("--model_name_or_path", str(folder / "model"), "--max_train_steps", "5"),
        *("--output_dir", str(folder / "run"), "--overwrite_output_dir"),
    ]
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
    }
    started, seconds, memory = time.perf_counter(), dict[str, float](), [0]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None, "it is a pipe"

    def watch() -> None:
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            memory.append(anonymous_mib(process.pid))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    computed, before = dict[str, float](), 0.0
    names, last, start, said = iter(PARTS.items()), started, 0, list[str]()
    name, pattern = next(names)
    for line in chain(process.stdout, ["end of the process"]):
        said.append(line)
        if re.match(pattern, line):
            start = start or memory[-1]
            now = time.perf_counter()
            seconds[name], last = round(now - last, 2), now
            used = processor_seconds(process.pid)
            computed[name], before = round(used - before, 2), used
            name, pattern = next(names, ("", "$^"))
    watcher.join()
    if process.wait():
        sys.exit("".join(said))
    size = table.stat().st_size / 1e6
    table.unlink()
    return Size(rows, classes, round(size, 1), seconds, computed, max(memory), start)


def write_run(parent: Path, arm: str, seed: int) -> Path:
    """Write a stored run, of whose predictions four fifths are right; return its folder."""
    draw = np.random.default_rng([seed, len(arm)])
    labels = np.arange(ROWS_OF_A_RUN) % CLASSES_OF_A_RUN
    guesses = draw.integers(0, CLASSES_OF_A_RUN, ROWS_OF_A_RUN)
    predicted = np.where(draw.random(ROWS_OF_A_RUN) < 0.7, labels, guesses)
    probabilities = np.full((ROWS_OF_A_RUN, CLASSES_OF_A_RUN), 0.1, np.float32)
    probabilities[np.arange(ROWS_OF_A_RUN), predicted] = 0.8
    names = [f"class {number}" for number in range(CLASSES_OF_A_RUN)]
    ids = np.arange(ROWS_OF_A_RUN)
    outcome = Predictions(ids, labels, probabilities, tuple(names), "test")
    with RunFolder(parent / f"{arm}-seed{seed}") as folder:
        path = folder / "predictions.parquet"
        write_predictions(path, outcome, lambda rows: {"text": [f"text {i}" for i in ids[rows]]})
        write_record(folder, record(arm, seed, ROWS_OF_A_RUN, names))
    return folder.path


def compare(folder: Path, count: int) -> dict[str, Any]:
    """Compare stored runs, half of each arm; return what it took."""
    seeds = range(count // 2)
    runs = [str(write_run(folder, arm, seed)) for seed in seeds for arm in ("fp32", "bf16")]
    command = [sys.executable, "-m", "ampft", "compare", *runs]
    process = subprocess.Popen(
        [*command, "--output_dir", str(folder / "comparison")], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit("the comparison failed")
    seconds = round(used.ru_utime + used.ru_stime, 2)
    return {"runs": count, "processor_seconds": seconds, "peak_mib": used.ru_maxrss // 1024}


def main() -> None:
    """Measure all sizes, print a table and write the results."""
    parser = command_line(__doc__)
    parser.add_argument("--rows", default="10000,100000,1000000", help="with three classes")
    parser.add_argument("--classes", default="10,1000,10000", help=f"of {ROWS_WITH_CLASSES} rows")
    parser.add_argument("--runs", default="10,100,1000", help="stored, of a comparison")
    given = parser.parse_args()
    sizes = [(int(rows), 3) for rows in given.rows.split(",") if rows]
    sizes += [(ROWS_WITH_CLASSES, int(classes)) for classes in given.classes.split(",") if classes]
    measured = []
    with TemporaryDirectory() as folder:
        write_model(Path(folder) / "model")
        for rows, classes in sizes:
            size = train(Path(folder), rows, classes)
            measured.append(asdict(size))
            beyond = (size.peak_mib - size.start_mib) * 2**20 / rows
            print(f"{rows:,} rows, {classes:,} classes, {size.megabytes} MB: {size.seconds}")
            print(f"  processor seconds: {size.processor_seconds}")
            print(f"  peak {size.peak_mib} MiB, {beyond:.0f} bytes a row more than at the start")
            write_results(given.out, {**provenance(), "sizes": measured})
    compared = []
    for count in (int(number) for number in given.runs.split(",") if number):
        with TemporaryDirectory() as folder:
            compared.append(compare(Path(folder), count))
        print(compared[-1])
        write_results(given.out, {**provenance(), "sizes": measured, "comparisons": compared})


if __name__ == "__main__":
    main()
