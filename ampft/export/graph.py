"""Traces a model of transformers into an ONNX graph with logits as its only output."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampft.errors import InputError
from ampft.kinds.inputs import Reader
from ampft.kinds.logits import model_inputs

OPSET = 20
_STACK_TRACE = "pkg.torch.onnx.stack_trace"  # has paths of this machine
_OPERATOR = re.compile(r"translating node .*torch\.ops\.(\w+\.\w+)")
Axes = dict[str, dict[int, Any]]


def traced_inputs(
    reader: Reader, samples: Sequence[tuple[Any, ...]]
) -> tuple[dict[str, Tensor], Axes]:
    """Return inputs to trace a model with, and their axes whose size may vary.

    An axis varies if it differs between a batch of two short samples and one of all. Axes that
    have equal sizes in both are one, such as the length in all inputs of a text.

    Args:
        reader: Conversion of rows to the inputs of the model.
        samples: Rows from short to long.
    """
    small, large = (
        model_inputs(reader.collate(list(zip(*rows, strict=True))))
        for rows in (samples[:2], samples)
    )
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


def write_onnx(model: nn.Module, inputs: Mapping[str, Tensor], axes: Axes, path: Path) -> None:
    """Write a model as ONNX, with external data if it has more than 2 GiB.

    Inputs and logits of the file are float32, whatever the dtype of the weights.

    Args:
        model: Model of transformers in evaluation mode, on the CPU.
        inputs: Its arguments by name.
        axes: Axes whose size may vary, by input.
        path: File to write, in an existing folder.

    Raises:
        InputError: The model cannot be traced, or has an operator that ONNX lacks; the message
            names it with its module.
    """
    hooks = (
        model.register_forward_pre_hook(_with_cast_inputs, with_kwargs=True),
        model.register_forward_hook(lambda module, arguments, output: output.logits.float()),
    )
    try:
        with _quiet_exporter(), torch.no_grad():
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
            _check_axes(program.model.graph.inputs, axes, type(model).__name__)
            for node in program.model.graph.all_nodes():
                node.metadata_props.pop(_STACK_TRACE, None)
            program.save(str(path))
    finally:
        for hook in hooks:
            hook.remove()


def _with_cast_inputs(
    model: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with images and sounds in the dtype of the weights."""
    dtype = next((weight.dtype for weight in model.parameters()), torch.float32)
    cast = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in named.items()
    }
    return arguments, cast


def _check_axes(entries: Sequence[Any], axes: Axes, name: str) -> None:
    """Check that the exporter kept no axis at the size that it was traced with."""
    for entry in entries:
        fixed = [axis for axis in axes[entry.name] if isinstance(entry.shape[axis], int)]
        if fixed:
            raise InputError(
                f"--format: {name} can only be traced with axis {fixed[0]} of {entry.name} fixed at"
                f" {entry.shape[fixed[0]]}. Use --format torch."
            )


def _refusal(model: nn.Module, inputs: Mapping[str, Tensor], error: Exception) -> InputError:
    """Return the message for a model that cannot be exported."""
    name = type(model).__name__
    found = _OPERATOR.search(str(error.__cause__))
    if found is None:
        return InputError(
            f"--format: {name} cannot be traced with batches and lengths that vary "
            f"({_last_line(error.__cause__ or error)}). Use --format torch."
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


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].rstrip(".")


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep the exporter from printing what concerns its own authors."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Of torch's own deprecated calls, and of axes that have the same size.
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
