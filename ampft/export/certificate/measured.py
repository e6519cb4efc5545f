"""What is measured of an artifact besides its predictions: dtypes, size, time and memory.

Nothing here trusts the name of a file or the settings of an export. Stored weights are read from
the file; products are read from the runtime, after its own optimisations: from a profile of a
session (onnxruntime), or from the compiled model (OpenVINO).
"""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor, nn

from ampft.export import Artifact
from ampft.export.certificate.certificate import ArtifactDtypes, Cost, ProductCount
from ampft.export.certificate.verified_rows import VerifiedRows
from ampft.export.formats import package
from ampft.export.inference.compare_inference import time_in_turns
from ampft.export.openvino_format import shared_core
from ampft.kinds.logits import forward_logits, model_inputs
from ampft.ownership import TemporaryFolder
from ampft.precision.executed import ProductRecorder
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import resolve
from ampft.processes import follow, running, start_python
from ampft.runs.manifest import WEIGHT_FILES, matches_any_pattern
from ampft.runs.predictor import Predictor

Feeds = Mapping[str, npt.NDArray[Any]]
Product = tuple[str, tuple[str, ...], bool]  # operator, dtypes of operands, whether with weights

_ONNX_DTYPES = {"float": "float32", "double": "float64", "FLOAT": "float32", "DOUBLE": "float64"}
_ONNX_BYTES = {
    **{"FLOAT": 4, "DOUBLE": 8, "FLOAT16": 2, "BFLOAT16": 2, "INT8": 1, "UINT8": 1},
    **{"INT4": 0.5, "UINT4": 0.5, "FLOAT8E4M3FN": 1, "FLOAT8E5M2": 1},
}
# Operators of onnxruntime that multiply integers, also those that quantize their input themselves.
_ONNX_INTEGER = (
    *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm"),
    *("QAttention", "ConvInteger", "QLinearConv", "DynamicQuantizeLSTM"),
)
_ONNX_WITH_WEIGHTS = ("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "LSTM", "GRU")
_ONNX_PRODUCTS = ("MatMul", "FusedMatMul", "Attention", "MultiHeadAttention")
# Reads float32, quantizes each row in blocks, and multiplies bytes where the processor can.
_ONNX_BLOCKS = "MatMulNBits"

_OPENVINO_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"} | {
    name: f"{'u' if name[0] == 'u' else ''}int{name[1:]}" for name in ("i8", "u8", "i4", "u4")
}
_OPENVINO_WITH_WEIGHTS = ("FullyConnected", "Convolution", "Deconvolution", "LSTMSeq", "GRUSeq")
_OPENVINO_PRODUCTS = ("MatMul", "ScaledDotProductAttention")


def onnx_dtypes(path: Path, feeds: Feeds) -> ArtifactDtypes:
    """Return the dtypes of an ONNX model: of its initializers, and of a profiled batch on the CPU.

    A profile lists no operand that the session packed in advance, which are weights, so that a
    product with a single listed operand has weights.

    Args:
        feeds: Inputs of one batch by name.
    """
    onnx: Any = package("onnx", "onnx", str(path))
    onnxruntime: Any = package("onnxruntime", "onnx", str(path))
    graph = onnx.load(str(path), load_external_data=False).graph
    sizes: Counter[str] = Counter()
    for tensor in graph.initializer:
        name = onnx.TensorProto.DataType.Name(tensor.data_type)
        if name in _ONNX_BYTES:  # neither indices nor flags
            count = int(np.prod(tensor.dims, dtype=np.int64))
            sizes[_ONNX_DTYPES.get(name, name.lower())] += int(count * _ONNX_BYTES[name])
    # onnxruntime quantizes the activations of products with weights in blocks if the "accuracy
    # level" is 4, and otherwise turns the weights back into float32.
    levels = {
        next((each.i for each in node.attribute if each.name == "accuracy_level"), 0)
        for node in graph.node
        if node.op_type == _ONNX_BLOCKS
    }
    blocks = "int8" if levels == {4} else "float32"
    with TemporaryFolder("profile") as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    products = (
        _onnx_product(event["args"], blocks)
        for event in events
        if event.get("cat") == "Node" and str(event.get("name")).endswith("_kernel_time")
    )
    return ArtifactDtypes(
        weights=dict(sizes),
        products=_ordered(Counter(each for each in products if each is not None)),
        source=f"profile of onnxruntime {onnxruntime.__version__}",
    )


