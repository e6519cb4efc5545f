"""Artifacts in fp16, bf16 and int8: what is stored, what is computed, and how far logits move."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
import torch
from exported import artifact_of, logits_of_run, rows
from safetensors import safe_open

from ampft.errors import InputError
from ampft.export import open_artifact
from ampft.export.formats import FORMATS
from ampft.export.source import ModelSource, load_source
from ampft.models.pretrained import load_saved
from ampft.precision.float32_modules import keep_in_fp32
from ampft.precision.int8 import Int8Recorder, quantized_layers
from ampft.runs.record import read_record

pytestmark = pytest.mark.slow

TEXTS = [row["text"] for row in rows(20, seed=9)]
# Largest difference of logits, in units of the largest logit. A rounding of 2^-11, 2^-8 or a
# hundredth of the range per product, grown by a few layers.
BOUNDS = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 5e-2, "int8": 0.1}
STATIC = 0.4  # ranges of activations from 24 texts, of other lengths
# The smallest that rounding leaves: an artifact in a lower precision cannot be exact.
LEAST = {"fp32": 0.0, "fp16": 1e-5, "bf16": 1e-4, "int8": 1e-4}


@pytest.fixture
def one_trace(onnx_text, monkeypatch):
    """Do not trace the model again for each format."""
    traced = ModelSource.write_graph

    def write_graph(self, path, dtype=torch.float32):
        if dtype == torch.float32:
            shutil.copyfile(onnx_text / "onnx/model.onnx", path)
        else:
            traced(self, path, dtype)

    monkeypatch.setattr(ModelSource, "write_graph", write_graph)


def difference(run, artifact) -> float:
    expected = logits_of_run(run, [TEXTS])
    return float(abs(artifact.logits(TEXTS, 8) - expected).max() / abs(expected).max())


def exported(run, folder, form, precision):
    if form == "openvino":
        pytest.importorskip("openvino")
    if form == "openvino" and precision == "int8":
        pytest.importorskip("nncf")
    artifact = open_artifact(artifact_of(run, folder, form, precision))
    bound = STATIC if (form, precision) == ("openvino", "int8") else BOUNDS[precision]
    assert LEAST[precision] <= difference(run, artifact) <= bound
    assert set(FORMATS[form].packages(precision)) <= artifact.manifest.versions.keys()
    return artifact


@pytest.mark.parametrize(
    ("precision", "stored"), [("fp32", "F32"), ("fp16", "F16"), ("bf16", "BF16")]
)
def test_weights_of_pytorch(text_run, tmp_path, precision, stored):
    artifact = exported(text_run, tmp_path, "torch", precision)
    with safe_open(artifact.folder / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {stored}  # noqa: SIM118
    assert {str(p.dtype) for p in artifact.model.parameters()} == {
        {"F32": "torch.float32", "F16": "torch.float16", "BF16": "torch.bfloat16"}[stored]
    }


def test_int8_of_pytorch_multiplies_in_int8(text_run, tmp_path):
    artifact = exported(text_run, tmp_path, "torch", "int8")
    layers = len(quantized_layers(artifact.model))
    assert layers == 14
    with Int8Recorder() as recorder:
        artifact.logits(TEXTS[:2], 2)
    assert recorder.products == layers
    with safe_open(artifact.folder / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if name.endswith("_qdata")]  # noqa: SIM118
        assert {file.get_slice(name).get_dtype() for name in names} == {"I8"}
    assert len(names) == layers


def test_int8_of_onnxruntime_multiplies_in_int8(text_run, one_trace, tmp_path):
    artifact = exported(text_run, tmp_path, "onnx", "int8")
    graph = onnx.load(artifact.folder / artifact.manifest.model).graph
    operators = [node.op_type for node in graph.node]
    assert operators.count("MatMulInteger") == 14
    assert "Gemm" not in operators
    weights = {tensor.name: tensor for tensor in graph.initializer}
    large = [t for t in weights.values() if len(t.dims) == 2 and "quantized" in t.name]
    assert {t.data_type for t in large} == {onnx.TensorProto.UINT8}


def test_fp16_of_onnxruntime_stores_half_of_the_bytes(text_run, onnx_text, tmp_path):
    artifact = exported(text_run, tmp_path, "onnx", "fp16")
    graph = onnx.load(artifact.folder / artifact.manifest.model).graph
    floats = [t for t in graph.initializer if len(t.dims) == 2 and t.data_type != 7]
    assert {t.data_type for t in floats} == {onnx.TensorProto.FLOAT16}
    # Programs feed and read float32.
    assert graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_openvino(text_run, one_trace, tmp_path, precision):
    artifact = exported(text_run, tmp_path, "openvino", precision)
    assert (artifact.folder / "openvino_model.bin").is_file()
    if precision == "int8":
        operators = artifact.model.session.get_runtime_model().get_ops()
        ran = [
            operator.get_rt_info()["runtimePrecision"].astype(str)
            for operator in operators
            if operator.get_rt_info()["layerType"].astype(str) == "FullyConnected"
        ]
        assert len(ran) == 14
        assert set(ran) <= {"i8", "u8"}


def test_the_calibration_needs_the_data_of_the_run(text_run, tmp_path):
    record = read_record(text_run)
    source = load_source(text_run, record, "int8", ())
    batches = source.calibration()
    assert len(batches) == 24
    assert batches[0].keys() == {"input_ids", "token_type_ids", "attention_mask"}
    assert all(batch["input_ids"].shape[0] == 1 for batch in batches)
    others = f"--validation_file={text_run.parent / 'test.jsonl'}"
    with pytest.raises(InputError, match="calibrated with the validation split of the run, and"):
        load_source(text_run, record, "int8", [others]).calibration()


@pytest.mark.parametrize(
    ("form", "reason"),
    [("onnx", "has no bfloat16 operators"), ("openvino", "silently in float32 on others")],
)
def test_bf16_is_refused_where_it_would_not_run(text_run, tmp_path, form, reason):
    with pytest.raises(InputError, match=f"--precision bf16: --format {form} has fp32.*{reason}"):
        artifact_of(text_run, tmp_path, form, "bf16")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(text_run, tmp_path, monkeypatch):
    monkeypatch.setattr("ampft.export.formats.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"onnxruntime is missing\. Run: pip .*'ampft\[onnx\]'"):
        artifact_of(text_run, tmp_path, "onnx", "fp32")
    assert list(tmp_path.iterdir()) == []


def test_modules_that_stay_in_float32_are_not_cast(text_run, tmp_path, monkeypatch):
    def with_kept(auto_class, path, **options):
        model = load_saved(auto_class, path, **options)
        keep_in_fp32(model, ["*.layer.1.*"])
        return model

    monkeypatch.setattr("ampft.export.source.load_saved", with_kept)
    with pytest.raises(InputError, match="--precision bf16: the run keeps modules in float32"):
        artifact_of(text_run, tmp_path, "torch", "bf16")
    artifact = artifact_of(text_run, tmp_path, "torch", "int8")
    with safe_open(artifact / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if name.endswith("_qdata")]  # noqa: SIM118
    assert len(names) == 8
    assert not any(".layer.1." in name for name in names)


def test_logits_that_are_not_finite_are_refused(text_run, tmp_path):
    artifact = open_artifact(artifact_of(text_run, tmp_path, "torch", "fp32"))
    torch.nn.init.constant_(artifact.model.classifier.bias, float("nan"))
    with pytest.raises(InputError, match="predictions of this fp32 artifact are not finite"):
        artifact.logits(TEXTS[:1], 1)
    assert np.isfinite(logits_of_run(text_run, [TEXTS[:1]])).all()
