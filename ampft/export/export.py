"""Exports the model of a run: all files are written, or none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ampft.decision import CONTRACT_NAME
from ampft.errors import InputError
from ampft.export.artifact import (
    MODULES,
    SOURCE_NAME,
    ArtifactManifest,
    artifact_files,
    write_manifest,
)
from ampft.export.formats import FORMATS, FP32, Write
from ampft.export.onnx_format import float_nodes
from ampft.export.source import KEEP_FLOAT, ExportRequest, ExportSource, load_source
from ampft.files import describe_file, hashed_text, rename, sync, write_errors_explained, write_text
from ampft.machine import installed_versions
from ampft.ownership import TemporaryFolder
from ampft.runs.folder import check_creatable
from ampft.runs.manifest import MODEL_FILES, RECORD_NAME, WEIGHT_FILES, matches_any_pattern
from ampft.runs.predict import load_run_classifier
from ampft.runs.record import read_record
from ampft.runs.redaction import published_record

# Files of a model that its format replaces: the others are of its tokenizer or processor.
OF_MODEL = ("config.json", "generation_config.json", "adapter_config.json", *WEIGHT_FILES)


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
    check_request(request)
    with staged_folder(request.output_dir) as folder:
        return export_into(request, folder)


def export_into(request: ExportRequest, folder: Path) -> ArtifactManifest:
    """Write the model of a run as an artifact into an empty folder, as `export_run` does."""
    source = load_source(request, load_run_classifier(request.run).record)
    with FORMATS[request.format].code.model_writer(source) as write:
        return write_artifact(folder, source, write)


def write_artifact(folder: Path, source: ExportSource, write: Write) -> ArtifactManifest:
    """Write an artifact into a folder, with the modules of `source.kept` in float32.

    Args:
        folder: An empty folder.
        write: Function that writes the model file.
    """
    request, record = source.request, source.record
    row = FORMATS[request.format]
    for own in request.run.iterdir():
        is_of_processor = matches_any_pattern(own.name, MODEL_FILES) and not matches_any_pattern(
            own.name, OF_MODEL
        )
        if own.is_file() and is_of_processor:
            shutil.copyfile(own, folder / own.name)
    if (request.run / CONTRACT_NAME).is_file():
        for name, module in MODULES.items():
            shutil.copyfile(module, folder / name)
    (folder / SOURCE_NAME).mkdir()
    published = published_record(read_record(request.run))
    write_text(folder / SOURCE_NAME / RECORD_NAME, hashed_text(published))
    source.model.config.save_pretrained(folder)
    path = folder / row.files[request.precision]
    path.parent.mkdir(exist_ok=True)
    write(path, source.kept)
    packages = ("ampft", "torch", "transformers", *row.packages(request.precision))
    found = installed_versions(packages)
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
        versions={name: found[name] for name in packages if name in found},
        preprocessing=record.model.preprocessing,
        int8=request.scheme,
        keep_float=source.kept,
        float_nodes=float_nodes(path, source.kept) if path.suffix == ".onnx" else (),
    )
    write_manifest(folder, manifest)
    return manifest


def check_request(request: ExportRequest) -> None:
    """Check what can be refused before anything is loaded.

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


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder that becomes `folder` if the block ends without an error.

    Otherwise it is removed. If the process is killed, it remains under a hidden name, until
    something is exported to its place again.

    Args:
        folder: Path that does not exist or is an empty folder.

    Raises:
        InputError: The disk is full.
    """
    target = folder.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    remedy = "Free disk space, or choose a folder on another disk."
    what = f"--output_dir {folder}: the folder"
    with (
        write_errors_explained(what, remedy, disk_only=True),
        TemporaryFolder("export", target.parent) as staging,
    ):
        try:
            yield staging
        except InputError as error:
            raise InputError(str(error).replace(str(staging), str(folder))) from error
        for path in staging.rglob("*"):
            sync(path)
        rename(staging, target)
        sync(target.parent)