def _onnx_product(arguments: Mapping[str, Any], blocks: str) -> Product | None:
    """Return the operator of a product, the dtypes of its operands and whether it has weights.

    Args:
        blocks: Dtype in which products with weights in blocks run.
    """
    operator = arguments["op_name"]
    if operator in _ONNX_INTEGER:
        return operator, ("uint8", "int8"), True
    if operator == _ONNX_BLOCKS:
        return operator, (blocks, blocks), True
    if operator not in (*_ONNX_PRODUCTS, *_ONNX_WITH_WEIGHTS):
        return None
    operands = [
        _ONNX_DTYPES.get(name, name)
        for entry in arguments["input_type_shape"]
        for name, shape in entry.items()
        if shape
    ][:2]
    with_weights = operator in _ONNX_WITH_WEIGHTS or len(operands) < 2
    return operator, (operands[0], operands[-1]), with_weights


def openvino_dtypes(compiled: Any, path: Path) -> ArtifactDtypes:
    """Return the dtypes of an OpenVINO model: of its constants, and of the compiled products.

    Args:
        path: XML file that it was read from.
    """
    openvino: Any = package("openvino", "openvino", str(path))
    counts: Counter[Product] = Counter()
    for operation in compiled.get_runtime_model().get_ops():
        info = operation.get_rt_info()
        kind = _text(info["layerType"])
        if kind in (*_OPENVINO_PRODUCTS, *_OPENVINO_WITH_WEIGHTS):
            # OpenVINO states the precision of the weights here, which may be decompressed.
            executed = _text(info["primitiveType"]).lower().rpartition("_")[2]
            dtype = _OPENVINO_DTYPES.get(executed, _text(info["runtimePrecision"]))
            counts[kind, (dtype, dtype), kind in _OPENVINO_WITH_WEIGHTS] += 1
    sizes: Counter[str] = Counter()
    for operation in shared_core().read_model(str(path)).get_ops():
        if operation.get_type_name() == "Constant":
            name = operation.get_element_type().get_type_name()
            if name in _OPENVINO_DTYPES:
                sizes[_OPENVINO_DTYPES[name]] += operation.get_byte_size()
    return ArtifactDtypes(
        weights=dict(sizes),
        products=_ordered(counts),
        source=f"compiled model of OpenVINO {openvino.__version__.split('-')[0]}",
    )


def _text(value: Any) -> str:
    return str(value.astype(str)) if hasattr(value, "astype") else str(value)


def _ordered(counts: Mapping[Product, int]) -> tuple[ProductCount, ...]:
    """Return the rows, products with weights first, then by their number."""
    rows = [
        ProductCount(operator=operator, inputs=inputs, count=count, with_weights=with_weights)
        for (operator, inputs, with_weights), count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (not row.with_weights, -row.count, row.operator)))


def artifact_dtypes(artifact: Artifact, batch: Sequence[tuple[Any, ...]]) -> ArtifactDtypes:
    """Return the dtypes of an artifact.

    Args:
        batch: Rows that are predicted once.
    """
    path = artifact.folder / artifact.manifest.model
    inputs = model_inputs(artifact.reader.collate(list(zip(*batch, strict=True))))
    if artifact.manifest.runtime == "openvino":
        return openvino_dtypes(artifact.model.session, path)
    if artifact.manifest.runtime == "torch":
        return _torch_dtypes(artifact.model, path, inputs)
    return onnx_dtypes(path, {name: inputs[name].numpy() for name in artifact.manifest.inputs})


def _torch_dtypes(model: nn.Module, path: Path, inputs: Mapping[str, Tensor]) -> ArtifactDtypes:
    """Return the dtypes of weights for PyTorch: of the file, and of the products of a batch."""
    sizes: Counter[str] = Counter()
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(name)
            sizes[str(tensor.dtype).removeprefix("torch.")] += tensor.nbytes
    recorder = ProductRecorder(resolve(BASELINE, torch.device("cpu")))
    with torch.no_grad(), recorder:
        forward_logits(model, inputs)
    counts: Counter[Product] = Counter()
    for row in recorder.census(model).rows:
        dtypes = tuple(str(dtype).removeprefix("torch.") for dtype in row.inputs)
        counts[row.kind, dtypes, row.kind != "attention"] += row.count
    return ArtifactDtypes(
        weights=dict(sizes),
        products=_ordered(counts),
        source=f"operators of PyTorch {torch.__version__}",
    )


