"""The command `ampft`, and the imports of the entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampft import cli

REPOSITORY = Path(__file__).parents[1]
AMPFT = Path(sys.executable).parent / "ampft"
HEAVY = {"torch", "transformers", "datasets", "accelerate", "sklearn", "numpy", "evaluate"}
ENTRY_POINTS = {
    "ampft": "from ampft.cli import main; main(['--help'])",
    "ampft predict": "from ampft.cli import main; main(['predict', '--help'])",
    "classify.py": "import runpy; sys.argv = ['recipes/classify.py', '--help']; "
    "runpy.run_path('recipes/classify.py', run_name='__main__')",
}


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def heavy_imports(statements: str) -> tuple[set[str], str]:
    """The heavy packages that `statements` import, and what they print."""
    script = f"import sys\ntry:\n    exec({statements!r})\nexcept SystemExit:\n    pass\n"
    done = python(script + "print('modules:', *sys.modules, file=sys.stderr)")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("modules:")]
    return HEAVY & set(line.split()), done.stdout


@pytest.mark.parametrize("command", ENTRY_POINTS)
def test_help_imports_nothing_heavy(command):
    imported, text = heavy_imports(ENTRY_POINTS[command])
    assert imported == set()
    assert text.startswith(f"usage: {command}")


def test_a_refused_flag_imports_nothing_heavy():
    script = "from ampft import parse_classify_arguments, run_main\nrun_main(lambda: "
    imported, _ = heavy_imports(f"{script}parse_classify_arguments(['--learning_rat', '1']))")
    assert imported == set()


def test_the_check_detects_a_heavy_import():
    assert heavy_imports("import numpy")[0] == {"numpy"}


def test_import_beside_a_checkout_named_ampft(tmp_path):
    """A folder `ampft` without `__init__.py` must not be taken for the package."""
    (tmp_path / "ampft").symlink_to(REPOSITORY)
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", "import ampft; print('resolve' in dir(ampft))"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_env_writes_json():
    done = subprocess.run(
        [AMPFT, "env", "--json", "--no_measure"], capture_output=True, text=True, check=False,
        timeout=120, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    environment = json.loads(done.stdout)
    assert {"versions", "modes"} <= set(environment)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((), "required: COMMAND. See ampft --help"),
        (("trian",), "invalid choice: 'trian'"),
        (("env", "--jsn"), "unrecognized arguments: --jsn"),
        (("predict", "file.csv"), "required: --model"),
        (("predict", "--model", "run"), "required: FILE"),
        (("report", "no/such/run"), "no/such/run"),
    ],
)
def test_refused(words, match, capsys):
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert match in line


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--model", "no/such/run", "texts.csv"), "--model no/such/run"),
        (("--model", "{run}", "absent.csv"), "absent.csv"),
        (("--model", "{run}", "--mixed_precision", "fp15", "{file}"), "fp15"),
        (("--model", "{run}", "--mixed_precision", "fp8", "{file}"), "fp8"),
        (("--model", "{run}", "--text_column_names", "body", "{file}"), "body"),
        (("--model", "{run}", "--batch_size", "0", "{file}"), "--batch_size"),
        (("--model", "{run}", "--output_file", "no/such/folder/a.csv", "{file}"), "--output_file"),
        (("--model", "{unfinished}", "{file}"), "diverged"),
        (("--model", "{images}", "{file}"), "images"),
    ],
)
def test_predict_refuses(words, match, capsys, run_folders, fresh_accelerate):
    assert cli.main(["predict", *(word.format(**run_folders) for word in words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert match in line


@pytest.fixture(scope="module")
def run_folders(tiny_bert, tmp_path_factory) -> dict[str, str]:
    """Folders with a model and a run record: `predict` accepts one and refuses two."""
    import shutil

    folder = tmp_path_factory.mktemp("runs")
    file = folder / "texts.csv"
    file.write_text("text\nw1 w2\nw3\n")
    paths = {"file": str(file)}
    for name, status, kind in (
        ("run", "finished", "text"),
        ("unfinished", "diverged", "text"),
        ("images", "finished", "image"),
    ):
        paths[name] = str(shutil.copytree(tiny_bert, folder / name))
        record = {
            "schema": 1, "status": status, "arguments": {"max_seq_length": 16}, "command": [],
            "label_names": ["ant", "bee", "cow"],
            "data": {
                "name": "d", "kind": kind, "fingerprints": {}, "examples": {},
                "input_columns": ["text"],
            },
            "model": {
                "name": "m", "architecture": "a", "parameters": 1, "trainable_parameters": 1,
                "initial_weights_sha256": "",
            },
            "precision": {"requested": "fp32", "resolved": {"mode": "fp32"}},
            "topology": {"num_processes": 1, "cpu_threads": 1, "device": "cpu"},
            "steps": {"total": 1}, "memory": None, "best": None,
        }  # fmt: skip
        (folder / name / "run.json").write_text(json.dumps(record))
    return paths


def test_predict_writes_a_row_per_text(run_folders, capsys, fresh_accelerate):
    assert cli.main(["predict", "--model", run_folders["run"], run_folders["file"]]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "text,prediction,confidence"
    assert [row.split(",")[0] for row in rows] == ["w1 w2", "w3"]
    assert {row.split(",")[1] for row in rows} <= {"ant", "bee", "cow"}


def test_python_without_docstrings_is_refused():
    done = subprocess.run(
        [sys.executable, "-OO", "recipes/classify.py", "--mixed_precision", "fp32"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: python -OO or PYTHONOPTIMIZE=2 removes docstrings")
