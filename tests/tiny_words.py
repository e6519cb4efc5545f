"""Sentences of words with tags, of unequal lengths, in the vocabulary of the tiny BERT."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
from tiny_text import WORDS

from ampft.data.dataset import TOKEN, ClassificationData
from ampft.tasks.task import Task, make_task
from ampft.tasks.task_settings import TaskSettings

TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def tiny_sentences(n: int, *, seed: int = 0, longest: int = 30) -> dict[str, list]:
    """Sentences of 1 to `longest` words, some of several tokens, whose tags follow from the words.

    The word w0 begins a place and w2 a person; w1 and w3 continue them. Punctuation makes a word of
    several tokens.
    """
    generator = np.random.default_rng(seed)
    tokens, labels = [], []
    for _ in range(n):
        words = generator.choice(WORDS[:12], generator.integers(1, longest + 1)).tolist()
        tags, last = [], 0
        for word in words:
            number = int(word[1:])
            begins = {0: 1, 2: 3}.get(number, 0)
            continues = {1: 2, 3: 4}.get(number, 0)
            last = begins or (continues if continues and last in (continues, continues - 1) else 0)
            tags.append(last)
        has_parts = (generator.random(len(words)) < 0.3).tolist()
        tokens.append([word + "-w30" * more for word, more in zip(words, has_parts, strict=True)])
        labels.append(tags)
    return {"tokens": tokens, "label": labels}


def write_sentences(path: Path, n: int, *, seed: int = 0) -> None:
    """Write `tiny_sentences` as a CoNLL file."""
    data = tiny_sentences(n, seed=seed, longest=20)
    sentences = [
        "".join(f"{word}\t{TAGS[tag]}\n" for word, tag in zip(words, tags, strict=True))
        for words, tags in zip(data["tokens"], data["label"], strict=True)
    ]
    path.write_text("\n".join(sentences), encoding="utf-8")


def tiny_word_task(
    folder: Path,
    *,
    train: int,
    validation: int = 4,
    longest: int = 30,
    remove_padding: bool = True,
    **settings,
) -> Task:
    """Return the task over `tiny_sentences`, with the model in `folder`."""
    tags = datasets.List(datasets.ClassLabel(names=list(TAGS)))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "label": tags})
    splits = {
        name: datasets.Dataset.from_dict(
            tiny_sentences(n, seed=seed, longest=longest), features=features
        )
        for seed, (name, n) in enumerate({"train": train, "validation": validation}.items())
    }
    data = ClassificationData(datasets.DatasetDict(splits), ("tokens",), TOKEN, "tiny", {}, ())
    return make_task(
        data, TaskSettings(model_name_or_path=str(folder), padding=not remove_padding, **settings)
    )
