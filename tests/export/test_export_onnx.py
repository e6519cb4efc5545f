"""An ONNX artifact in fp32: what is written, what it predicts, and what is refused."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from exported import artifact_of, logits_of_run, rows, train_texts
from running import call, succeeded
from torch import nn
from transformers.modeling_outputs import ModelOutput

from ampft.cli import main
from ampft.decision import Contract
from ampft.errors import InputError
from ampft.export import open_artifact
from ampft.export.artifact import artifact_classifier, checked_manifest, write_manifest
from ampft.export.export import staged_folder
from ampft.export.formats import REPORTS_OFF
from ampft.export.source import write_onnx
from ampft.files import describe_file, hashed_text, read_hashed
from ampft.integrations.extension_points import ShardJob
from ampft.integrations.predict_shards import predict_folder, predict_here
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import predict_file

pytestmark = pytest.mark.slow

TEXTS = [row["text"] for row in rows(30, seed=9)]
# Largest difference of float32 logits of a scale of 2: sums in another order.
ROUNDING = 5e-6


def test_an_artifact_reports_its_use_to_nobody(onnx_text, tmp_path, monkeypatch):
    """onnxruntime 1.32 writes an identity of the device and sends reports unless told not to."""
    monkeypatch.delenv(REPORTS_OFF, raising=False)
    code = "import sys; from ampft.export import open_artifact; open_artifact(sys.argv[1])"
    place = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    succeeded(call(sys.executable, "-c", code, onnx_text, warm=False, **place))
    written = [path.name for path in tmp_path.rglob("*")]
    assert not {"Microsoft", ".ses", "deviceid"} & set(written)


def test_the_logits_are_those_of_the_run_in_every_batch_size(text_run, onnx_text):
    expected = logits_of_run(text_run, [TEXTS])
    artifact = open_artifact(onnx_text)
    for batch_size in (1, 7, 64):
        found = artifact.logits(TEXTS, batch_size)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)
    assert np.ptp(expected, axis=0).max() > 1000 * ROUNDING, "the texts differ"


def test_the_manifest_says_what_the_artifact_is(text_run, onnx_text):
    manifest = open_artifact(onnx_text).manifest
    assert (manifest.format, manifest.precision, manifest.task) == ("onnx", "fp32", "text")
    assert manifest.label_names == ("ant", "bee", "cow")
    assert manifest.run_sha256 == describe_file(text_run / "run.json").sha256
    read = Contract.read(onnx_text).tokenization
    assert (read.max_length, read.stride) == (24, None)
    assert manifest.runtime == "onnxruntime"
    assert manifest.versions["onnxruntime"].count(".") == 2
    found = {p.relative_to(onnx_text).as_posix() for p in onnx_text.rglob("*") if p.is_file()}
    assert found - {"artifact.json"} == manifest.files.keys()
    assert {"onnx/model.onnx", "config.json", "tokenizer.json"} <= found


def test_no_file_has_a_path_of_this_machine(text_run, onnx_text):
    for path in filter(Path.is_file, onnx_text.rglob("*")):
        assert str(text_run.parent).encode() not in path.read_bytes(), path
    content = (onnx_text / "onnx/model.onnx").read_bytes()
    assert b"site-packages" not in content
    assert b"/ampft/" not in content
    graph = onnx.load(onnx_text / "onnx/model.onnx").graph
    assert [entry.name for entry in graph.output] == ["logits"]
    for entry in graph.input:
        assert [axis.dim_param for axis in entry.type.tensor_type.shape.dim] == ["batch", "length"]


def test_predict_writes_the_same_table(text_run, onnx_text, tmp_path, capsys):
    table = tmp_path / "rows.csv"
    pd.DataFrame({"id": range(30), "text": TEXTS, "label": ["ant"] * 30}).to_csv(table, index=False)
    request = {"files": [str(table)], "all_probabilities": True}
    for name, predict, model in (
        ("run", predict_file, text_run),
        ("artifact", partial(predict_file, classifier=artifact_classifier), onnx_text),
    ):
        output = str(tmp_path / f"{name}.csv")
        predict(str(model), PredictRequest(**request, output_file=output))
    expected, found = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("run", "artifact"))
    assert list(found) == list(expected)
    assert found.prediction.equals(expected.prediction)
    job = ShardJob(str(onnx_text), artifact_classifier, PredictRequest(**request))
    predict_folder(job, tmp_path / "out", predict_here)
    assert pd.read_parquet(tmp_path / "out" / "rows.parquet").prediction.equals(found.prediction)
    probabilities = [column for column in found if column.startswith("probability_")]
    # They are rounded to six decimals.
    np.testing.assert_allclose(found[probabilities], expected[probabilities], rtol=0, atol=2e-6)


def test_the_command_refuses_a_precision_for_an_artifact(onnx_text, capsys):
    words = ["predict", "--model", str(onnx_text), "--text", "w1"]
    assert main([*words, "--mixed_precision", "bf16"]) == 2
    assert "no effect on an artifact, whose precision is fp32" in capsys.readouterr().err
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("text,prediction,confidence\nw1,")


@pytest.mark.parametrize("name", ["onnx/model.onnx", "tokenizer.json", "source/run.json"])
def test_a_changed_file_is_named(onnx_text, tmp_path, name):
    copy = Path(shutil.copytree(onnx_text, tmp_path / "copy"))
    (copy / name).write_bytes((copy / name).read_bytes() + b" ")
    with pytest.raises(InputError, match=f"{name}: the file was changed after the export"):
        open_artifact(copy)
    (copy / name).unlink()
    with pytest.raises(InputError, match=f"{name}: the file is missing"):
        open_artifact(copy)


def _outside(folder: Path) -> None:
    """Let the manifest, whose hash is right, name a model outside the folder."""
    shutil.copy(folder / "onnx" / "model.onnx", folder.parent / "evil.onnx")
    manifest = checked_manifest(folder)
    write_manifest(folder, replace(manifest, model="../evil.onnx"))


def _external(folder: Path) -> None:
    """Move the weights into a file that the manifest does not list."""
    path = folder / "onnx" / "model.onnx"
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="w.data")
    manifest, _ = read_hashed(folder / "artifact.json")
    files = {**manifest["files"], "onnx/model.onnx": vars(describe_file(path))}
    (folder / "artifact.json").write_text(hashed_text({**manifest, "files": files}))


def _linked(folder: Path) -> None:
    (folder / "config.json").rename(folder.parent / "config.json")
    (folder / "config.json").symlink_to(folder.parent / "config.json")


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda f: (f / "special_tokens_map.json").write_text("{}"), "was added after the export"),
        (_outside, "evil.onnx: the file is outside the folder"),
        (_external, "w.data: the file was added after the export"),
        (_linked, "config.json: the file is a link"),
    ],
)
def test_only_the_files_of_the_export_are_loaded(onnx_text, tmp_path, tamper, message, capsys):
    copy = Path(shutil.copytree(onnx_text, tmp_path / "copy"))
    assert main(["predict", "--model", str(copy), "--text", "w1"]) == 0
    tamper(copy)
    capsys.readouterr()
    assert main(["predict", "--model", str(copy), "--text", "w1"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit(129), SystemExit(143)])
def test_an_export_that_ends_in_its_verification_leaves_nothing(
    text_run, tmp_path, monkeypatch, error
):
    """Signals raise these errors; the repeated command works."""
    target, temporary = tmp_path / ("a" * 255), tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    words = ["export", str(text_run), "--format", "onnx", "--output_dir", str(target)]

    def end(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("ampft.export.certificate.verify.certify", end)
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            main([*words, "--no_measure"])
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert list(temporary.glob("ampft-export-*")) == []
    with contextlib.suppress(SystemExit):
        main([*words, "--no_measure"])
    assert "certificate.json" in checked_manifest(target).files


def test_a_changed_manifest_is_refused(onnx_text, tmp_path):
    copy = Path(shutil.copytree(onnx_text, tmp_path / "copy"))
    values = json.loads((copy / "artifact.json").read_text())
    values["label_names"].reverse()
    (copy / "artifact.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match="do not have the hash"):
        open_artifact(copy)


def test_an_error_of_the_runtime_is_one_message(onnx_text, capsys, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("[ONNXRuntimeError] : 10 : INVALID_GRAPH\nnot a registered function")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    assert main(["predict", "--model", str(onnx_text), "--text", "w1"]) == 2
    error = capsys.readouterr().err
    assert "the installed version cannot load onnx/model.onnx ([ONNXRuntimeError] : 10" in error
    assert "Traceback" not in error


def test_a_folder_with_files_is_not_touched(text_run, tmp_path):
    (tmp_path / "onnx-fp32").mkdir()
    (tmp_path / "onnx-fp32" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match=r"--output_dir .*is not an empty folder"):
        artifact_of(text_run, tmp_path, "onnx", "fp32")
    assert [path.name for path in tmp_path.rglob("*")] == ["onnx-fp32", "mine.txt"]


def test_a_folder_that_is_not_a_run_is_refused(tmp_path, capsys):
    target = tmp_path / "out"
    words = ["--format", "onnx", "--output_dir", str(target)]
    assert main(["export", str(tmp_path), *words]) == 2
    assert "this is not the folder of a run" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "missing"), *words]) == 2
    assert "not a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_remains_of_an_export_that_fails(tmp_path):
    def interrupted() -> None:
        with staged_folder(tmp_path / "artifact") as folder:
            (folder / "onnx").mkdir()
            (folder / "onnx" / "model.onnx").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_output_folder(tmp_path):
    with (
        pytest.raises(InputError, match=r"--output_dir .*artifact: the folder cannot be written"),
        staged_folder(tmp_path / "artifact"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_windows_are_averaged_as_in_the_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    run = train_texts(folder, long_text="windows", stride=4, max_seq_length=12)
    artifact = open_artifact(artifact_of(run, folder, "onnx", "fp32"))
    assert Contract.read(artifact.folder).tokenization.stride == 4
    expected = logits_of_run(run, [TEXTS])
    found = artifact.logits(TEXTS, 8)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


class Spectrum(nn.Module):
    def forward(self, values):
        return torch.linalg.eigvals(values).real


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Spectrum()

    def forward(self, values):
        return ModelOutput(logits=self.block(values))


def test_an_operator_that_onnx_lacks_is_named_with_its_module(tmp_path):
    inputs = {"values": torch.randn(2, 3, 3)}
    axes = {"values": {0: torch.export.Dim("batch")}}
    with pytest.raises(
        InputError, match=r"Model has an operator .*aten\.linalg_eig.* module block"
    ):
        write_onnx(Model().eval(), inputs, axes, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
