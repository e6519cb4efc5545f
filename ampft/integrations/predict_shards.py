"""`ampft predict --output_dir`: an output file for each input file, continued after a kill."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ampft.data.sources.binary_files import WORKBOOK_SUFFIXES
from ampft.data.sources.file_names import files_in
from ampft.data.sources.readers import READERS
from ampft.errors import InputError, listed, quoted_list
from ampft.exit_codes import interruptible
from ampft.files import (
    FileDigest,
    Sealed,
    describe_file,
    durably_rename,
    hashed_text,
    is_link,
    read_hashed,
)
from ampft.integrations.extension_points import CLUSTER_PREDICTION, Shard, ShardJob, ShardPrediction
from ampft.kinds.prediction import PredictRequest
from ampft.kinds.rows import STANDARD_INPUT
from ampft.machine import versions
from ampft.ownership import private_file
from ampft.processes import RAY
from ampft.runs.folder import RunFolder, check_output_folder
from ampft.runs.predict import (
    SavedClassifier,
    check_batch_size,
    check_output_columns,
    checked_rows,
    write_rows,
)
from ampft.runs.run_text import task_row
from ampft.text.json_io import from_json, json_values
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line, quiet_libraries

SHARDS_NAME = ".ampft-predict.json"  # hidden: datasets and pyarrow read the other files
SCHEMA = 1
# Seconds between two manifests per second that one takes to write: with thousands of shards, each
# manifest is long, and one for every shard would take quadratic time. A kill costs what came since.
LEAST_PAUSE = 20
# What names the rows or the place of the output, not how a row is predicted.
_OF_NO_EFFECT = ("files", "texts", "output_file")


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """What the shards of a folder were predicted with; the file `SHARDS_NAME`."""

    model: Mapping[str, str]  # SHA-256 of each file of the model.
    settings: Mapping[str, Any]  # Settings that change predictions or columns.
    versions: Mapping[str, str]  # Versions of the packages.
    inputs: Mapping[str, str]  # SHA-256 of the input of each shard, by name.
    # Hash and size of each finished shard, by name; written before the shard becomes visible.
    outputs: Mapping[str, FileDigest] = field(default_factory=dict)
    schema: int = SCHEMA  # Version of this layout.


def predict_files(
    model: str,
    classifier: Callable[[Path], SavedClassifier],
    request: PredictRequest,
    output_dir: Path,
    *,
    engine: str,
) -> None:
    """Predict many files here or on a cluster, and say after a signal how to continue.

    Args:
        engine: One of `ENGINES`.
    """
    predict = CLUSTER_PREDICTION.require() if engine == RAY else predict_here
    job = ShardJob(model, classifier, request)
    with interruptible(lambda: "what was written is complete. Repeat the command to continue."):
        predict_folder(job, output_dir, predict)


def predict_folder(job: ShardJob, output_dir: Path, engine: ShardPrediction) -> None:
    """Write a Parquet file of predictions for each input file that has none yet.

    A file has the bytes that `ampft predict FILE --output_file` writes, and the name of its input
    with the ending .parquet. It is written whole or not at all, and counts as finished by its hash.

    Args:
        job: How every shard is predicted, and its inputs: files, and folders of them.
        engine: `predict_here`, or a function with the same results.

    Raises:
        InputError: The folder has shards of another model, other settings or other inputs, an
            input cannot be read, a file with the name of a shard was not written here, or an option
            is out of range. Nothing was written.
    """
    quiet_libraries()
    _check_request(job.request)
    saved = job.classifier(Path(job.model))
    check_output_columns(job.request, saved.record)
    kind = task_row(saved.record).kind
    if kind.has_files and kind.units is not None:  # masks
        raise InputError(
            "--output_dir: this model predicts masks, which are files next to a table. Predict one "
            "input at a time with --output_file."
        )
    shards = _shards(job.request, output_dir, saved)
    settings: Any = json_values(asdict(job.request))
    now = ShardManifest(
        model=saved.files,
        settings={name: value for name, value in settings.items() if name not in _OF_NO_EFFECT},
        versions=versions(),
        inputs={shard.name: shard.sha256 for shard in shards},
    )
    before = _read_manifest(output_dir)
    if before is not None:
        _check_same(before, now, output_dir)
    check_output_folder(output_dir, keep_files=before is not None, trains=False)
    outputs = dict(before.outputs) if before else {}
    sealed = Sealed(
        folder=output_dir,
        manifest=SHARDS_NAME,
        files=outputs,
        event="this command",
        remedy="Move it, or choose another --output_dir.",
    )
    missing = [s for s in shards if not os.path.lexists(output_dir / s.name)]
    sealed.check(shard.name for shard in shards if shard not in missing)
    todo = [s for s in shards if s in missing]
    for shard in todo:
        checked_rows(replace(job.request, files=[shard.source]), saved)
    others = sorted(name for name in outputs if name not in now.inputs)
    _note_others([name for name in others if os.path.lexists(output_dir / name)])
    found = {path.name for path in output_dir.glob("[!.]*.parquet")}
    _note_others(sorted(found - {*outputs, *now.inputs}), "not written by this command.")
    inputs = {**(before.inputs if before else {}), **now.inputs}
    with RunFolder(output_dir, keep_files=True) as folder:
        if before is not None:
            folder.adopt(SHARDS_NAME)
        publishing = _Publishing(folder, replace(now, inputs=inputs, outputs=outputs), shards)
        cost, last = publishing.publish(), time.monotonic()
        print_line(labelled("shards", f"{len(todo)} of {counted(len(shards), 'file')} to predict"))
        try:
            for shard, rows in (
                engine(replace(job, files=saved.files), todo, publishing.staged) if todo else ()
            ):
                publishing.check_free(shard)
                publishing.waiting.append((shard, rows))
                if time.monotonic() - last >= LEAST_PAUSE * cost:
                    cost, last = publishing.publish(), time.monotonic()
        finally:
            publishing.publish()


class _Publishing:
    """Makes finished shards visible, named in the manifest before."""

    def __init__(self, folder: RunFolder, manifest: ShardManifest, shards: Sequence[Shard]) -> None:
        self._folder, self._manifest = folder, manifest
        self._numbers = {shard.name: number for number, shard in enumerate(shards)}
        self.waiting: list[tuple[Shard, int]] = []  # Finished shards and their numbers of rows.

    def staged(self, shard: Shard) -> Path:
        """Return the hidden path to which a shard is predicted."""
        return private_file(self._folder.path, f"shard{self._numbers[shard.name]}.parquet")

    def check_free(self, shard: Shard) -> None:
        """Check that nothing has the name of a shard."""
        folder = self._folder.path
        if os.path.lexists(folder / shard.name) or is_link(folder, shard.name):
            raise InputError(
                f"--output_dir {folder}: {shard.name} was created by another program in the "
                "meantime. Move it, and repeat the command."
            )

    def publish(self) -> float:
        """Write the manifest and make the waiting shards visible; return the seconds of writing."""
        folder = self._folder
        for shard, _ in self.waiting:
            self.check_free(shard)
        new = {shard.name: describe_file(self.staged(shard)) for shard, _ in self.waiting}
        self._manifest = replace(self._manifest, outputs={**self._manifest.outputs, **new})
        start = time.monotonic()
        folder.write_text(SHARDS_NAME, hashed_text(self._manifest))
        seconds = time.monotonic() - start
        while self.waiting:
            shard, rows = self.waiting.pop(0)
            (target := folder.path / shard.name).parent.mkdir(parents=True, exist_ok=True)
            durably_rename(self.staged(shard), target)
            print_line(labelled("wrote", f"{target}: {counted(rows, 'row')}"))
        return seconds


def predict_here(
    job: ShardJob, shards: Sequence[Shard], target: Callable[[Shard], Path]
) -> Iterator[tuple[Shard, int]]:
    """Predict shards in this process, one after another."""
    with shard_writer(job) as write:
        for shard in shards:
            yield shard, write(shard, target(shard))


@contextmanager
def shard_writer(job: ShardJob) -> Iterator[Callable[[Shard, Path], int]]:
    """Load the model; yield a function that predicts a shard to a file and returns its rows."""
    quiet_libraries()
    saved = job.classifier(Path(job.model))
    if job.files is not None and dict(saved.files) != dict(job.files):
        raise InputError(
            f"--model {job.model}: it differs from what this command read at its start. Let the "
            "model stay as it is, on every node."
        )
    kind, predictor = task_row(saved.record).kind, saved.load(job.request)

    def write(shard: Shard, target: Path) -> int:
        if _input_hash(Path(shard.source), job.request, saved) != shard.sha256:
            raise InputError(
                f"FILE: {shard.source} differs from what this command read at its start. Let the "
                "inputs stay as they are, on every node."
            )
        request = replace(job.request, files=[shard.source], output_file=str(target))
        rows = kind.open_rows(request, saved.training)
        output = kind.new_output(request, predictor.config)
        return write_rows(rows, predictor, output, None, request)

    with predictor.numerics:
        yield write


def _check_request(request: PredictRequest) -> None:
    check_batch_size(request)
    for flag, given in (
        ("--output_file", request.output_file),
        ("--overwrite", request.overwrite),
        ("--text", request.texts),
        ("--label_column_name", request.label_column_name),
        ("standard input", STANDARD_INPUT in request.files),
    ):
        if given:
            raise InputError(
                f"--output_dir and {flag}: with --output_dir, files are predicted to files and not "
                "scored. Remove one of them."
            )


def _shards(request: PredictRequest, output_dir: Path, saved: SavedClassifier) -> list[Shard]:
    """Return the shards of input files, and of the tables in input folders, in their order."""
    endings = (*READERS, *WORKBOOK_SUFFIXES)
    found: dict[str, Path] = {}
    for place in map(Path, request.files):
        if place.is_dir() and output_dir.resolve().is_relative_to(place.resolve()):
            raise InputError(
                f"--output_dir {output_dir}: it is in the input folder {place}. Choose another one."
            )
        files = [place]
        if place.is_dir():
            files = [path for path in files_in(place) if path.suffix.lower() in endings]
        if not files:
            raise InputError(f"FILE: {place} has no tables ({', '.join(endings)}).")
        for path in files:
            name = path.relative_to(place) if path != place else Path(path.name)
            shard = name.with_suffix(".parquet").as_posix()
            if found.setdefault(shard, path) != path:
                raise InputError(
                    f"FILE: {found[shard]} and {path} would both become {shard} in --output_dir. "
                    "Rename one of them."
                )
    return [Shard(name, str(p), _input_hash(p, request, saved)) for name, p in found.items()]


def _input_hash(path: Path, request: PredictRequest, saved: SavedClassifier) -> str:
    """Return the hash of a table; of a table of images or sounds, also of their files."""
    kind = task_row(saved.record).kind
    if not kind.has_files:
        return describe_file(path).sha256
    digest = hashlib.sha256(describe_file(path).sha256.encode())
    rows = kind.open_rows(replace(request, files=[str(path)]), saved.training)
    for number, cells in rows.table.read(rows.sources):
        for value in rows.convert(cells, rows.place(number)) or ():
            if isinstance(value, dict) and value["bytes"] is None:
                digest.update(_file_hash(Path(value["path"])).encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    """Return the hash of a file, or "" if it cannot be read, which predicting reports."""
    try:
        return describe_file(path).sha256
    except OSError:
        return ""


def _note_others(
    names: Sequence[str],
    origin: str = "written earlier from inputs that are gone or were not passed this time.",
) -> None:
    """Print which files of the folder are not of the inputs that this command has."""
    if names:
        text = f"{origin} Remove what should not be read with the other files."
        print_line(labelled("also there", f"{listed(names)}: {text}"))


def _read_manifest(folder: Path) -> ShardManifest | None:
    path = folder / SHARDS_NAME
    try:
        values, _ = read_hashed(path, SCHEMA, "Choose another --output_dir.")
        return from_json(ShardManifest, values, SHARDS_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: the file is damaged ({error}). Choose another --output_dir."
        ) from error


def _check_same(before: ShardManifest, now: ShardManifest, folder: Path) -> None:
    """Check that new shards would be predicted as those in the folder were."""
    for what, old, new in (
        ("another model", before.model, now.model),
        ("other settings", before.settings, now.settings),
        ("other versions of packages", before.versions, now.versions),
        (
            "other inputs",
            before.inputs,
            {n: now.inputs.get(n, v) for n, v in before.inputs.items()},
        ),
    ):
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        if changed:
            raise InputError(
                f"--output_dir {folder}: its files were predicted with {what} "
                f"({quoted_list(sorted(changed))}). Choose another folder, so that no predictions "
                "are mixed, or repeat the earlier command."
            )
