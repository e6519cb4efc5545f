"""Processes of this program: how they start, what they import, what they leave."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from running import BIN, REPOSITORY, call, text_settings

from ampft.processes import running, start_python

# Whatever starts a process, as a module or as a function of `os`.
MODULES = {"subprocess", "multiprocessing", "multiprocess", "pty", "popen2", "pexpect", "joblib"}
FUNCTIONS = ("exec", "spawn", "fork", "posix_spawn", "popen", "system", "startfile")
NAMES = {
    "ProcessPoolExecutor",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "start_processes",
}
STARTS = {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}
# A fork has the path of its parent. Workers of a loader are forks.
ALLOWED = {"ampft/processes.py": "Popen", "ampft/comparison/execution/warm_process.py": "fork"}


def starts(tree: ast.AST) -> set[str]:
    """The names by which a file could start a process."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            is_of_os = owner == "os" and name.removeprefix("_").startswith(FUNCTIONS)
            is_of_module = owner in MODULES and (owner != "subprocess" or name in STARTS)
            if is_of_os or is_of_module:
                found.add(name)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {alias.name for alias in node.names}
            package = node.module.partition(".")[0]
            if package in MODULES or node.module == "torch.multiprocessing":
                found |= names - {"TimeoutExpired", "DEVNULL"}
            elif package == "os":
                found |= {name for name in names if name.startswith(FUNCTIONS)}
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in NAMES:
                found.add(name)
    return found


def test_only_one_file_starts_processes():
    files = [*(REPOSITORY / "ampft").rglob("*.py"), *(REPOSITORY / "recipes").rglob("*.py")]
    found = {}
    for file in files:
        if names := starts(ast.parse(file.read_text())):
            found[str(file.relative_to(REPOSITORY))] = " ".join(sorted(names))
    assert found == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import subprocess; subprocess.run([])",
        "from subprocess import check_output",
        "import os; os.execv('', [])",
        "import os; os.system('ls')",
        "from os import fork",
        "import multiprocessing; multiprocessing.Process()",
        "from concurrent.futures import ProcessPoolExecutor; ProcessPoolExecutor()",
        "import torch; torch.multiprocessing.start_processes(print)",
    ],
)
def test_every_way_to_start_a_process_is_found(line):
    """Negative control."""
    assert starts(ast.parse(line))


def test_only_one_file_makes_temporary_folders():
    files = [*(REPOSITORY / "ampft").rglob("*.py"), *(REPOSITORY / "recipes").rglob("*.py")]
    found = [
        str(file.relative_to(REPOSITORY))
        for file in files
        if any(name in file.read_text() for name in ("mkdtemp", "TemporaryDirectory", "mkstemp"))
    ]
    assert found == [], "a killed process would leave it: use ampft.ownership.TemporaryFolder"


REPORT = """
import json, os, sys, tempfile
open(os.path.join(tempfile.gettempdir(), "left"), "w").write("left")
print(json.dumps([sys.path, tempfile.gettempdir(), os.environ.get("PYTHONSAFEPATH")]))
"""


def reported(words, tmp_path, **options):
    with (
        (tmp_path / "output").open("wb") as output,
        running(lambda: start_python(words, output=output, **options)) as child,
    ):
        assert child.wait(60) == 0

    return json.loads((tmp_path / "output").read_text())


@pytest.mark.slow
def test_a_process_does_not_import_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.py").write_text(REPORT)
    path, temporary, inherited = reported(("-c", REPORT), tmp_path)
    assert "" not in path
    assert str(tmp_path) not in path
    assert inherited == "1"
    assert not Path(temporary).exists(), "it is removed with the process"
    path, other, inherited = reported((str(tmp_path / "report.py"),), tmp_path, is_safe=False)
    assert path[0] == str(tmp_path), "a script may import what lies beside it"
    assert inherited is None
    assert other != temporary


@pytest.mark.slow
def test_a_signal_while_a_process_starts_ends_it(tmp_path, monkeypatch):
    children = []

    def start():
        children.append(start_python(("-c", "import time; time.sleep(60)")))
        os.kill(os.getpid(), signal.SIGINT)  # before anybody knows the process
        return children[0]

    with pytest.raises(KeyboardInterrupt), running(start):
        pytest.fail("the signal was not heard")
    assert children[0].poll() is not None
    assert not children[0].temporary.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("follows", [True, False])
def test_a_process_ends_with_the_one_that_it_follows(tmp_path, follows):
    inner = "from ampft.processes import follow; follow(); import time; time.sleep(60)"
    outer = (
        "from ampft.processes import start_python; import time; "
        f"print(start_python(('-c', {inner!r}), follows={follows}).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(1)
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=10 if follows else 3)
    assert bool(gone) == follows
    if not follows:
        child.kill()


HOSTILE = """
import pathlib
pathlib.Path(__file__).with_name("executed").touch()
raise SystemExit("a module of the user was executed")
"""


@pytest.mark.slow
def test_a_measurement_ignores_modules_in_the_current_folder(files, tiny_model, tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    for name in ("datasets", "tokenize", "torch", "numpy", "ampft", "accelerate"):
        (place / f"{name}.py").write_text(HOSTILE)
    settings = text_settings(files, tiny_model, "ignored")
    words = [*(word for word in settings if word != "ignored"), "--max_train_steps", 2]
    words.remove("--output_dir")
    done = call(BIN / "ampft", "estimate", "--", *words, cwd=place, warm=False)
    assert not (place / "executed").exists()
    assert done.returncode == 0, done.stderr


def test_a_user_without_a_name_can_start_processes(monkeypatch):
    """In a container whose user has no entry in /etc/passwd."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert start_python(["-c", "pass"]).wait(timeout=60) == 0
