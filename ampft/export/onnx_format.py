"""ONNX files for onnxruntime.

In fp16, onnxruntime's CPU provider computes what it has float16 kernels for, and casts the rest to
float32: on most x86 processors all products run in float32, and only the file is smaller. In int8,
the weights of matrix products are stored as unsigned bytes with a scale per column, and activations
are quantized in each call. Signed weights would saturate on processors without VNNI, which add
pairs of products in 16 bits, so that predictions would depend on the processor.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ampft.errors import InputError
from ampft.export.formats import FP16, FP32, INT8
from ampft.export.manifest import Manifest
from ampft.export.runtime_model import RuntimeModel
from ampft.export.source import ModelSource

PROVIDERS = ["CPUExecutionProvider"]
ERRORS = 3  # severity of onnxruntime's log


def write(source: ModelSource, path: Path) -> None:
    """Write the ONNX file of a model.

    Args:
        source: Model and precision.
        path: File to write, in an existing folder.

    Raises:
        InputError: The model cannot be exported, or nothing in it can be quantized.
    """
    if source.precision == FP32:
        source.write_graph(path)
    elif source.precision == FP16:
        source.write_graph(path, torch.float16)
    else:
        assert source.precision == INT8, "the format has no other precision"
        source.refuse_float32_modules()
        with TemporaryDirectory() as folder:
            source.write_graph(Path(folder) / "model.onnx")
            quantize(Path(folder) / "model.onnx", path)


def quantize(source: Path, target: Path) -> None:
    """Write a copy of an ONNX file whose products with weights run in int8.

    Raises:
        InputError: It has no such product.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it recommends a preprocessing that the exporter has done
    try:
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            weight_type=QuantType.QUInt8,
            per_channel=True,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        root.setLevel(level)
    stored = {tensor.data_type for tensor in onnx.load(target).graph.initializer}
    if onnx.TensorProto.UINT8 not in stored:
        raise InputError(
            "--precision int8: the model has no product with a weight matrix to quantize. Use "
            "--precision fp32."
        )


def load(folder: Path, manifest: Manifest, config: Any) -> RuntimeModel:
    """Open a session on the CPU with as many threads as PyTorch has.

    Args:
        folder: Folder of the artifact.
        manifest: Its manifest.
        config: Configuration of the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = ERRORS
    session = onnxruntime.InferenceSession(
        str(folder / manifest.model), options, providers=PROVIDERS
    )
    names = [entry.name for entry in session.get_inputs()]
    return RuntimeModel(config, session, names, lambda arrays: session.run(["logits"], arrays)[0])
