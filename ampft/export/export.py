"""Exports the model of a run: all files are written, or none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.export.formats import FORMATS, Format
from ampft.export.manifest import (
    SOURCE_NAME,
    Manifest,
    TextPart,
    artifact_files,
    write_manifest,
)
from ampft.export.source import load_source
from ampft.files import describe_file, rename, sync
from ampft.ownership import new_token, remove_tree
from ampft.runs.folder import check_creatable
from ampft.runs.manifest import MODEL_FILES, RECORD_NAME, WEIGHT_FILES, matches
from ampft.runs.predict import run_classifier
from ampft.tasks.decisions import fitted_entries


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
    """

    run: Path
    format: str
    precision: str
    output_dir: Path
    data_flags: Sequence[str] = ()


def export_run(request: ExportRequest) -> Manifest:
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
    with staged(request.output_dir) as folder:
        source = load_source(request.run, record, request.precision, request.data_flags)
        copy_processor(request.run, folder)
        source.model.config.save_pretrained(folder)
        path = folder / row.files[request.precision]
        path.parent.mkdir(exist_ok=True)
        row.code.write(source, path)
        manifest = Manifest(
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
        )
        write_manifest(folder, manifest)
    return manifest


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
    """Copy the tokenizer or processor of a run, and its record."""
    for path in run.iterdir():
        if path.is_file() and _is_of_processor(path.name):
            shutil.copyfile(path, folder / path.name)
    (folder / SOURCE_NAME).mkdir()
    shutil.copyfile(run / RECORD_NAME, folder / SOURCE_NAME / RECORD_NAME)


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