SIZES = (1, 32)
BATCHES = 8  # different batches of each size
SECONDS = 5.0  # per batch size
MODEL_SUFFIXES = (".onnx", ".data", ".xml", ".bin", ".safetensors", ".pt2")
MODEL, ARTIFACT = "model", "artifact"
MAX_SECONDS = 300  # of the process whose memory is measured

_PEAK = (
    "import sys; from ampft.export.certificate.measured import print_peak; print_peak(sys.argv[1])"
)


def measured_cost(
    artifact: Artifact, model: Predictor, run: Path, rows: VerifiedRows, *, measure: bool
) -> Cost:
    """Return size, times and memory of an artifact and of its model.

    Args:
        measure: Whether times and memory are measured, not only sizes.
    """
    size = sum(
        part.bytes
        for name, part in artifact.manifest.files.items()
        if name.endswith(MODEL_SUFFIXES)
    )
    model_size = sum(
        path.stat().st_size
        for path in run.iterdir()
        if matches_any_pattern(path.name, WEIGHT_FILES) and path.name != "raw_weights.safetensors"
    )
    if not measure:
        return Cost(size=size, model_size=model_size)
    count = len(rows)
    batches = {
        each: [
            [rows.rows[(number * each + k) % count] for k in range(each)]
            for number in range(BATCHES)
        ]
        for each in SIZES
    }
    sides = {
        MODEL: partial(_seconds, model),
        ARTIFACT: partial(_seconds, artifact.predictor(max(SIZES))),
    }
    times = time_in_turns(sides, batches, baseline=MODEL, seconds=SECONDS)
    return Cost(
        size=size,
        model_size=model_size,
        timings=times[ARTIFACT],
        model_timings=times[MODEL],
        peak=_peak(ARTIFACT, artifact.folder, batches[max(SIZES)][0]),
        model_peak=_peak(MODEL, run, batches[max(SIZES)][0]),
    )


@torch.no_grad()
def _seconds(predictor: Predictor, batch: Sequence[tuple[Any, ...]]) -> float:
    """Predict a batch and return the time of its forward pass, without tokenization."""
    inputs = predictor.reader.collate(list(zip(*batch, strict=True)))
    start = time.perf_counter()
    forward_logits(predictor.model, inputs).cpu()
    return time.perf_counter() - start


def _peak(side: str, folder: Path, batch: Sequence[tuple[Any, ...]]) -> int | None:
    """Return the peak memory of a new process that predicts a batch; None if it is unknown."""
    with TemporaryFolder("peak") as place:
        request, answer = place / "request", place / "answer"
        request.write_bytes(pickle.dumps((side, str(folder), list(batch))))
        with answer.open("wb") as output, contextlib.suppress(subprocess.TimeoutExpired):
            words = ("-c", _PEAK, str(request))
            with running(lambda: start_python(words, output=output, follows=True)) as process:
                process.wait(MAX_SECONDS)
        last = answer.read_text(errors="replace").strip().splitlines()[-1:]
    return int(last[0]) if last and last[0].isdecimal() else None


def print_peak(request: str) -> None:
    """Predict a batch in this process, and print its peak memory in bytes.

    Args:
        request: File with "model" for a run or "artifact" for an artifact, its folder, and rows.
    """
    follow()
    from ampft.export import open_artifact
    from ampft.kinds.prediction import PredictRequest
    from ampft.machine import resident_peak
    from ampft.runs.predict import load_run_classifier
    from ampft.text.terminal import quiet_libraries

    quiet_libraries()
    side, folder, batch = pickle.loads(Path(request).read_bytes())
    if side == MODEL:
        predictor = load_run_classifier(Path(folder)).load(PredictRequest(batch_size=len(batch)))
    else:
        predictor = open_artifact(folder).predictor(len(batch))
    with predictor.numerics:
        predictor.logits(list(zip(*batch, strict=True)))
    peak = resident_peak()
    print("unknown" if peak is None else peak)
