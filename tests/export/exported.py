"""Trains tiny runs of every kind, exports them, and predicts with both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from media_files import image_folder, sound_table
from tiny_masks import save_tiny_segformer, write_folders
from tiny_media import save_model
from tiny_text import LABELS, save_tiny_bert, tiny_texts
from tiny_words import write_sentences

import ampft
from ampft.export import ExportRequest, export_run
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import load_run_classifier

SETTINGS: dict[str, Any] = {
    "use_cpu": True,
    "cpu_threads": 1,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 16,
}
SPLITS = {"train": 32, "validation": 24, "test": 24}


def rows(n: int, seed: int, *, pairs: bool = False, several: bool = False) -> list[dict[str, Any]]:
    """Return texts or pairs of texts with one label, or with any number of labels."""
    table = tiny_texts(n, seed=seed)
    found = []
    for text, label in zip(table["text"], table["label"], strict=True):
        inputs = {"first": text, "second": f"w{label} {text[:9]}"} if pairs else {"text": text}
        found.append({**inputs, "label": list(LABELS[: label + 1]) if several else LABELS[label]})
    return found


def train(folder: Path, model: Path, **settings: Any) -> Path:
    """Train a few steps; return the folder of the run."""
    run = folder / "run"
    ampft.finetune(model_name_or_path=str(model), output_dir=str(run), **SETTINGS, **settings)
    return run


def train_texts(folder: Path, **settings: Any) -> Path:
    """Train the tiny BERT on texts, which are cut after 24 tokens."""
    form = {name: settings.pop(name, False) for name in ("pairs", "several")}
    files = {}
    for seed, (split, n) in enumerate(SPLITS.items()):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(n, seed, **form)))
        files[f"{split}_file"] = str(path)
    if form["pairs"]:
        settings["text_column_names"] = "first,second"
    model = save_tiny_bert(folder / "bert")
    return train(folder, model, **{"max_seq_length": 24, **files, **settings})


def train_words(folder: Path) -> Path:
    files = {}
    for seed, (split, n) in enumerate(SPLITS.items()):
        write_sentences(folder / f"{split}.conll", n, seed=seed)
        files[f"{split}_file"] = str(folder / f"{split}.conll")
    return train(folder, save_tiny_bert(folder / "bert"), task="tokens", max_seq_length=16, **files)


def train_images(folder: Path, family: str = "vit") -> Path:
    data = image_folder(folder / "data", per_class=12)
    return train(folder, save_model(folder / "model", family), dataset_name=str(data))


def train_sounds(folder: Path, family: str, *, rate: int = 8000) -> Path:
    sound_table(folder / "data", per_class=12, rate=rate)
    table = folder / "data" / "sounds.csv"
    return train(folder, save_model(folder / "model", family), train_file=str(table))


def train_pixels(folder: Path) -> Path:
    data = write_folders(folder / "data")
    model = save_tiny_segformer(folder / "model")
    settings = {"dataset_name": str(data), "task": "pixels", "image_size": "32,32"}
    return train(folder, model, **settings)


def artifact_of(run: Path, folder: Path, form: str, precision: str, **options: Any) -> Path:
    target = folder / f"{form}-{precision}"
    request = ExportRequest(run=run, format=form, precision=precision, output_dir=target, **options)
    export_run(request)
    return target


def logits_of_run(run: Path, columns: list[Any]) -> np.ndarray:
    """The logits of the run's own model in float32."""
    predictor = load_run_classifier(run).load(PredictRequest())
    with predictor.numerics:
        return predictor.logits(columns)
