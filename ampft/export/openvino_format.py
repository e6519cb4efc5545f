"""OpenVINO's files: openvino_model.xml and openvino_model.bin.

int8 is static: nncf measures the activations of rows of the validation split and writes their
ranges into the file. No package is allowed to report its use over the network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ampft.errors import InputError
from ampft.export.artifact import ArtifactManifest
from ampft.export.formats import FP16, FP32, INT8, Write
from ampft.export.onnx_format import RuntimeModel, float_nodes
from ampft.export.source import ExportSource, silenced_packages
from ampft.ownership import TemporaryFolder

TELEMETRY_OFF = "NNCF_CI"  # a variable of nncf, for those who test it
# Without a hint, OpenVINO chooses bfloat16 on CPUs that have it, whatever the file holds.
HINTS = {FP32: "f32", FP16: "f16", INT8: "f32"}  # for int8, the precision of all other operators


@contextmanager
def model_writer(source: ExportSource) -> Iterator[Write]:
    """Trace a model; return what writes its two files with some modules in float32.

    Raises:
        InputError: The model cannot be exported, or the data for the calibration cannot be read.
    """
    precision = source.request.precision
    if precision == FP16 and source.kept:
        raise InputError(
            f"--precision fp16: OpenVINO rounds all weights, and {source.kept[0]} must stay in "
            "float32. Use --format onnx, or --precision fp32."
        )
    import openvino

    batches = source.calibration() if precision == INT8 else []
    with TemporaryFolder("export") as folder:
        graph = folder / "model.onnx"
        source.write_graph(graph)

        def write(path: Path, kept: Sequence[str]) -> None:
            # Not `convert_model`, which reports its use.
            model = shared_core().read_model(graph)
            if precision == INT8:
                model = _quantized(model, batches, float_nodes(graph, kept))
            openvino.save_model(model, path, compress_to_fp16=precision == FP16)

        yield write


def _quantized(model: Any, batches: list[Any], kept: Sequence[str]) -> Any:
    has_choice = TELEMETRY_OFF in os.environ
    os.environ.setdefault(TELEMETRY_OFF, "1")  # it is read when nncf is imported
    import nncf

    if not has_choice:
        del os.environ[TELEMETRY_OFF]
    names = [operation.get_friendly_name() for operation in model.get_ops()]
    # OpenVINO splits some nodes, such as Gemm into Gemm/WithoutBiases and a sum.
    ignored = [name for name in names if name.partition("/")[0] in kept]
    with silenced_packages("nncf"):
        return nncf.quantize(
            model,
            nncf.Dataset(batches),
            ignored_scope=nncf.IgnoredScope(names=ignored) if ignored else None,
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(batches),
            # Weights of 7 bits, whose products do not saturate on CPUs without VNNI.
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE
            ),
        )


@cache
def shared_core() -> Any:
    """Return the only Core of this process, kept to its end.

    Each Core sets a stack for signal handlers with its first model, and restores the one before
    when it ends. Where the older of two ends first, the stack restored is freed memory, and the
    next signal with a handler ends the process by a segmentation fault (OpenVINO 2026.4).
    """
    import openvino

    return openvino.Core()


def load(folder: Path, manifest: ArtifactManifest, config: Any) -> RuntimeModel:
    """Compile a model for the CPU with as many threads as PyTorch has."""
    core = shared_core()
    hint = HINTS[manifest.precision]
    # On a CPU with products of bfloat16 but not of float16, "f16" would choose bfloat16.
    if hint == "f16" and "FP16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        hint = "f32"
    settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = core.compile_model(folder / manifest.model, "CPU", settings)
    names = [entry.any_name for entry in compiled.inputs]
    return RuntimeModel(config, compiled, names, lambda arrays: compiled(dict(arrays))["logits"])
