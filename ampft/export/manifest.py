"""artifact.json: what an artifact is, where it comes from, and the hashes of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from ampft.errors import InputError
from ampft.export.formats import FORMATS, Format
from ampft.files import FilePart, describe_file, write_text
from ampft.runs.manifest import describe_files
from ampft.text.json_io import (
    JSONValue,
    check_schema,
    from_json,
    json_text,
    json_values,
    read_json_object,
    values_hash,
)

MANIFEST_NAME = "artifact.json"
CARD_NAME = "README.md"
CERTIFICATE_NAME = "certificate.json"  # this layer reads only its verdict
SOURCE_NAME = "source"  # folder with the record of the run, which is not taken for a run itself
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """How texts become tokens: at most `max_length` of them, special tokens included.

    Longer texts are truncated if `stride` is None; otherwise they are split into windows that share
    `stride` tokens. The logits of a text are then the mean over its windows; a word is predicted in
    the window with most context.
    """

    max_length: int
    stride: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArtifactManifest:
    """Everything about an artifact except its contents.

    Attributes:
        format: Name of its row in `FORMATS`.
        precision: Precision that was asked for.
        task: Name of the task, such as "text".
        label_names: Class names, in the order of the logits.
        input_columns: Input columns of the training.
        model: Model file, relative to the folder.
        inputs: Names of the model's inputs.
        run_sha256: SHA-256 of run.json of the run that trained it. `source/run.json` is that record
            without command, hardware and folders.
        files: Hash and size of every file except this one, by relative path.
        runtime: Package that runs it.
        versions: Versions of the packages that wrote it, and of the runtime.
        text: How texts become tokens; None for other kinds of data.
        decision: Entries of the configuration that turn logits into predictions, such as tuned
            thresholds; empty if the most probable class is predicted.
        preprocessing: What the tokenizer or processor does, as in the record of the run.
        int8: How activations become int8, one of `INT8_SCHEMES`; None if there is no choice.
        keep_float: Paths of the modules that stay in float32.
        float_nodes: Names of their nodes in the ONNX file, in its order.
        created: Time, ISO 8601 in UTC.
        schema: Version of this layout.
    """

    format: str
    precision: str
    task: str
    label_names: Sequence[str]
    input_columns: Sequence[str]
    model: str
    inputs: Sequence[str]
    run_sha256: str
    files: Mapping[str, FilePart]
    runtime: str
    versions: Mapping[str, str]
    text: TextPart | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    int8: str | None = None
    keep_float: Sequence[str] = ()
    float_nodes: Sequence[str] = ()
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA

    @property
    def files_sha256(self) -> str:
        """One hash over all files but the model card, to which a certificate adds a section."""
        return values_hash({n: part.sha256 for n, part in self.files.items() if n != CARD_NAME})

    @property
    def format_row(self) -> Format:
        """The row of `FORMATS`."""
        return FORMATS[self.format]


def artifact_files(folder: Path) -> dict[str, FilePart]:
    """Return hash and size of every file of an artifact except its manifest."""
    files = describe_files(folder)
    files.pop(MANIFEST_NAME, None)
    return files


def write_manifest(folder: Path, manifest: ArtifactManifest) -> None:
    """Write artifact.json with the hash of its values."""
    values = cast("dict[str, JSONValue]", json_values(manifest))
    text = json_text({**values, "sha256": values_hash(values)})
    write_text(folder / MANIFEST_NAME, text)


def read_manifest(folder: Path) -> ArtifactManifest:
    """Read and check artifact.json.

    Raises:
        InputError: The folder does not hold an artifact that this version can run, or its manifest
            is damaged.
    """
    path = folder / MANIFEST_NAME
    try:
        values = read_json_object(path)
        check_schema(path, values, SCHEMA, "Use the version of ampft that wrote it.")
        if values.pop("sha256", None) != values_hash(values):
            raise ValueError("its values do not have the hash that it states")
        manifest = from_json(ArtifactManifest, values, MANIFEST_NAME)
        if manifest.precision not in FORMATS[manifest.format].files:
            raise ValueError(f"{manifest.format} has no {manifest.precision}")
        return manifest
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--model {folder}: this is not an artifact, because {MANIFEST_NAME} is missing or "
            f"damaged ({type(error).__name__}: {error}). Name a folder that ampft export wrote."
        ) from error


def checked_manifest(folder: Path) -> ArtifactManifest:
    """Read artifact.json, and check that the files are as `ampft export` wrote them.

    Raises:
        InputError: As for `read_manifest`, or a file is missing or was changed; the message names
            it.
    """
    manifest = read_manifest(folder)
    for name, part in manifest.files.items():
        path = folder / name
        if not path.is_file() or describe_file(path) != part:
            problem = "was changed after the export" if path.is_file() else "is missing"
            raise InputError(
                f"{path}: the file {problem}, according to {MANIFEST_NAME}. Restore the folder "
                "from a copy, or export the run again."
            )
    return manifest


def certificate_problem(folder: Path, manifest: ArtifactManifest) -> str | None:
    """Return why an artifact is not known to be its model, in a sentence; None if it is.

    Args:
        folder: Folder of the artifact.
        manifest: Its manifest.
    """
    path = folder / CERTIFICATE_NAME
    advice = f"Run ampft audit {folder} --run RUN."
    if not path.is_file():
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
