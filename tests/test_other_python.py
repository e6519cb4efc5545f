"""A Python in which ampft cannot run is refused in one line, not by a traceback."""

import re
import subprocess
import sys

import pytest
from running import CLASSIFY, REPOSITORY

OLD = "import sys; sys.version_info = (3, 10, 13, 'final', 0); "


def started(*words: str) -> subprocess.CompletedProcess[str]:
    """Run this Python without its packages."""
    command = [sys.executable, "-S", *words]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "module"),
    [
        ((CLASSIFY, "--help"), "ampft"),
        (("recipes/compare.py", "--help"), "ampft"),
        (("-m", "ampft", "--help"), "lazy_loader"),
    ],
)
def test_a_command_without_its_packages_says_so_in_a_line(words, module):
    done = started(*words)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: No module named '{module}' ({sys.executable}). Activate the")


RECIPES = sorted(path.relative_to(REPOSITORY) for path in (REPOSITORY / "recipes").rglob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_recipe_without_its_packages_says_so_in_a_line(recipe):
    done = started(str(recipe))
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    remedy = "Activate the|Run pip install|Start this script with `uv run`"
    assert re.match(rf"error: No module named '\w+' \(.+\)\. ({remedy})", line)


def test_the_recipes_were_found():
    assert len(RECIPES) > 10


@pytest.mark.slow
def test_an_import_without_its_packages_is_an_import_error():
    done = started("-c", "import ampft")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: No module named 'lazy_loader' (")
    assert last.endswith("or install it with pip.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code"), [("-m", 2), ("/somewhere/bin/ampft", 2), ("notebook.py", 1)]
)
def test_an_old_python_is_named(program, code):
    done = started("-c", f"{OLD}sys.argv = [{program!r}]; import ampft")
    assert done.returncode == code
    assert "ampft needs Python 3.11 or later, and this is 3.10 (" in done.stderr.splitlines()[-1]
    assert ("Traceback" in done.stderr) == (code == 1)
