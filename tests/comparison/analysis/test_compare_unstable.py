"""A comparison in which no arm is complete gives a report without metrics, not an error."""

from __future__ import annotations

import pytest
from run_folders import NAMES, SEEDS, N, predicted, write_run

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.report_files import read_comparison, terminal_text, write_comparison
from ampft.comparison.report.sections import method_paragraphs
from ampft.comparison.verdict_text import verdict_texts

FEW = SEEDS[:3]
REASON = "the loss was not finite at step 2"


def unstable(tmp_path, diverged):
    """Write runs of fp32, placebo and bf16 that diverge with the seeds in `diverged`."""
    runs = []
    for arm in ("fp32", "placebo", "bf16"):
        for seed in FEW:
            if seed in diverged:
                changes = {"status": "diverged", "reason": REASON, "validations": ()}
                runs.append(write_run(tmp_path, arm, seed, losses=[1.0, "nan"], **changes))
            else:
                runs.append(write_run(tmp_path, arm, seed, predicted(), losses=[1.0, 0.5]))
    return runs


@pytest.mark.parametrize("diverged", [FEW[:1], FEW[1:], FEW])
def test_every_arm_with_a_diverged_seed_gets_a_report_without_metrics(tmp_path, diverged):
    comparison = compare_folders(unstable(tmp_path / "runs", diverged))
    words = f"unstable, {len(diverged)} of 3"
    assert [arm.status_words for arm in comparison.arms] == [words] * 3
    assert [arm.metrics for arm in comparison.arms] == [{}] * 3
    assert all(arm.difference is None and arm.flips is None for arm in comparison.arms)
    assert comparison.margin_share_of_errors is None
    assert (comparison.split, comparison.examples, comparison.label_names) == ("test", N, NAMES)
    curves = [curve for arm in comparison.arms for curve in arm.curves]
    assert len(curves) == 9
    assert all(curve.loss[0] == 1.0 for curve in curves)
    assert any(
        stamp == f"no baseline: fp32 is {words}" for stamp in remark_texts(comparison.stamps)
    )
    assert verdict_texts(comparison)[0].startswith(
        f"bf16 is unstable because {len(diverged)} of 3 runs"
    )
    assert REASON in verdict_texts(comparison)[0]
    assert method_paragraphs(comparison)
    # It is printed and written like any other.
    assert words in terminal_text(comparison)
    write_comparison(comparison, tmp_path / "out")
    assert read_comparison(tmp_path / "out") == comparison
    for name in ("comparison.md", "comparison.html"):
        assert REASON in (tmp_path / "out" / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_complete_arms_have_metrics(tmp_path):
    comparison = compare_folders(unstable(tmp_path / "runs", ()))
    assert all(arm.metrics for arm in comparison.arms)
