"""Opens an artifact and predicts with its own runtime."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ampft.errors import InputError
from ampft.export.manifest import (
    SOURCE_NAME,
    ArtifactManifest,
    certificate_problem,
    checked_manifest,
)
from ampft.kinds.inputs import Reader
from ampft.kinds.prediction import PredictRequest
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_config
from ampft.precision.accelerator import numerics
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import resolve
from ampft.runs.predict import SavedClassifier, trained_as
from ampft.runs.predictor import Predictor, saved_problem
from ampft.runs.record import RunRecord, read_record
from ampft.runs.show import task_row
from ampft.text.escaping import inert_lines
from ampft.text.terminal import labelled


@dataclass(frozen=True, eq=False)
class Artifact:
    """An artifact, ready to predict on this machine.

    Attributes:
        folder: Its folder.
        manifest: Its manifest, artifact.json.
        record: Record of the run that trained it.
        config: Configuration of the model.
        reader: Conversion of rows to the inputs of the model, as in its training.
        model: Module whose forward pass is a call of the runtime, on the CPU.
    """

    folder: Path
    manifest: ArtifactManifest
    record: RunRecord
    config: Any
    reader: Reader
    model: nn.Module

    def predictor(self, batch_size: int) -> Predictor:
        """Return what predicts rows with this artifact.

        Args:
            batch_size: Inputs per call of the runtime; of split texts, windows.
        """
        most = task_row(self.record).kind.max_rows or batch_size
        return Predictor(
            model=self.model,
            config=self.config,
            problem=saved_problem(self.record, self.config),
            reader=self.reader,
            batch_size=min(batch_size, most),
            numerics=numerics(resolve(BASELINE, torch.device("cpu"))),
            not_finite=f"--model {self.folder}: the predictions of this {self.manifest.precision} "
            "artifact are not finite. Export the run in another precision.",
        )

    def logits(self, examples: Any, batch_size: int) -> npt.NDArray[np.float32]:
        """Return the logits of examples in their order, computed in batches of similar length.

        Args:
            examples: One text, image or path of one, or a list of them; a list of pairs if the
                model reads pairs, and of lists of words if it reads words.
            batch_size: Inputs per call of the runtime; of split texts, windows.

        Returns:
            (n, K) float32; for words (m, K), with the m words of all sentences in order; for pixels
            (n, K, h, w) in the size of the model's output.

        Raises:
            InputError: There is no example, one is not what the model reads, or a logit is not
                finite.
        """
        rows = task_row(self.record).kind.rows_in_memory(examples, trained_as(self.record))
        if not rows:
            raise InputError("the list is empty. Pass at least one row.")
        predictor = self.predictor(batch_size)
        with predictor.numerics:
            return predictor.logits(list(zip(*rows, strict=True)))


def open_artifact(folder: str | Path) -> Artifact:
    """Open an artifact with its runtime; warn unless it has a certificate that it passed.

    Args:
        folder: Folder that `ampft export` wrote.

    Raises:
        InputError: It is not an artifact, one of its files was changed, or its runtime is not
            installed.
    """
    artifact = opened(Path(folder))
    problem = certificate_problem(artifact.folder, artifact.manifest)
    if problem is not None:
        warnings.warn(problem, stacklevel=2)
    return artifact


def opened(path: Path) -> Artifact:
    """Open an artifact that may have no certificate yet.

    Raises:
        InputError: It is not an artifact, one of its files was changed, or its runtime is not
            installed.
    """
    return load_artifact(path, checked_manifest(path), read_record(path / SOURCE_NAME))


def load_artifact(folder: Path, manifest: ArtifactManifest, record: RunRecord) -> Artifact:
    """Load an artifact whose files have been checked."""
    tensors = task_row(record).kind.tensors  # registers the models of the kind
    config = load_config(str(folder), trust_remote_code=False, flag=SAVED_MODEL_FLAG)
    reader = tensors.saved_reader(folder, record.arguments, config)
    row = manifest.format_row
    purpose = f"--model {folder}, an artifact for {manifest.runtime}"
    row.require(row.runtime_packages(manifest.precision), purpose)
    model = row.code.load(folder, manifest, config)
    return Artifact(folder, manifest, record, config, reader, model)


def artifact_classifier(folder: Path) -> SavedClassifier:
    """Return an artifact for `ampft predict`.

    Raises:
        InputError: It is not an artifact, or one of its files was changed.
    """
    manifest = checked_manifest(folder)
    record = read_record(folder / SOURCE_NAME)

    def load(request: PredictRequest) -> Predictor:
        if request.mixed_precision not in (BASELINE, manifest.precision):
            raise InputError(
                f"--mixed_precision {request.mixed_precision} has no effect on an artifact, whose "
                f"precision is {manifest.precision}. Remove the flag."
            )
        problem = certificate_problem(folder, manifest)
        if problem is not None:
            print(inert_lines(labelled("note", problem)), file=sys.stderr)
        return load_artifact(folder, manifest, record).predictor(request.batch_size)

    files = {name: part.sha256 for name, part in manifest.files.items()}
    return SavedClassifier(record, files, load, "the model that was exported")
