"""Runs the classification recipe with many command lines in one process; prints their results.

Reads from stdin a JSON list of [words, environment]; writes a JSON list of exit code, stdout and
stderr. Used by test_refusals.py: a process for each case would take minutes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState, GradientState

import ampft


def run_case(recipe: Any, words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    out, err = io.StringIO(), io.StringIO()
    before = dict(os.environ)
    os.environ.update(environment)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = ampft.run_main(lambda: recipe.train(ampft.parse_classify_arguments(words)))
        except BaseException:
            traceback.print_exc()
            code = 1
    os.environ.clear()
    os.environ.update(before)
    return {"code": code, "stdout": out.getvalue(), "stderr": err.getvalue()}


def main() -> None:
    spec = importlib.util.spec_from_file_location("classify", Path(sys.argv[1]))
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    cases = json.load(sys.stdin)
    print(json.dumps([run_case(recipe, *case) for case in cases]))


if __name__ == "__main__":
    main()
