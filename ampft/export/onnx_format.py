"""ONNX files for onnxruntime, all made from one trace in float32.

In fp16, onnxruntime's CPU provider computes what it has float16 kernels for, and casts the rest to
float32: on most x86 processors all products run in float32, and only the file is smaller.

int8 has three schemes, which differ in how activations become integers. In blocks, each row is
quantized in every call, in blocks of `BLOCK` numbers, so that no prediction depends on the other
rows of its batch. Dynamic scales are of the whole batch. Static ones are measured once, on rows of
the validation split. Weights that are multiplied as bytes have 7 bits, because signed ones of 8
bits overflow on processors without VNNI.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput

from ampft.errors import InputError
from ampft.export.artifact import ArtifactManifest
from ampft.export.formats import BLOCKS, DYNAMIC, FP16, FP32, STATIC, Write
from ampft.export.source import ExportSource, silenced_packages
from ampft.ownership import TemporaryFolder

PROVIDERS = ["CPUExecutionProvider"]
ERRORS = 3  # severity of onnxruntime's log
LARGEST_HALF = 65504.0
BLOCK = 128  # numbers with one scale; 32 are more exact, and slower
INT8_PRODUCTS = 4  # of MatMulNBits: "accuracy level", the type in which activations are multiplied
LARGEST_FILE = 2**31 - 2**20  # bytes of a message of Protocol Buffers; beyond it, external data
# Operator that a quantized product has, by scheme.
INT8_OPERATORS = {BLOCKS: "MatMulNBits", DYNAMIC: "MatMulInteger", STATIC: "QuantizeLinear"}
QUANTIZER = "onnxruntime.quantization.matmul_nbits_quantizer"
SCOPES = "pkg.torch.onnx.name_scopes"  # the modules around a node, from the outermost


class RuntimeModel(nn.Module):
    """A model whose forward pass is a call of another runtime on the CPU."""

    def __init__(
        self,
        config: Any,
        session: Any,
        names: Sequence[str],
        call: Callable[[Mapping[str, npt.NDArray[Any]]], npt.NDArray[Any]],
    ) -> None:
        """Wrap a session.

        Args:
            call: Function that returns the logits of a batch.
        """
        super().__init__()
        self.config = config  # Configuration of the model, which says how its batches are made.
        self.session = session  # The session or compiled model of the runtime.
        # Says that inputs are float32 and on the CPU, as a parameter of a model does.
        self.parameter = nn.Parameter(torch.zeros(()), requires_grad=False)
        self._names, self._call = tuple(names), call

    def forward(self, **inputs: Tensor) -> Any:
        """Return the logits as float32."""
        logits = self._call({name: inputs[name].numpy() for name in self._names})
        return ModelOutput(logits=torch.from_numpy(np.array(logits, dtype=np.float32)))


@contextmanager
def model_writer(source: ExportSource) -> Iterator[Write]:
    """Trace a model; return what writes it with some modules in float32.

    Raises:
        InputError: The model cannot be exported, nothing in it can be quantized, or the data for
            the calibration cannot be read.
    """
    request = source.request
    if request.precision == FP32:
        yield lambda path, kept: source.write_graph(path)
        return
    quantize: Callable[[Path, Path, Sequence[str]], None]
    if request.scheme == STATIC:
        quantize = partial(_write_static, source.calibration())
    else:
        quantize = {FP16: _write_half, BLOCKS: _write_blocks, DYNAMIC: _write_dynamic}[
            request.scheme or request.precision
        ]
    with TemporaryFolder("export") as folder:
        graph = folder / "model.onnx"
        source.write_graph(graph)

        def write(path: Path, kept: Sequence[str]) -> None:
            nodes = float_nodes(graph, kept)
            quantize(graph, path, nodes)
            if request.scheme is not None and not nodes:
                _check_int8(path, INT8_OPERATORS[request.scheme])

        with silenced_packages("", QUANTIZER):
            import_module(QUANTIZER)  # which changes the level of all loggers
            # A report of every node, and of a finished preprocessing.
            with silenced_packages("", QUANTIZER):
                yield write


def float_nodes(graph: Path, kept: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the nodes inside modules, in the order of the graph."""
    import onnx

    names = []
    for node in onnx.load(str(graph), load_external_data=False).graph.node if kept else ():
        scopes = (entry.value for entry in node.metadata_props if entry.key == SCOPES)
        if set(kept) & set(ast.literal_eval(next(scopes, "[]"))):
            names.append(node.name)
    return tuple(names)


