"""Which planted faults does a certificate catch, and does it pass faithful artifacts?

Run: `python benchmarks/certificate_catches.py --out benchmarks/results/certificate-catches.json`.

Trains a small BERT on made-up texts, a third of them in capitals and some longer than the model
reads, with several seeds; exports each run in fp32, fp16 and all schemes of int8; plants the faults
of `artifact_faults.py` in copies of the artifacts, with manifests that fit them; and certifies
everything. A stale artifact has the model file of the next seed. Static int8 is also calibrated on
another language: texts whose words the tokenizer does not know. Beside each verdict stands the
usual gate: accuracy within 1 % on the first 100 rows. `certificate_gate.py` simulates the
statistics with many more artifacts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import artifact_faults
import numpy as np
import torch
from provenance import command_line, provenance, write_results
from scipy.stats import binomtest
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from ampft.cli import main as ampft
from ampft.export import ExportRequest, export_run
from ampft.export.artifact import open_uncertified
from ampft.export.certificate.certificate import FAILED, PASSED
from ampft.export.certificate.verified_rows import VerifyRequest, check_verification
from ampft.export.certificate.verify import certify
from ampft.export.source import ExportSource
from ampft.kinds.logits import model_inputs
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import load_run_classifier
from ampft.text.terminal import quiet_libraries

LABELS = ("ant", "bee", "cow", "dog")
SHARES = (0.5, 0.3, 0.15, 0.05)
WORDS = tuple(f"w{index}" for index in range(60))
SIZES = {"train": 1500, "validation": 100, "test": 1000}
LENGTH = 24
NAIVE_ROWS, NAIVE_MARGIN = 100, 0.01
# Name -> precision and scheme of int8.
KINDS = {
    "fp32": ("fp32", None),
    "fp16": ("fp16", None),
    "int8 blocks": ("int8", "blocks"),
    "int8 dynamic": ("int8", "dynamic"),
    "int8 static": ("int8", "static"),
}
PLANTED = ("fp32", "fp16", "int8 blocks")  # in which all faults are planted
COUNTED = tuple(
    f"{side}{count}"
    for side in ("faithful", "faults")
    for count in ("", " not passed", " failed", " failed by the usual gate")
)
OTHER_LANGUAGE = tuple("zz yy xx " * count for count in range(1, 9))


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


def certified(
    name: str, artifact: Path, run: Path, *, kind: str, is_faithful: bool
) -> dict[str, Any]:
    """Return what the certificate and the usual gate say of an artifact."""
    made = certify(artifact, run, VerifyRequest(measure=False))
    return {
        "artifact": name,
        "is_faithful": is_faithful,
        "precision": made.name,
        "kind": kind,
        "verdict": made.verdict,
        "failures": [each.kind for each in made.failures],
        "rounding": None if made.logits is None else made.logits.rounding,
        "changed_predictions": 0 if made.arm.flips is None else int(made.arm.flips.mean),
        "usual_gate": usual_gate(artifact, run),
    }


def usual_gate(artifact: Path, run: Path) -> str:
    """Return the verdict of the usual gate: accuracy within 1 % on the first 100 rows."""
    rows = check_verification(load_run_classifier(run), VerifyRequest())
    first = [text for (text,) in rows.rows[:NAIVE_ROWS]]
    truth = np.asarray(rows.targets)[:NAIVE_ROWS]
    found = open_uncertified(artifact)
    names = [found.config.id2label[index] for index in range(len(LABELS))]
    guessed = [names[index] for index in found.logits(first, 32).argmax(axis=1)]
    own = load_run_classifier(run).record.label_names
    right = np.mean([name == own[label] for name, label in zip(guessed, truth, strict=True)])
    model = _model_accuracy(run, first, truth)
    return PASSED if abs(right - model) <= NAIVE_MARGIN + 1e-12 else FAILED


def _model_accuracy(run: Path, texts: list[str], truth: Any) -> float:
    predictor = load_run_classifier(run).load(PredictRequest(batch_size=32))
    with predictor.numerics:
        return float((predictor.logits([texts]).argmax(axis=1) == truth).mean())


def results(folder: Path, seeds: int, faulty: int, epochs: int) -> Iterator[list[dict[str, Any]]]:
    """Train, export, plant and certify; yield lines per artifact, after each seed."""
    save_model(folder / "bert")
    for index, (split, rows) in enumerate(SIZES.items()):
        write_rows(folder / f"{split}.jsonl", rows, index)
    made = [exported_run(folder, 1, epochs)]
    for seed in range(1, seeds + 1):
        made.append(exported_run(folder, seed + 1 if seed < seeds else 1, epochs))
        run, own = made[-2]
        lines = [
            certified("faithful", path, run, kind=name, is_faithful=True)
            for name, path in own.items()
        ]
        if seed <= faulty:
            lines += faulty_lines(folder, run, own, made[-1][1])
        yield [{"seed": seed, **line} for line in lines]


def exported_run(folder: Path, seed: int, epochs: int) -> tuple[Path, dict[str, Path]]:
    """Train with a seed unless that is done, export all kinds of artifacts, and return both."""
    paths = {name: folder / f"run-{seed}-{name}" for name in KINDS}
    run = folder / f"run-{seed}"
    if not run.exists():
        train(folder, seed, epochs)
        with traced_once(folder / f"trace-{seed}"):
            for name, kind in KINDS.items():
                exported(run, paths[name], *kind)
    return run, paths


def faulty_lines(
    folder: Path, run: Path, own: dict[str, Path], others: dict[str, Path]
) -> list[dict[str, Any]]:
    """Plant all faults in the artifacts of a run, and certify them."""
    lines = []
    for kind in PLANTED:
        for number, (name, fault) in enumerate(faults_of(kind, others).items()):
            target = folder / f"{run.name}-{kind}-{number}"
            planted = artifact_faults.plant(own[kind], target, fault)
            lines.append(certified(name, planted, run, kind=kind, is_faithful=False))
    with calibrated_on(OTHER_LANGUAGE):
        planted = exported(run, folder / f"{run.name}-language", "int8", "static")
    name = "calibrated on another language"
    lines.append(certified(name, planted, run, kind="int8 static", is_faithful=False))
    return lines


def counts(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return faults caught and faithful artifacts that do not pass, by kind and in all.

    The interval of false alarms is that of Clopper and Pearson (95 %).
    """
    kinds: dict[str, dict[str, int]] = {}
    for line in lines:
        found = kinds.setdefault(line["kind"], dict.fromkeys(COUNTED, 0))
        side = "faithful" if line["is_faithful"] else "faults"
        found[side] += 1
        found[f"{side} not passed"] += line["verdict"] != PASSED
        found[f"{side} failed"] += line["verdict"] == FAILED
        found[f"{side} failed by the usual gate"] += line["usual_gate"] == FAILED
    total = {name: sum(found[name] for found in kinds.values()) for name in COUNTED}
    alarms = binomtest(total["faithful failed"], total["faithful"]).proportion_ci()
    missed = sorted({line["artifact"] for line in lines if is_missed(line)})
    return {"kinds": kinds, "all": total, "false alarms": list(alarms), "missed": missed}


