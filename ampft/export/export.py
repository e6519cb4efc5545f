"""Exports the model of a run: all files are written, or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.export.formats import FORMATS, FP32, INT8, INT8_SCHEMES, Format
from ampft.export.manifest import (
    SOURCE_NAME,
    ArtifactManifest,
    TextPart,
    artifact_files,
    check_artifact_files,
    read_manifest,
    write_manifest,
)
from ampft.export.source import KEEP_FLOAT, ExportSource, load_source
from ampft.files import describe_file, rename, sync, write_text
from ampft.ownership import new_token, remove_tree
from ampft.runs.folder import check_creatable
from ampft.runs.manifest import MODEL_FILES, RECORD_NAME, WEIGHT_FILES, matches
from ampft.runs.predict import run_classifier
from ampft.runs.record import RunRecord, hashed_values, read_record
from ampft.runs.redaction import published_record
from ampft.tasks.decisions import fitted_entries
from ampft.text.json_io import json_text


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A request for an artifact.

    Attributes:
        run: Output folder of a finished run.
        format: Name of a row of `FORMATS`.
        precision: One of `PRECISIONS` that the format has.
        output_dir: Folder to create; an empty one is used as it is.
        data_flags: Flags that say where the data of the run are now, such as
            `--validation_file=FILE`, for a calibration.
        int8: One of `INT8_SCHEMES`, for ONNX; None takes the first.
        keep_float: Patterns of modules that stay in float32, besides the run's.
    """

    run: Path
    format: str
    precision: str
    output_dir: Path
    data_flags: Sequence[str] = ()
    int8: str | None = None
    keep_float: Sequence[str] = ()

    @property
    def scheme(self) -> str | None:
        """How activations become int8; None if the format or the precision leaves no choice."""
        has_choice = self.format == "onnx" and self.precision == INT8
        return (self.int8 or INT8_SCHEMES[0]) if has_choice else None


def export_run(request: ExportRequest) -> ArtifactManifest:
    """Write the model of a run as an artifact.

    Args:
        request: Run, format, precision and folder.

    Returns:
        The manifest of the artifact.

    Raises:
        InputError: The folder does not hold a finished run, the output folder is not empty, a
            package is missing, or the format cannot hold the model. Nothing is written then.
    """
    row = check_request(request)
    record = run_classifier(request.run).record
    source = request_source(request, record)
    with row.code.prepared(source) as write, staged(request.output_dir) as folder:
        return write_artifact(folder, request, source, lambda path: write(path, source.kept))


def write_artifact(
    folder: Path, request: ExportRequest, source: ExportSource, write: Callable[[Path], None]
) -> ArtifactManifest:
    """Write an artifact into a folder, with the modules of `source.kept` in float32.

    Args:
        folder: An empty folder.
        request: Run, format and precision.
        source: The model.
        write: Function that writes the model file.
    """
    row, record = FORMATS[request.format], source.record
    copy_processor(request.run, folder)
    source.model.config.save_pretrained(folder)
    path = folder / row.files[request.precision]
    path.parent.mkdir(exist_ok=True)
    write(path)
    manifest = ArtifactManifest(
        format=row.name,
        precision=request.precision,
        task=record.task,
        label_names=tuple(record.label_names),
        input_columns=tuple(record.data.input_columns),
        model=row.files[request.precision],
        inputs=tuple(source.inputs),
        run_sha256=describe_file(request.run / RECORD_NAME).sha256,
        files=artifact_files(folder),
        runtime=row.runtime,
        versions={
            name: version(name)
            for name in ("ampft", "torch", "transformers", *row.packages(request.precision))
        },
        text=_text_part(source.reader),
        decision=_decision(source.model.config),
        preprocessing=record.model.preprocessing or {},
        int8=source.int8,
        keep_float=source.kept,
        float_nodes=kept_nodes(path, source.kept),
    )
    write_manifest(folder, manifest)
    return manifest


