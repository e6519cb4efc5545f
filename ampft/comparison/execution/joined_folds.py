"""Compare arms by repeated cross-validation: the folds of a repeat become one table of all rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ampft.comparison.analysis.foreign_predictions import compare_tables
from ampft.comparison.execution.plan import Plan
from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import Remark
from ampft.files import atomic_path
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.predictions import is_input, read_predictions, read_rows

TABLES_NAME = "tables"  # folder of the joined tables
ORIGINS = ("file", "file_line", "file_row", "position")
READ = ("label", "prediction", "probabilities", "group_id")


def compare_folds(
    plan: Plan, folder: Path, folders: Sequence[Path], remarks: Sequence[Remark]
) -> Comparison:
    """Join the folds of each repeat and compare the arms, by the statistics of tables.

    Args:
        plan: Plan of the comparison.
        folder: Its folder, which receives a table per arm and repeat.
        folders: Run folders of all folds of the repeats that count.
        remarks: Remarks on the plan.

    Raises:
        InputError: Predictions cannot be read or compared.
    """
    parts: dict[tuple[str, int], dict[int, Path]] = {}
    by_name = {path.name: path for path in folders}
    for run in (run for run in plan.runs() if run.name in by_name):
        parts.setdefault((run.arm.name, run.seed), {})[run.fold] = by_name[run.name]
    (folder / TABLES_NAME).mkdir(exist_ok=True)
    sources = []
    for arm in plan.arms:
        for name, seed in sorted(key for key in parts if key[0] == arm.name):
            path = folder / TABLES_NAME / f"{name}-seed{seed}.parquet"
            write_joined(path, parts[name, seed])
            sources.append(f"{name}:{seed}={path}")
    found = compare_tables(
        sources, metric=plan.metric, margin=plan.design.margin, baseline=plan.arms[0].name
    )
    # The plan trained all arms alike.
    stamps = (each for each in found.stamps if each.kind != "no_record")
    return replace(found, stamps=(*stamps, *remarks))


def write_joined(path: Path, runs: Mapping[int, Path]) -> None:
    """Write the predictions of all folds as one table, as `ampft compare --predictions` reads it.

    Args:
        path: File to write.
        runs: Run folder by fold.

    Raises:
        InputError: The predictions of a run cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[object]] = {}
    has_groups = False
    for fold, run in sorted(runs.items()):
        source = run / PREDICTIONS_NAME
        outcome = read_predictions(source)
        for row, values in read_rows(source, range(len(outcome)), _is_read).items():
            inputs = [str(value) for name, value in values.items() if is_input(name)]
            found = {
                "id": ":".join(str(values[name]) for name in ORIGINS if name in values),
                "label": values["label"],
                "prediction": values["prediction"],
                "probabilities": _probabilities(values["probabilities"], outcome.label_names),
                "text": " | ".join(inputs),
                "group": f"{fold}:{values.get('group_id', f'row {row}')}",
                "fold": str(fold),
            }
            has_groups = has_groups or "group_id" in values
            for name, value in found.items():
                columns.setdefault(name, []).append(value)
    if not has_groups:
        del columns["group"]
    with atomic_path(path.absolute()) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")


def _is_read(name: str) -> bool:
    return is_input(name) or name in (*ORIGINS, *READ)


def _probabilities(values: Sequence[float], names: Sequence[str]) -> str:
    """Return probabilities as a table has them, as JSON by class."""
    return json.dumps(dict(zip(names, map(float, values), strict=True)))
