"""Reports and records are read without importing torch."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from ampft.registry import ADD_ONS

PACKAGE = Path(__file__).parents[2] / "ampft"
PRINT_HEAVY = "import sys; print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"


def imported_by(statement: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; {PRINT_HEAVY}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


# Modules that train or predict. The others must work without torch.
HEAVY = {
    *("predict", "predictor", "predict_shards"),
    *("prepare", "prepared", "prepared_checks", "opening"),
    *("run", "train"),
    *(
        "graphs",
        "checkpoint_content",
        "run_state",
        "caller_state",
        "loop",
        "loop_state",
        "environment",
        "recorded_arguments",
        "unlabelled_rows",
    ),
}


@pytest.mark.slow
def test_metrics_and_records_import_no_torch():
    modules = [
        f"ampft.{package}.{path.name.removesuffix('.py')}"
        for package in ("metrics", "runs")
        for path in files(f"ampft.{package}").iterdir()
        if path.name.endswith(".py") and path.name.removesuffix(".py") not in {"__init__", *HEAVY}
    ]
    assert len(modules) >= 10
    assert imported_by(f"import {', '.join(modules)}") == "[]"


def modules_after(statement: str) -> set[str]:
    """Return the names of all modules that a statement imports."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.slow
def test_the_main_function_imports_libraries_only_when_it_runs():
    found = modules_after("import ampft; ampft.finetune")
    assert "ampft.integrations.finetune" in found
    assert {
        "torch",
        "transformers",
        "datasets",
        "jinja2",
        "pandas",
        "scipy",
        "sklearn",
    } & found == set()


OTHER_PRODUCTS = ("ampft.comparison", "ampft.lab.")
# Folders and files that may import them.
ABOVE = {*ADD_ONS, "commands", "cli.py"}


def test_the_settings_of_a_run_import_no_numpy():
    assert "numpy" not in modules_after("import ampft.arguments")


def of_other_products(statement: str) -> list[str]:
    return [
        name
        for name in modules_after(statement)
        if name.startswith(OTHER_PRODUCTS)
        # Modules that only say what there is.
        and not name.endswith((".comparison", ".additions", ".extension_points"))
    ]


@pytest.mark.slow
def test_runs_and_their_audit_import_neither_comparison_nor_diagnosis():
    """Every module below them, also what its functions import: the text is searched as well."""
    paths = [
        path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ABOVE
    ]
    assert len(paths) > 150
    named = [p for p in paths if re.search(r"import.*ampft\.(comparison|lab)|"
             r"from ampft\.(comparison|lab)", p.read_text(encoding="utf-8"))]  # fmt: skip
    assert named == []
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in (PACKAGE / "runs").rglob("*.py")
        if path.name not in {"__init__.py"}
    ]
    assert len(modules) > 25
    assert of_other_products(f"import {', '.join(modules)}") == []
    assert of_other_products("import ampft.comparison.analysis.compare_folders") != []


@pytest.mark.slow
def test_the_check_finds_torch():
    assert imported_by("import torch") == "['torch']"


@pytest.mark.slow
@pytest.mark.add_ons
def test_what_add_ons_add_is_imported_when_it_is_used():
    modules = modules_after("from ampft.commands.all_commands import all_commands; all_commands()")
    assert "ampft.lab.additions" in modules
    assert not modules & {"torch", "ampft.lab.doctor.doctor", "ampft.emulation.products"}
