"""The paragraphs on the method of a comparison, with and without a plan."""

from __future__ import annotations

import pytest
from run_folders import SEEDS, write_runs

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.findings import PlanFacts
from ampft.comparison.report.sections import method_paragraphs

WRONG = {"fp32": [range(5)] * 3, "bf16": [range(6)] * 3}


def paragraphs(tmp_path, plan):
    runs = write_runs(tmp_path, WRONG, seeds=SEEDS[:3])
    return " ".join(method_paragraphs(compare_folders(runs, plan=plan)))


@pytest.mark.slow
def test_a_planned_comparison_claims_a_plan(tmp_path):
    text = paragraphs(tmp_path, PlanFacts(planned=True))
    assert "were fixed before the first run" in text
    assert "one at a time with the modes interleaved" in text
    assert "after results were seen" not in text


@pytest.mark.slow
def test_a_comparison_without_a_plan_claims_none(tmp_path):
    text = paragraphs(tmp_path, None)
    assert "were fixed" not in text
    assert "interleaved" not in text
    assert "may have been chosen after results were seen" in text
    assert "measured at different times" in text


@pytest.mark.slow
def test_the_variance_floor_and_the_three_families_are_explained(tmp_path):
    text = paragraphs(tmp_path, None)
    assert "at least the square of the effect of a single example" in text
    assert "difference, for difference beyond the margin and for equivalence" in text
