"""The model of a run that is exported, and the rows that show how large its activations are."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from ampft.errors import InputError
from ampft.export.graph import Axes, traced_inputs, write_onnx
from ampft.kinds.inputs import Reader
from ampft.kinds.logits import model_inputs
from ampft.models.adapters import merge_adapters
from ampft.models.by_length import padded_inputs, parts_by_length
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.precision.float32_modules import float32_forwards
from ampft.runs.audit.rebuild import recorded_arguments
from ampft.runs.predict import trained_as
from ampft.runs.prepare import load_task
from ampft.runs.record import RunRecord
from ampft.runs.show import task_row

CALIBRATION_ROWS = 128


@dataclass(frozen=True)
class ModelSource:
    """The model of a run, ready to be written in a format.

    Attributes:
        record: Record of the run.
        model: Model in float32 on the CPU, in evaluation mode, with its adapters merged.
        precision: Precision of the artifact.
        reader: Conversion of rows to the inputs of the model.
        inputs: Inputs to trace it with.
        axes: Axes of the inputs whose size may vary.
        data_flags: Flags that say where the data of the run are now.
    """

    record: RunRecord
    model: Any
    precision: str
    reader: Reader
    inputs: Mapping[str, Tensor]
    axes: Axes
    data_flags: Sequence[str]

    def write_graph(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the model as ONNX with float32 inputs and outputs.

        Args:
            path: File to write.
            dtype: Dtype of the weights and of the computation.
        """
        model = self.model if dtype == torch.float32 else self.cast(dtype)
        write_onnx(model, self.inputs, self.axes, path)

    def cast(self, dtype: torch.dtype) -> nn.Module:
        """Return a copy of the model with weights in another dtype.

        Raises:
            InputError: The run keeps modules in float32.
        """
        self.refuse_float32_modules()
        model: nn.Module = copy.deepcopy(self.model)
        cast_in_place(model, dtype)
        return model

    def refuse_float32_modules(self) -> None:
        """Raise InputError if the run keeps modules in float32, which only fp32 does."""
        kept = float32_forwards(self.model)
        if kept:
            raise InputError(
                f"--precision {self.precision}: the run keeps modules in float32 "
                f"({', '.join(list(kept)[:3])}), and this artifact would not. Use --precision fp32."
            )

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
    run: Path, record: RunRecord, precision: str, data_flags: Sequence[str]
) -> ModelSource:
    """Load the model of a run and find out how it is called.

    Args:
        run: Output folder of the run.
        record: Its record.
        precision: Precision of the artifact.
        data_flags: Flags that say where the data of the run are now.
    """
    row = task_row(record)
    tensors = row.kind.tensors  # registers the models of the kind
    model = load_saved(getattr(transformers, row.model_class), str(run)).eval()
    merge_adapters(model)
    reader = tensors.saved_reader(run, record.arguments, model.config)
    inputs, axes = traced_inputs(reader, sample_rows(record))
    # Models that run by length, or were trained without a mask, are called without it.
    parts = parts_by_length(model, inputs)
    called = parts[0][1] if parts else padded_inputs(model, inputs)
    inputs = {name: inputs[name] for name in called}
    axes = {name: axes[name] for name in called}
    return ModelSource(record, model, precision, reader, inputs, axes, data_flags)


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