def remove_artifact(folder: Path) -> None:
    """Remove an artifact, if all its files are as `ampft export` wrote them and no others exist.

    Raises:
        InputError: A file was added or changed.
    """
    manifest = read_manifest(folder)
    check_artifact_files(folder, manifest)
    others = artifact_files(folder).keys() - manifest.files.keys()
    if others:
        raise InputError(
            f"--output_dir {folder}: {min(others)} was added after the export, so the folder is "
            "not replaced. Pass another folder."
        )
    remove_tree(folder)


def request_source(request: ExportRequest, record: RunRecord) -> ExportSource:
    """Load the model of a request, with the modules that it keeps in float32."""
    return load_source(
        request.run,
        record,
        request.precision,
        request.data_flags,
        int8=request.scheme,
        keep_float=request.keep_float,
    )


def kept_nodes(path: Path, kept: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of an ONNX file that stay in float32; empty for other files."""
    if not kept or path.suffix != ".onnx":
        return ()
    from ampft.export.onnx_format import float_nodes

    return float_nodes(path, kept)


def check_request(request: ExportRequest) -> Format:
    """Return the row of the format, after what can be refused before anything is loaded.

    Raises:
        InputError: Format and precision do not fit, a package is missing, or the output folder is
            not empty.
    """
    row = FORMATS[request.format]
    if request.precision not in row.files:
        raise InputError(
            f"--precision {request.precision}: --format {row.name} has {', '.join(row.files)}; "
            f"{row.absent}."
        )
    if request.int8 is not None and request.scheme is None:
        raise InputError(
            f"--int8 {request.int8}: only --format onnx --precision int8 has a choice. Remove the "
            "flag."
        )
    if request.keep_float and request.precision == FP32:
        raise InputError(f"{KEEP_FLOAT}: fp32 keeps all modules in float32. Remove the flag.")
    row.require(row.packages(request.precision), f"--format {row.name}")
    folder = request.output_dir
    if folder.exists() and (not folder.is_dir() or folder.is_symlink() or any(folder.iterdir())):
        raise InputError(
            f"--output_dir {folder}: it exists and is not an empty folder. Pass another one."
        )
    check_creatable(folder)
    return row


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a new folder that becomes `folder` if the block ends without an error.

    Otherwise it is removed. If the process is killed, it remains under a hidden name.

    Args:
        folder: Path that does not exist or is an empty folder.
    """
    staging = folder.absolute().with_name(f".{folder.absolute().name}.tmp-{new_token()}")
    staging.mkdir(parents=True)
    try:
        yield staging
        for path in staging.rglob("*"):
            sync(path)
        rename(staging, folder.absolute())
        sync(folder.absolute().parent)
    finally:
        if staging.exists():
            remove_tree(staging)


def copy_processor(run: Path, folder: Path) -> None:
    """Copy the tokenizer or processor of a run, and the publishable part of its record."""
    for path in run.iterdir():
        if path.is_file() and _is_of_processor(path.name):
            shutil.copyfile(path, folder / path.name)
    (folder / SOURCE_NAME).mkdir()
    values = hashed_values(published_record(read_record(run)))
    write_text(folder / SOURCE_NAME / RECORD_NAME, json_text(values))


def _is_of_processor(name: str) -> bool:
    of_model = ("config.json", "generation_config.json", "adapter_config.json", *WEIGHT_FILES)
    return matches(name, MODEL_FILES) and not matches(name, of_model)


def _text_part(reader: Any) -> TextPart | None:
    length = getattr(reader, "max_length", None)  # readers of images and sounds have none
    return None if length is None else TextPart(max_length=length, stride=reader.stride)


def _decision(config: Any) -> dict[str, Any]:
    """Return the entries of a configuration that turn logits into predictions."""
    entries = fitted_entries(config).items()
    return {name: value for name, value in entries if value is not None}
