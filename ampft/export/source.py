"""The model of a run that is exported, and the rows that show how large its activations are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from torch import Tensor

from ampft.errors import InputError
from ampft.export.graph import Axes, traced_inputs, write_onnx
from ampft.kinds.inputs import Reader
from ampft.kinds.logits import model_inputs
from ampft.models.adapters import merge_adapters
from ampft.models.by_length import padded_inputs, parts_by_length
from ampft.models.pretrained import load_saved
from ampft.precision.float32_modules import float32_forwards, matching_modules
from ampft.runs.audit.rebuild import recorded_arguments
from ampft.runs.predict import trained_as
from ampft.runs.prepare import load_task
from ampft.runs.record import RunRecord
from ampft.runs.show import task_row

CALIBRATION_ROWS = 128
KEEP_FLOAT = "--keep_float"


@dataclass(frozen=True)
class ExportSource:
    """The model of a run, ready to be written in a format.

    Attributes:
        record: Record of the run.
        model: Model in float32 on the CPU, in evaluation mode, with its adapters merged.
        precision: Precision of the artifact.
        reader: Conversion of rows to the inputs of the model.
        inputs: Inputs to trace it with.
        axes: Axes of the inputs whose size may vary.
        data_flags: Flags that say where the data of the run are now.
        int8: One of `INT8_SCHEMES`; None if the format or the precision has none.
        kept: Paths of the modules that stay in float32: the run's, and requested ones.
    """

    record: RunRecord
    model: Any
    precision: str
    reader: Reader
    inputs: Mapping[str, Tensor]
    axes: Axes
    data_flags: Sequence[str]
    int8: str | None = None
    kept: tuple[str, ...] = ()

    def write_graph(self, path: Path) -> None:
        """Write the model as ONNX in float32."""
        write_onnx(self.model, self.inputs, self.axes, path)

    def calibration(self) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Return the inputs of rows of the run's validation split, one row each.

        Raises:
            InputError: The data cannot be read any more, or are others.
        """
        task = load_task(recorded_arguments(self.record, self.data_flags))
        split = "validation"
        expected = self.record.data.fingerprints.get(split)
        if expected is None or task.data.fingerprints.get(split) != expected:
            raise InputError(
                f"--precision {self.precision}: it is calibrated with the validation split of the "
                "run, and the data found now have another one. Pass the files of the run with "
                "--train_file, --validation_file and --test_file."
            )
        count = len(task.data.splits[split])
        rows = np.unique(np.linspace(0, count - 1, CALIBRATION_ROWS).round().astype(np.int64))
        examples = task.inputs.examples(split)
        batches = (model_inputs(examples.collate(rows[i : i + 1])) for i in range(len(rows)))
        return [{name: batch[name].numpy() for name in self.inputs} for batch in batches]


def load_source(
    run: Path,
    record: RunRecord,
    precision: str,
    data_flags: Sequence[str] = (),
    *,
    int8: str | None = None,
    keep_float: Sequence[str] = (),
) -> ExportSource:
    """Load the model of a run and find out how it is called.

    Args:
        run: Output folder of the run.
        record: Its record.
        precision: Precision of the artifact.
        data_flags: Flags that say where the data of the run are now.
        int8: One of `INT8_SCHEMES`; None if the format or the precision has none.
        keep_float: Patterns of modules that stay in float32, besides the run's.

    Raises:
        InputError: A pattern matches no module.
    """
    row = task_row(record)
    tensors = row.kind.tensors  # registers the models of the kind
    model = load_saved(getattr(transformers, row.model_class), str(run)).eval()
    merge_adapters(model)
    patterns = [*(forward.pattern for forward in float32_forwards(model).values()), *keep_float]
    kept = tuple(matching_modules(model, list(dict.fromkeys(patterns)), KEEP_FLOAT))
    reader = tensors.saved_reader(run, record.arguments, model.config)
    inputs, axes = traced_inputs(reader, sample_rows(record))
    # Models that run by length, or were trained without a mask, are called without it.
    parts = parts_by_length(model, inputs)
    called = parts[0][1] if parts else padded_inputs(model, inputs)
    inputs = {name: inputs[name] for name in called}
    axes = {name: axes[name] for name in called}
    return ExportSource(record, model, precision, reader, inputs, axes, data_flags, int8, kept)


def sample_rows(record: RunRecord) -> Sequence[tuple[Any, ...]]:
    """Return four rows for a model of a run, which need no data.

    Raises:
        InputError: The kind of data has none, as one that another package adds.
    """
    kind, trained = task_row(record).kind, trained_as(record)
    if kind.samples is None:
        raise InputError(
            f"RUN: models of the kind {kind.name!r} cannot be exported, because the kind has no "
            "samples to trace them with. Add `samples` to the kind."
        )
    return kind.rows_in_memory(kind.samples(len(trained.input_columns)), trained)
