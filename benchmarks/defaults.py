"""What a run without settings reaches, beside simple methods and the Trainer's defaults.

Run: `python benchmarks/defaults.py --data ../shared/data --out defaults.jsonl --sets cr,sst2
--sizes 16,64 --seeds 2`, and `--table` for the table of a file. Rows that the file has already are
not made again. MiniLM trains on `size` rows (validation rows of 10 % are among them), drawn by the
seed and stratified, and is tested on 200 rows that are the same for all. Texts are cut at 48
tokens.

Arms: `before`, three epochs and a random head on the first token, as until now; `trainer`, the
defaults of transformers' Trainer (learning rate 5e-5, no validation); `longer`, `before` with the
epochs of `epochs_for`; `probe`, three epochs from a probe on the mean of the tokens; `after`, both.
`frozen` and `tf-idf` are the simple methods of `before`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import ampft

TEST_ROWS = 200
STEPS, MOST_EPOCHS = 250, 16
SIMPLE = {"frozen encoder + regression": "frozen", "TF-IDF + regression": "tf-idf"}
ARMS = ("before", "trainer", "longer", "probe", "after")


def epochs_for(size: int) -> int:
    """Return the epochs of `longer`: at least `STEPS` steps of 8, at most `MOST_EPOCHS`."""
    steps = math.ceil(0.9 * size / 8)
    return max(3, min(MOST_EPOCHS, math.ceil(STEPS / steps)))


def settings_of(arm: str, size: int) -> dict[str, Any]:
    """Return the settings of an arm."""
    own: dict[str, Any] = {"num_train_epochs": 3, "pooling": "first", "head_init": "random"}
    if arm in ("longer", "after"):
        own["num_train_epochs"] = epochs_for(size)
    if arm in ("probe", "after"):
        own |= {"pooling": "mean", "head_init": "probe"}
    if arm == "trainer":
        own |= {"learning_rate": 5e-5, "validation_fraction": 0.0}
    return own


def rows_of(data: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to draw from, and the test rows."""
    if name == "cr":
        lines = (data / "few_labels/custrev.all").read_text("latin-1").splitlines()
        rows = pd.DataFrame(
            [(text, label) for label, text in (line.split(" ", 1) for line in lines)],
            columns=["text", "label"],
        ).sample(frac=1, random_state=0)
        return rows[1000:], rows[:1000]
    if name == "sst2":
        train, test = (
            pd.DataFrame(
                [
                    line.rsplit("\t", 1)
                    for line in (data / f"sst2/{part}.tsv").read_text().splitlines()
                ],
                columns=["text", "label"],
            ).drop_duplicates("text")
            for part in ("train", "test")
        )
        return train, test
    if name.startswith("trec"):
        parts = []
        for file in ("train_5500", "TREC_10"):
            lines = (data / f"trec/{file}.label").read_text("latin-1").splitlines()
            pairs = [line.split(" ", 1) for line in lines]
            labels = [label if name == "trec50" else label.split(":")[0] for label, _ in pairs]
            parts.append(pd.DataFrame({"text": [text for _, text in pairs], "label": labels}))
        return parts[0].drop_duplicates("text"), parts[1]
    if name == "mrpc":
        parts = []
        for part in ("train", "test"):
            path = next((data / "mrpc").glob(f"*{part}*"))
            with path.open(encoding="utf-8-sig") as stream:
                table = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
            parts.append(
                pd.DataFrame([(r[3], r[4], r[0]) for r in table], columns=["text", "b", "label"])
            )
        return parts[0], parts[1]
    raise SystemExit(f"no set {name}")


def drawn(pool: pd.DataFrame, size: int, seed: int) -> pd.DataFrame:
    """Return `size` rows, the classes in turn until they have none left."""
    shuffled = pool.sample(frac=1, random_state=seed)
    turn = shuffled.groupby("label").cumcount()
    return shuffled.iloc[np.argsort(turn.to_numpy(), kind="stable")[:size]]


def measure(data: Path, name: str, size: int, seed: int, arm: str) -> list[dict[str, Any]]:
    """Train an arm; return its result and, beside `before`, those of the simple methods."""
    pool, test = rows_of(data, name)
    train = drawn(pool, size, seed)
    test = test[test["label"].isin(set(train["label"]))].sample(frac=1, random_state=0)[:TEST_ROWS]
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = ampft.finetune(
            train, test=test, output_dir=f"{folder}/run", max_seq_length=48, seed=seed,
            use_cpu=True, cpu_threads=1, serve_back=False, baseline=arm == "before",
            overwrite_output_dir=True, **settings_of(arm, size),
        )  # fmt: skip
        seconds = time.process_time() - started
        record = run.record
    cell = {"set": name, "size": size, "seed": seed}
    results = [{**cell, "arm": arm, "accuracy": record.metrics["accuracy"], "cpu_seconds": seconds}]
    for method in record.simple_methods:
        if method.name in SIMPLE and method.metrics:
            found = {"arm": SIMPLE[method.name], "accuracy": method.metrics["accuracy"]}
            results.append({**cell, **found})
    return results


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return mean accuracies in percent, and the paired differences to `before` over all cells."""
    rows = pd.DataFrame(results)
    wide = rows.pivot_table(index=["set", "size", "seed"], columns="arm", values="accuracy")
    seconds = rows.pivot_table(index=["size"], columns="arm", values="cpu_seconds")
    order = [arm for arm in ("tf-idf", "frozen", *ARMS) if arm in wide]
    lines = [(100 * wide[order]).groupby(["set", "size"]).mean().round(1).to_string()]
    for arm in order:
        gain = 100 * (wide[arm] - wide["before"]).dropna()
        error = gain.std(ddof=1) / math.sqrt(len(gain))
        lines.append(f"{arm} - before: {gain.mean():+.1f} (SE {error:.1f}, {len(gain)} cells)")
    timed = seconds[[arm for arm in order if arm in seconds]].round(0)
    return "\n".join([*lines, "processor seconds", timed.to_string()])


def main() -> None:
    """Measure the missing cells, or print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default="cr,sst2,trec,trec50,mrpc")
    parser.add_argument("--sizes", default="16,64,256,1024")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    results = [json.loads(line) for line in lines]
    if args.table:
        print(table(results))
        return
    done = {(r["set"], r["size"], r["seed"], r["arm"]) for r in results}
    for seed in range(args.seeds):
        for size in map(int, args.sizes.split(",")):
            for name in args.sets.split(","):
                for arm in args.arms.split(","):
                    if (name, size, seed, arm) in done:
                        continue
                    found = measure(args.data, name, size, seed, arm)
                    with args.out.open("a") as file:
                        file.writelines(json.dumps(each) + "\n" for each in found)


if __name__ == "__main__":
    main()
