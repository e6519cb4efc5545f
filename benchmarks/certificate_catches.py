"""Which planted faults does a certificate catch, and does it pass faithful artifacts?

Run: `python benchmarks/certificate_catches.py --out benchmarks/results/certificate-catches.json`.

Trains a small BERT on made-up texts, a third of them in capitals and some longer than the model
reads, with several seeds; exports each run; plants the faults of `artifact_faults.py` in copies of
the artifact, with manifests that fit them; and certifies everything. A stale artifact has the model
file of another seed. Beside each verdict stands the usual gate: accuracy within 1 % on the first
100 rows. `certificate_gate.py` simulates the statistics with many more artifacts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import artifact_faults
import numpy as np
import torch
from provenance import provenance
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from ampft.certificate.findings import FAILED, PASSED
from ampft.certificate.verify import VerifyRequest, certify, check_verification
from ampft.cli import main as ampft
from ampft.export import ExportRequest, export_run, open_artifact
from ampft.export.formats import FORMATS
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import run_classifier
from ampft.text.terminal import quiet_libraries

LABELS = ("ant", "bee", "cow", "dog")
SHARES = (0.5, 0.3, 0.15, 0.05)
WORDS = tuple(f"w{index}" for index in range(60))
SIZES = {"train": 1500, "validation": 100, "test": 1000}
LENGTH = 24
NAIVE_ROWS, NAIVE_MARGIN = 100, 0.01
PRECISIONS = ("fp32", "fp16", "bf16", "int8")


def write_rows(path: Path, rows: int, seed: int) -> Path:
    """Write texts in which a word at a random place says the label of nine rows in ten."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        label = int(rng.choice(len(LABELS), p=SHARES))
        words = rng.choice(WORDS[len(LABELS) :], rng.integers(3, 31)).tolist()
        said = label if rng.random() < 0.9 else int(rng.integers(len(LABELS)))
        words.insert(int(rng.integers(len(words) + 1)), WORDS[said])
        text = " ".join(words)
        text = text.upper() if rng.random() < 1 / 3 else text
        lines.append(json.dumps({"text": text, "label": LABELS[label]}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def save_model(folder: Path) -> Path:
    """Save a BERT of two small layers with random weights, and its tokenizer."""
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def train(folder: Path, seed: int, epochs: int) -> Path:
    """Train a run with a seed, and return its folder."""
    run = folder / f"run-{seed}"
    words = ["train", "--model_name_or_path", folder / "bert", "--output_dir", run, "--use_cpu"]
    for split in SIZES:
        words += [f"--{split}_file", folder / f"{split}.jsonl"]
    words += ["--seed", seed, "--cpu_threads", 1, "--num_train_epochs", epochs]
    words += ["--learning_rate", 3e-3, "--max_seq_length", LENGTH]
    if ampft(list(map(str, words))):
        raise SystemExit(f"the training with seed {seed} failed")
    return run


def certified(name: str, artifact: Path, run: Path, *, is_faithful: bool) -> dict[str, Any]:
    """Return what the certificate and the usual gate say of an artifact."""
    made = certify(artifact, run, VerifyRequest(measure=False))
    return {
        "artifact": name,
        "is_faithful": is_faithful,
        "precision": made.name,
        "verdict": made.verdict,
        "failures": [each.kind for each in made.failures],
        "changed_predictions": 0 if made.arm.flips is None else int(made.arm.flips.mean),
        "usual_gate": usual_gate(artifact, run),
    }


def usual_gate(artifact: Path, run: Path) -> str:
    """Return the verdict of the usual gate: accuracy within 1 % on the first 100 rows."""
    rows = check_verification(run_classifier(run).record, VerifyRequest())
    first = [text for (text,) in rows.rows[:NAIVE_ROWS]]
    truth = np.asarray(rows.targets)[:NAIVE_ROWS]
    opened = open_artifact(artifact)
    names = [opened.config.id2label[index] for index in range(len(LABELS))]
    guessed = [names[index] for index in opened.logits(first, 32).argmax(axis=1)]
    own = run_classifier(run).record.label_names
    right = np.mean([name == own[label] for name, label in zip(guessed, truth, strict=True)])
    model = _model_accuracy(run, first, truth)
    return PASSED if abs(right - model) <= NAIVE_MARGIN + 1e-12 else FAILED


def _model_accuracy(run: Path, texts: list[str], truth: Any) -> float:
    predictor = run_classifier(run).load(PredictRequest(batch_size=32))
    with predictor.numerics:
        return float((predictor.logits([texts]).argmax(axis=1) == truth).mean())


def results(folder: Path, seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Train, export, plant and certify; return a line per artifact."""
    save_model(folder / "bert")
    for index, (split, rows) in enumerate(SIZES.items()):
        write_rows(folder / f"{split}.jsonl", rows, index)
    runs = [train(folder, seed, epochs) for seed in range(1, seeds + 2)]
    precisions = [each for each in PRECISIONS if each in FORMATS["onnx"].files]
    artifacts: list[dict[str, Path]] = []
    for run in runs:
        artifacts.append({})
        for precision in precisions if run is not runs[-1] else ["fp32"]:
            target = folder / f"{run.name}-{precision}"
            export_run(
                ExportRequest(run=run, format="onnx", precision=precision, output_dir=target)
            )
            artifacts[-1][precision] = target
    lines = []
    for run, own in zip(runs[:-1], artifacts, strict=False):
        lines += [certified("faithful", path, run, is_faithful=True) for path in own.values()]
        faults = dict(artifact_faults.FAULTS)
        faults["stale artifact"] = artifact_faults.stale(artifacts[-1]["fp32"])
        for precision in precisions[1:]:
            faults[f"float32 called {precision}"] = artifact_faults.called(precision)
        for number, (name, fault) in enumerate(faults.items()):
            planted = artifact_faults.plant(own["fp32"], folder / f"{run.name}-{number}", fault)
            lines.append(certified(name, planted, run, is_faithful=False))
    return lines


def main() -> None:
    """Certify everything, write the results, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seeds", type=int, default=3, help="runs in which faults are planted")
    parser.add_argument("--epochs", type=int, default=4, help="of each run")
    options = parser.parse_args()
    stated = provenance()  # before anything changes
    quiet_libraries()
    with tempfile.TemporaryDirectory() as folder:
        lines = results(Path(folder), options.seeds, options.epochs)
    result = {"rows": SIZES["test"], "artifacts": lines, "provenance": stated}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
