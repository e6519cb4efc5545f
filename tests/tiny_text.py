"""A BERT small enough for every test, and texts of unequal lengths in its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

from ampft.data.dataset import ClassificationData
from ampft.data.row_labels import WEIGHT_COLUMN
from ampft.decision import CONTRACT_NAME, Contract, Rule, Tokenization
from ampft.tasks.task import Task, make_task
from ampft.tasks.task_settings import TaskSettings

LABELS = ("ant", "bee", "cow")
COLUMN_LABELS = ("mood=bad", "mood=good", "topic=x", "topic=y", "topic=z")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(f"w{index}" for index in range(40))


def save_tiny_bert(folder: Path, *, weight: float | None = None) -> Path:
    """Save model and tokenizer; a `weight` is written into every entry of a feed-forward layer."""
    words = (*SPECIAL, *WORDS)
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        # BERT's own 0.02 leaves so small a model's output almost constant.
        initializer_range=0.2,
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
    )
    generator_state = torch.get_rng_state()
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    torch.set_rng_state(generator_state)
    if weight is not None:
        torch.nn.init.constant_(model.bert.encoder.layer[0].intermediate.dense.bias, weight)
    model.save_pretrained(folder)
    return folder


def save_sentence_encoder(tiny_bert: Path, folder: Path) -> Path:
    """Save the encoder of a tiny BERT as sentence-transformers does, with how it pools."""
    BertModel.from_pretrained(tiny_bert).save_pretrained(folder)
    BertTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


def write_contract(
    folder: Path,
    max_length: int | None = 16,
    *,
    task: str = "text",
    columns: tuple[str, ...] = ("text",),
    names: tuple[str, ...] = LABELS,
) -> None:
    """Write the file that says how a model decides, as a training does; None reads no tokens."""
    tokenization = None if max_length is None else Tokenization(max_length)
    contract = Contract(task, columns, Rule(names), tokenization)
    (folder / CONTRACT_NAME).write_text(contract.text(), encoding="utf-8")


def tiny_texts(n: int, *, seed: int = 0) -> dict[str, list]:
    """Return n texts of 1 to 30 words with labels; every label occurs, unevenly often."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 31))) for _ in range(n)]
    labels = np.concatenate([np.arange(3), rng.choice(3, n, p=[0.6, 0.3, 0.1])])[:n]
    return {"text": texts, "label": labels.tolist()}


def tiny_task(
    folder: Path, *, train: int, validation: int = 4, remove_padding: bool = True, **settings
) -> Task:
    """Return the text task over `tiny_texts`, with the model in `folder`."""
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(LABELS))}
    )
    sizes = {"train": train, "validation": validation}
    splits = {
        name: datasets.Dataset.from_dict(tiny_texts(n, seed=seed), features=features)
        for seed, (name, n) in enumerate(sizes.items())
    }
    data = ClassificationData(datasets.DatasetDict(splits), ("text",), "text", "tiny", {}, ())
    return make_task(
        data, TaskSettings(model_name_or_path=str(folder), padding=not remove_padding, **settings)
    )


def tiny_column_task(folder: Path, *, train: int, remove_padding: bool = True, **settings) -> Task:
    """Return a task over `tiny_texts` with two columns of labels, with the model in `folder`."""
    labels = datasets.List(datasets.ClassLabel(names=list(COLUMN_LABELS)))
    features = datasets.Features({"text": datasets.Value("string"), "label": labels})
    splits = {}
    for seed, (name, n) in enumerate({"train": train, "validation": 6}.items()):
        rows = {
            "text": tiny_texts(n, seed=seed)["text"],
            "label": [[i % 2, 2 + i // 2 % 3] for i in range(n)],
        }
        splits[name] = datasets.Dataset.from_dict(rows, features=features)
    data = ClassificationData(datasets.DatasetDict(splits), ("text",), "text", "tiny", {}, ())
    given = {"task": "columns", "padding": not remove_padding, **settings}
    return make_task(data, TaskSettings(model_name_or_path=str(folder), **given))


def with_weights(task: Task, weights: Sequence[float]) -> Task:
    """Return a task whose training rows have weights."""
    column = np.asarray(weights, dtype=np.float64)
    train = task.data.splits["train"].add_column(WEIGHT_COLUMN, column)
    splits = datasets.DatasetDict({**task.data.splits, "train": train})
    return make_task(replace(task.data, splits=splits), task.settings)
