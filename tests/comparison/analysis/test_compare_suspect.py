"""Models that learned nothing, and speeds that the placebo contradicts, get no verdict on them."""

from __future__ import annotations

import pytest
from run_folders import SEEDS, predicted, write_run

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.findings import PlanFacts
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.report_files import read_comparison, write_comparison
from ampft.comparison.verdict_text import verdict_texts

FEW = SEEDS[:3]
WARNING = {"near_chance": "the training loss ended at 2.4: next to nothing was learned."}


def compared(folder, *, suspect=(), placebo_seconds=0.1):
    """Compare equal predictions; the arms in `suspect` have a warning with the last seed."""
    seconds = {"fp32": 0.1, "placebo": placebo_seconds, "bf16": 0.05}
    runs = []
    for arm in seconds:
        for seed in FEW:
            changes = {"warnings": WARNING} if arm in suspect and seed == FEW[-1] else {}
            timings = {"step_seconds_median": seconds[arm]}
            runs.append(write_run(folder, arm, seed, predicted(), timings=timings, **changes))
    # A plan trains the arms in turns; without one, speeds are not ranked.
    return compare_folders(runs, plan=PlanFacts(planned=True, seed_counts=(len(FEW),)))


@pytest.mark.slow
def test_models_that_learned_are_judged(tmp_path):
    comparison = compared(tmp_path)
    assert "x faster than fp32" in verdict_texts(comparison)[0]
    assert "undecided at a margin" in verdict_texts(comparison)[0]
    assert not any(
        s.startswith(("not trained", "speeds are")) for s in remark_texts(comparison.stamps)
    )


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["fp32", "bf16"])
def test_a_model_that_learned_nothing_gets_no_verdict(tmp_path, arm):
    comparison = compared(tmp_path / "runs", suspect=[arm])
    assert verdict_texts(comparison) == (
        f"bf16 has no verdict, because 1 of 3 runs of {arm} (seed {FEW[-1]}) did not train well: "
        "the training loss ended at 2.4: next to nothing was learned.",
    )
    assert comparison.arms[2].difference.verdict is None
    assert comparison.arms[2].difference.interval95 is not None
    assert remark_texts(comparison.stamps)[0].startswith(
        f"not trained well: 1 of 9 runs ended with a warning, such as {arm} with seed {FEW[-1]}: "
    )
    write_comparison(comparison, tmp_path / "out")
    assert read_comparison(tmp_path / "out") == comparison


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "ratio"), [(0.1 / 0.74, "0.74"), (0.1 / 1.2, "1.2")])
def test_a_placebo_of_another_speed_makes_speeds_unreliable(tmp_path, seconds, ratio):
    comparison = compared(tmp_path, placebo_seconds=seconds)
    (verdict,) = verdict_texts(comparison)
    assert "faster" not in verdict
    assert f"ran at {ratio}x its speed" in verdict
    assert "undecided at a margin" in verdict
    assert any(
        stamp.startswith("speeds are unreliable: ") for stamp in remark_texts(comparison.stamps)
    )


@pytest.mark.slow
def test_a_placebo_within_ten_percent_does_not(tmp_path):
    assert "faster than fp32" in verdict_texts(compared(tmp_path, placebo_seconds=0.1 / 0.95))[0]
