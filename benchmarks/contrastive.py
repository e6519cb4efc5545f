"""Whether contrastive pairs before the head gain over the probe, with few rows per class.

Run: `python benchmarks/contrastive.py --data ../shared/data --out
benchmarks/results/contrastive.json`, and `--table` for the table of a file. Cells that the file has
are not measured again.

It uses the sets and draws of `defaults.py`, 8 and 32 rows per class and 400 test rows. The pairs
are made and learned as in SetFit (Tunstall et al., 2022, "Efficient few-shot learning without
prompts"), in plain torch: for each text `PAIRS` texts of its class and as many of others, the
squared error of the cosine of two means of tokens, 2e-5, one epoch; at most `MOST_PAIRS` pairs.

Arms: `frozen`, logistic regression on the encoder; `pairs`, the same after the pairs; `default`, a
run without settings; `pairs-default`, a run without settings of the encoder after the pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from defaults import CELL, parts_of
from provenance import provenance, write_results
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

import ampft
from ampft.models.minilm import default_model

SETS = {"cr": 2, "sst5": 5, "ag_news": 4}  # classes
TEST_ROWS, TOKENS = 400, 48
PAIRS, MOST_PAIRS = 20, 1280
BATCH, RATE, WARM_UP = 16, 2e-5, 0.1
ARMS = ("frozen", "pairs", "default", "pairs-default")


def pairs_of(labels: npt.NDArray[Any], seed: int) -> npt.NDArray[np.int64]:
    """Return (n, 3) places of two texts, and whether they have one class."""
    random = np.random.default_rng(seed)
    found = []
    for place, label in enumerate(labels):
        same = np.flatnonzero(labels == label)
        same, other = same[same != place], np.flatnonzero(labels != label)
        for group, value in ((same, 1), (other, 0)):
            if len(group):
                found += [(place, each, value) for each in random.choice(group, PAIRS)]
    return random.permutation(np.array(found, dtype=np.int64))[:MOST_PAIRS]


class Encoder:
    """A sentence encoder: the mean of the last states of a text's tokens, of unit length."""

    def __init__(self) -> None:
        self.folder = default_model(None)[0]
        self.model: Any = AutoModel.from_pretrained(self.folder)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.folder)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        inputs = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
        )
        states = self.model(**inputs)[0]
        real = inputs["attention_mask"].unsqueeze(-1)
        mean = (states * real).sum(1) / real.sum(1)
        return torch.nn.functional.normalize(mean)

    def all(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the vectors of any number of texts, without dropout."""
        self.model.eval()
        with torch.no_grad():
            parts = [self(texts[start : start + 64]) for start in range(0, len(texts), 64)]
        return torch.cat(parts).numpy()

    def learn_pairs(self, texts: Sequence[str], labels: npt.NDArray[Any], seed: int) -> int:
        """Train on pairs; return their number."""
        torch.manual_seed(seed)
        pairs = pairs_of(labels, seed)
        steps = math.ceil(len(pairs) / BATCH)
        warm = max(1, round(WARM_UP * steps))
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda s: min((s + 1) / warm, (steps - s) / max(1, steps - warm))
        )
        self.model.train()
        for start in range(0, len(pairs), BATCH):
            first, second, is_same = pairs[start : start + BATCH].T
            places, back = np.unique(np.concatenate([first, second]), return_inverse=True)
            vectors = self([texts[place] for place in places])[back]
            cosine = (vectors[: len(first)] * vectors[len(first) :]).sum(1)
            loss = (cosine - torch.from_numpy(is_same)).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return len(pairs)

    def save(self, folder: Path) -> None:
        """Write a folder of sentence-transformers with the weights."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        self.model.save_pretrained(folder)


def regression(encoder: Encoder, train: pd.DataFrame, test: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which test rows logistic regression on the encoder's vectors has right."""
    model = LogisticRegression(C=10.0, max_iter=1000)
    model.fit(encoder.all(train["text"].tolist()), train["label"])
    found = model.predict(encoder.all(test["text"].tolist()))
    return np.asarray(found == test["label"])


def tuned(
    model: str | None, train: pd.DataFrame, test: pd.DataFrame, seed: int
) -> npt.NDArray[np.bool_]:
    """Return which test rows a run without settings has right."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = ampft.finetune(
            train, test=test, output_dir=f"{folder}/run", seed=seed, cpu_threads=1,
            serve_back=False, baseline=False, max_seq_length=TOKENS, model_name_or_path=model,
        )  # fmt: skip
        return np.asarray(run.predictions["prediction"] == run.predictions["label"])


def measure(data: Path, cell: Mapping[str, Any], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return the results of a cell: `frozen` and `pairs` always, the others where asked for."""
    train, test = parts_of(data, {**cell, "size": cell["shots"] * SETS[cell["set"]]}, TEST_ROWS)
    train, test = train.reset_index(drop=True), test.reset_index(drop=True)
    encoder, results = Encoder(), []

    def add(arm: str, right: npt.NDArray[np.bool_], started: float, **more: Any) -> None:
        seconds = round(time.process_time() - started, 1)
        text = "".join(map(str, right.astype(int)))
        accuracy = float(right.mean())
        results.append(
            {
                **cell,
                "arm": arm,
                "accuracy": accuracy,
                "cpu_seconds": seconds,
                **more,
                "right": text,
            }
        )

    started = time.process_time()
    add("frozen", regression(encoder, train, test), started)
    if "default" in arms:
        started = time.process_time()
        add("default", tuned(None, train, test, cell["seed"]), started)
    started = time.process_time()
    count = encoder.learn_pairs(train["text"].tolist(), train["label"].to_numpy(), cell["seed"])
    add("pairs", regression(encoder, train, test), started, pairs=count)
    if "pairs-default" in arms:
        with tempfile.TemporaryDirectory() as folder:
            encoder.save(Path(folder))
            add("pairs-default", tuned(folder, train, test, cell["seed"]), started)
    return results


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return mean accuracies, and differences with standard errors over sets and draws."""
    frame = pd.DataFrame(results)
    wide = 100 * frame.pivot_table(index=["shots", "set", "seed"], columns="arm", values="accuracy")
    lines = [
        wide[[arm for arm in ARMS if arm in wide]]
        .groupby(["shots", "set"])
        .mean()
        .round(1)
        .to_string()
    ]
    pairs = (("pairs", "frozen"), ("pairs", "default"), ("pairs-default", "default"))
    for (shots, part), (arm, other) in itertools.product(wide.groupby("shots"), pairs):
        if arm not in wide or other not in wide:
            continue
        gain = (part[arm] - part[other]).dropna()
        error = gain.std(ddof=1) / math.sqrt(len(gain))
        lines.append(f"{shots} per class: {arm} - {other} {gain.mean():+.1f} (SE {error:.1f})")
    seconds = frame.pivot_table(index="shots", columns="arm", values="cpu_seconds")
    return "\n".join([*lines, "processor seconds", seconds.round(0).to_string()])


def main() -> None:
    """Measure the missing cells, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--shots", default="8,32")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    results = json.loads(args.out.read_text())["results"] if args.out.exists() else []
    if args.table:
        print(table(results))
        return
    torch.set_num_threads(1)
    names = [name if name != "size" else "shots" for name in CELL]
    done = {tuple(row[name] for name in names) for row in results}
    for seed, shots, name in itertools.product(
        range(3), map(int, args.shots.split(",")), args.sets.split(",")
    ):
        cell = {"set": name, "shots": shots, "seed": seed}
        if tuple(cell[name] for name in names) not in done:
            results += measure(args.data, cell, args.arms.split(","))
            write_results(args.out, {**provenance(), "results": results})


if __name__ == "__main__":
    main()
