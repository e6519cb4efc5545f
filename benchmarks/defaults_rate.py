"""What the learning rate and the length of the default change, by number of rows.

Run: `python benchmarks/defaults_rate.py --out benchmarks/results/defaults-rate.json`, with arms
such as `--sets cr,sst2 --sizes 1024 --arms half,whole,before`; `--table` prints a file. Cells that
the file has are not trained again.

Draws and models are those of `defaults.py`; the loop is a plain one that keeps the last weights and
leaves out what a run does besides. Word vectors that no text reads are left out of the optimizer,
which never moves them. Up to 1,000 test rows. Size 0: all rows. Set `trec2`: only TREC's
descriptions and entities, as another set of two classes.

Arms: `half` and `whole`, half of the rate (5e-5) and all of it from the probed head; a number after
them is the number of epochs, otherwise as many as make 250 steps, 3 to 16. `before` and `trainer`
as in `defaults.py`. `frozen`: the probe; `tf-idf`: as in the simple methods.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from defaults import CELL, OLD, parts_of
from provenance import provenance, write_results
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import ampft
from ampft.arguments import parse_classify_arguments
from ampft.arguments.classify import EPOCHS, LEAST_STEPS, MOST_EPOCHS
from ampft.arguments.parsing import command_line_words
from ampft.data.sources.data_sets import splits_in_memory
from ampft.engine.optimizer import make_optimizer, make_schedule
from ampft.evaluation.probe import START
from ampft.runs.prepared import Prepared

TEST_ROWS = 1000
RATES = {"half": 5e-5, "whole": 1e-4, "before": 1e-4, "trainer": 5e-5}


class _UsedWords(nn.Module):
    """The word vectors that some texts read."""

    def __init__(self, full: nn.Embedding, used: Tensor) -> None:
        super().__init__()
        self.place = torch.full((full.num_embeddings,), -1)
        self.place[used] = torch.arange(len(used))
        self.weight = nn.Parameter(full.weight[used].detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(self.place[ids], self.weight)


def _prepare(
    train: pd.DataFrame, test: pd.DataFrame, settings: Mapping[str, Any], folder: Path
) -> Prepared:
    words = command_line_words(
        {**settings, "max_seq_length": 48, "cpu_threads": 1, "output_dir": str(folder / "run"),
         "overwrite_output_dir": True}
    )  # fmt: skip
    args = parse_classify_arguments(words, program="defaults_rate", in_memory=True)
    prepared = ampft.prepare(args, splits_in_memory({"train": train, "test": test}))
    model: Any = prepared.loaded.model
    base = model.bert.embeddings
    used = set()
    for split in ("train", "test"):
        examples = prepared.task.examples(split)
        for start in range(0, len(examples.lengths), 64):
            ids = np.arange(start, min(start + 64, len(examples.lengths)))
            used |= set(examples.collate(ids)["input_ids"].unique().tolist())
    base.word_embeddings = _UsedWords(base.word_embeddings, torch.tensor(sorted(used)))
    return prepared


def _logits(prepared: Prepared) -> tuple[Tensor, Tensor]:
    examples = prepared.task.examples("test")
    order = np.argsort(examples.lengths, kind="stable")
    prepared.model.eval()
    found, labels = [], []
    with torch.no_grad():
        for start in range(0, len(order), 64):
            inputs = examples.collate(order[start : start + 64])
            found.append(prepared.task.logits(prepared.model, inputs).float())
            labels.append(inputs["labels"])
    back = torch.from_numpy(np.argsort(order))
    return torch.cat(found)[back], torch.cat(labels)[back]


def _result(arm: str, log_probs: Tensor, labels: Tensor, **more: Any) -> dict[str, Any]:
    right = log_probs.argmax(1) == labels
    return {
        "arm": arm,
        "accuracy": float(right.double().mean()),
        "log_loss": float(-log_probs[torch.arange(len(labels)), labels].double().mean()),
        **more,
        "right": "".join(map(str, right.int().tolist())),
    }


def _trained(prepared: Prepared, arm: str, epochs: int, seed: int) -> dict[str, Any]:
    started = time.process_time()
    args = replace(prepared.args, learning_rate=RATES[re.sub(r"\d", "", arm)])
    steps = epochs * len(prepared.step_batches)
    optimizer = make_optimizer(prepared.loaded.model, args.optimizer_settings(), prepared.precision)
    schedule = make_schedule(optimizer, steps, args.schedule_settings())
    torch.manual_seed(seed)
    model, parameters = prepared.model, list(prepared.model.parameters())
    with ampft.numerics(prepared.precision):
        for epoch in range(epochs):
            model.train()
            for batch in prepared.step_batches.epoch(epoch):
                for micro in batch:
                    loss = prepared.task.loss(model, micro) / batch.effective_weight
                    prepared.accelerator.backward(loss)
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        logits, labels = _logits(prepared)
    seconds = round(time.process_time() - started, 1)
    return _result(arm, logits.log_softmax(1), labels, steps=steps, cpu_seconds=seconds)


def _tf_idf(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, Any]:
    names = sorted(set(train["label"]))
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    fitted = LogisticRegression(C=10.0, solver="newton-cg").fit(
        vectors.fit_transform(train["text"]), train["label"]
    )
    probabilities: npt.NDArray[np.float64] = fitted.predict_proba(vectors.transform(test["text"]))
    labels = torch.tensor([names.index(label) for label in test["label"]])
    return _result("tf-idf", torch.from_numpy(probabilities).log(), labels)


def measure(
    data: Path, cell: Mapping[str, Any], arms: Sequence[str], folder: Path
) -> Iterator[dict[str, Any]]:
    """Train the arms of a cell, all from one draw and one start per head."""
    train, test = parts_of(data, cell, TEST_ROWS)
    test = test[test["label"].isin(set(train["label"]))]
    if "tf-idf" in arms:
        yield _tf_idf(train, test)
    arms = [arm for arm in arms if arm != "tf-idf"]
    groups: dict[str, list[str]] = {}
    for arm in arms:
        key = arm if arm == "trainer" else "before" if arm == "before" else "probe"
        groups.setdefault(key, []).append(arm)
    for key, members in groups.items():
        settings: dict[str, Any] = {} if key == "probe" else {**OLD, "num_train_epochs": 3}
        if key == "trainer":
            settings |= {"validation_fraction": 0.0}
        settings |= {"seed": cell["seed"], "mixed_precision": "bf16"}
        prepared = _prepare(train, test, settings, folder)
        start = copy.deepcopy(prepared.loaded.model.state_dict())
        for arm in members:
            prepared.loaded.model.load_state_dict(start)
            if arm == "frozen":
                with ampft.numerics(prepared.precision):
                    logits, labels = _logits(prepared)
                yield _result(arm, (logits / START).log_softmax(1), labels)
                continue
            own = re.search(r"\d+$", arm)
            least = math.ceil(LEAST_STEPS / len(prepared.step_batches)) if key == "probe" else 0
            epochs = int(own[0]) if own else max(EPOCHS, min(MOST_EPOCHS, least))
            yield _trained(prepared, arm, epochs, cell["seed"])


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return accuracies, log losses and seconds, and the paired mean differences of the arms."""
    rows = pd.DataFrame(results)
    lines = []
    for key, scale in (("accuracy", 100), ("log_loss", 1), ("cpu_seconds", 1)):
        wide = scale * rows.pivot_table(index=["size", "set", "seed"], columns="arm", values=key)
        lines += [key, wide.round(2).to_string(na_rep="-"), ""]
    return "\n".join(lines)


def main() -> None:
    """Train the missing cells, or print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default="cr,sst2,trec,docstrings")
    parser.add_argument("--sizes", default="1024")
    parser.add_argument("--arms", default="half,whole,before,frozen,tf-idf")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "defaults-rate"))
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    results = json.loads(args.out.read_text())["results"] if args.out.exists() else []
    if args.table:
        print(table(results))
        return
    for seed in map(int, args.seeds.split(",")):
        for size in map(int, args.sizes.split(",")):
            for name in args.sets.split(","):
                cell = {"set": name, "size": size, "seed": seed}
                done = {r["arm"] for r in results if [r[key] for key in CELL] == [name, size, seed]}
                missing = [arm for arm in args.arms.split(",") if arm not in done]
                for result in measure(args.data, cell, missing, args.folder) if missing else ():
                    results.append({**cell, **result})
                    write_results(args.out, {**provenance(), "results": results})


if __name__ == "__main__":
    main()
