"""OpenVINO's files: openvino_model.xml and openvino_model.bin.

int8 is static: nncf measures the activations of rows of the validation split and writes their
ranges into the file. No package is allowed to report its use over the network.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ampft.export.formats import FP16, FP32, INT8
from ampft.export.manifest import Manifest
from ampft.export.runtime_model import RuntimeModel
from ampft.export.source import ModelSource

TELEMETRY_OFF = "NNCF_CI"  # a variable of nncf, for those who test it
# Without a hint, OpenVINO chooses bfloat16 on CPUs that have it, whatever the file holds.
HINTS = {FP32: "f32", FP16: "f16", INT8: "f32"}  # for int8, the precision of all other operators


def write(source: ModelSource, path: Path) -> None:
    """Write the two files of a model.

    Args:
        source: Model and precision.
        path: The .xml file to write, in an existing folder.

    Raises:
        InputError: The model cannot be exported, or the data for the calibration cannot be read.
    """
    import openvino

    if source.precision != FP32:
        source.refuse_float32_modules()
    batches = source.calibration() if source.precision == INT8 else []
    with TemporaryDirectory() as folder:
        source.write_graph(Path(folder) / "model.onnx")
        # Not `convert_model`, which reports its use.
        model = openvino.Core().read_model(Path(folder) / "model.onnx")
        if source.precision == INT8:
            model = _quantized(model, batches)
        openvino.save_model(model, path, compress_to_fp16=source.precision == FP16)


def _quantized(model: Any, batches: list[Any]) -> Any:
    has_choice = TELEMETRY_OFF in os.environ
    os.environ.setdefault(TELEMETRY_OFF, "1")  # it is read when nncf is imported
    import nncf

    if not has_choice:
        del os.environ[TELEMETRY_OFF]
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return nncf.quantize(
            model,
            nncf.Dataset(batches),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(batches),
            # Weights of 7 bits, whose products do not saturate on CPUs without VNNI.
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE
            ),
        )
    finally:
        logger.setLevel(level)


def load(folder: Path, manifest: Manifest, config: Any) -> RuntimeModel:
    """Compile a model for the CPU with as many threads as PyTorch has.

    Args:
        folder: Folder of the artifact.
        manifest: Its manifest.
        config: Configuration of the model.
    """
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": HINTS[manifest.precision],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    compiled = openvino.Core().compile_model(folder / manifest.model, "CPU", settings)
    names = [entry.any_name for entry in compiled.inputs]
    return RuntimeModel(config, compiled, names, lambda arrays: compiled(dict(arrays))["logits"])
