"""What predicting with an artifact costs, beside its model: size, time and memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ampft.certificate.findings import Cost
from ampft.certificate.rows import VerifiedRows
from ampft.comparison.inference.timing import time_in_turns
from ampft.export import Artifact
from ampft.kinds.logits import forward_logits
from ampft.runs.manifest import WEIGHT_FILES, matches
from ampft.runs.predictor import Predictor

SIZES = (1, 32)
BATCHES = 8  # different batches of each size
SECONDS = 5.0  # per batch size
MODEL_SUFFIXES = (".onnx", ".data", ".xml", ".bin", ".safetensors", ".pt2")
MODEL, ARTIFACT = "model", "artifact"
MAX_SECONDS = 300  # of the process whose memory is measured

_PEAK = (
    "import pickle, sys; from ampft.certificate.cost import print_peak; "
    "print_peak(*pickle.load(sys.stdin.buffer))"
)


def measured_cost(
    artifact: Artifact, model: Predictor, run: Path, rows: VerifiedRows, *, measure: bool
) -> Cost:
    """Return size, times and memory of an artifact and of its model.

    Args:
        artifact: The artifact.
        model: Its model.
        run: Folder of the run.
        rows: Rows to predict.
        measure: Whether times and memory are measured, not only sizes.
    """
    size = sum(
        part.bytes
        for name, part in artifact.manifest.files.items()
        if name.endswith(MODEL_SUFFIXES)
    )
    model_size = sum(
        path.stat().st_size
        for path in run.iterdir()
        if matches(path.name, WEIGHT_FILES) and path.name != "raw_weights.safetensors"
    )
    if not measure:
        return Cost(size=size, model_size=model_size)
    count = len(rows)
    batches = {
        each: [
            [rows.rows[(number * each + k) % count] for k in range(each)]
            for number in range(BATCHES)
        ]
        for each in SIZES
    }
    sides = {MODEL: _Timed(model), ARTIFACT: _Timed(artifact.predictor(max(SIZES)))}
    times = time_in_turns(sides, batches, baseline=MODEL, seconds=SECONDS)
    return Cost(
        size=size,
        model_size=model_size,
        timings=times[ARTIFACT],
        model_timings=times[MODEL],
        peak=_peak(ARTIFACT, artifact.folder, batches[max(SIZES)][0]),
        model_peak=_peak(MODEL, run, batches[max(SIZES)][0]),
    )


@dataclass(frozen=True)
class _Timed:
    """A predictor whose forward pass is timed, without tokenization."""

    predictor: Predictor

    @torch.no_grad()
    def seconds(self, batch: Sequence[tuple[Any, ...]]) -> float:
        """Predict a batch and return the time of its forward pass."""
        inputs = self.predictor.reader.collate(list(zip(*batch, strict=True)))
        start = time.perf_counter()
        forward_logits(self.predictor.model, inputs).cpu()
        return time.perf_counter() - start


def _peak(side: str, folder: Path, batch: Sequence[tuple[Any, ...]]) -> int | None:
    """Return the peak memory of a new process that predicts a batch; None if it is unknown."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK],
        input=pickle.dumps((side, str(folder), list(batch))),
        capture_output=True,
        check=False,
        timeout=MAX_SECONDS,
    )
    last = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
    return int(last[0]) if done.returncode == 0 and last and last[0].isdecimal() else None


def print_peak(side: str, folder: str, batch: Sequence[tuple[Any, ...]]) -> None:
    """Predict a batch in this process, and print its peak memory in bytes.

    Args:
        side: "model" for a run, "artifact" for an artifact.
        folder: Its folder.
        batch: Rows.
    """
    from ampft.export import open_artifact
    from ampft.kinds.prediction import PredictRequest
    from ampft.machine import resident_peak
    from ampft.runs.predict import run_classifier
    from ampft.text.terminal import quiet_libraries

    quiet_libraries()
    if side == MODEL:
        predictor = run_classifier(Path(folder)).load(PredictRequest(batch_size=len(batch)))
    else:
        predictor = open_artifact(folder).predictor(len(batch))
    with predictor.numerics:
        predictor.logits(list(zip(*batch, strict=True)))
    peak = resident_peak()
    print("unknown" if peak is None else peak)
