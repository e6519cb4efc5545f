"""`ampft compare` on a comparison's own folder: its plan stands, and its results stay."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from comparison_execution.planned import plan
from run_folders import SEEDS, write_runs

from ampft import cli
from ampft.arguments import parse_compare_arguments
from ampft.comparison.execution.plan import PLAN_NAME
from ampft.comparison.execution.session import open_comparison
from ampft.comparison.report.files import read_comparison
from ampft.text.json_io import json_text

WRONG = {arm: [range(5)] * 5 for arm in ("fp32", "placebo", "bf16")}
PLAN = plan(
    looks=(5, 10),
    metric="macro_f1",
    margin=0.02,
    reductions=("one epoch in place of five, to keep to 15 min",),
    added_after_look=True,
)


def planned(tmp_path, kept=PLAN, wrong=WRONG, seeds=SEEDS):
    folder = tmp_path / "cmp"
    runs = write_runs(folder / "runs", wrong, seeds=seeds, losses=[1.0, 0.5])
    (folder / PLAN_NAME).write_text(json_text(kept), encoding="utf-8")
    return folder, runs


def found(tmp_path, *words):
    assert cli.main(["compare", *map(str, words), "--output_dir", str(tmp_path / "out")]) == 0
    return read_comparison(tmp_path / "out")


def refused(capsys, *words):
    assert cli.main(["compare", *map(str, words)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


def test_the_plan_of_the_folder_stands(tmp_path):
    folder, runs = planned(tmp_path)
    comparison = found(tmp_path, folder)
    assert (comparison.metric, comparison.margin) == ("macro_f1", 0.02)
    assert (comparison.looks, comparison.alpha) == ((5, 10), 0.025)
    assert comparison.planned
    assert PLAN.reductions[0] in comparison.stamps
    assert any(stamp.startswith("seeds added after a look") for stamp in comparison.stamps)
    # The runs by themselves are runs that nobody planned.
    comparison = found(tmp_path, *runs)
    assert (comparison.metric, comparison.alpha, comparison.planned) == ("accuracy", 0.05, False)
    assert any(stamp.startswith("no plan: ") for stamp in comparison.stamps)


def test_words_that_agree_with_the_plan_are_taken(tmp_path):
    folder, _ = planned(tmp_path)
    words = ("--metric", "macro_f1", "--margin", "2", "--baseline", "fp32")
    assert found(tmp_path, folder, *words) == found(tmp_path, folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "accuracy"), "error: --metric accuracy: the plan in "),
        (("--margin", "1"), "error: --margin 1: the plan in "),
        (("--baseline", "bf16"), "error: --baseline bf16: the plan in "),
    ],
)
def test_other_words_than_the_plan_has_are_refused(tmp_path, capsys, words, message):
    folder, runs = planned(tmp_path)
    error = refused(capsys, folder, *words)
    assert error.startswith(message)
    assert "name the runs themselves" in error
    if "--baseline" not in words:  # the placebo is fp32's
        assert cli.main(["compare", *map(str, runs), *words]) == 0


@pytest.mark.parametrize("name", ["plan.json", "run.json"])
def test_results_of_others_are_not_overwritten(tmp_path, capsys, name):
    folder, runs = planned(tmp_path)
    held = folder if name == "plan.json" else runs[0]
    before = sorted(held.rglob("*"))
    for given in ([folder], runs):
        error = refused(capsys, *given, "--output_dir", held)
        assert error.startswith(f"error: --output_dir {held}: the folder holds {name}")
        assert "Name another folder." in error
    assert sorted(held.rglob("*")) == before


def test_a_seed_that_lacks_a_run_is_left_out_and_stamped(tmp_path):
    folder, _ = planned(tmp_path)
    (folder / "runs" / "bf16-seed46" / "run.json").unlink()
    (folder / "logs").mkdir()
    (folder / "logs" / "bf16-seed46.log").write_text("killed\n", encoding="utf-8")
    comparison = found(tmp_path, folder)
    assert comparison.seeds == SEEDS[:4]
    assert "seed 46 is left out: bf16 left no record at it" in comparison.stamps


def test_too_few_whole_seeds_are_refused(tmp_path, capsys):
    folder, _ = planned(tmp_path)
    (folder / "logs").mkdir()
    for seed in SEEDS[:3]:
        (folder / "runs" / f"bf16-seed{seed}" / "run.json").unlink()
        (folder / "logs" / f"bf16-seed{seed}.log").write_text("killed\n", encoding="utf-8")
    error = refused(capsys, folder)
    assert f"{folder}: 3 of 5 seeds lack a run, and 3 are needed. The comparison's own" in error


def test_a_comparison_under_way_says_so_too(tmp_path):
    folder, runs = planned(tmp_path, replace(PLAN, looks=(5,)))
    (folder / "runs" / "bf16-seed46" / "run.json").unlink()
    command = parse_compare_arguments([])
    with open_comparison(command, folder, replace(PLAN, looks=(5,)), tmp_path) as comparing:
        left = [run for run in runs if "seed46" not in run.name]
        assert sorted(comparing.folders(5)) == sorted(left)
        assert comparing.facts(5).lacking == ("seed 46 is left out: bf16 left no record at it",)
        assert comparing.facts(4).lacking == ()
        assert comparing.facts(5).planned


def test_between_two_looks_the_last_look_is_shown(tmp_path):
    wrong = {arm: [range(5)] * 6 for arm in WRONG}
    folder, _ = planned(tmp_path, wrong=wrong, seeds=range(42, 48))
    assert found(tmp_path, folder).seeds == SEEDS


def test_before_the_first_look_there_is_nothing_to_see(tmp_path, capsys):
    kept = replace(PLAN, looks=(6,))
    folder, _ = planned(tmp_path, kept)
    error = refused(capsys, folder)
    assert "has not come to its first look, at 6 seeds" in error


def test_a_plan_that_cannot_be_read(tmp_path, capsys):
    folder, _ = planned(tmp_path)
    values = json.loads((folder / PLAN_NAME).read_text(encoding="utf-8"))
    (folder / PLAN_NAME).write_text(json.dumps({**values, "schema": 99}), encoding="utf-8")
    assert "has layout 99" in refused(capsys, folder)
