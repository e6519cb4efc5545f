"""The core works in a copy of the project without `ampft/lab`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import REPOSITORY, clean_environment, succeeded, text_settings

pytestmark = pytest.mark.slow
LABORATORY = ("doctor", "yardstick", "export", "errors", "ops", "judge", "curve", "search", "audit")


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A copy of the project without the laboratory and its tests."""
    folder = tmp_path_factory.mktemp("core")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.rstrip("\0").split("\0"):
        if "lab" not in Path(name).parts and (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, folder / name)
    assert not list(folder.rglob("lab"))
    assert (REPOSITORY / "ampft" / "lab").is_dir()
    return folder


def python(core: Path, *words: object, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=core, capture_output=True, text=True,
        env=clean_environment() | {"PYTHONPATH": str(core)}, timeout=timeout,
    )  # fmt: skip


def test_a_user_trains_predicts_and_compares(core, files, tiny_model, tmp_path):
    settings = [f for f in text_settings(files, tiny_model, tmp_path) if f != str(tmp_path)]
    settings.remove("--output_dir")
    for mode in ("fp32", "bf16"):
        for seed in ("1", "2", "3"):
            name = tmp_path / f"{mode}-{seed}"
            succeeded(
                python(
                    core, "recipes/classify.py", "--mixed_precision", mode, *settings,
                    "--seed", seed, "--output_dir", name,
                )
            )  # fmt: skip
    runs = sorted(tmp_path.iterdir())
    table = succeeded(
        python(core, "-m", "ampft", "predict", "--model", runs[0], files / "test.csv")
    )
    assert len(table.stdout.splitlines()) == 46
    compared = succeeded(python(core, "-m", "ampft", "compare", *runs)).stdout
    assert "bf16" in compared
    assert "fp32" in compared
    assert "accuracy" in succeeded(python(core, "-m", "ampft", "report", runs[0])).stdout


@pytest.mark.parametrize("command", LABORATORY)
def test_a_command_of_the_laboratory_says_what_is_missing(core, command):
    done = python(core, "-m", "ampft", command, "x")
    assert done.returncode == 2
    assert "this installation of ampft lacks its folder `lab`" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_the_quick_tests_of_the_core_pass(core):
    done = python(
        core, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider",
        "-m", "not slow and not laboratory", "tests", timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
