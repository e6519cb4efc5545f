"""The core works in a copy of the project without the add-ons beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import REPOSITORY, clean_environment, succeeded, text_settings

from ampft.registry import ADD_ONS

pytestmark = pytest.mark.slow
IMPORTS_AN_ADD_ON = re.compile(rf"^\s*(from|import) ampft\.({'|'.join(ADD_ONS)})\b", re.MULTILINE)


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A copy without the add-ons, their folders of tests, and the tests that import one."""
    folder = tmp_path_factory.mktemp("core")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = [Path(name) for name in listed.stdout.rstrip("\0").split("\0")]
    for name in of_the_core([name for name in names if (REPOSITORY / name).is_file()]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, folder / name)
    for add_on in ADD_ONS:
        assert (REPOSITORY / "ampft" / add_on).is_dir()
        assert not (folder / "ampft" / add_on).exists()
    return folder


def of_the_core(names: Sequence[Path]) -> list[Path]:
    """The files without the add-ons, their tests, and tests that import either of them."""
    kept = [n for n in names if not (n.parts[0] in ("ampft", "tests") and n.parts[1] in ADD_ONS)]
    tests = {
        name: (REPOSITORY / name).read_text(encoding="utf-8")
        for name in kept
        if name.parts[0] == "tests" and name.suffix == ".py"
    }
    left_out = {name for name, text in tests.items() if IMPORTS_AN_ADD_ON.search(text)}
    found = left_out
    while found:
        stems = "|".join(name.stem for name in found)
        imports = re.compile(rf"^\s*(from|import) ({stems})\b", re.MULTILINE)
        found = {n for n, text in tests.items() if n not in left_out and imports.search(text)}
        left_out |= found
    return [name for name in kept if name not in left_out]


def python(core: Path, *words: object, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=core, capture_output=True, text=True,
        env=clean_environment() | {"PYTHONPATH": str(core)}, timeout=timeout,
    )  # fmt: skip


def test_a_user_trains_and_predicts(core, files, tiny_model, tmp_path):
    settings = [f for f in text_settings(files, tiny_model, tmp_path) if f != str(tmp_path)]
    settings.remove("--output_dir")
    settings += ["--output_dir", str(tmp_path / "run")]
    succeeded(python(core, "recipes/classify.py", "--mixed_precision", "fp32", *settings))
    settings[-1] = str(tmp_path / "emulated")
    emulated = python(core, "recipes/classify.py", "--mixed_precision", "fp16", *settings)
    assert emulated.returncode == 2
    assert "`ampft/emulation` is absent" in emulated.stderr
    typo = python(core, "recipes/classify.py", "--seeds", "1")
    assert (typo.returncode, "Did you mean '--seed'?" in typo.stderr) == (2, True), typo.stderr
    run = tmp_path / "run"
    predict = ("-m", "ampft", "predict", "--model", run, files / "test.csv")
    assert len(succeeded(python(core, *predict)).stdout.splitlines()) == 46
    many = python(core, *predict, "--output_dir", tmp_path / "many")
    assert many.returncode == 2
    assert "`ampft/integrations` is absent, which predicts folders of files." in many.stderr
    assert "accuracy" in succeeded(python(core, "-m", "ampft", "report", run)).stdout
    compared = python(core, "-m", "ampft", "compare", run)
    assert compared.returncode == 2
    assert "unknown command compare." in compared.stderr


@pytest.mark.full
def test_the_quick_tests_of_the_core_pass(core):
    done = python(
        core, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider",
        "-m", "not slow and not add_ons", "tests", timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
