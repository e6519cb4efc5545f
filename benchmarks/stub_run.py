"""A stand-in for a training, which takes four seconds: matrix products instead of a model.

The run folder, its lock, the history, the checkpoints, the predictions and the record are real, and
a run that was killed continues from its checkpoint. What it computes depends on the data file, the
seed, the precision, the number of threads and the kernels of the matrix product, as a training
does. Imported by the drivers and the workers of `cluster_faults.py`, and run as

    python stub_run.py run CLASSIFY_FLAGS
    python stub_run.py canary REQUEST RESULT
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ampft.comparison.execution import launch
from ampft.lab.cluster import node_worker
from ampft.lab.cluster.canary import STEPS as CANARY_STEPS
from ampft.lab.cluster.canary import NodeFacts
from ampft.runs.record import RunRecord, write_record
from ampft.text.json_io import from_json

Array = npt.NDArray[np.float32]

TEMPLATE = "record.json"  # beside the data: the record of a run, completed here
THREADS = "STUB_THREADS"  # a node that lies about its threads has it in its environment
STEPS, EVERY, WIDTH, ROWS, CLASSES = 24, 4, 64, 300, 3
SECONDS = 0.15  # of a step, so that faults hit runs that have sent a checkpoint


def words_of(*argv: str) -> list[str]:
    """Return the command of a stub in the place of `-m ampft train` or of a canary."""
    if argv[:3] == ("-m", "ampft", "train"):
        return [__file__, "run", *argv[3:]]
    return [__file__, "canary", *argv[2:]]


def launch_stub(config_file: str | None, *argv: str, launcher_flags: object = ()) -> list[str]:
    """Stand in for `launch_command`."""
    del config_file, launcher_flags
    return words_of(*argv)


class StubLauncher(launch.LocalLauncher):
    """Launches stubs, which a new process starts as fast as a fork."""

    def __init__(self, slot: Any, config_file: str | None) -> None:
        """Launch in `slot`."""
        super().__init__(slot, config_file)
        self.forks = False


def run_program(request: node_worker.ProgramRequest) -> Iterator[node_worker.ProgramMessage]:
    """Run a stub on a node of a cluster as a training is run."""
    with (
        patch.object(launch, "launch_command", launch_stub),
        patch.object(node_worker, "LocalLauncher", StubLauncher),
    ):
        yield from node_worker.run_program(request)


class Training:
    """A training whose state is one matrix."""

    def __init__(self, train_file: str, seed: int, mode: str) -> None:
        """Draw the initial state."""
        self.file, self.mode = Path(train_file), mode
        self.sha256 = hashlib.sha256(self.file.read_bytes()).hexdigest()
        self.threads = int(os.environ.get(THREADS, os.environ.get("OMP_NUM_THREADS", "1")))
        self._data = np.random.default_rng(int(self.sha256[:8], 16))
        shape = (WIDTH, WIDTH)
        self.batches = [self._data.normal(size=shape).astype(np.float32) / 6 for _ in range(STEPS)]
        self.state: Array = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        self.initial = self.bits()

    def step(self, number: int) -> float:
        """Take a step; return its loss."""
        # As sums over more threads, another order of the products gives other bits.
        half = WIDTH // self.threads
        parts = [
            self.state[:, k : k + half] @ self.batches[number][k : k + half]
            for k in range(0, WIDTH, half)
        ]
        self.state = np.tanh(sum(parts[1:], start=parts[0]))
        if self.mode == "bf16":
            self.state = (self.state.view(np.uint32) & 0xFFFF0000).view(np.float32)
        return float(np.abs(self.state).mean())

    def bits(self) -> str:
        """Return the SHA-256 of the state."""
        return hashlib.sha256(self.state.tobytes()).hexdigest()


class Outcome:
    """Predictions of a stub, as `write_predictions` reads them."""

    kind, split = "single_label", "test"

    def __init__(self, state: Array) -> None:
        """Predict rows whose labels most runs find."""
        labels = np.random.default_rng(0).integers(0, CLASSES, ROWS)
        logits = np.tanh(np.resize(state, (ROWS, CLASSES)))
        logits[np.arange(ROWS), labels] += 1.5
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.labels = labels
        self.probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)

    def __len__(self) -> int:
        return ROWS

    def metadata(self) -> dict[str, Any]:
        """Return the split and the label names."""
        return {"split": self.split, "label_names": names()}

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return float((self.probabilities.argmax(axis=1) == self.labels).mean())

    def columns(self, rows: slice) -> dict[str, pa.Array]:
        """Return labels, predictions and probabilities of some rows."""
        labels, probabilities = self.labels[rows], self.probabilities[rows]
        predicted = probabilities.argmax(axis=1)
        text = np.asarray(names(), dtype=object)
        return {
            "label": pa.array(text[labels], pa.string()),
            "prediction": pa.array(text[predicted], pa.string()),
            "label_id": pa.array(labels),
            "prediction_id": pa.array(predicted),
            "confidence": pa.array(probabilities.max(axis=1)),
            "probabilities": pa.array(list(probabilities), pa.list_(pa.float32())),
        }


def names() -> list[str]:
    """Return the names of the classes."""
    return [f"class {k}" for k in range(CLASSES)]


def flags_of(argv: list[str]) -> dict[str, str]:
    """Return the values of flags by name; the last one counts."""
    pairs = zip(argv, [*argv[1:], ""], strict=True)
    return {flag[2:]: value for flag, value in pairs if flag.startswith("--")}


def run(argv: list[str]) -> None:
    """Train, or continue from the last checkpoint."""
    from safetensors.numpy import load_file, save_file

    from ampft.engine.checkpoints.store import CheckpointStore
    from ampft.runs.folder import RunFolder
    from ampft.runs.predictions import write_predictions

    flags = flags_of(argv)
    output, seed, mode = Path(flags["output_dir"]), int(flags["seed"]), flags["mixed_precision"]
    training = Training(flags["train_file"], seed, mode)
    complete = CheckpointStore(output).complete()
    with RunFolder(output, overwrite=True, continues=bool(complete)) as folder:
        start, history = 0, output / "history.jsonl"
        if complete:
            start = int(complete[-1].name.removeprefix("step-"))
            training.state = load_file(complete[-1] / "model.safetensors")["state"]
            print(f"continued from step {start}", flush=True)
            lines = history.read_text(encoding="utf-8").splitlines(keepends=True)[:start]
            history.write_text("".join(lines), encoding="utf-8")
        else:
            write_record(folder, replace(template(training), status="running"))
        for number in range(start, STEPS):
            time.sleep(SECONDS)
            line = {"step": number + 1, "loss": training.step(number), "skipped": False}
            with history.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "loss_scale": None}) + "\n")
            if (number + 1) % EVERY == 0 and number + 1 < STEPS:
                save(output, training, number + 1)
        outcome: Any = Outcome(training.state)
        texts = [f"text {k}" for k in range(ROWS)]
        stage = folder.stage()
        write_predictions(
            stage / "predictions.parquet", outcome, lambda rows: {"text": texts[rows]}
        )
        save_file({"state": training.state}, stage / "model.safetensors")
        finish(folder, training, seed, outcome.accuracy)


def save(output: Path, training: Training, step: int) -> None:
    """Write a checkpoint."""
    from safetensors.numpy import save_file

    from ampft.engine.checkpoints.store import (
        CheckpointManifest,
        CheckpointStore,
        CursorPart,
        write_manifest,
    )
    from ampft.files import describe_file
    from ampft.runs.manifest import describe_files

    store = CheckpointStore(output, limit=1)
    if (place := store.begin(step)) is None:
        return
    save_file({"state": training.state}, place / "model.safetensors")
    manifest = CheckpointManifest(
        cursor=CursorPart(epoch=0, step_in_epoch=step, step=step),
        reason=f"every {EVERY} steps",
        settings={},
        topology={},
        environment={},
        history=describe_file(output / "history.jsonl"),
        files=describe_files(place),
    )
    write_manifest(place, manifest)
    store.publish(place)


def template(training: Training) -> RunRecord:
    """Return the record that lies beside the data, without files."""
    values = json.loads((training.file.parent / TEMPLATE).read_text(encoding="utf-8"))
    return replace(from_json(RunRecord, values, TEMPLATE), files={})


def finish(folder: Any, training: Training, seed: int, accuracy: float) -> None:
    """Publish the results of a finished run, and write its record."""
    from ampft.runs.manifest import describe_files

    record, mode = template(training), training.mode
    folder.staged = describe_files(folder.stage())
    record = replace(
        record,
        arguments={"seed": seed, "mixed_precision": mode, "learning_rate": 5e-5},
        data=replace(record.data, files={str(training.file): training.sha256}),
        model=replace(record.model, initial_weights_sha256=training.initial),
        precision=replace(
            record.precision, requested=mode, resolved={"mode": mode, "execution": "native"}
        ),
        topology=replace(record.topology, cpu_threads=training.threads),
        steps=replace(record.steps, total=STEPS, applied=STEPS),
        metrics={"split": "test", "accuracy": accuracy},
        example_ids_sha256=f"{seed:064x}",
        files=folder.files(),
    )
    write_record(folder, replace(record, status="running"))
    folder.publish()
    write_record(folder, record)


def canary(request_path: str, result_path: str) -> None:
    """Take the first steps of the baseline, and write what they gave."""
    from ampft.text.json_io import json_text

    flags = flags_of(json.loads(Path(request_path).read_text(encoding="utf-8"))["classify_argv"])
    training = Training(flags["train_file"], int(flags["seed"]), "fp32")
    for number in range(CANARY_STEPS):
        training.step(number)
    facts = NodeFacts(
        kind="stub",
        code="of this repository",
        versions={"stub": "1"},
        files={str(training.file): training.sha256},
        data={"train": training.sha256},
        initial_weights=training.initial,
        cpu_threads=training.threads,
        bits=training.bits(),
    )
    Path(result_path).write_text(json_text(facts), encoding="utf-8")


if __name__ == "__main__":
    program, *words = sys.argv[1:]
    if program == "run":
        run(words)
    else:
        canary(*words)
