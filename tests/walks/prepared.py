"""What a training made, prepared once for all walks: models, finished runs, artifacts, ledgers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from global_state import fresh_global_state
from media_files import image_folder
from running import write_csv
from tiny_masks import save_tiny_segformer, write_folders
from tiny_media import save_model
from tiny_text import LABELS, save_tiny_bert, tiny_texts
from tiny_words import write_sentences

import ampft
from ampft import cli
from ampft.errors import InputError
from ampft.files import hashed_text

OF_TEXT = "--train_file train.csv --validation_file v.csv --test_file u.csv"
SHORT = "--max_train_steps 4 --per_device_train_batch_size 8 --use_cpu --cpu_threads 1"
TRAIN = f"train --model_name_or_path model {OF_TEXT} {SHORT} --learning_rate 1e-3"
VARIABLES = re.compile(r"([A-Z][A-Z_]+)=(\S*)")


def train(*flags: str, output_dir: str = "o") -> str:
    """Return the command of a short training on texts."""
    return " ".join([TRAIN, *flags, "--output_dir", output_dir])


def write_texts(name: str, count: int, seed: int) -> Callable[[Path], object]:
    """Return a function that writes a table of texts, whose labels follow from their words."""

    def write(folder: Path) -> object:
        table = tiny_texts(count, seed=seed)
        rows = [
            (f"{text} w{label} w{label} w{label}", LABELS[label])
            for text, label in zip(table["text"], table["label"], strict=True)
        ]
        return write_csv(folder / name, rows, ("text", "label"))

    return write


def write_pairs(folder: Path) -> None:
    """Write a table with pairs, a number, several labels, groups, weights and a feature."""
    table = tiny_texts(36, seed=5)
    pd.DataFrame(
        {
            "a": table["text"], "b": table["text"][::-1],
            "score": [label / 2 + i % 3 for i, label in enumerate(table["label"])],
            "p": [i % 2 for i in range(36)], "q": [i // 2 % 2 for i in range(36)],
            "user": [i // 3 for i in range(36)], "age": range(36),
            "label": [LABELS[i] for i in table["label"]],
        }
    ).to_csv(folder / "pairs.csv", index=False)  # fmt: skip


def save_encoder(folder: Path) -> None:
    """Save a tiny BERT without a head."""
    save_tiny_bert(folder)
    transformers.BertModel.from_pretrained(folder).save_pretrained(folder)


def save_xlnet(folder: Path) -> None:
    """Save a tiny XLNet, which does not run without padding."""
    save_tiny_bert(folder)
    config = transformers.XLNetConfig(
        vocab_size=45, d_model=16, n_layer=1, n_head=2, d_inner=32, num_labels=3
    )
    transformers.XLNetForSequenceClassification(config).save_pretrained(folder)


def save_broken(folder: Path) -> None:
    """Save a tiny BERT with a weight that is not finite."""
    save_tiny_bert(folder)
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    model.classifier.weight.data[0, 0] = float("nan")
    model.save_pretrained(folder)


# What each item is made by: a function of the folder, or a command; and the items that it needs.
ITEMS: dict[str, Callable[[Path], object] | str] = {
    "model": lambda folder: save_tiny_bert(folder / "model"),
    "train.csv": write_texts("train.csv", 24, 0),
    "v.csv": write_texts("v.csv", 12, 1),
    "u.csv": write_texts("u.csv", 12, 2),
    "pairs.csv": write_pairs,
    "words.conll": lambda folder: write_sentences(folder / "words.conll", 20),
    "base": lambda folder: save_encoder(folder / "base"),
    "xlnet": lambda folder: save_xlnet(folder / "xlnet"),
    "broken": lambda folder: save_broken(folder / "broken"),
    "vit": lambda folder: save_model(folder / "vit", "vit"),
    "segformer": lambda folder: save_tiny_segformer(folder / "segformer"),
    "pictures": lambda folder: image_folder(folder / "pictures"),
    "masks": lambda folder: write_folders(folder / "masks", train=6, val=3),
    "run": train("--checkpointing_steps 2", output_dir="run"),
    "inspected": train("--inspect_data", output_dir="inspected"),
    "pair-run": TRAIN.replace(OF_TEXT, "--train_file pairs.csv --validation_fraction 0")
    + " --text_column_names a,b --output_dir pair-run",
    "feature-run": TRAIN.replace(OF_TEXT, "--train_file pairs.csv --validation_fraction 0")
    + " --text_column_names a --feature_columns age --output_dir feature-run",
    "word-run": TRAIN.replace(OF_TEXT, "--train_file words.conll --validation_fraction 0")
    + " --output_dir word-run",
    "number-run": TRAIN.replace(OF_TEXT, "--train_file pairs.csv --validation_fraction 0")
    + " --text_column_names a --label_column_name score --task regression --output_dir number-run",
    "picture-run": "train --dataset_name pictures --model_name_or_path vit --validation_fraction 0"
    f" {SHORT} --output_dir picture-run",
    **{
        f"{mode}-{seed}": train(
            f"--mixed_precision {mode} --seed {seed}", output_dir=f"{mode}-{seed}"
        )
        for mode in ("fp32", "bf16")
        for seed in (1, 2, 3)
    },
    "ledger": "judge ledger --best fp32-1 fp32-2 fp32-3",
}  # fmt: skip


def items_in(words: str) -> list[str]:
    """Return the items that a text mentions."""
    parts = {*re.findall(r"[\w.-]+", words)}
    return [name for name in ITEMS if name in parts]


class Prepared:
    """Items, each made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: set[str] = set()

    def make(self, name: str) -> None:
        if name in self.made:
            return
        item = ITEMS[name]
        if callable(item):
            item(self.folder)
        else:
            for each in items_in(item):
                if each != name:
                    self.make(each)
            with contextlib.chdir(self.folder):
                answer = command(item)
            assert not isinstance(answer, str), f"{item}: {answer}"
        self.made.add(name)

    def copy(self, words: str, folder: Path, besides: Collection[str] = ()) -> None:
        """Copy into a folder what a text mentions and is not there, with what it was made of."""
        wanted = items_in(words)
        for name in wanted:
            item = ITEMS[name]
            made_of = items_in(item) if isinstance(item, str) else []
            wanted += [each for each in made_of if each not in wanted]
        for name in wanted:
            if name not in besides and not (folder / name).exists():
                self.put(name, folder / name)

    def put(self, name: str, path: Path) -> None:
        """Copy an item, or a part of one, to a path, in the place of what is there."""
        self.make(name.partition("/")[0])
        source = self.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, path)


