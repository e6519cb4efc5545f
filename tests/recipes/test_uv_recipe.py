"""The script that `uv run` installs and starts."""

from __future__ import annotations

import re
import tomllib

import pytest
from running import REPOSITORY, call_here, succeeded, text_settings

SCRIPT = REPOSITORY / "recipes" / "uv_classify.py"
# The reference pattern of PEP 723.
BLOCK = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"


def test_its_dependencies_are_those_of_the_package():
    (found,) = re.finditer(BLOCK, SCRIPT.read_text(encoding="utf-8"))
    assert found["type"] == "script"
    metadata = tomllib.loads(re.sub(r"(?m)^# ?", "", found["content"]))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata["requires-python"] == project["requires-python"]
    (requirement,) = metadata["dependencies"]
    name, extras = re.fullmatch(r"(\w+)\[([\w,]+)\]", requirement).groups()
    assert name == project["name"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_a_wrong_flag_is_refused_with_exit_code_2():
    done = call_here(SCRIPT, "--train_fil", "x.csv")
    assert done.returncode == 2
    assert "--train_file" in done.stderr


@pytest.mark.slow
def test_it_trains(files, tiny_model, tmp_path):
    settings = text_settings(files, tiny_model, tmp_path / "run")
    succeeded(call_here(SCRIPT, *settings, "--max_train_steps", "2", cwd=tmp_path))
    assert (tmp_path / "run" / "run.json").is_file()
