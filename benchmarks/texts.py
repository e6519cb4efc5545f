"""Compare ampft with the Trainer of transformers on texts: speed and scores.

MRPC has pairs of sentences; its test file is reported on, and a tenth of its training file is held
out for validation, the same rows for both systems. GoEmotions has texts with any number of 28
labels; both systems train on the first 10,000 rows of its training file, and its dev and test
files are used whole. A label is predicted from a probability of 0.2, because two epochs of so few
rows bring hardly any label to 0.5.

The Trainer runs as in transformers' `run_glue.py` and `run_classification.py`:
DataCollatorWithPadding, batches of random rows. Both get the same model, batches of the same size,
learning rate, schedule and number of epochs, and keep the last weights. scikit-learn computes the
scores of both. `beside_trainer.py` says how the systems take turns and what counts as the time of
a step.

The scale of the gradient is the same in both. With several labels, the Trainer's
BCEWithLogitsLoss is the mean over the rows and labels of a batch; ampft sums over them and divides
once by their number. So clipping at 1.0 affects both alike.

    python benchmarks/texts.py mrpc --data_dir ../shared/data --seeds 3 --out texts-mrpc.json
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from beside_trainer import Turn, compare, comparison_parser, train_with_recipe, train_with_trainer

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "learning_rate": 1e-4,
    "warmup_ratio": 0.0,
    "max_seq_length": 128,
}
GOEMOTIONS_TRAIN_ROWS = 10_000
THRESHOLD = 0.2  # of several labels

Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A data set and its task."""

    task: str  # Task of the recipe.
    epochs: int  # Passes over the training rows.
    metric_names: Mapping[str, str]  # Metrics, and the names to print.
    # Function that returns the rows of each split from the folder of data sets.
    read: Callable[[Path], dict[str, Rows]]
    problem_type: str  # Kind of loss of the Trainer's model.


def tab_separated(path: Path) -> Iterator[list[str]]:
    """Yield the fields of each line; a quote is a plain character."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_mrpc(data_dir: Path) -> dict[str, Rows]:
    """Return the pairs of sentences of both files, without their headers."""

    def rows(split: str) -> Rows:
        path = data_dir / "mrpc" / f"msr_paraphrase_{split}.txt"
        for label, _, _, first, second in islice(tab_separated(path), 1, None):
            yield {"sentence1": first, "sentence2": second, "label": label}

    return {split: rows(split) for split in ("train", "test")}


def read_goemotions(data_dir: Path) -> dict[str, Rows]:
    """Return the texts of all files with the names of their labels."""
    folder = data_dir / "goemotions"
    names = (folder / "labels.txt").read_text(encoding="utf-8").split()

    def rows(file: str, count: int | None = None) -> Rows:
        for text, indices, _ in islice(tab_separated(folder / file), count):
            yield {"text": text, "labels": [names[int(index)] for index in indices.split(",")]}

    return {
        "train": rows("train.tsv", GOEMOTIONS_TRAIN_ROWS),
        "validation": rows("dev.tsv"),
        "test": rows("test.tsv"),
    }


CASES = {
    "mrpc": Case(
        task="text",
        epochs=3,
        metric_names={"accuracy": "accuracy", "macro_f1": "macro F1"},
        read=read_mrpc,
        problem_type="single_label_classification",
    ),
    "goemotions": Case(
        task="multi-label",
        epochs=2,
        metric_names={"micro_f1": "micro F1", "macro_f1": "macro F1"},
        read=read_goemotions,
        problem_type="multi_label_classification",
    ),
}


def write_files(case: Case, data_dir: Path, folder: Path) -> dict[str, str]:
    """Write the splits as JSON Lines; return the files by the names of the recipe's flags."""
    files = {}
    for split, rows in case.read(data_dir).items():
        path = folder / f"{split}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        files[f"{split}_file"] = str(path)
    return files


def run_ampft(
    case: Case, settings: Mapping[str, Any], files: Mapping[str, Any], turn: Turn
) -> dict[str, Any]:
    """Run the recipe once."""

    def run_scores(run: Path) -> dict[str, float]:
        from ampft.runs.predictions import read_predictions

        outcome: Any = read_predictions(run / "predictions.parquet")
        return scores(case, outcome.truth, outcome.predicted)

    flags = [f"--{name}={file}" for name, file in files.items()]
    if case.task == "multi-label":
        flags.append(f"--threshold={THRESHOLD}")
    return train_with_recipe(turn, settings, flags, run_scores)


def run_trainer(
    case: Case, settings: Mapping[str, Any], files: Mapping[str, Any], turn: Turn
) -> dict[str, Any]:
    """Train once with the Trainer, in this process."""
    import torch
    from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

    from ampft.arguments.classify import ClassifyArguments
    from ampft.data.load import load_data
    from ampft.models.minilm import default_model
    from ampft.models.tokenizer import load_tokenizer

    data = load_data(ClassifyArguments(task=case.task, **files))
    folder, _ = default_model(None)
    tokenizer = load_tokenizer(folder)
    has_several = case.problem_type == "multi_label_classification"

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = (batch[column] for column in data.input_columns)
        return dict(tokenizer(*texts, truncation=True, max_length=settings["max_seq_length"]))

    def encoded(split: str) -> Any:
        rows = data.splits[split]
        labels: Any = data.labels(split)
        targets = (labels.astype(float) if has_several else labels).tolist()
        tokens = rows.map(encode, batched=True, remove_columns=rows.column_names)
        return tokens.add_column("labels", targets)

    found, output = train_with_trainer(
        turn,
        settings,
        {split: encoded(split) for split in ("train", "test")},
        load_model=lambda: AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(data.label_names),
            problem_type=case.problem_type,
            dtype=torch.float32,
        ),
        collator=DataCollatorWithPadding(tokenizer),
    )
    logits = output.predictions
    least = math.log(THRESHOLD / (1 - THRESHOLD))
    predicted = logits >= least if has_several else logits.argmax(-1)
    return {**found, **scores(case, data.labels("test"), predicted)}


def scores(case: Case, truth: Any, predicted: Any) -> dict[str, float]:
    """Return the metrics of a case.

    Args:
        case: The case.
        truth: (n,) classes, or (n, K) whether a row has a label.
        predicted: The same of the predictions.
    """
    from sklearn.metrics import accuracy_score, f1_score

    functions = {
        "accuracy": accuracy_score,
        "micro_f1": partial(f1_score, average="micro", zero_division=0),
        "macro_f1": partial(f1_score, average="macro", zero_division=0),
    }
    return {name: float(functions[name](truth, predicted)) for name in case.metric_names}


def main() -> None:
    """Compare the systems."""
    parser = comparison_parser(
        __doc__.splitlines()[0], data_help="folder that contains mrpc and goemotions"
    )
    parser.add_argument("case", choices=tuple(CASES))
    args = parser.parse_args()
    case = CASES[args.case]
    settings = {"task": case.task, **SETTINGS, "num_train_epochs": case.epochs}
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(case, args.data_dir, Path(folder))
        systems = {
            "ampft": partial(run_ampft, case, settings, files),
            "trainer": partial(run_trainer, case, settings, files),
        }
        compare(args, settings, case.metric_names, systems)


if __name__ == "__main__":
    main()