def command(words: str) -> Any:
    """Run command lines joined by `;` in this process; return the error, or what was printed."""
    out, err = io.StringIO(), io.StringIO()
    for line in words.split(" ; "):
        refused, said = run_here(line, out, err)
        if refused:
            return said
    return [out.getvalue()]


def run_here(line: str, out: io.StringIO, err: io.StringIO) -> tuple[bool, str]:
    """Return whether a command is refused, and with what; variables may precede it."""
    before = dict(VARIABLES.findall(line.partition(" --")[0]))
    argv = shlex.split(VARIABLES.sub("", line, count=len(before)))
    with (
        pytest.MonkeyPatch.context() as patch,
        fresh_global_state(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name, value in before.items():
            patch.setenv(name, value)
        try:
            code = cli.main(argv)
        except SystemExit as ended:
            code = ended.code
    errors = [each for each in err.getvalue().splitlines() if each.startswith("error: ")]
    # A verdict, such as that of `ampft judge`, has an exit code of its own and is no refusal.
    refused = bool(errors) or code in (1, 2)
    return refused, errors[-1].removeprefix("error: ") if errors else err.getvalue()


def python(code: str) -> Any:
    """Run code of Python, with what own loops import; return the error, or that it ran."""
    names = {"ampft": ampft, "torch": torch, "np": np, "pd": pd, "transformers": transformers,
             "Path": Path, "os": os, "json": json}  # fmt: skip
    silence = io.StringIO()
    with (
        fresh_global_state(),
        contextlib.redirect_stdout(silence),
        contextlib.redirect_stderr(silence),
    ):
        try:
            exec(compile(code, "walk", "exec"), names)
        except InputError as error:
            return str(error)
        except TypeError as error:  # as Python refuses arguments
            return f"{type(error).__name__}: {error}"
    return ["it ran"]


Change = Callable[[Path, Prepared], object]
"""A change of the file at a path."""


def edited(old: str, new: str) -> Change:
    """Return a function that replaces a text in a file."""

    def edit(path: Path, prepared: Prepared) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return edit


def copied(name: str) -> Change:
    """Return a function that copies an item, or a part of one, to a path."""
    return lambda path, prepared: prepared.put(name, path)


def recorded(**values: object) -> Change:
    """Return a function that sets entries of a file that states its own hash."""

    def change(path: Path, prepared: Prepared) -> None:
        entries = json.loads(path.read_text()) | values
        entries.pop("sha256")
        path.write_text(hashed_text(entries))

    return change
