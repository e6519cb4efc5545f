"""An artifact: what it is and where it comes from (artifact.json), opened, and predicting."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ampft import decision
from ampft.errors import InputError
from ampft.export.formats import FORMATS
from ampft.files import FileDigest, Sealed, hashed_text, read_hashed, write_text
from ampft.kinds.inputs import Reader
from ampft.kinds.prediction import PredictRequest, TrainingInfo
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_config
from ampft.precision.accelerator import numerics
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import resolve
from ampft.runs.manifest import describe_files
from ampft.runs.predict import SavedClassifier, recorded_training
from ampft.runs.predictor import Predictor, saved_problem
from ampft.runs.record import RunRecord, read_record
from ampft.runs.run_text import task_row
from ampft.tasks.outcome import Problem
from ampft.text import units
from ampft.text.escaping import one_line, printable
from ampft.text.json_io import from_json, read_json_object, values_hash
from ampft.text.terminal import labelled, print_line

MANIFEST_NAME = "artifact.json"
CARD_NAME = "README.md"
CERTIFICATE_NAME = "certificate.json"  # this layer reads only its verdict
PAGE_NAME = "certificate.html"
# Written after the verification, of which they state the result.
_OF_CERTIFICATE = (CARD_NAME, CERTIFICATE_NAME, PAGE_NAME)
SOURCE_NAME = "source"  # folder with the record of the run, which is not taken for a run itself
# What carries out decision.json in a server and in a browser, and divides texts into words.
MODULES = {
    "decision.py": Path(decision.__file__),
    "decision.js": Path(decision.__file__).with_suffix(".js"),
    "units.py": Path(units.__file__),
}
SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class ArtifactManifest:
    """Everything about an artifact except its contents."""

    format: str  # Name of its row in `FORMATS`.
    precision: str  # Precision that was asked for.
    task: str  # Name of the task, such as "text".
    label_names: Sequence[str]  # Class names, in the order of the logits.
    input_columns: Sequence[str]  # Input columns of the training.
    model: str  # Model file, relative to the folder.
    inputs: Sequence[str]  # Names of the model's inputs.
    # SHA-256 of run.json of the run that trained it. `source/run.json` is that record without
    # command, hardware and folders.
    run_sha256: str
    # Hash and size of every file except this one, by relative path.
    files: Mapping[str, FileDigest]
    runtime: str  # Package that runs it.
    versions: Mapping[str, str]  # Versions of the packages that wrote it, and of the runtime.
    # What the tokenizer or processor does, as in the record of the run.
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    # How activations become int8, one of `INT8_SCHEMES`; None if there is no choice.
    int8: str | None = None
    keep_float: Sequence[str] = ()  # Paths of the modules that stay in float32.
    float_nodes: Sequence[str] = ()  # Names of their nodes in the ONNX file, in its order.
    # Time, ISO 8601 in UTC.
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA  # Version of this layout.

    @property
    def files_sha256(self) -> str:
        """One hash over all files but those that state the result of the verification."""
        own = {n: part.sha256 for n, part in self.files.items() if n not in _OF_CERTIFICATE}
        return values_hash(own)


def artifact_files(folder: Path) -> dict[str, FileDigest]:
    """Return hash and size of every file of an artifact except its manifest."""
    files = describe_files(folder)
    files.pop(MANIFEST_NAME, None)
    return files


def write_manifest(folder: Path, manifest: ArtifactManifest) -> None:
    """Write artifact.json with the hash of its values."""
    write_text(folder / MANIFEST_NAME, hashed_text(manifest))


def checked_manifest(folder: Path) -> ArtifactManifest:
    """Read artifact.json, and check that the folder is exactly what `ampft export` wrote.

    Raises:
        InputError: The folder does not hold an artifact that this version can run, its manifest is
            damaged, or a file is missing, was added or changed; the message names it.
    """
    path = folder / MANIFEST_NAME
    try:
        values, _ = read_hashed(path, SCHEMA, "Use the version of ampft that wrote it.")
        manifest = from_json(ArtifactManifest, values, MANIFEST_NAME)
        if manifest.precision not in FORMATS[manifest.format].files:
            raise ValueError(f"{manifest.format} has no {manifest.precision}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: this is not an artifact, because {MANIFEST_NAME} is missing or "
            f"damaged ({type(error).__name__}: {error}). Pass a folder that ampft export wrote."
        ) from error
    sealed = Sealed(
        folder=folder,
        manifest=MANIFEST_NAME,
        files=manifest.files,
        event="the export",
        remedy="Restore the folder from a copy, or export the run again.",
    )
    sealed.check()
    sealed.file(manifest.model)
    return manifest


def certificate_problem(folder: Path, manifest: ArtifactManifest) -> str | None:
    """Return why no certificate proves that an artifact predicts as its model; None if one does.

    Args:
        folder: Folder of the artifact, which has been checked.
    """
    path = folder / CERTIFICATE_NAME
    advice = f"Run ampft audit {folder} --run RUN."
    if CERTIFICATE_NAME not in manifest.files:
        return f"the artifact {folder} has no certificate that it predicts as its model. {advice}"
    try:
        values = read_json_object(path)
    except (OSError, ValueError):
        values = {}
    verdict = values.get("verdict")
    if verdict not in ("passed", "failed", "undecided"):
        return f"{path} cannot be read. {advice}"
    if values.get("artifact_sha256") != manifest.files_sha256:
        return f"{path} is the certificate of other files. {advice}"
    if verdict == "passed":
        return None
    return f"the certificate of {folder} says {verdict!r}: the artifact may differ from its model."


@dataclass(frozen=True, eq=False)
class Artifact:
    """An artifact, ready to predict on this machine."""

    folder: Path  # Its folder.
    manifest: ArtifactManifest  # Its manifest, artifact.json.
    record: RunRecord  # Record of the run that trained it.
    config: Any  # Configuration of the model.
    reader: Reader  # Conversion of rows to the inputs of the model, as in its training.
    model: nn.Module  # Module whose forward pass is a call of the runtime, on the CPU.
    problem: Problem  # What it decides, as decision.json said when the artifact was opened.
    training: TrainingInfo  # What reading a row needs to know of the training.
    # Held while rows are predicted: tokenizers and the settings of torch are not for two threads.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def predictor(self, batch_size: int) -> Predictor:
        """Return what predicts rows with this artifact.

        Args:
            batch_size: Inputs per call of the runtime; of split texts, windows.
        """
        most = task_row(self.record).kind.max_rows or batch_size
        return Predictor(
            model=self.model,
            config=self.config,
            problem=self.problem,
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
        predictor, rows = self.predictor(batch_size), self._rows(examples)
        with self._lock, predictor.numerics:
            return predictor.logits(list(zip(*rows, strict=True)))

    def predict(self, examples: Any, batch_size: int) -> dict[str, Sequence[Any]]:
        """Return the columns that `ampft predict` writes: `prediction`, `confidence` and others.

        Temperature, thresholds, abstention and windows of the model are applied.

        Args:
            examples: As for `logits`.
            batch_size: Inputs per call of the runtime; of split texts, windows.

        Raises:
            InputError: As for `logits`.
        """
        predictor, rows = self.predictor(batch_size), self._rows(examples)
        request = PredictRequest(batch_size=batch_size)
        output = task_row(self.record).kind.new_output(request, predictor.config)
        with self._lock, predictor.numerics:
            predictions = predictor(list(zip(*rows, strict=True)))
        return dict(output.columns(rows, predictions))

    def _rows(self, examples: Any) -> Sequence[tuple[Any, ...]]:
        rows = task_row(self.record).kind.rows_in_memory(examples, self.training)
        if not rows:
            raise InputError("the list is empty. Pass at least one row.")
        return rows


def open_artifact(folder: str | Path) -> Artifact:
    """Open an artifact with its runtime; warn unless it has a certificate that it passed.

    Args:
        folder: Folder that `ampft export` wrote.

    Raises:
        InputError: It is not an artifact, one of its files was changed, or its runtime is not
            installed.
    """
    artifact = open_uncertified(Path(folder))
    problem = certificate_problem(artifact.folder, artifact.manifest)
    if problem is not None:
        warnings.warn(printable(problem), stacklevel=2)
    return artifact


def open_uncertified(path: Path) -> Artifact:
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
    row = FORMATS[manifest.format]
    purpose = f"--model {folder}, an artifact for {manifest.runtime}"
    row.require(row.runtime_packages(manifest.precision), purpose)
    try:
        model = row.code.load(folder, manifest, config)
    except InputError:
        raise
    except Exception as error:  # of the runtime, which may lack an operator or be older
        reason = one_line(str(error))
        raise InputError(
            f"{purpose}: the installed version cannot load {manifest.model} ({reason}). Use "
            "the version that artifact.json states, or export the run again."
        ) from error
    problem, training = saved_problem(record, folder), recorded_training(record, folder)
    return Artifact(folder, manifest, record, config, reader, model, problem, training)


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
            print_line(labelled("note", problem), file=sys.stderr)
        return load_artifact(folder, manifest, record).predictor(request.batch_size)

    files = {name: part.sha256 for name, part in manifest.files.items()}
    return SavedClassifier(folder, record, files, load, "the model that was exported")
