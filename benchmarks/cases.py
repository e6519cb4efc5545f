"""The texts and models on which speed is measured: real data sets, and models of several sizes.

MiniLM is pretrained. The other models have their published configurations and random weights,
because speed does not depend on the weights. All use MiniLM's tokenizer, whose token ids fit every
vocabulary here. The families of `families.py` have six layers with 384 features.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import torch
from families import CASES, Size
from transformers import AutoModelForSequenceClassification, BertConfig, ModernBertConfig

from ampft.data.dataset import ClassificationData
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.models.minilm import default_model
from ampft.models.tokenizer import load_tokenizer

TEXTS = ("docstrings", "sst2", "trec", "mrpc", "equal")
MODELS = ("minilm", "bert-base", "modernbert-base", *CASES)
EQUAL_TEXT_WORDS = 1000  # longer than any --max_length that is measured


def load_texts(name: str, data_dir: Path | None, examples: int | None = None) -> ClassificationData:
    """Return the training texts of a case.

    Args:
        name: One of `TEXTS`. `equal` repeats each docstring until it exceeds any maximum length, so
            that all texts are equally long after truncation and there is no padding to save.
        data_dir: Folder with `sst2/`, `trec/` and `mrpc/`, each with the files as published.
        examples: Number of examples to draw with a fixed seed; None for all.

    Raises:
        SystemExit: The case needs `data_dir`, and it is None.
    """
    data = _all_texts(name, data_dir)
    rows = data.splits["train"].shuffle(seed=0)
    rows = rows if examples is None else rows.select(range(min(examples, len(rows))))
    return replace(data, splits=datasets.DatasetDict(train=rows))


def _all_texts(name: str, data_dir: Path | None) -> ClassificationData:
    if name in ("docstrings", "equal"):
        data = load_data(DataRequest(dataset_name="stdlib", dataset_config_name="full"))
        return data if name == "docstrings" else _repeat_texts(data)
    if data_dir is None:
        raise SystemExit(f"{name}: pass --data_dir, the folder that contains {name}/")
    readers = {"sst2": _read_sst2, "trec": _read_trec, "mrpc": _read_mrpc}
    columns, labels = readers[name](data_dir / name)
    names = sorted(set(labels))
    rows = datasets.Dataset.from_dict(
        {**columns, "label": [names.index(label) for label in labels]}
    )
    rows = rows.cast_column("label", datasets.ClassLabel(names=names))
    return ClassificationData(
        datasets.DatasetDict(train=rows), tuple(columns), "text", name, {}, ()
    )


def _repeat_texts(data: ClassificationData) -> ClassificationData:
    def repeat(row: dict[str, str]) -> dict[str, str]:
        words = row["text"].split() or ["nothing"]
        return {"text": " ".join((words * EQUAL_TEXT_WORDS)[:EQUAL_TEXT_WORDS])}

    splits = datasets.DatasetDict(train=data.splits["train"].map(repeat))
    return ClassificationData(splits, data.input_columns, "text", "equal", {}, ())


def _read_sst2(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines()
    texts, labels = zip(*(line.rsplit("\t", 1) for line in lines), strict=True)
    return {"text": list(texts)}, list(labels)


def _read_trec(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    lines = (folder / "train_5500.label").read_text(encoding="latin-1").splitlines()
    labels, texts = zip(*(line.split(" ", 1) for line in lines), strict=True)
    return {"text": list(texts)}, [label.split(":")[0] for label in labels]


def _read_mrpc(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    with (folder / "msr_paraphrase_train.txt").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    pairs = {"sentence1": [row[3] for row in rows], "sentence2": [row[4] for row in rows]}
    return pairs, [row[0] for row in rows]


@cache
def model_folder(name: str, label_names: tuple[str, ...], parent: Path) -> str:
    """Return the folder of a model of `MODELS`; create it, with its tokenizer, in `parent`.

    The weights are the same each time, and so is the classification head, which has the labels of
    the data: no system initializes a head of its own.
    """
    if name == "minilm":
        return default_model(None)[0]
    folder = parent / f"{name}-{len(label_names)}"
    tokenizer = load_tokenizer(default_model(None)[0])
    labels: dict[str, Any] = {
        "id2label": dict(enumerate(label_names)),
        "label2id": {label: index for index, label in enumerate(label_names)},
    }
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    torch.manual_seed(0)
    if name in CASES:
        model = CASES[name].model(Size(), **labels, **ends)
    elif name == "bert-base":
        model = AutoModelForSequenceClassification.from_config(BertConfig(**labels))
    else:
        special = {
            f"{each}_token_id": getattr(tokenizer, f"{each}_token_id")
            for each in ("pad", "cls", "sep")
        }
        config = ModernBertConfig(**labels, **ends, **special)
        model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
