"""Starts the recipes as users do, and writes tiny files for them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from global_state import fresh_global_state
from warm_processes import WarmPopen

REPOSITORY = Path(__file__).parents[1]
CLASSIFY = "recipes/classify.py"
BIN = Path(sys.executable).parent

WORDS = {
    "fruit": ("apple", "pear", "plum", "cherry"),
    "metal": ("iron", "copper", "zinc", "tin"),
    "river": ("rhine", "nile", "volga", "loire"),
}
FILLERS = ("the", "a", "of", "is", "and", "with", "very", "old", "new", "here")

# Values that tests search for in everything that a run writes and prints.
CANARIES = {
    "HF_TOKEN": "hf_canary0123456789abcdefghijklmnop",
    "WANDB_API_KEY": "canary0123456789abcdef0123456789abcdef01",
    "AWS_SECRET_ACCESS_KEY": "canaryQ7fEXAMPLEKEYbPxRfiCYzz0123456789",
}


def rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Return texts of 2 to 8 words and an id. Two of the words belong to the class."""
    generator = random.Random(seed)
    table = []
    for index in range(count):
        label = list(WORDS)[index % len(WORDS)]
        words = generator.choices(FILLERS, k=generator.randint(0, 6))
        words += generator.choices(WORDS[label], k=2)
        generator.shuffle(words)
        table.append((f"{' '.join(words)} {seed}x{index}", label))
    return table


def write_csv(path: Path, table: Iterable[tuple[str, str]], header: Sequence[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(table)
    return path


def clean_environment(**more: str) -> dict[str, str]:
    """Return this environment without variables of a launcher or an earlier test."""
    prefixes = (
        "ACCELERATE_",
        "MASTER_",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "FSDP_",
        "TORCHELASTIC",
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    return {**inherited, **offline, **more}


def last_of_each(*words: object) -> list[str]:
    """Return a command line without settings of a training that a later word sets again.

    Tests change the flags of a shared list by adding words; a command refuses repeated flags.
    """
    from ampft.arguments.classify import ClassifyArguments
    from ampft.arguments.flags import fields_and_hints, given_flags

    every = [str(word) for word in words]
    ends = [i for i, word in enumerate(every) if word in ("--", "train") or word.endswith(".py")]
    start = ends[-1] + 1 if ends else len(every)
    flags = list(given_flags(every[start:], *fields_and_hints(ClassifyArguments)))
    names = [each.name for each in flags]
    kept = [f for i, f in enumerate(flags) if not f.name or f.name not in names[i + 1 :]]
    return every[:start] + [word for each in kept for word in each.words]


def call(
    *words: object,
    cwd: Path = REPOSITORY,
    timeout: float = 300,
    warm: bool = True,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process, whose imports are shared if it is `warm` and Python."""
    command = last_of_each(*words)
    start = WarmPopen if warm else subprocess.Popen
    with start(
        command, cwd=cwd, env=clean_environment(**environment), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def call_here(
    script: str | Path, *words: object, cwd: Path = REPOSITORY, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of Python, as `call` does, in this process: it has imported torch already."""
    argv = last_of_each(script, *words)
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        patch.dict(os.environ, clean_environment(**environment), clear=True),
        patch.object(sys, "argv", argv),
        contextlib.chdir(cwd),
        fresh_global_state(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def own_lines(stderr: str) -> list[str]:
    """Return the lines of standard error without notices of torchao and bitsandbytes."""
    return [
        line
        for line in stderr.splitlines()
        if not any(part in line for part in ("torchao", "register_constant()", "gemm_4bit_forward"))
    ]


def printed(text: str, name: str) -> str:
    """Return what a run printed after the label `name`, with wrapped lines joined."""
    lines = text.splitlines()
    (first,) = [index for index, line in enumerate(lines) if line.startswith(f"{name} ")]
    wrapped = takewhile(lambda line: line.startswith(" " * 11), lines[first + 1 :])
    return " ".join(line[11:] for line in (lines[first], *wrapped))


def text_settings(files: Path, model: Path, output_dir: Path) -> list[str]:
    """Return flags that train the tiny model on the tiny files: 4 epochs of 9 steps."""
    settings = {
        "model_name_or_path": model,
        "train_file": files / "train.csv",
        "validation_file": files / "validation.csv",
        "test_file": files / "test.csv",
        "output_dir": output_dir,
        "learning_rate": 8e-3,
        "warmup_ratio": 0.2,
        "num_train_epochs": 4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "cpu_threads": 1,
        "use_cpu": None,
    }
    words: list[str] = []
    for name, value in settings.items():
        words += [f"--{name}"] if value is None else [f"--{name}", str(value)]
    return words


def file_names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def record_of(folder: Path) -> dict[str, Any]:
    """Return the record of a run."""
    return json.loads((folder / "run.json").read_text())


@dataclass(frozen=True)
class Finished:
    """The folder and the output of a run that succeeded."""

    folder: Path
    stdout: str
    stderr: str

    @property
    def record(self) -> dict[str, Any]:
        return record_of(self.folder)

    @property
    def predictions(self) -> dict[str, list[Any]]:
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / "predictions.parquet").to_pydict()

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())

    @property
    def history(self) -> list[dict[str, Any]]:
        lines = (self.folder / "history.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def trained_in_two_modes(
    model: Path, temporary: pytest.TempPathFactory, table: Callable[[int, int], Iterable[Any]],
    header: Sequence[str], *flags: object,
) -> list[Finished]:  # fmt: skip
    """Train on new files in fp32 and in bf16, beside the simple methods.

    Args:
        table: Function that returns a number of rows for a seed.
    """
    files = temporary.mktemp("files")
    for seed, (name, count) in enumerate({"train": 200, "validation": 40, "test": 60}.items()):
        write_csv(files / f"{name}.csv", table(count, seed), header)
    finished = []
    for mode in ("fp32", "bf16"):
        folder = temporary.mktemp("runs") / mode
        settings = text_settings(files, model, folder)
        words = (*settings, *flags, "--mixed_precision", mode, "--baseline")
        done = succeeded(call_here(CLASSIFY, *words))
        finished.append(Finished(folder, done.stdout, done.stderr))
    return finished