def is_missed(line: dict[str, Any]) -> bool:
    """Return whether a planted fault passes."""
    return not line["is_faithful"] and line["verdict"] == PASSED


def exported(run: Path, target: Path, precision: str, scheme: str | None) -> Path:
    """Export a run to ONNX, and return the folder."""
    request = ExportRequest(
        run=run, format="onnx", precision=precision, int8=scheme, output_dir=target
    )
    export_run(request)
    return target


def faults_of(kind: str, others: dict[str, Path]) -> dict[str, artifact_faults.Fault]:
    """Return the faults of a kind of artifact by name; `others` are artifacts of another seed."""
    faults = dict(artifact_faults.FAULTS)
    faults["stale artifact"] = artifact_faults.stale(others[kind])
    if kind == "fp32":
        for precision in ("fp16", "int8"):
            faults[f"float32 called {precision}"] = artifact_faults.called(precision)
    return faults


@contextmanager
def traced_once(folder: Path) -> Iterator[None]:
    """Trace a run only for the first of its artifacts: all are made from the same graph."""
    trace = ExportSource.write_graph

    def write_graph(source: ExportSource, path: Path) -> None:
        if not folder.exists():
            folder.mkdir()
            trace(source, folder / "model.onnx")
        shutil.copyfile(folder / "model.onnx", path)

    with patch.object(ExportSource, "write_graph", write_graph):
        yield


@contextmanager
def calibrated_on(texts: Iterable[str]) -> Iterator[None]:
    """Calibrate on other texts than the run's, which an export refuses."""

    def calibration(source: ExportSource) -> list[dict[str, Any]]:
        batches = (model_inputs(source.reader.collate([[text]])) for text in texts)
        return [{name: batch[name].numpy() for name in source.inputs} for batch in batches]

    with patch.object(ExportSource, "calibration", calibration):
        yield


def main() -> None:
    """Certify everything, write the results, and print them."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs; stale files are of the next")
    parser.add_argument("--faulty", type=int, default=3, help="runs in which faults are planted")
    parser.add_argument("--epochs", type=int, default=4, help="of each run")
    options = parser.parse_args()
    stated = provenance()  # before anything changes
    quiet_libraries()
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for found in results(Path(folder), options.seeds, options.faulty, options.epochs):
            lines += found
            result = {"rows": SIZES["test"], **counts(lines), "artifacts": lines}
            write_results(options.out, {**result, "provenance": stated})
            print(json.dumps(counts(lines), indent=1), flush=True)


if __name__ == "__main__":
    main()