def _write_half(graph: Path, target: Path, kept: Sequence[str]) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(
        onnx.load(str(graph)),
        keep_io_types=True,
        max_finite_val=LARGEST_HALF,
        node_block_list=list(kept),
    )
    _keep_outputs_in_float32(model.graph, set(kept))
    _save(model, graph, target)


def _keep_outputs_in_float32(graph: Any, kept: Collection[str]) -> None:
    """Output what nodes in float32 compute as it is, where it was rounded to float16 before.

    In float16, 1,990 and 1,990.4 are the same number.
    """
    makers = {name: node for node in graph.node for name in node.output}
    for output in graph.output:
        last = makers[output.name]
        half = makers.get(last.input[0]) if last.op_type == "Cast" else None
        if half is not None and half.op_type == "Cast" and makers[half.input[0]].name in kept:
            last.input[0] = half.input[0]  # the other cast is not read any more


def _write_blocks(graph: Path, target: Path, kept: Sequence[str]) -> None:
    import onnx

    model = onnx.load(str(graph))
    quantizer = import_module(QUANTIZER).MatMulNBitsQuantizer(
        model,
        bits=8,
        block_size=BLOCK,
        is_symmetric=True,
        accuracy_level=INT8_PRODUCTS,
        nodes_to_exclude=list(kept),
    )
    quantizer.process()
    with TemporaryFolder("export") as folder:
        products = folder / "products.onnx"
        _save(quantizer.model.model, graph, products)
        _quantize(products, target, kept, ("Gather",))  # embeddings


def _write_dynamic(graph: Path, target: Path, kept: Sequence[str]) -> None:
    with TemporaryFolder("export") as folder:
        products = folder / "products.onnx"
        _quantize(graph, products, kept, ("MatMul", "Gemm"))
        _quantize(products, target, kept, ("Gather",))  # embeddings


def _quantize(source: Path, target: Path, kept: Sequence[str], operators: Sequence[str]) -> None:
    """Write a copy of an ONNX file with bytes for weights, and scales of each batch."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    is_multiplied = "Gather" not in operators
    quantize_dynamic(
        source,
        target,
        op_types_to_quantize=list(operators),
        # onnxruntime multiplies unsigned with signed bytes faster than two unsigned ones.
        weight_type=QuantType.QInt8 if is_multiplied else QuantType.QUInt8,
        reduce_range=is_multiplied,
        per_channel=True,
        nodes_to_exclude=list(kept),
        extra_options={"MatMulConstBOnly": True},
    )


def _write_static(batches: Sequence[Any], graph: Path, target: Path, kept: Sequence[str]) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    ranges = graph.with_name("ranges.json")  # measured by the first call
    rows = iter(batches)
    quantize_static(
        graph,
        target,
        SimpleNamespace(get_next=lambda: next(rows, None)),  # a CalibrationDataReader
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm", "Gather"],
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=list(kept),
        calibration_cache_path=ranges,
        extra_options={"MatMulConstBOnly": True},
    )


def _save(model: Any, graph: Path, target: Path) -> None:
    import onnx

    size = sum(path.stat().st_size for path in graph.parent.iterdir())
    onnx.save_model(model, str(target), save_as_external_data=size > LARGEST_FILE)


def _check_int8(path: Path, operator: str) -> None:
    """Check that a file has a quantized product."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    if operator not in {node.op_type for node in graph.node}:
        raise InputError(
            "--precision int8: the model has no product with a weight matrix to quantize. Use "
            "--precision fp32."
        )


def load(folder: Path, manifest: ArtifactManifest, config: Any) -> RuntimeModel:
    """Open a session on the CPU with as many threads as PyTorch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = ERRORS
    session = onnxruntime.InferenceSession(
        str(folder / manifest.model), options, providers=PROVIDERS
    )
    names = [entry.name for entry in session.get_inputs()]
    return RuntimeModel(config, session, names, lambda arrays: session.run(["logits"], arrays)[0])
