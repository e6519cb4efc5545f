"""Reports and records are read without importing torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

PRINT_HEAVY = "import sys; print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"


def imported_by(statement: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; {PRINT_HEAVY}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


# Modules that train or predict. The others must work without torch.
HEAVY = {
    *("predict", "predictor", "predict_output", "predict_scores"),
    *("prepare", "prepared", "prepared_checks", "precision_check", "plan", "opening"),
    *("run", "train", "validation", "nonfinite"),
    *("checkpointing", "conditions", "fingerprint", "resume", "state", "caller_state", "finetune"),
}


def test_metrics_and_records_import_no_torch():
    modules = [
        f"ampft.{package}.{path.name.removesuffix('.py')}"
        for package in ("metrics", "runs")
        for path in files(f"ampft.{package}").iterdir()
        if path.name.endswith(".py") and path.name.removesuffix(".py") not in {"__init__", *HEAVY}
    ]
    assert len(modules) >= 10
    assert imported_by(f"import {', '.join(modules)}") == "[]"


def test_the_check_finds_torch():
    assert imported_by("import torch") == "['torch']"
