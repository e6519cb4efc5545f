"""A token in a path or a flag stays out of everything that is printed and written."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import REPOSITORY, call_here, rows, write_csv

import ampft
from ampft.errors import quoted
from ampft.text.escaping import printable
from ampft.text.terminal import print_line

CANARY = "hf_QqCanaryQqCanaryQqCanaryQqCanary"
SPLITS = ("train", "test")
COMMAND = REPOSITORY / "ampft/cli.py"
# They print constants, or use `printable` themselves.
PRINTING = {
    "errors.py", "__main__.py", "exit_codes.py", "cli.py", "arguments/help_text.py",
    "commands/installation.py", "export/certificate/measured.py",
}  # fmt: skip


def test_only_one_function_prints():
    """Every other line of output is without secrets, because `print_line` removes them."""
    package = Path(ampft.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert found == PRINTING


def test_a_printed_line_has_no_token(capsys):
    print_line(f"wrote /data/{CANARY}/run")
    print_line(f"wrote /data/{CANARY}/run", file=sys.stderr)
    printed = capsys.readouterr()
    assert printed.out == printed.err == "wrote /data/REDACTED/run\n"


def test_a_shortened_path_has_no_part_of_a_token():
    assert (
        printable(quoted(f"/some/folder/of/data/{CANARY}")) == "'/some/folder/of/data/REDACTED...'"
    )
    assert printable("hf_hub ...") == "hf_hub ..."


@pytest.mark.slow
def test_a_traceback_has_no_token():
    code = f"from ampft.exit_codes import run_main\ndef f(): raise KeyError('/d/{CANARY}/x')\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}run_main(f)"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: '/d/REDACTED/x'\n\n")


@pytest.mark.slow
def test_no_door_shows_a_token_of_a_path(tiny_model, tmp_path):
    place = tmp_path / CANARY
    place.mkdir()
    for seed, name in enumerate(SPLITS):
        write_csv(place / f"{name}.csv", rows(60, seed), ("text", "label"))
        write_csv(place / f"{name}2.csv", rows(30, seed + 2), ("text", "label"))
    model = shutil.copytree(tiny_model, place / "model")
    data = ("--train_file", place / "train.csv", "--test_file", place / "test.csv")
    words = (*data, "--model_name_or_path", model, "--use_cpu", "--cpu_threads", 1)
    short = ("--num_train_epochs", 1, "--max_seq_length", 24)
    moved = (*data, "--model_name_or_path", model)  # their paths in the record are not whole
    run = place / "run"
    files = [(f"--{name}_file", f"{place / name}.csv,{place / name}2.csv") for name in SPLITS]
    two = (*(word for pair in files for word in pair), *words[len(data) :])
    arms = ("--arm", "a", "--arm", "b: --learning_rate 1e-3", "--seeds", 3, "--anyway")
    doors = [
        ("train", *words, *short, "--output_dir", run, "--with_tracking", "--history_csv"),
        ("train", *two, *short, "--inspect_data", "--output_dir", place / "two"),
        ("report", run),
        ("errors", place / "two", "--output_file", place / "two.html"),
        ("errors", run, "--output_file", place / "errors.html"),
        ("predict", place / "test.csv", "--model", run, "--output_file", place / "p.csv"),
        ("predict", place / "test.csv", "--model", run, "--output_dir", place / "shards"),
        ("predict", place / "absent.csv", "--model", run),
        ("train", *words, "--output_dir", run),
        ("yardstick", "--output", place / "y.json", "--batches", 2, "--", *words, *short),
        (
            "doctor",
            "--output_dir",
            place / "doctor",
            "--mixed_precision",
            "bf16",
            "--",
            *words,
            *short,
        ),
        (
            "audit",
            run,
            "--steps",
            1,
            "--json",
            place / "a.json",
            "--badge",
            place / "a.svg",
            *moved,
        ),
        ("export", run, "--format", "torch", "--output_dir", place / "artifact", *data),
        ("compare", "--output_dir", place / "compared", *arms, "--", *words, *short),
        ("report", place / "compared", "--output_file", place / "compared.html"),
    ]
    expected = [0, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0]
    for door, code in zip(doors, expected, strict=True):
        done = call_here(COMMAND, *door)
        assert done.returncode == code, (door[0], done.stdout, done.stderr)
        assert CANARY not in done.stdout + done.stderr, door[0]
        assert "REDACTED" in done.stdout + done.stderr, door[0]
    written = [path for path in place.rglob("*") if path.is_file() and model not in path.parents]
    assert len(written) > 50
    with_token = {path.name for path in written if CANARY.encode() in path.read_bytes()}
    assert with_token <= {".ampft-owner"}
