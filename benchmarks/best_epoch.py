"""Which epoch to keep, if few rows can choose it? Rules measured on ten tasks.

Run: `python benchmarks/best_epoch.py --data DATA --cells FOLDER --out FILE --minutes 5`, and repeat
it until no cell is left; cells in FOLDER are not trained again.

A cell is a training of all-MiniLM-L6-v2 on 16 to 512 rows of a data set, with the default settings
in bf16 and `EPOCHS` epochs, which is evaluated after each epoch on a pool of 300 other rows. The
choice among the epochs is then simulated: `DRAWS` times, some rows of the pool are drawn as the
validation split, a rule chooses the epoch from them, and the rest of the pool says how good that
epoch is. The gain of a rule is its primary metric minus that of the last epoch, in points. Its
standard error is over the cells.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pandas as pd
from provenance import provenance

from ampft.metrics.paired import paired_gain
from ampft.tasks.table import problem_types

POOL = 300
EPOCHS = {16: 10, 32: 10, 128: 10, 512: 5}  # by number of training rows
VALIDATION_ROWS = (2, 3, 6, 13, 26, 51, 100, 200)
DRAWS = 200
LONGEST = 40  # words of a sentence with tags
EMOTIONS = 8  # most frequent ones, of rows with one emotion

FloatArray = npt.NDArray[np.float64]
Rows = list[dict[str, Any]]


# Data


def _lines(path: Path, encoding: str = "utf-8") -> list[str]:
    return path.read_text(encoding=encoding).splitlines()


def _labelled_lines(path: Path) -> pd.DataFrame:
    pairs = [line.split(" ", 1) for line in _lines(path, "latin-1") if line.strip()]
    return pd.DataFrame([(text, label) for label, text in pairs], columns=["text", "label"])


def _news(data: Path) -> pd.DataFrame:
    with (data / "ag_news_test.csv").open(encoding="utf-8", newline="") as file:
        rows = [(f"{title} {text}", label) for label, title, text in csv.reader(file)]
    return pd.DataFrame(rows, columns=["text", "label"])


def _sst2(data: Path) -> Rows:
    pairs = [line.rsplit("\t", 1) for line in _lines(data / "sst2/train.tsv")]
    return [{"text": text, "label": label} for text, label in pairs]


def _trec(data: Path, *, fine: bool) -> Rows:
    pairs = [line.split(" ", 1) for line in _lines(data / "trec/train_5500.label", "latin-1")]
    return [{"text": t, "label": k if fine else k.split(":")[0]} for k, t in pairs]


def _mrpc(data: Path) -> Rows:
    path = data / "mrpc/msr_paraphrase_train.txt"
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            {"sentence1": r["#1 String"], "sentence2": r["#2 String"], "label": r["Quality"]}
            for r in table
        ]


def _goemotions(data: Path, *, several: bool) -> Rows:
    names = _lines(data / "goemotions/labels.txt")
    table = [line.split("\t")[:2] for line in _lines(data / "goemotions/train.tsv")]
    rows = [{"text": t, "label": ",".join(names[int(k)] for k in ks.split(","))} for t, ks in table]
    if several:
        return rows
    counts = pd.Series([r["label"] for r in rows if r["label"] in names]).value_counts()
    kept = set(counts.drop("neutral").index[:EMOTIONS])
    return [r for r in rows if r["label"] in kept]


def _wnut17(data: Path) -> Rows:
    text = (data / "wnut17/wnut17train.conll").read_text(encoding="utf-8")
    sentences = [[w.split("\t") for w in s.splitlines() if "\t" in w] for s in text.split("\n\n")]
    return [
        {"tokens": [w[0].strip() for w in s], "tags": [w[1].strip() for w in s]}
        for s in sentences
        if 0 < len(s) <= LONGEST and any(w[1].strip() != "O" for w in s)
    ]


def _texts(table: pd.DataFrame) -> Rows:
    rows: Rows = table[["text", "label"]].to_dict("records")
    return rows


READERS: dict[str, Callable[[Path], Rows]] = {
    "sst2": _sst2,
    "trec": lambda data: _trec(data, fine=False),
    "trec-fine": lambda data: _trec(data, fine=True),
    "mrpc": _mrpc,
    "cr": lambda data: _texts(_labelled_lines(data / "few_labels/custrev.all")),
    "sst5": lambda data: _texts(_labelled_lines(data / "few_labels/stsa.fine.train")),
    "ag-news": lambda data: _texts(_news(data / "few_labels")),
    "goemotions": lambda data: _goemotions(data, several=True),
    "emotion": lambda data: _goemotions(data, several=False),
    "wnut17": _wnut17,
}
TASKS = {"goemotions": "multi-label", "wnut17": "tokens"}
PROBLEMS = {"goemotions": "multi_label", "wnut17": "token_labels"}


def labels_of(row: dict[str, Any]) -> set[str]:
    """Return the labels that occur in a row."""
    return set(row["tags"]) if "tags" in row else set(row["label"].split(","))


def draw(data: Path, name: str, size: int, seed: int) -> tuple[Rows, Rows]:
    """Return `size` training rows and a pool of `POOL` rows with labels that training has."""
    rows = [r for r in READERS[name](data) if str(r.get("text", "x")).strip()]
    order = np.random.default_rng([seed, size]).permutation(len(rows))
    train, rest = ([rows[i] for i in part] for part in (order[:size], order[size:]))
    seen = set().union(*map(labels_of, train))
    return train, [row for row in rest if labels_of(row) <= seen][:POOL]


# Cells


@dataclass(frozen=True)
class Cell:
    """A training."""

    name: str  # Data set.
    size: int  # Training rows.
    seed: int

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}-{self.size}-seed{self.seed}.npz"


def train_cell(cell: Cell, data: Path, path: Path) -> None:
    """Train, and save the sums of the metric and of the log loss per epoch and row of the pool."""
    import ampft
    from ampft.features.validations import Validations

    train, pool = draw(data, cell.name, cell.size, cell.seed)
    outcomes = []

    def collect(self: Any, step: int, outcome: Any) -> None:
        outcomes.append(outcome)

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(Validations, "at_validation", collect),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        ampft.finetune(
            pd.DataFrame(train),
            validation=pd.DataFrame(pool),
            test=pd.DataFrame(pool[:20]),
            task=TASKS.get(cell.name),
            seed=cell.seed,
            num_train_epochs=EPOCHS[cell.size],
            precision="bf16",
            cpu_threads=1,
            output_dir=f"{folder}/run",
        )
    metric = next(iter(outcomes[0].metrics()))
    first, second = (
        np.stack([dense(outcome.sums(name)) for outcome in outcomes])
        for name in (metric, "log_loss")
    )
    np.savez_compressed(path, name=metric, metric=first, loss=second)


def dense(sums: Any) -> npt.NDArray[np.float32]:
    """Return the (n, D) vectors of the cases."""
    table: npt.NDArray[np.float32] = sums.patterns.toarray()[sums.pattern_of].astype(np.float32)
    return table


# Rules


@dataclass(frozen=True)
class Validation:
    """What a rule sees: (E,) metric and log loss, (E, n) losses and (n,) units of the rows."""

    metric: FloatArray
    loss: FloatArray
    losses: FloatArray
    units: FloatArray


def smoothed(values: FloatArray) -> FloatArray:
    """Return the weighted mean of each value (1/2) and its neighbours (1/4 each)."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    return np.convolve(padded, [0.25, 0.5, 0.25], "valid")


