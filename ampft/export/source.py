"""The model of a run that is exported: its trace as an ONNX graph, and rows for a calibration."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from ampft.errors import InputError
from ampft.export.formats import INT8, INT8_SCHEMES
from ampft.kinds.inputs import Reader
from ampft.kinds.logits import model_inputs
from ampft.models.adapters import merge_adapters
from ampft.models.by_length import padded_inputs, parts_together
from ampft.models.pretrained import load_saved
from ampft.precision.float32_modules import matching_modules, replaced_forwards
from ampft.runs.predict import recorded_training
from ampft.runs.prepare import load_task
from ampft.runs.record import RunRecord
from ampft.runs.recorded_arguments import recorded_arguments
from ampft.runs.run_text import task_row

CALIBRATION_ROWS = 128
KEEP_FLOAT = "--keep_float"
OPSET = 20
_STACK_TRACE = "pkg.torch.onnx.stack_trace"  # has paths of this machine
_OPERATOR = re.compile(r"translating node .*torch\.ops\.(\w+\.\w+)")
Axes = dict[str, dict[int, Any]]


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A request for an artifact."""

    run: Path  # Output folder of a finished run.
    format: str  # Name of a row of `FORMATS`.
    precision: str  # One of `PRECISIONS` that the format has.
    output_dir: Path  # Folder to create; an empty one is used as it is.
    # Flags that say where the data of the run are now, such as `--validation_file=FILE`, for a
    # calibration.
    data_flags: Sequence[str] = ()
    int8: str | None = None  # One of `INT8_SCHEMES`, for ONNX; None takes the first.
    keep_float: Sequence[str] = ()  # Patterns of modules that stay in float32, besides the run's.

    @property
    def scheme(self) -> str | None:
        """How activations become int8; None if the format or the precision leaves no choice."""
        has_choice = self.format == "onnx" and self.precision == INT8
        return (self.int8 or INT8_SCHEMES[0]) if has_choice else None


@dataclass(frozen=True)
class ExportSource:
    """The model of a run, ready to be written in a format."""

    request: ExportRequest  # What it is exported as.
    record: RunRecord  # Record of the run.
    model: Any  # Model in float32 on the CPU, in evaluation mode, with its adapters merged.
    reader: Reader  # Conversion of rows to the inputs of the model.
    inputs: Mapping[str, Tensor]  # Inputs to trace it with.
    axes: Axes  # Axes of the inputs whose size may vary.
    # Paths of the modules that stay in float32: the run's, and requested ones.
    kept: tuple[str, ...] = ()

    def write_graph(self, path: Path) -> None:
        """Write the model as ONNX in float32."""
        write_onnx(self.model, self.inputs, self.axes, path)

    def calibration(self) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Return the inputs of rows of the run's validation split, one row each.

        Raises:
            InputError: The data cannot be read any more, or are others.
        """
        task = load_task(recorded_arguments(self.record, self.request.data_flags))
        split = "validation"
        expected = self.record.data.fingerprints.get(split)
        if expected is None or task.data.fingerprints.get(split) != expected:
            raise InputError(
                f"--precision {self.request.precision}: it is calibrated with the validation split "
                "of the run, but the data found now have a different one. Pass the files of the "
                "run with --train_file, --validation_file and --test_file."
            )
        count = len(task.data.splits[split])
        rows = np.unique(np.linspace(0, count - 1, CALIBRATION_ROWS).round().astype(np.int64))
        examples = task.inputs.splits[split]
        batches = (model_inputs(examples.collate(rows[i : i + 1])) for i in range(len(rows)))
        return [{name: batch[name].numpy() for name in self.inputs} for batch in batches]


def load_source(request: ExportRequest, record: RunRecord) -> ExportSource:
    """Load the model of a run and find out how it is called.

    Raises:
        InputError: A pattern matches no module.
    """
    row = task_row(record)
    tensors = row.kind.tensors  # registers the models of the kind
    model = load_saved(getattr(transformers, row.model_class), str(request.run)).eval()
    merge_adapters(model)
    own = (forward.pattern for forward in replaced_forwards(model).values())
    patterns = list(dict.fromkeys([*own, *request.keep_float]))
    kept = tuple(matching_modules(model, patterns, KEEP_FLOAT))
    reader = tensors.saved_reader(request.run, record.arguments, model.config)
    inputs, axes = _traced_inputs(reader, sample_rows(record, request.run))
    # Models that run by length, or were trained without a mask, are called without it.
    parts = parts_together(model, inputs)
    called = parts[0][1] if parts else padded_inputs(model, inputs)
    inputs = {name: inputs[name] for name in called}
    axes = {name: axes[name] for name in called}
    return ExportSource(request, record, model, reader, inputs, axes, kept)


def sample_rows(record: RunRecord, folder: Path) -> Sequence[tuple[Any, ...]]:
    """Return four rows for a model of a run, which need no data.

    Raises:
        InputError: The kind of data has none, as one that another package adds.
    """
    kind, trained = task_row(record).kind, recorded_training(record, folder)
    if kind.samples is None:
        raise InputError(
            f"RUN: models of the kind {kind.name!r} cannot be exported, because the kind has no "
            "samples to trace them with. Add `samples` to the kind."
        )
    plain = replace(trained, feature_columns=())  # their texts are only traced
    return kind.rows_in_memory(kind.samples(len(trained.input_columns)), plain)


def _traced_inputs(
    reader: Reader, samples: Sequence[tuple[Any, ...]]
) -> tuple[dict[str, Tensor], Axes]:
    """Return inputs to trace a model with, and their axes whose size may vary.

    An axis varies if it differs between a batch of two short samples and one of all. Axes that
    have equal sizes in both are one, such as the length in all inputs of a text.
    """
    small, large = (
        model_inputs(reader.collate(list(zip(*rows, strict=True))))
        for rows in (samples[:2], samples)
    )
    small = _shortened(small, large)
    names = {(len(samples[:2]), len(samples)): torch.export.Dim("batch")}
    axes: Axes = {}
    for name, value in small.items():
        sizes = list(enumerate(zip(value.shape, large[name].shape, strict=True)))
        varying = {axis: pair for axis, pair in sizes if pair[0] != pair[1]}
        for pair in varying.values():
            label = "length" if len(names) == 1 else f"length_{len(names)}"
            names.setdefault(pair, torch.export.Dim(label))
        axes[name] = {axis: names[pair] for axis, pair in varying.items()}
    return small, axes


def _shortened(small: dict[str, Tensor], large: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch without its first tokens where `--max_seq_length` cut both to one length.

    Else the length would be fixed in the graph. The last token may be one that the model reads its
    answer at.
    """
    if "input_ids" not in small:
        return small
    width = small["input_ids"].shape[1]
    if width < 3 or width != large["input_ids"].shape[1]:
        return small
    return {
        name: value[:, 1:].contiguous() if value.dim() > 1 and value.shape[1] == width else value
        for name, value in small.items()
    }


