"""The scripts that serve an artifact, as a reader would copy them."""

from __future__ import annotations

import ast
import csv
from importlib.util import find_spec

import pytest
from exported import artifact_of, rows, train_texts
from running import REPOSITORY, call_here, succeeded

from ampft.cli import main
from ampft.lab.export import open_artifact

pytestmark = pytest.mark.slow

SERVING = REPOSITORY / "recipes" / "serving"
TEXTS = [row["text"] for row in rows(6, seed=9)]


def test_onnxruntime_alone_predicts_the_same(onnx_text):
    artifact = open_artifact(onnx_text)
    predictor = artifact.predictor(1)
    with predictor.numerics:
        expected = predictor([TEXTS])
    done = succeeded(call_here(SERVING / "onnx_only.py", onnx_text, *TEXTS))
    labels, probabilities, texts = zip(
        *(line.split("\t") for line in done.stdout.splitlines()), strict=True
    )
    assert list(labels) == expected.labels
    assert [float(text) for text in probabilities] == pytest.approx(expected.confidence, abs=6e-5)
    assert list(texts) == TEXTS
    assert len(set(probabilities)) == len(TEXTS)


def test_the_script_needs_neither_ampft_nor_torch():
    tree = ast.parse((SERVING / "onnx_only.py").read_text(encoding="utf-8"))
    imported = {
        alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    }
    imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert imported == {"json", "sys", "pathlib", "numpy", "onnxruntime", "tokenizers"}


def test_the_application_answers(onnx_text, monkeypatch):
    path = SERVING / "fastapi_app.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == ["make_app"]
    if find_spec("fastapi") is None or find_spec("httpx") is None:
        pytest.skip("fastapi or httpx is not installed; the script was parsed")
    import runpy

    from fastapi.testclient import TestClient

    monkeypatch.setenv("ARTIFACT", str(onnx_text))
    client = TestClient(runpy.run_path(str(path))["make_app"]())
    answers = client.post("/predict", json=TEXTS).json()
    assert answers[0]["prediction"] in ("ant", "bee", "cow")
    assert len(answers) == len(TEXTS)


@pytest.mark.parametrize(
    "settings",
    [
        {"several": True, "task": "multi-label"},
        {"max_seq_length": 10, "long_text": "windows"},
    ],
)
def test_servers_decide_as_predict_or_refuse(tmp_path, settings, capsys):
    run = train_texts(tmp_path, **settings)
    folder = artifact_of(run, tmp_path, "onnx", "fp32")
    words = ["predict", "--model", str(folder), *(w for text in TEXTS for w in ("--text", text))]
    capsys.readouterr()
    assert main(words) == 0
    expected = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    found = open_artifact(folder).predict(TEXTS, 32)  # what fastapi_app.py answers
    shown = [tuple(row) for row in zip(found["prediction"], found["confidence"], strict=True)]
    assert [str(label) for label, _ in shown] == [row["prediction"] for row in expected]
    done = call_here(SERVING / "onnx_only.py", folder, *TEXTS)
    # In this process, the exit code is the message.
    assert "which this script does not do. Use ampft predict." in str(done.returncode)
    assert done.stdout == ""