def best_metric(seen: Validation, values: FloatArray) -> int:
    """Return the epoch with the best value; of several, the one with the lowest log loss."""
    best = np.flatnonzero(values == values.max())
    return int(best[seen.loss[best].argmin()])


def within_standard_error(seen: Validation) -> int:
    """Return the last epoch whose metric is within a standard error of the best."""
    best, n = seen.metric.max(), len(seen.units)
    error = np.sqrt(max(best * (1 - best), 0) / n + 0.25 / n**2)
    return int(np.flatnonzero(seen.metric >= best - error)[-1])


def by_chance(seen: Validation, *, guarded: bool) -> int:
    """Return the last epoch, or an earlier one whose log loss is lower by more than chance."""
    last, lowest = len(seen.loss) - 1, int(seen.loss.argmin())
    gain = paired_gain(seen.losses[last], seen.losses[lowest], seen.units)
    is_lower = guarded and seen.metric[lowest] < seen.metric[last]
    return lowest if gain.is_beyond_chance and not is_lower else last


RULES: dict[str, Callable[[Validation], int]] = {
    "last epoch": lambda seen: len(seen.loss) - 1,
    "best metric, the first of equals": lambda seen: int(seen.metric.argmax()),
    "best metric, equals by log loss": lambda seen: best_metric(seen, seen.metric),
    "best smoothed metric": lambda seen: best_metric(seen, smoothed(seen.metric)),
    "last within a standard error of the best metric": within_standard_error,
    "lowest log loss": lambda seen: int(seen.loss.argmin()),
    "lowest smoothed log loss": lambda seen: int(smoothed(seen.loss).argmin()),
    "last, unless a log loss is lower by more than chance": partial(by_chance, guarded=False),
    "the same, and the metric no lower": partial(by_chance, guarded=True),
}


