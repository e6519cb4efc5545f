"""The scripts that serve an artifact, as a reader would copy them."""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from exported import artifact_of, rows, train_texts, train_words
from running import REPOSITORY, call_here, succeeded

from ampft.cli import main
from ampft.errors import InputError
from ampft.export import open_artifact
from ampft.export.artifact import MODULES

pytestmark = pytest.mark.slow

SERVING = REPOSITORY / "recipes" / "serving"
TEXTS = [row["text"] for row in rows(6, seed=9)]


def test_the_script_needs_neither_ampft_nor_torch():
    tree = ast.parse((SERVING / "onnx_only.py").read_text(encoding="utf-8"))
    needed = {"onnxruntime", "tokenizers"}
    assert {
        each for each in imports(tree) if each.split(".")[0] not in sys.stdlib_module_names
    } == needed


@pytest.mark.parametrize(
    ("name", "others"), [("decision.py", {"numpy", "numpy.typing"}), ("units.py", {"regex"})]
)
def test_the_modules_of_an_artifact_need_no_ampft(name, others):
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert {
        each for each in imports(tree) if each.split(".")[0] not in sys.stdlib_module_names
    } == others


def imports(tree: ast.AST) -> set[str]:
    found = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    return found | {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


def test_a_missing_package_of_an_artifact_is_named_in_a_line(tmp_path):
    write_tiny_artifact(tmp_path)
    done = call_here(SERVING / "onnx_only.py", tmp_path, "a text")
    assert done.returncode == 2
    message = f"No module named 'missing_package' ({sys.executable}). Run pip install"
    assert done.stderr == f"error: {message} missing_package.\n"


def write_tiny_artifact(folder: Path) -> None:
    """Write a folder whose module imports a package that no environment has."""
    content = b"import missing_package\n"
    (folder / "decision.py").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    about = {"files": {"decision.py": {"sha256": digest}}, "model": "model.onnx"}
    (folder / "artifact.json").write_text(json.dumps(about), encoding="utf-8")


@contextmanager
def started(folder, port):
    """Start fastapi_app.py as its first lines say, and yield its address."""
    words = ("--factory", "--app-dir", SERVING, "fastapi_app:make_app", "--port", port)
    environment = {**os.environ, "ARTIFACT": str(folder), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "uvicorn", *map(str, words)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 120
        while answered(f"{address}/docs", None)[0] != 200:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.2)
        yield f"{address}/predict"
    finally:
        process.terminate()
        process.wait()


def answered(address, rows):
    """Return the status and the answer of a server; no status while it does not listen."""
    data = None if rows is None else json.dumps(rows).encode()
    headers = {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return None, b""


def test_the_application_answers(text_run, onnx_text):
    path = SERVING / "fastapi_app.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == ["make_app"]
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        pytest.skip("fastapi or uvicorn is not installed; the script was parsed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stored = pq.read_table(text_run / "predictions.parquet").to_pylist()
    with started(onnx_text, port) as address:
        status, answer = answered(address, [row["text"] for row in stored])
        assert status == 200
        for found, row in zip(json.loads(answer), stored, strict=True):
            assert found["prediction"] == row["prediction"]
            assert found["confidence"] == pytest.approx(row["confidence"], abs=2e-6)
        for rows, message in (([], "the list is empty"), ([["a", "pair"]], "needs 1 text")):
            status, answer = answered(address, rows)
            assert (status, message in json.loads(answer)["detail"]) == (422, True), answer


ASK = """
import json, runpy, sys
page = runpy.run_path(sys.argv[1])["make_page"](sys.argv[2])
for text in sys.argv[3:]:
    print(json.dumps(page.fn(text)))
"""


def test_the_demo_page_answers_as_predict(text_run):
    path = SERVING / "demo_page.py"
    ast.parse(path.read_text(encoding="utf-8"))
    if find_spec("gradio") is None:
        pytest.skip("gradio is not installed; the script was parsed")
    stored = pq.read_table(text_run / "predictions.parquet").to_pylist()
    words = [sys.executable, "-c", ASK, str(path), str(text_run), *(row["text"] for row in stored)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, row in zip(done.stdout.splitlines()[-len(stored) :], stored, strict=True):
        answer, shares = json.loads(line)
        assert answer == row["prediction"]
        assert [*shares.values()] == pytest.approx(row["probabilities"], abs=2e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"several": True, "task": "multi-label", "tune_thresholds": "f1", "calibrate": True},
        {"max_seq_length": 10, "long_text": "windows"},
        {"abstain": 0.45, "calibrate": True},
        {"pairs": True},
    ],
    ids=["one label", "several labels", "windows", "abstention", "pairs"],
)
def test_servers_answer_as_predict(tmp_path, settings, capsys):
    run = train_texts(tmp_path, **settings)
    folder = artifact_of(run, tmp_path, "onnx", "fp32")
    words = ["predict", "--model", str(folder), *(w for text in TEXTS for w in ("--text", text))]
    capsys.readouterr()
    assert main(words) == 0
    expected = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    rows = list(zip(TEXTS[::2], TEXTS[1::2], strict=True)) if "pairs" in settings else TEXTS
    columns = open_artifact(folder).predict(rows, 32)  # what fastapi_app.py answers
    done = succeeded(call_here(SERVING / "onnx_only.py", folder, *TEXTS))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(expected) == len(rows)
    for number, (answer, row) in enumerate(zip(answers, expected, strict=True)):
        assert answer.keys() == columns.keys()
        for found in (answer, {name: values[number] for name, values in columns.items()}):
            assert found["prediction"] == row["prediction"]
            assert found["confidence"] == pytest.approx(float(row["confidence"]), abs=2e-6)
            assert str(found.get("answered")) == row.get("answered", "None")


def test_an_open_artifact_decides_as_it_did_when_it_was_opened(onnx_text, tmp_path):
    """It was checked then; a server would go on for weeks."""
    folder = tmp_path / "artifact"
    shutil.copytree(onnx_text, folder)
    artifact = open_artifact(folder)
    before = artifact.predict(TEXTS, 32)
    contract = folder / "decision.json"
    values = json.loads(contract.read_text(encoding="utf-8"))
    values["rule"]["label_names"].reverse()
    contract.write_text(json.dumps(values), encoding="utf-8")
    assert artifact.predict(TEXTS, 32) == before
    with pytest.raises(InputError, match=r"decision\.json: the file was changed after the export"):
        open_artifact(folder)
    script = call_here(SERVING / "onnx_only.py", folder, *TEXTS)
    assert (script.returncode, script.stdout) == (2, "")
    assert f"{contract}: not the exported file" in script.stderr
    script = call_here(SERVING / "onnx_only.py", tmp_path / "absent", *TEXTS)
    assert (script.returncode, script.stdout) == (2, "")
    assert script.stderr == f"error: {tmp_path}/absent/artifact.json: No such file or directory\n"
    for words in ((), (folder,)):
        script = call_here(SERVING / "onnx_only.py", *words)
        assert (script.returncode, script.stdout) == (2, "")
        assert script.stderr == "usage: python onnx_only.py ARTIFACT TEXT ...\n"


def test_an_artifact_answers_many_threads_at_once(onnx_text):
    artifact = open_artifact(onnx_text)
    parts = [TEXTS[start:] for start in range(len(TEXTS))] * 8
    expected = [artifact.predict(part, 32) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda part: artifact.predict(part, 32), parts)) == expected


def test_a_server_finds_words_and_entities_as_predict(tmp_path):
    folder = artifact_of(train_words(tmp_path), tmp_path, "onnx", "fp32")
    texts = ["Ann (of Bern) sleeps near the Rhine, w1 w2 w3 w4 w5 w6 w7 w8 w9.", "w1"]
    output = tmp_path / "found.jsonl"
    words = [w for text in texts for w in ("--text", text)]
    assert main(["predict", "--model", str(folder), "--output_file", str(output), *words]) == 0
    expected = [json.loads(line) for line in output.read_text().splitlines()]
    done = succeeded(call_here(SERVING / "onnx_only.py", folder, *texts))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers[0]["words"]) > 16
    for answer, row in zip(answers, expected, strict=True):
        assert {"words", "prediction", "confidence", "entities"} == answer.keys()
        for name in ("words", "prediction"):
            assert answer[name] == row[name]
        assert [(e["start"], e["end"], e["label"], e["text"]) for e in answer["entities"]] == [
            (e["start"], e["end"], e["label"], e["text"]) for e in row["entities"]
        ]
        assert answer["confidence"] == pytest.approx(row["confidence"], abs=2e-6)
