"""Artifacts in fp16, bf16 and int8: what is stored, what is computed, and how far logits move."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exported import artifact_of, logits_of_run, rows
from safetensors import safe_open

from ampft.errors import InputError
from ampft.export import open_artifact
from ampft.export.certificate.measured import onnx_dtypes, openvino_dtypes
from ampft.export.formats import FORMATS
from ampft.export.int8 import Int8ProductCounter, quantized_layers
from ampft.export.openvino_format import shared_core
from ampft.export.source import ExportRequest, ExportSource, load_source
from ampft.kinds.logits import model_inputs
from ampft.models.pretrained import load_saved
from ampft.precision.float32_modules import keep_in_fp32
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

    def write_graph(self, path):
        shutil.copyfile(onnx_text / "onnx/model.onnx", path)

    monkeypatch.setattr(ExportSource, "write_graph", write_graph)


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
    with Int8ProductCounter() as recorder:
        artifact.logits(TEXTS[:2], 2)
    assert recorder.products == layers
    with safe_open(artifact.folder / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if name.endswith("_qdata")]  # noqa: SIM118
        assert {file.get_slice(name).get_dtype() for name in names} == {"I8"}
    assert len(names) == layers


# Scheme -> operator, its number, and the share of the logits that it may move. Blocks leave the
# two Gemm of the head in float32; static ranges are from 24 texts, of other lengths.
SCHEMES = {
    "blocks": ("MatMulNBits", 12, 0.1),
    "dynamic": ("MatMulInteger", 14, 0.1),
    "static": ("DequantizeLinear", None, 0.5),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_int8_of_onnxruntime_multiplies_in_int8(text_run, one_trace, tmp_path, scheme):
    operator, count, bound = SCHEMES[scheme]
    artifact = open_artifact(artifact_of(text_run, tmp_path, "onnx", "int8", int8=scheme))
    assert artifact.manifest.int8 == scheme
    assert LEAST["int8"] <= difference(text_run, artifact) <= bound
    path = artifact.folder / artifact.manifest.model
    graph = onnx.load(path).graph
    operators = [node.op_type for node in graph.node]
    assert operators.count(operator) == count or (count is None and operator in operators)
    found = onnx_dtypes(path, one_batch(artifact))
    integers = [row for row in found.products if set(row.inputs) & {"int8", "uint8"}]
    assert sum(row.count for row in integers) >= 12
    large = [t for t in graph.initializer if len(t.dims) > 1 and t.data_type == 1]
    assert sum(np.prod(t.dims) for t in large) < 5000, "embeddings are bytes too"


def one_batch(artifact):
    inputs = model_inputs(artifact.reader.collate([TEXTS[:3]]))
    return {name: inputs[name].numpy() for name in artifact.manifest.inputs}


def test_predictions_in_blocks_do_not_depend_on_the_batch(text_run, one_trace, tmp_path):
    """Texts of one length are never padded, and their logits are equal bit for bit."""
    texts = [text for text in TEXTS if len(text.split()) >= 22]
    assert len(texts) >= 4
    texts = [" ".join(text.split()[:22]) for text in texts]
    changed = {}
    for scheme in ("blocks", "dynamic"):
        artifact = open_artifact(
            artifact_of(text_run, tmp_path / scheme, "onnx", "int8", int8=scheme)
        )
        changed[scheme] = abs(artifact.logits(texts, 1) - artifact.logits(texts, 32)).max()
    assert changed["blocks"] == 0
    assert changed["dynamic"] > 1e-4


def test_a_product_in_blocks_is_one_of_integers(text_run, one_trace, tmp_path):
    """A twin in numpy: rows of activations and columns of weights in int8, with integer sums."""
    import onnxruntime
    from onnx import helper

    artifact = artifact_of(text_run, tmp_path, "onnx", "int8")
    model = onnx.load(artifact / "onnx/model_int8.onnx")
    node = next(each for each in model.graph.node if each.op_type == "MatMulNBits")
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    packed, scales = (stored[name] for name in node.input[1:3])
    columns, width = packed.shape[0], 32
    weights = packed.reshape(columns, -1)[:, :width].astype(np.int64) - 128
    rows = np.random.default_rng(0).normal(size=(5, width)).astype(np.float32)
    node.input[0], node.output[0] = "rows", "product"
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("rows", kind, rows.shape)],
        [helper.make_tensor_value_info("product", kind, (5, columns))],
        [t for t in model.graph.initializer if t.name in node.input],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    (found,) = onnxruntime.InferenceSession(
        alone.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, {"rows": rows})
    own = abs(rows).max(axis=1, keepdims=True) / 127
    integers = np.rint(rows / own).astype(np.int64) @ weights.T
    expected = integers * own * scales.reshape(columns)
    unrounded = rows @ (weights.T * scales.reshape(columns))
    assert abs(found - expected).max() < 1e-2 * abs(found - unrounded).max()


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
    request = ExportRequest(
        run=text_run, format="openvino", precision="int8", output_dir=tmp_path / "new"
    )
    source = load_source(request, record)
    batches = source.calibration()
    assert len(batches) == 24
    assert batches[0].keys() == {"input_ids", "token_type_ids", "attention_mask"}
    assert all(batch["input_ids"].shape[0] == 1 for batch in batches)
    others = f"--validation_file={text_run.parent / 'test.jsonl'}"
    with pytest.raises(InputError, match="calibrated with the validation split of the run, but"):
        load_source(replace(request, data_flags=[others]), record).calibration()


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


def test_modules_that_the_run_keeps_in_float32_are_not_rounded(text_run, tmp_path, monkeypatch):
    def with_kept(auto_class, path, **options):
        model = load_saved(auto_class, path, **options)
        keep_in_fp32(model, ["*.layer.1.*"])
        return model

    monkeypatch.setattr("ampft.export.source.load_saved", with_kept)
    artifact = artifact_of(text_run, tmp_path, "torch", "int8")
    with safe_open(artifact / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if name.endswith("_qdata")]  # noqa: SIM118
    assert len(names) == 8
    assert not any(".layer.1." in name for name in names)
    if find_spec("openvino") is not None:
        with pytest.raises(InputError, match="fp16: OpenVINO rounds all weights, and bert"):
            artifact_of(text_run, tmp_path, "openvino", "fp16")


# Format and precision -> the dtype in which a weight outside of the kept modules is stored.
MIXED = {
    ("torch", "bf16"): "BF16",
    ("torch", "int8"): "I8",
    ("onnx", "fp16"): 10,
    ("onnx", "int8"): 2,
    ("openvino", "int8"): "u8",
}


@pytest.mark.parametrize(("form", "precision"), MIXED)
def test_requested_modules_stay_in_float32(text_run, one_trace, tmp_path, form, precision):
    if form == "openvino":
        pytest.importorskip("nncf")
    whole, mixed = (
        open_artifact(artifact_of(text_run, tmp_path / name, form, precision, keep_float=patterns))
        for name, patterns in (("whole", ()), ("mixed", ("layer.*",)))
    )
    assert mixed.manifest.keep_float == ("bert.encoder.layer.0", "bert.encoder.layer.1")
    assert difference(text_run, mixed) < difference(text_run, whole)
    path = mixed.folder / mixed.manifest.model
    if form == "torch":
        with safe_open(path, "pt") as file:
            stored = {n: file.get_slice(n).get_dtype() for n in file.keys()}  # noqa: SIM118
        kept = {dtype for name, dtype in stored.items() if ".layer." in name}
        assert kept == {"F32"}
        assert MIXED[form, precision] in stored.values()
        return
    if form == "openvino":
        sides = [openvino_dtypes(each.model.session, path).products for each in (whole, mixed)]
        floats = [
            sum(row.count for row in rows if row.with_weights and "float32" in row.inputs)
            for rows in sides
        ]
        assert floats == [0, 12]  # of 14 products with weights
        return
    model = onnx.load(path)
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    products = [n for n in model.graph.node if n.name in mixed.manifest.float_nodes]
    assert sum(node.op_type == "MatMul" for node in products) == 16
    weights = {stored[name] for node in products for name in node.input if name in stored}
    assert MIXED[form, precision] not in weights
    assert MIXED[form, precision] in stored.values()


@pytest.mark.skipif(sys.platform != "linux", reason="signal stacks are read as Linux has them")
def test_a_signal_is_handled_after_openvino_models_of_any_order(text_run, tmp_path):
    """A model that ends before a younger one must not leave a freed stack for signals."""
    pytest.importorskip("openvino")
    request = ExportRequest(
        run=text_run, format="openvino", precision="fp32", output_dir=tmp_path / "new"
    )
    source = load_source(request, read_record(text_run))
    with FORMATS["openvino"].code.model_writer(source) as write:
        write(tmp_path / "openvino_model.xml", ())
    program = (
        "import gc, os, signal, sys\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from ampft.export.openvino_format import load\n"
        "manifest = SimpleNamespace(precision='fp32', model='openvino_model.xml')\n"
        "models = [load(Path(sys.argv[1]), manifest, None) for _ in range(2)]\n"
        "while models:\n"
        "    models.pop(0)\n"
        "    gc.collect()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('handled'))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, tmp_path],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_openvino_keeps_a_planted_module_in_float32(text_run, tmp_path):
    """One large weight per output, times 0: int8 with a scale per output rounds the others to 0."""
    pytest.importorskip("nncf")
    pytest.importorskip("openvino")
    request = ExportRequest(
        run=text_run, format="openvino", precision="int8", output_dir=tmp_path / "new"
    )
    source = load_source(request, read_record(text_run))
    planted = "bert.encoder.layer.1.output.dense"
    layer = source.model.bert.encoder.layer[1]
    with torch.no_grad():
        layer.intermediate.dense.weight[0], layer.intermediate.dense.bias[0] = 0.0, 0.0
        layer.output.dense.weight[:, 1:] *= 5
        layer.output.dense.weight[:, 0] = 1000.0
        batches = [model_inputs(source.reader.collate([[text]])) for text in TEXTS]
        expected = torch.cat([source.model(**batch).logits for batch in batches]).numpy()
    errors = []
    with FORMATS["openvino"].code.model_writer(source) as write:
        for kept in ((), (planted.replace("1", "0"),), (planted,)):
            path = tmp_path / f"{len(errors)}.xml"
            write(path, kept)
            compiled = shared_core().compile_model(path, "CPU")
            found = [compiled({n: batch[n].numpy() for n in source.inputs}) for batch in batches]
            logits = np.concatenate([each["logits"] for each in found])
            errors.append(abs(logits - expected).max() / abs(expected).max())
    whole, other, fragile = errors
    assert fragile < whole / 4
    assert other > whole / 2


@pytest.mark.parametrize(
    ("form", "precision", "options", "message"),
    [
        ("onnx", "fp16", {"int8": "static"}, "--int8 static: only --format onnx --precision int8"),
        ("torch", "int8", {"int8": "blocks"}, "--int8 blocks: only --format onnx"),
        ("onnx", "fp32", {"keep_float": ("layer.0",)}, "--keep_float: fp32 keeps all modules"),
        ("onnx", "int8", {"keep_float": ("layer.7",)}, "--keep_float layer.7: the pattern matches"),
    ],
)
def test_what_has_no_effect_is_refused(text_run, tmp_path, form, precision, options, message):
    with pytest.raises(InputError, match=message):
        artifact_of(text_run, tmp_path, form, precision, **options)
    assert list(tmp_path.iterdir()) == []


def test_logits_that_are_not_finite_are_refused(text_run, tmp_path):
    artifact = open_artifact(artifact_of(text_run, tmp_path, "torch", "fp32"))
    torch.nn.init.constant_(artifact.model.classifier.bias, float("nan"))
    with pytest.raises(InputError, match="predictions of this fp32 artifact are not finite"):
        artifact.logits(TEXTS[:1], 1)
    assert np.isfinite(logits_of_run(text_run, [TEXTS[:1]])).all()


def test_the_length_varies_where_the_samples_are_all_cut_to_one(text_run, tmp_path):
    short = shutil.copytree(text_run, tmp_path / "short")
    contract = json.loads((short / "decision.json").read_text())
    contract["tokenization"]["max_length"] = 4  # the samples have more words
    (short / "decision.json").write_text(json.dumps(contract))
    request = ExportRequest(run=short, format="onnx", precision="fp32", output_dir=tmp_path / "new")
    source = load_source(request, read_record(text_run))
    assert {*source.axes["input_ids"]} == {0, 1}, "the batch and the length"
    source.write_graph(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for length in (2, 4):
        tokens = torch.full((3, length), 5)
        given = {name: tokens if name == "input_ids" else tokens * 0 for name in source.inputs}
        given["attention_mask"] = torch.ones_like(tokens)
        given = {name: given[name] for name in source.inputs}
        (logits,) = session.run(None, {name: value.numpy() for name, value in given.items()})
        with torch.no_grad():
            expected = source.model(**given).logits.numpy()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