def gains(path: Path) -> FloatArray:
    """Return (rules, numbers of validation rows, 2) gains in the metric and the log loss."""
    with np.load(path) as cell:
        sums, losses = cell["metric"].astype(np.float64), cell["loss"].astype(np.float64)
        kind = PROBLEMS.get(path.name.split("-")[0], "single_label")
        metric = problem_types()[kind].metrics[str(cell["name"])]
    random, rows = np.random.default_rng(zlib.crc32(path.name.encode())), sums.shape[1]
    total = np.zeros((len(RULES), len(VALIDATION_ROWS), 2))
    for k, count in enumerate(VALIDATION_ROWS):
        for _ in range(DRAWS):
            order = random.permutation(rows)
            seen, unseen = order[:count], order[count:]
            values = [
                np.nan_to_num(metric.from_sums(sums[:, part].sum(axis=1)))
                for part in (seen, unseen)
            ]
            loss = [
                losses[:, part, 0].sum(axis=1) / losses[:, part, 2].sum(axis=1)
                for part in (seen, unseen)
            ]
            validation = Validation(values[0], loss[0], losses[:, seen, 0], losses[0, seen, 2])
            for number, rule in enumerate(RULES.values()):
                epoch = rule(validation)
                total[number, k, 0] += 100 * (values[1][epoch] - values[1][-1])
                total[number, k, 1] += loss[1][-1] - loss[1][epoch]
    return total / DRAWS


def evaluate(folder: Path) -> dict[str, Any]:
    """Return the gains of each rule by training rows, and over all cells."""
    cells = {path: gains(path) for path in sorted(folder.glob("*.npz"))}
    groups = {str(size): [p for p in cells if f"-{size}-seed" in p.name] for size in EPOCHS}
    found: dict[str, Any] = {}
    for group, paths in {**groups, "all": list(cells)}.items():
        table = np.stack([cells[path] for path in paths])
        error = table.std(axis=0, ddof=1) / len(paths) ** 0.5
        found[group] = {
            "cells": len(paths),
            "rules": {
                name: {
                    "points": table.mean(axis=0)[number, :, 0].round(3).tolist(),
                    "standard_error": error[number, :, 0].round(3).tolist(),
                    "log_loss": table.mean(axis=0)[number, :, 1].round(4).tolist(),
                }
                for number, name in enumerate(RULES)
            },
        }
    return found


def main() -> None:
    """Train cells until the time is over, then evaluate the rules on all that exist."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, metavar="DATA")
    parser.add_argument("--cells", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file of results")
    parser.add_argument("--minutes", type=float, default=0, help="time for training")
    args = parser.parse_args()
    args.cells.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    for seed, size, name in product(range(1, args.seeds + 1), EPOCHS, READERS):
        cell = Cell(name, size, seed)
        if time.monotonic() < end and not (args.cells / cell.file).is_file():
            started = time.monotonic()
            train_cell(cell, args.data, args.cells / cell.file)
            print(f"{cell.file}: {time.monotonic() - started:.0f} s", flush=True)
    found = evaluate(args.cells)
    for name, values in found["all"]["rules"].items():
        shown = zip(values["points"], values["standard_error"], strict=True)
        print(f"{name:54}", "  ".join(f"{p:+.2f} ({e:.2f})" for p, e in shown))
    if args.out is not None:
        content = {"validation_rows": VALIDATION_ROWS, "draws": DRAWS, "training_rows": found}
        args.out.write_text(json.dumps({**provenance(), **content}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
