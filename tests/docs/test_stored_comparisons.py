"""Tables that the documentation quotes are those of stored measurements and today's statistics."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
stored_comparisons = import_module("stored_comparisons")


@pytest.mark.parametrize("page", stored_comparisons.TABLES)
def test_a_table_is_the_one_of_the_stored_measurements(page):
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    name, title = stored_comparisons.TABLES[page]
    assert stored_comparisons.table(name, title) in text


def test_another_measurement_makes_another_table(tmp_path, monkeypatch):
    name, title = stored_comparisons.TABLES["comparing.md"]
    stored = json.loads((RESULTS / name).read_text())
    before = stored_comparisons.table(name, title)
    stored["arms"][2]["step_seconds"][0] *= 1.5
    (tmp_path / name).write_text(json.dumps(stored))
    monkeypatch.setattr(stored_comparisons, "RESULTS", tmp_path)
    assert stored_comparisons.table(name, title) != before


def test_results_that_a_page_names_exist():
    pages = [*(REPOSITORY / "docs").glob("*.md"), *REPOSITORY.glob("*.md")]
    found = [
        (page, name)
        for page in pages
        for name in re.findall(
            r"results/([a-z0-9-]+\.(?:json|md))", page.read_text(encoding="utf-8")
        )
    ]
    assert len(found) > 5
    missing = [(page.name, name) for page, name in found if not (RESULTS / name).exists()]
    assert not missing


def test_sections_of_the_log_that_a_page_names_exist():
    log = (REPOSITORY / "benchmarks" / "LOG.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (.+)$", log, re.MULTILINE))
    named = {
        " ".join(name.split())
        for page in (REPOSITORY / "docs").glob("*.md")
        for name in re.findall(
            r'`benchmarks/LOG\.md`,\s+"([^"]+)"', page.read_text(encoding="utf-8")
        )
    }
    assert len(named) > 15
    assert named <= headings


FOLDER_OF_ONE_MACHINE = re.compile(r'"/(tmp|home|root|work)/')


def test_no_stored_measurement_names_a_folder_of_one_machine(monkeypatch):
    for path in sorted(RESULTS.glob("*.json")):
        assert not FOLDER_OF_ONE_MACHINE.search(path.read_text(encoding="utf-8")), path
    monkeypatch.setattr(
        "sys.argv", ["speed.py", "--data", "/tmp/a/data", "--out", "results/b.json"]
    )
    command = import_module("provenance").provenance()["command"]
    assert command == ["speed.py", "--data", "data", "--out", "results/b.json"]
    assert FOLDER_OF_ONE_MACHINE.search(json.dumps(["--data", "/tmp/a/data"]))
