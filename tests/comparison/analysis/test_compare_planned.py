"""`ampft compare` on the folder of a planned comparison: it follows the plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from planned import plan
from run_folders import SEEDS, write_runs

from ampft import cli
from ampft.comparison.execution.comparison_folder import plan_facts
from ampft.comparison.execution.plan import PLAN_NAME
from ampft.comparison.execution.session import open_comparison
from ampft.comparison.remarks import remark, remark_texts
from ampft.comparison.report.report_files import read_comparison
from ampft.comparison.settings import parse_compare_arguments
from ampft.files import hashed_text

WRONG = {arm: [range(5)] * 5 for arm in ("fp32", "placebo", "bf16")}
PLAN = plan(
    seed_counts=(5, 10),
    metric="macro_f1",
    margin=0.02,
    reductions=(remark("reduced", flag="num_train_epochs", before=5, after=1),),
    added_after_analysis=True,
)


def with_seeds(*seed_counts):
    return replace(PLAN, design=replace(PLAN.design, seed_counts=seed_counts))


def planned(tmp_path, plan_=PLAN, wrong=WRONG, seeds=SEEDS):
    folder = tmp_path / "cmp"
    runs = write_runs(folder / "runs", wrong, seeds=seeds, losses=[1.0, 0.5])
    (folder / PLAN_NAME).write_text(hashed_text(plan_), encoding="utf-8")
    return folder, runs


def compared(tmp_path, *argv):
    assert cli.main(["compare", *map(str, argv), "--output_dir", str(tmp_path / "out")]) == 0
    return read_comparison(tmp_path / "out")


def refused(capsys, *argv):
    assert cli.main(["compare", *map(str, argv)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.mark.slow
def test_the_plan_of_the_folder_is_followed(tmp_path):
    folder, runs = planned(tmp_path)
    comparison = compared(tmp_path, folder)
    assert (comparison.metric, comparison.margin) == ("macro_f1", 0.02)
    assert (comparison.seed_counts, comparison.alpha) == ((5, 10), 0.025)
    assert comparison.planned
    assert PLAN.reductions[0] in comparison.stamps
    assert any(
        stamp.startswith("unplanned seeds were added after")
        for stamp in remark_texts(comparison.stamps)
    )
    # The runs by themselves have no plan.
    comparison = compared(tmp_path, *runs)
    assert (comparison.metric, comparison.alpha, comparison.planned) == ("accuracy", 0.05, False)
    assert any(stamp.startswith("no plan: ") for stamp in remark_texts(comparison.stamps))


@pytest.mark.slow
def test_flags_that_agree_with_the_plan_are_accepted(tmp_path):
    folder, _ = planned(tmp_path)
    flags = ("--metric", "macro_f1", "--margin", "2", "--baseline", "fp32")
    assert compared(tmp_path, folder, *flags) == compared(tmp_path, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--metric", "accuracy"), "error: --metric accuracy: the plan in "),
        (("--margin", "1"), "error: --margin 1: the plan in "),
        (("--baseline", "bf16"), "error: --baseline bf16: the plan in "),
    ],
)
def test_flags_that_differ_from_the_plan_are_refused(tmp_path, capsys, flags, message):
    folder, runs = planned(tmp_path)
    error = refused(capsys, folder, *flags)
    assert error.startswith(message)
    assert "pass the runs themselves" in error
    if "--baseline" not in flags:  # the placebo is fp32's
        assert cli.main(["compare", *map(str, runs), *flags]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan.json", "run.json"])
def test_existing_results_are_not_overwritten(tmp_path, capsys, name):
    folder, runs = planned(tmp_path)
    target = folder if name == "plan.json" else runs[0]
    before = sorted(target.rglob("*"))
    for sources in ([folder], runs):
        error = refused(capsys, *sources, "--output_dir", target)
        assert error.startswith(f"error: --output_dir {target}: the folder holds {name}")
        assert "Choose another folder." in error
    assert sorted(target.rglob("*")) == before


@pytest.mark.slow
def test_a_seed_that_lacks_a_run_is_omitted_with_a_stamp(tmp_path):
    folder, _ = planned(tmp_path)
    (folder / "runs" / "bf16-seed46" / "run.json").unlink()
    (folder / "logs").mkdir()
    (folder / "logs" / "bf16-seed46.log").write_text("killed\n", encoding="utf-8")
    comparison = compared(tmp_path, folder)
    assert comparison.seeds == SEEDS[:4]
    assert "seed 46 is omitted because bf16 left no run record" in remark_texts(comparison.stamps)


@pytest.mark.slow
def test_too_few_complete_seeds_are_refused(tmp_path, capsys):
    folder, _ = planned(tmp_path)
    (folder / "logs").mkdir()
    for seed in SEEDS[:3]:
        (folder / "runs" / f"bf16-seed{seed}" / "run.json").unlink()
        (folder / "logs" / f"bf16-seed{seed}.log").write_text("killed\n", encoding="utf-8")
    error = refused(capsys, folder)
    assert f"{folder}: 3 of 5 seeds lack a run, but at least 3 complete seeds are needed." in error


@pytest.mark.slow
def test_a_running_comparison_omits_the_same_seeds(tmp_path):
    folder, runs = planned(tmp_path, with_seeds(5))
    (folder / "runs" / "bf16-seed46" / "run.json").unlink()
    command = parse_compare_arguments([])
    with open_comparison(command, folder, with_seeds(5), tmp_path) as session:
        complete = [run.name for run in runs if "seed46" not in run.name]
        found = session.analysed(5)
        assert sorted(run.folder for arm in found.arms for run in arm.runs) == sorted(complete)
        omitted = remark("omitted_seed", seed=46, arms=["bf16"])
        assert found.planned
        assert plan_facts(session.plan, folder, 5).remarks == (omitted, *PLAN.reductions)
        assert plan_facts(session.plan, folder, 4).remarks == PLAN.reductions


@pytest.mark.slow
def test_between_two_analyses_the_earlier_one_is_reported(tmp_path):
    wrong = {arm: [range(5)] * 6 for arm in WRONG}
    folder, _ = planned(tmp_path, wrong=wrong, seeds=range(42, 48))
    assert compared(tmp_path, folder).seeds == SEEDS


@pytest.mark.slow
def test_before_the_first_analysis_there_is_no_result(tmp_path, capsys):
    folder, _ = planned(tmp_path, with_seeds(6))
    error = refused(capsys, folder)
    assert "has not reached its first planned analysis, at 6 seeds" in error


@pytest.mark.slow
def test_a_plan_that_cannot_be_read(tmp_path, capsys):
    folder, _ = planned(tmp_path)
    values = json.loads((folder / PLAN_NAME).read_text(encoding="utf-8"))
    (folder / PLAN_NAME).write_text(json.dumps({**values, "schema": 99}), encoding="utf-8")
    assert "has schema version 99" in refused(capsys, folder)


@pytest.mark.slow
def test_a_comparison_whose_plan_is_gone_is_not_compared_as_unplanned_runs(tmp_path, capsys):
    folder, runs = planned(tmp_path)
    (folder / "comparison.json").write_text("{}", encoding="utf-8")
    assert cli.main(["compare", str(folder)]) == 0
    capsys.readouterr()
    (folder / PLAN_NAME).unlink()
    assert "its plan.json is gone" in refused(capsys, folder)
    assert cli.main(["compare", *map(str, runs)]) == 0
