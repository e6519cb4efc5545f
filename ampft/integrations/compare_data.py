"""`ampft.compare`: a comparison from Python, with settings as keyword arguments."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from datasets import DatasetDict

from ampft.arguments.parsing import command_line_words, messages_for_python
from ampft.comparison.execution.plan import read_plan
from ampft.comparison.execution.train_and_compare import compare as compare_runs
from ampft.comparison.findings import Comparison
from ampft.comparison.report.report_files import read_comparison, summary_blocks, terminal_text
from ampft.comparison.settings import CompareArguments, parse_compare_arguments
from ampft.errors import InputError, check_type
from ampft.files import (
    FileDigest,
    Sealed,
    describe_file,
    hashed_text,
    read_hashed,
    rename,
    write_text,
)
from ampft.integrations.finetune import data_settings
from ampft.ownership import TemporaryFolder
from ampft.runs.caller_state import caller_state_kept
from ampft.text.page import notebook_html
from ampft.text.terminal import quiet_libraries

DATA_FOLDER = ".data"  # beside the folder of the comparison
DATA_MANIFEST = ".ampft-data.json"


class FinishedComparison:
    """A finished comparison; `ampft.compare` returns one."""

    def __init__(self, folder: str | Path) -> None:
        check_type("FinishedComparison", "folder", folder, (str, Path))
        self.folder = Path(folder)  # Folder of the comparison, with comparison.html.
        # Arms, differences, intervals and verdicts, as in comparison.json.
        self.comparison: Comparison = read_comparison(self.folder)

    def __repr__(self) -> str:
        return terminal_text(self.comparison)

    def _repr_html_(self) -> str:
        """Return the same blocks as HTML, in which nothing from the data is active."""
        return str(notebook_html(summary_blocks(self.comparison)))


def compare(
    train: Any = None,
    *,
    validation: Any = None,
    test: Any = None,
    modes: str | Sequence[str] | None = None,
    **settings: Any,
) -> FinishedComparison:
    """Compare precisions, as `recipes/compare_precision.py` does; print and return the result.

    Each run is a separate process, started in turn. Data in memory are written beside the folder of
    the comparison first. The same call continues a comparison that was interrupted.

    Args:
        train: Training data, as for `finetune`.
        validation: Validation data of the same kind; None splits some off the training data.
        test: Test data of the same kind; None splits some off the training data.
        modes: Precisions, such as "fp32,bf16" or a list; None for all of fp32, bf16 and fp16 that
            this machine supports.
        **settings: Settings with the names of the flags of the comparison (`seeds`, `budget`,
            `output_dir`, ...) and of the runs (`learning_rate`, ...).

    Returns:
        The finished comparison: `comparison`, `folder`.

    Raises:
        InputError: The data or a setting must be corrected, or too few runs finished.
    """
    with messages_for_python(), caller_state_kept():
        data, named = data_settings(settings, train=train, validation=validation, test=test)
        of_comparison = {f.name for f in fields(CompareArguments)}
        own = {"modes": modes, **{k: v for k, v in settings.items() if k in of_comparison}}
        if data is not None:
            named = {"dataset_name": save_by_content(data, own.get("output_dir"))}
        runs = {**named, **{k: v for k, v in settings.items() if k not in of_comparison}}
        command = parse_compare_arguments(
            [*command_line_words(own), "--", *command_line_words(runs)],
            program="ampft.compare",
            trainer="ampft train",
        )
        try:
            session = compare_runs(replace(command, started=time.time()))
        except SystemExit as error:
            if error.code == 1:
                raise InputError("Some runs failed; the lines above name their logs.") from None
            raise KeyboardInterrupt from None
    return FinishedComparison(session.folder.path)


def save_by_content(data: DatasetDict, output_dir: str | Path | None) -> Path:
    """Write data in memory to a folder that is named after their contents, and return it.

    Raises:
        InputError: `output_dir` has a comparison of other data, or what was saved was changed.
    """
    quiet_libraries()
    digest = hashlib.sha256()
    for split, part in data.items():
        content = io.BytesIO()
        part.to_parquet(content)
        digest.update(split.encode() + content.getvalue())
    parent = Path("comparisons") if output_dir is None else Path(output_dir).parent
    folder = parent / DATA_FOLDER / digest.hexdigest()[:12]
    existing = None if output_dir is None else read_plan(Path(output_dir))
    begun = existing and existing.arguments.get("dataset_name")
    if existing is not None and Path(begun or "").name != folder.name:
        raise InputError(
            f"--output_dir {output_dir}: the comparison in this folder began with other data than "
            "this call passes. Pass the same data to continue it, or choose another folder."
        )
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFolder("frame", folder.parent) as staging:
            data.save_to_disk(str(staging))
            files = {str(path.relative_to(staging)): path for path in staging.rglob("*.*")}
            described = {"files": {name: describe_file(path) for name, path in files.items()}}
            write_text(staging / DATA_MANIFEST, hashed_text(described))
            rename(staging, folder)
    _check_data(folder)
    return folder


def _check_data(folder: Path) -> None:
    """Check that data are what was saved, before every run of a comparison reads them."""
    remedy = "Delete the folder, and repeat the call: it is written again."
    try:
        values, _ = read_hashed(folder / DATA_MANIFEST)
        files = {name: FileDigest(**described) for name, described in values["files"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: the data of a comparison in it are damaged ({error}). {remedy}"
        ) from error
    sealed = Sealed(
        folder=folder, manifest=DATA_MANIFEST, files=files, event="it was saved", remedy=remedy
    )
    sealed.check(files)  # other files may be beside them, such as caches of datasets