def write_onnx(model: nn.Module, inputs: Mapping[str, Tensor], axes: Axes, path: Path) -> None:
    """Write a model as ONNX, with external data if it has more than 2 GiB.

    Args:
        model: Model of transformers in float32 and in evaluation mode, on the CPU.
        axes: Axes whose size may vary, by input.
        path: File to write, in an existing folder.

    Raises:
        InputError: The model cannot be traced, or has an operator that ONNX lacks; the message
            names it with its module.
    """
    hook = model.register_forward_hook(lambda module, arguments, output: output.logits.float())
    try:
        with silenced_packages("torch.onnx", "onnxscript", "onnx_ir"), torch.no_grad():
            try:
                program = torch.onnx.export(
                    model,
                    (),
                    kwargs=dict(inputs),
                    dynamic_shapes=axes,
                    output_names=["logits"],
                    opset_version=OPSET,
                    dynamo=True,
                    verbose=False,
                )
            except torch.onnx.OnnxExporterError as error:
                raise _refusal(model, inputs, error) from error
            assert program is not None, "dynamo=True returns a program"
            entries: Sequence[Any] = program.model.graph.inputs
            for entry in entries:
                fixed = [axis for axis in axes[entry.name] if isinstance(entry.shape[axis], int)]
                if fixed:
                    raise InputError(
                        f"--format: {type(model).__name__} can only be traced with axis {fixed[0]} "
                        f"of {entry.name} fixed at {entry.shape[fixed[0]]}. Use --format torch."
                    )
            for node in program.model.graph.all_nodes():
                node.metadata_props.pop(_STACK_TRACE, None)
            program.save(str(path))
    finally:
        hook.remove()


def _refusal(model: nn.Module, inputs: Mapping[str, Tensor], error: Exception) -> InputError:
    """Return the message for a model that cannot be exported."""
    name = type(model).__name__
    found = _OPERATOR.search(str(error.__cause__))
    if found is None:
        cause = error.__cause__ or error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        return InputError(
            f"--format: {name} cannot be traced with batches and lengths that vary "
            f"({lines[-1].rstrip('.')}). Use --format torch."
        )
    operator, place = found[1], ""
    program = torch.export.export(model, (), dict(inputs)).run_decompositions()
    for node in program.graph.nodes:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        if str(node.target).startswith(operator) and stack and stack[-1][0]:
            place = f" in the module {stack[-1][0]}"
            break
    return InputError(
        f"--format: {name} has an operator that ONNX lacks: {operator}{place}. Use --format torch."
    )


@contextmanager
def silenced_packages(*names: str) -> Iterator[None]:
    """Keep packages from printing what concerns their own authors.

    Args:
        names: Names of their loggers, which report only errors inside the context.
    """
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Of deprecated calls, of axes that have the same size, of numbers beyond float16.
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
