"""The files that a run wrote: which they are, and whether they are unchanged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ampft.engine.checkpoints.store import HISTORY_NAME as HISTORY_NAME
from ampft.engine.checkpoints.store import STORE_NAME, CheckpointStore
from ampft.errors import InputError
from ampft.files import FileDigest, Sealed, describe_file, read_hashed
from ampft.models.model_settings import ADAPTER_FOLDER
from ampft.ownership import is_plain_file, is_plain_folder

CONTRACT_NAME = "decision.json"  # as in `ampft.decision`, which imports numpy
RECORD_NAME = "run.json"
NONFINITE_NAME = "nonfinite"  # folder of saved steps
PICTURES_NAME = "pictures.png"  # of images with masks

# Names of the results of a run, and of what transformers saves and loads as a model.
RESULT_FILES = (
    RECORD_NAME,
    HISTORY_NAME,
    "history.csv",
    "report.txt",
    "report.json",
    "predictions.parquet",
    "predictions_fp32.parquet",
    "README.md",
    *("raw_weights.safetensors", "label_errors.csv"),
)
# What follows from the predictions of the final split.
EVALUATION_FILES = (
    *("report.txt", "report.json", "predictions.parquet", "predictions_fp32.parquet"),
    *("README.md", PICTURES_NAME, CONTRACT_NAME),
)
WEIGHT_FILES = (
    *("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin*"),
    *("adapter_model.*", "raw_weights.safetensors"),
)
MODEL_FILES = (
    *("config.json", CONTRACT_NAME),
    *("generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *WEIGHT_FILES[:-1],
    "adapter_config.json",
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja"),
)


def describe_files(folder: Path) -> dict[str, FileDigest]:
    """Return hash and size of every file in a folder and its subfolders, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): describe_file(path) for path in paths}


def sealed_run(folder: Path, files: Mapping[str, FileDigest]) -> Sealed:
    """Return the files of a run that it wrote, or that loading its model may read."""
    return Sealed(
        folder=folder,
        manifest=RECORD_NAME,
        files=files,
        event="the run",
        remedy="Restore the folder from a copy, or repeat the run.",
        belongs=lambda name: (
            "/" not in (own := name.removeprefix(f"{ADAPTER_FOLDER}/")) and is_result_name(own)
        ),
    )


def check_files(folder: Path, files: Mapping[str, FileDigest], names: Iterable[str]) -> None:
    """Check that files that are about to be read are as the run wrote them.

    Args:
        files: Files in its record. Records without any, from before schema 3, prove nothing.
        names: Names of the files, if they exist or the record lists them.

    Raises:
        InputError: A file is missing, was added or changed, or is a link.
    """
    if files:
        sealed_run(folder, files).check(names)


def model_files(folder: Path, files: Mapping[str, object]) -> set[str]:
    """Return the names of the files that loading the model of a run may read."""
    present = {path.name for path in folder.iterdir()}
    code = {name for name in files if name.endswith(".py") and "/" not in name}
    found = {name for name in present | files.keys() if matches_any_pattern(name, MODEL_FILES)}
    return found | code


def check_model_files(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Check as `check_files` does everything that loading the model of a run may read."""
    check_files(folder, files, sorted(model_files(folder, files)))


def is_result_name(name: str) -> bool:
    """Return whether a run may write a file of this name, or load it as part of its model."""
    return matches_any_pattern(name, (*RESULT_FILES, PICTURES_NAME, *MODEL_FILES))


def earlier_results(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder that an earlier run provably wrote and that are unchanged since.

    Anything else, such as an edited model card or a symbolic link, belongs to the user. So does
    what a record before schema 3 lists, because it has no hashes.
    """
    record = earlier_record(folder)
    if record is None:
        return
    yield folder / RECORD_NAME
    files = record.get("files")
    listed = {
        name: FileDigest(**part)
        for name, part in (files if isinstance(files, Mapping) else {}).items()
        if isinstance(part, Mapping) and part.keys() == {"sha256", "bytes"}
    }
    changed = dict(sealed_run(folder, listed).faults(listed))
    yield from (folder / name for name in listed if name not in changed)
    # A run that was killed had no time to record the hash of its history.
    if HISTORY_NAME not in listed and _is_history(folder / HISTORY_NAME):
        yield folder / HISTORY_NAME


def remove_earlier_run(folder: Path, *, continues: bool = False, completes: bool = False) -> None:
    """Remove the files of an earlier run, and nothing of the user.

    Args:
        continues: Whether the run continues, so that its record, its history, its checkpoints and
            its saved steps are kept.
        completes: Whether its training has ended, so that everything but the results of its
            evaluation is kept too.
    """
    results = list(earlier_results(folder))
    if not continues and results:
        CheckpointStore(folder).remove_all()
    kept = (RECORD_NAME, HISTORY_NAME, NONFINITE_NAME) if continues else ()
    for path in results:
        if completes and path.name not in EVALUATION_FILES:
            continue
        if path.relative_to(folder).parts[0] not in kept:
            path.unlink(missing_ok=True)
            parent = path.parent
            while parent != folder and not any(parent.iterdir()):
                parent.rmdir()
                parent = parent.parent


def remove_weights(folder: Path) -> None:
    """Remove the weights that the run in `folder` saved, if nobody has changed them since."""
    for path in list(earlier_results(folder)):
        if matches_any_pattern(path.name, WEIGHT_FILES):
            path.unlink(missing_ok=True)


def refuse_foreign_files(folder: Path) -> None:
    """Check that a run in this folder would replace only the results of an earlier run.

    Raises:
        InputError: The folder contains a file that no run wrote, under the name of a result.
    """
    if not folder.is_dir():
        return
    for name in (STORE_NAME, NONFINITE_NAME):
        if os.path.lexists(folder / name) and not is_plain_folder(folder / name):
            raise InputError(
                f"--output_dir {folder}: {name} is a file or a link, but a run writes a folder of "
                "this name. Move it, or choose another folder."
            )
    CheckpointStore(folder).refuse_foreign()
    own = set(earlier_results(folder))
    foreign = sorted(
        path.name for path in folder.iterdir() if is_result_name(path.name) and path not in own
    )
    if foreign:
        listed = ", ".join(foreign[:3]) + (" and more" if len(foreign) > 3 else "")
        raise InputError(
            f"--output_dir {folder}: a run replaces only what an earlier run wrote, and these "
            f"files have been written or changed by someone else: {listed}. Move them, or name "
            "another folder."
        )


def earlier_record(folder: Path) -> dict[str, Any] | None:
    """Return run.json as JSON values; None if it is not the unchanged record of a run."""
    try:
        record, _ = read_hashed(folder / RECORD_NAME)
    except (OSError, ValueError):
        return None
    return record if {"schema", "status", "precision"} <= record.keys() else None


def _is_history(path: Path) -> bool:
    """Return whether a file contains nothing but the steps of a training from the first one on."""
    if not is_plain_file(path):
        return False
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError:
                return not line.endswith(b"\n") and line.startswith(b'{"step": '[: len(line)])
            if not isinstance(row, dict) or row.get("step") != number or "loss_scale" not in row:
                return False
    return True


def matches_any_pattern(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name of a file has one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
