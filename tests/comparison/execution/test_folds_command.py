"""`ampft compare --folds`: plan and refusals. `lab/curve/test_curve_and_folds.py` trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import plan

from ampft.comparison.arm_settings import parse_compare_arms_arguments
from ampft.comparison.settings import parse_compare_arguments
from ampft.errors import InputError

RUN = ("--", "--train_file", "train.csv")


def test_a_plan_has_a_run_for_each_arm_seed_and_fold():
    design = replace(plan().design, folds=3, draws=True, seed_counts=(4,))
    runs = plan(design=design).runs()
    arms = len(plan(design=design).compared_arms)
    assert len(runs) == len({run.name for run in runs}) == arms * 4 * 3
    assert runs[0].name.endswith("-seed42-fold1")
    assert runs[0].flags[-2:] == ("--fold", "1")
    assert {run.fold for run in runs} == {1, 2, 3}
    assert {run.fold for run in plan().runs()} == {0}
    assert all("fold" not in run.name and "--fold" not in run.flags for run in plan().runs())


def test_runs_are_told_the_folds_and_have_no_placebo():
    command = parse_compare_arguments(["--folds", "5", *RUN])
    assert command.classify_argv[-2:] == ("--folds", "5")
    assert (command.design.folds, command.design.draws, command.design.placebo) == (5, True, False)
    assert not parse_compare_arguments([*RUN]).design.draws


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--folds", "1", *RUN], "--folds"),
        ([*RUN, "--folds", "5"], "--folds is a setting of .*belongs before ` -- `"),
    ],
)
def test_invalid_folds_are_refused(argv, message):
    with pytest.raises(InputError, match=message):
        parse_compare_arguments(argv)


def test_folds_do_not_choose_between_arms():
    arms = ["--arm", "a", "--arm", "b: --seed 1".replace("--seed", "--weight_decay"), "--arm"]
    arms += ["c: --weight_decay 2", "--select", "validation"]
    with pytest.raises(InputError, match="folds do not choose between arms"):
        parse_compare_arms_arguments([*arms, "--folds", "5", *RUN])
