"""A training that is prepared once, and trains into as many folders as a test needs."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from global_state import fresh_global_state
from running import CLASSIFY, REPOSITORY, rows, write_csv

import ampft
from ampft.arguments import parse_classify_arguments
from ampft.evaluation.evaluate import evaluate
from ampft.exit_codes import run_main
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.runs.resume import find_resume_point


def once_per_split(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes a result only once for each name of a split."""
    results: dict[tuple[str, ...], Any] = {}

    def call(*words: Any, **more: Any) -> Any:
        key = tuple(word for word in words if isinstance(word, str))
        if key not in results:
            results[key] = function(*words, **more)
        return results[key]

    return call


@pytest.fixture(scope="module")
def words(tiny_bert, tmp_path_factory) -> list[str]:
    """Flags of a training of two steps, with a validation after each."""
    data = write_csv(tmp_path_factory.mktemp("data") / "data.csv", rows(36, 0), ("text", "label"))
    return [
        "--train_file", str(data), "--model_name_or_path", str(tiny_bert), "--use_cpu",
        "--cpu_threads", "1", "--per_device_train_batch_size", "8", "--max_train_steps", "2",
        "--eval_steps", "1", "--history_csv", "--output_dir",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def train(words, tmp_path_factory) -> Callable[[Path], int]:
    """Return a function that trains into a folder and returns the exit code of the recipe.

    Data and model are loaded once. What is trained does not matter, only what is written.
    """
    recipe = runpy.run_path(str(REPOSITORY / CLASSIFY))["train"]
    with pytest.MonkeyPatch.context() as monkeypatch, fresh_global_state():
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
        unused = tmp_path_factory.mktemp("prepared") / "run"
        prepared = ampft.prepare(parse_classify_arguments([*words, str(unused)]))

        for target, function in (
            ("ampft.runs.run_state.evaluate", evaluate),
            ("ampft.precision.matrix_rate.measure_matrix_rate", measure_matrix_rate),
        ):
            monkeypatch.setattr(target, once_per_split(function))

        def run(folder: Path, **changes: object) -> int:
            args = replace(prepared.args, output_dir=str(folder), **changes)
            point = find_resume_point(args)
            here = replace(prepared, args=args, output_dir=folder, resume_point=point)
            monkeypatch.setattr(ampft, "prepare", lambda _: here)
            return run_main(lambda: recipe(args))

        yield run
