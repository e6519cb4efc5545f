"""Images and sounds: ampft beside the Trainer with the same model, data and settings.

CIFAR-10 (a subset) with a small ViT or ConvNeXt, spoken digits (FSDD) with a small Wav2Vec2 or AST,
all from configurations with random weights. Each training runs in its own process, in turns:

    python benchmarks/media.py vit --data_dir ../shared/data --seeds 3 --out results.json
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t
from provenance import provenance
from sklearn.metrics import accuracy_score, f1_score
from workload import StepClock

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.media.images import open_image
from ampft.media.sounds import open_sound, resample

REPOSITORY = Path(__file__).resolve().parent.parent
SYSTEMS = ("ampft", "trainer")
BATCH, RATE, WARM_UP_STEPS = 32, 1e-3, 5
SIZE = {"height": 32, "width": 32}
SMALL = {
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 192,
}


def save_model(case: str, folder: Path) -> None:
    """Save a small model with random weights for ten classes, and its processor."""
    torch.manual_seed(0)
    classes = {"num_labels": 10}
    if case == "vit":
        t.ViTForImageClassification(
            t.ViTConfig(image_size=32, patch_size=4, **SMALL, **classes)
        ).save_pretrained(folder)
        t.ViTImageProcessorPil(size=SIZE).save_pretrained(folder)
    elif case == "convnext":
        t.ConvNextForImageClassification(
            t.ConvNextConfig(
                patch_size=2, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1], **classes
            )
        ).save_pretrained(folder)
        t.ViTImageProcessorPil(size=SIZE).save_pretrained(folder)
    elif case == "wav2vec2":
        config = t.Wav2Vec2Config(
            feat_extract_norm="layer", do_stable_layer_norm=True, conv_dim=(64,) * 7,
            num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, classifier_proj_size=96,
            mask_time_prob=0.0, layerdrop=0.0, **SMALL, **classes,
        )  # fmt: skip
        t.Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)
        t.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    else:
        size = {"max_length": 128, "num_mel_bins": 64}
        strides = {"patch_size": 8, "time_stride": 8, "frequency_stride": 8}
        config = t.ASTConfig(**size, **strides, **SMALL, **classes)
        t.ASTForAudioClassification(config).save_pretrained(folder)
        t.ASTFeatureExtractor(**size).save_pretrained(folder)


def data_flags(case: str, data: Path, folder: Path) -> dict[str, Path]:
    """Return the flags of the data; tables of spoken digits are written to a folder."""
    if case in ("vit", "convnext"):
        return {"dataset_name": data / "cifar10_subset"}
    rows: dict[str, list[tuple[Path, str]]] = {"train": [], "test": []}
    for path in sorted((data / "fsdd" / "recordings").resolve().glob("*.wav")):
        digit, _, index = path.stem.split("_")
        rows["test" if int(index) < 5 else "train"].append((path, digit))
    for split, table in rows.items():
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "label"), *table])
    return {f"{split}_file": folder / f"{split}.csv" for split in rows}


def train_ampft(
    model: Path, flags: Mapping[str, Path], args: argparse.Namespace, folder: Path
) -> dict[str, float]:
    """Train with the recipe; return accuracy and speed."""
    settings: dict[str, object] = {
        **flags, "model_name_or_path": model, "output_dir": folder / "run", "seed": args.seed,
        "mixed_precision": args.mode, "per_device_train_batch_size": BATCH, "learning_rate": RATE,
        "num_train_epochs": args.epochs, "max_grad_norm": 1.0,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(REPOSITORY / "recipes" / "classify.py"), *words]
    command.append("--no-load_best_model_at_end")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    record = json.loads((folder / "run" / "run.json").read_text())
    report = json.loads((folder / "run" / "report.json").read_text())
    return {
        "accuracy": report["accuracy"],
        "macro_f1": report["macro_f1"],
        "examples_per_second": BATCH / record["timings"]["step_seconds_median"],
        "waiting_share": record["timings"]["waiting_share"],
    }


def train_trainer(
    model: Path, flags: Mapping[str, Path], args: argparse.Namespace, folder: Path
) -> dict[str, float]:
    """Train with the Trainer, preprocessing each batch as its example scripts do.

    `run_image_classification.py` and `run_audio_classification.py` set a transform on the data set.
    Their random crops need torchvision and torchaudio, and are left out on both sides.
    """
    data = load_data(DataRequest(**flags))  # type: ignore[arg-type]
    (column,) = data.input_columns
    is_image = data.kind == "image"
    auto = t.AutoModelForImageClassification if is_image else t.AutoModelForAudioClassification
    transform = image_transform(model) if is_image else sound_transform(model)
    splits = {}
    for name, part in data.splits.items():
        kept = part.select_columns([column, "label"])
        splits[name] = kept.with_transform(
            lambda rows: {**transform(rows[column]), "labels": rows["label"]}
        )
    t.set_seed(args.seed)
    clock = StepClock()
    arguments = t.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, per_device_eval_batch_size=64,
        learning_rate=RATE, num_train_epochs=args.epochs, bf16=args.mode == "bf16",
        use_cpu=not torch.cuda.is_available(), save_strategy="no", report_to=[], seed=args.seed,
        disable_tqdm=True, remove_unused_columns=False, logging_strategy="epoch",
    )  # fmt: skip
    trainer = t.Trainer(
        model=auto.from_pretrained(model, num_labels=10, dtype=torch.float32),
        args=arguments,
        train_dataset=splits["train"],
        callbacks=[clock],
    )
    trainer.train()
    output = trainer.predict(splits["test"])
    predicted = np.argmax(output.predictions, axis=-1)
    return {
        "accuracy": float(accuracy_score(output.label_ids, predicted)),
        "macro_f1": float(f1_score(output.label_ids, predicted, average="macro")),
        "examples_per_second": BATCH / float(np.median(np.diff(clock.ends[WARM_UP_STEPS:]))),
    }


def image_transform(model: Path) -> Callable[[list[Any]], dict[str, Any]]:
    """Return the transform of `run_image_classification.py`, without random crops."""
    processor = t.AutoImageProcessor.from_pretrained(model)

    def transform(images: list[Any]) -> dict[str, Any]:
        return dict(processor([open_image(i).convert("RGB") for i in images], return_tensors="pt"))

    return transform


def sound_transform(model: Path) -> Callable[[list[Any]], dict[str, Any]]:
    """Return the transform of `run_audio_classification.py`, without random crops.

    Sounds are padded to the longest sound of the data, 2.3 s, so that batches are equally long: the
    script's data collator cannot pad.
    """
    extractor = t.AutoFeatureExtractor.from_pretrained(model)
    rate = extractor.sampling_rate

    def transform(sounds: list[Any]) -> dict[str, Any]:
        opened = [open_sound(sound) for sound in sounds]
        waves = [resample(sound.mono(), sound.rate, rate) for sound in opened]
        padding = (
            {"padding": "max_length", "max_length": int(2.3 * rate), "truncation": True}
            if isinstance(extractor, t.Wav2Vec2FeatureExtractor)
            else {}
        )
        return dict(extractor(waves, sampling_rate=rate, return_tensors="pt", **padding))

    return transform


def main() -> None:
    """Train each system with each seed, in turns, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("case", choices=("vit", "convnext", "wav2vec2", "ast"))
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with cifar10_subset")
    parser.add_argument("--mode", choices=("fp32", "bf16"), default="fp32", help="precision")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training data")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each system")
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.system:
            save_model(args.case, folder / "model")
            flags = data_flags(args.case, args.data_dir, folder)
            train = train_ampft if args.system == "ampft" else train_trainer
            print(json.dumps(train(folder / "model", flags, args, folder)))
            return
    rows = [
        {"system": system, "seed": seed, **run_apart(system, seed)}
        for seed in range(args.seeds)
        for system in SYSTEMS
    ]
    speed = {
        system: statistics.median(r["examples_per_second"] for r in rows if r["system"] == system)
        for system in SYSTEMS
    }
    ratio = speed["ampft"] / speed["trainer"]
    print(f"{args.case}, {args.mode}: ampft is {ratio:.2f} times as fast as the Trainer")
    result = {"case": args.case, "mode": args.mode, "ratio": ratio, "runs": rows}
    if args.out:
        args.out.write_text(json.dumps({**result, "provenance": provenance()}, indent=1) + "\n")


def run_apart(system: str, seed: int) -> dict[str, Any]:
    """Run this command for one system and seed in its own process; return its result."""
    command = [sys.executable, *sys.argv, "--system", system, "--seed", str(seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(system, seed, result, flush=True)
    return result


if __name__ == "__main__":
    main()
