"""Comparisons of arms that a user names: the command line, the plan, and the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planned import ESTIMATE, SIZE, plan
from run_folders import predicted, record_of, write_run
from running import CANARIES

from ampft.comparison.arm_settings import parse_compare_arms_arguments
from ampft.comparison.execution.comparison_folder import compare_planned_runs
from ampft.comparison.execution.plan import (
    KIND_OF_LABELS,
    PLAN_NAME,
    TrialResult,
    plan_difference,
    read_plan,
    set_by_flags,
)
from ampft.comparison.execution.plan_text import plan_detection_limits, plan_lines
from ampft.comparison.execution.planning import (
    _check_compared,
    _check_selection,
    fit_to_budget,
    metric_of_task,
    redacted_settings,
)
from ampft.comparison.execution.session import open_comparison
from ampft.comparison.remarks import remark_texts
from ampft.comparison.settings import ArmSettings
from ampft.errors import InputError
from ampft.files import hashed_text
from ampft.runs.record import BestPart, ValidationPart

ARMS = ["--arm", "base", "--arm", "low: --learning_rate 1e-5"]
LONG = replace(ESTIMATE, size=replace(SIZE, epochs=10), evaluates_fp32=False)
SETTINGS = (
    ArmSettings("base", (), "fp32"),
    ArmSettings("low", ("--learning_rate", "1e-5"), "fp32"),
    ArmSettings("long", ("--num_train_epochs", "10"), "bf16"),
)


def arms_plan(**changes):
    """Return a plan of three arms and a placebo with seeds 42 to 44."""
    short = replace(ESTIMATE, evaluates_fp32=False)
    estimates = {"base": short, "low": short, "long": LONG}
    return plan(modes=None, arm_settings=SETTINGS, arm_estimates=estimates, **changes)


def test_arms_have_a_name_and_settings():
    words = ["--arm", "base:", "--arm", "low: --learning_rate 1e-5 --padding"]
    command = parse_compare_arms_arguments(
        [*words, "--arm=half: --mixed_precision bf16", "--seeds", "3", "--", "--seed", "7"]
    )
    assert command.design.arm_settings == (
        ArmSettings("base", (), "fp32"),
        ArmSettings("low", ("--learning_rate", "1e-5", "--padding"), "fp32"),
        ArmSettings("half", ("--mixed_precision", "bf16"), "bf16"),
    )
    assert (command.design.modes, command.classify.seed, command.design.metric) == (None, 7, None)
    assert command.classify_argv == ("--seed", "7")


def test_a_flag_of_an_arm_may_need_one_of_all_runs():
    words = ["--arm", "whole", "--arm", "in_4_bits: --load_in_4bit"]
    command = parse_compare_arms_arguments([*words, "--", "--lora_r", "8"])
    assert command.design.arm_settings[1].flags == ("--load_in_4bit",)
    with pytest.raises(InputError, match="in_4_bits: --load_in_4bit has no effect without"):
        parse_compare_arms_arguments(words)


def test_arms_may_stand_in_a_file(tmp_path):
    config = tmp_path / "arms.yaml"
    config.write_text('arm: [base, "low: --learning_rate 1e-5"]\nseeds: "3"\n')
    command = parse_compare_arms_arguments(["--config", str(config)])
    assert [arm.name for arm in command.design.arm_settings] == ["base", "low"]


REFUSED = {
    "no arm": ([], "received 0 arms, but a comparison needs at least two"),
    "one arm": (["--arm", "base"], "received 1 arm, but a comparison needs at least two"),
    "no name": (["--arm", ": --padding"], "the name of the arm is missing. Begin with a name"),
    "flags only": (["--arm", "--padding"], "--padding is a setting of classify.py"),
    "a name with a slash": (["--arm", "a/b"], "the name of the arm is invalid"),
    "a name twice": (["--arm", "a", "--arm", "A: --padding"], "two arms have this name"),
    "the placebo": ([*ARMS, "--arm", "placebo: --padding"], "this name is reserved"),
    "equal arms": (
        [*ARMS, "--arm", "same: --learning_rate=0.00001"], "its settings are the same as low's",
    ),
    "the baseline again": (["--arm", "a", "--arm", "b"], "its settings are the same as a's"),
    "a seed": ([*ARMS, "--arm", "b: --seed 1"], "--seed: all arms train with the same seeds"),
    "a folder": ([*ARMS, "--arm", "b: --output_dir x"], "--output_dir: give it before"),
    "a file": ([*ARMS, "--arm", "b: --config x.yaml"], "--config: write the settings of an arm"),
    "an unknown flag": ([*ARMS, "--arm", "b: --learning_rat 1"], "--arm b: unknown flag"),
    "a bad value": ([*ARMS, "--arm", "b: --num_train_epochs 0"], "--arm b: --num_train_epochs"),
    "a choice on test": ([*ARMS, "--select", "test"], "--select: received 'test'"),
    "nothing to choose": ([*ARMS, "--select", "validation"], "nothing to choose between two arms"),
    "an open quote": ([*ARMS, "--arm", "b: --train_file 'x"], "the flags cannot be split"),
    "the name of a mode": ([*ARMS, "--arm", "bf16: --padding"], "trains in fp32. Choose another"),
    "another kind of labels": (
        [*ARMS, "--arm", "b: --task multi-label"], "has other labels than base",
    ),
    "a folder for all runs": ([*ARMS, "--", "--output_dir", "x"], "belongs before ` -- `"),
    "a setting before the dashes": (
        [*ARMS, "--learning_rate", "1"], "--learning_rate is a setting of classify.py",
    ),
}  # fmt: skip


@pytest.mark.add_ons
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    words, message = REFUSED[name]
    with pytest.raises(InputError) as refused:
        parse_compare_arms_arguments(words)
    assert message in str(refused.value)


def test_the_runs_of_arms_have_their_flags(tmp_path):
    words = [*ARMS, "--arm", "long: --num_train_epochs 10 --mixed_precision bf16"]
    command = parse_compare_arms_arguments([*words, "--", "--train_file", "a.csv"])
    with open_comparison(command, tmp_path / "cmp", arms_plan(), Path("classify.py")) as session:
        runs = {run.name: session.argv(run)[1:-8] for run in session.missing(1)}
        again = replace(next(iter(session.missing(1))), seed=43)
        assert "--no-baseline" in session.argv(again), "simple methods are fitted once per arm"
    shared, seed = ["--train_file", "a.csv"], ["--seed", "42"]
    in_fp32 = ["--mixed_precision", "fp32"]
    assert runs == {
        "base-seed42": [*shared, *in_fp32, *seed],
        "placebo-seed42": [*shared, *in_fp32, *seed, "--perturb_initial_weights"],
        "low-seed42": [*shared, "--learning_rate", "1e-5", *in_fp32, *seed],
        "long-seed42": [*shared, "--num_train_epochs", "10", "--mixed_precision", "bf16", *seed],
    }


def test_a_plan_of_arms_reads_back_and_is_continued_with_the_same_arms_only(tmp_path):
    existing = arms_plan()
    (tmp_path / PLAN_NAME).write_text(hashed_text(existing))
    assert read_plan(tmp_path) == existing
    command = parse_compare_arms_arguments([*ARMS, "--seeds", "3"])
    difference = plan_difference(existing, command.design, redacted_settings(command))
    assert difference is not None
    assert difference.startswith("--arm was base,low: --learning_rate 1e-5,long: --num_train_ep")
    assert difference.endswith("and is now base,low: --learning_rate 1e-5")


def test_the_plan_shows_what_differs(tmp_path):
    text = plan_lines(tmp_path, arms_plan(), arms_plan().runs())
    assert "base (shared settings; fp32, native), placebo (base with initial weights" in text
    assert "low (--learning_rate 1e-5; fp32, native)" in text
    assert "base, low: 515 steps" in text
    assert "long: 1,030 steps" in text


def test_a_budget_shortens_arms_of_equal_length_only():
    equal = replace(arms_plan(), design=replace(arms_plan().design, arm_settings=SETTINGS[:2]))
    assert fit_to_budget(equal, 3 * 120).overrides.keys() == {"num_train_epochs"}
    with pytest.raises(InputError, match="arms differ in the length of training"):
        fit_to_budget(arms_plan(), 3 * 120)
    assert fit_to_budget(arms_plan(), 3 * 1e6).size == SIZE


def test_arms_that_report_on_other_examples_are_refused_before_training():
    facts = {"reported split": "test", "examples of the split test": "ab"}
    trials = {
        name: TrialResult(
            ESTIMATE, ("fp32",), splits={"train": "", "test": ""}, compared=facts | changes
        )
        for name, changes in (("base", {}), ("low", {"examples of the split test": "cd"}))
    }
    with pytest.raises(InputError, match=r"low: it differs from base in examples .* ab and cd"):
        _check_compared("base", "low", trials)


@pytest.mark.slow
def test_planned_arms_keep_their_names(tmp_path):
    planned = arms_plan(seed_counts=(3,))
    for run in planned.runs():
        (settings,) = [each for each in SETTINGS if each.name == run.arm.name] or [SETTINGS[0]]
        record = record_of("placebo" if run.arm.is_perturbed else settings.mode, run.seed)
        arguments = {**record.arguments, "learning_rate": 1e-5 if run.arm.name == "low" else 5e-5}
        if run.arm.name == "long":
            arguments["num_train_epochs"] = 10
        write_run(
            tmp_path / "runs", record.arguments["mixed_precision"], run.seed,
            predicted(range(4)), name=run.name, arguments=arguments, model=record.model,
        )  # fmt: skip
    comparison = compare_planned_runs(tmp_path, planned)
    assert [arm.name for arm in comparison.arms] == ["base", "placebo", "low", "long"]
    assert comparison.varied == ("mixed_precision", "learning_rate", "num_train_epochs")
    assert comparison.noun == "arm"
    assert comparison.planned
    assert comparison.arms[1].is_placebo
    assert comparison.arms[1].settings == comparison.arms[0].settings
    assert comparison.arms[2].settings["learning_rate"] == "1e-05"
    assert not [stamp for stamp in remark_texts(comparison.stamps) if "like for like" in stamp]
    with pytest.raises(InputError, match=r"--baseline low: the plan in .* specifies base"):
        compare_planned_runs(tmp_path, planned, baseline="low")


@pytest.mark.parametrize("longest", ["base", "low", "long"])
def test_another_arm_stands_for_the_chosen_one_before_the_choice(longest):
    """Check the plan of arms of any length: once, the baseline stood for the chosen arm."""
    short = replace(ESTIMATE, evaluates_fp32=False)
    estimates = {"base": short, "low": short, "long": short} | {longest: LONG}
    planned = replace(arms_plan(select_seeds=2), arm_estimates=estimates)
    planned = replace(planned, estimate=replace(planned.estimate, cases=200))
    names = [arm.name for arm in planned.compared_arms if not arm.is_perturbed]
    assert names == ["base", "low" if longest == "base" else longest]
    assert plan_detection_limits(planned) is not None
    assert plan_detection_limits(replace(planned, selected="base")) is None


@pytest.mark.slow
def test_an_arm_is_chosen_by_validation_with_other_seeds(tmp_path, capsys):
    words = [*ARMS, "--arm", "long: --num_train_epochs 10", "--select", "validation"]
    command = parse_compare_arms_arguments([*words, "--seeds", "3"])
    planned = arms_plan(select_seeds=command.design.select_seeds)
    assert command.design.select_seeds == 2
    with open_comparison(command, tmp_path, planned, Path("classify.py")) as session:
        # The three arms with two seeds choose, before anything is compared.
        assert {run.name for run in session.missing_for_selection()} == {
            f"{name}-seed{seed}" for name in ("base", "low", "long") for seed in (42, 43)
        }
        with pytest.raises(InputError, match="no arm finished with every seed"):
            session.select_arm()
        for run in session.missing_for_selection():
            write_selection_run(tmp_path / "runs", run)
        session.select_arm()
        assert session.plan.selected == "low"
        assert session.plan.selection_scores == pytest.approx({"base": 0.6, "low": 0.8})
        assert session.missing_for_selection() == ()
        compared = session.missing(3)
        assert {run.name for run in compared} == {
            f"{name}-seed{seed}" for name in ("base", "placebo", "low") for seed in (44, 45, 46)
        }
    assert "selected   low was chosen" in capsys.readouterr().out
    for run in compared:
        record = record_of("placebo" if run.arm.is_perturbed else "fp32", run.seed)
        rate = 1e-5 if run.arm.name == "low" else 5e-5
        write_run(
            tmp_path / "runs", "fp32", run.seed, predicted(range(4)), name=run.name,
            arguments={**record.arguments, "learning_rate": rate}, model=record.model,
        )  # fmt: skip
    comparison = compare_planned_runs(tmp_path, read_plan(tmp_path))
    assert [arm.name for arm in comparison.arms] == ["base", "placebo", "low"]
    assert comparison.seeds == (44, 45, 46)
    (stamp,) = [stamp for stamp in remark_texts(comparison.stamps) if stamp.startswith("chosen: ")]
    assert stamp.startswith("chosen: low was chosen by the mean validation accuracy with seeds 42")
    assert "(base 0.6000, low 0.8000)" in stamp


def write_selection_run(parent, run):
    """Write a run with a validation accuracy; its test accuracy is best for the baseline."""
    scores = {"base": (0.5, 0.7), "low": (0.9, 0.7), "long": (0.95, None)}
    score = scores[run.arm.name][run.seed - 42]
    validations = (
        ValidationPart(epoch=1, step=9, metrics={"accuracy": 0.1}),
        ValidationPart(epoch=2, step=18, metrics={"accuracy": score}),
    )
    write_run(
        parent, "fp32", run.seed, predicted(range(3 * (run.arm.name != "base"))), name=run.name,
        validations=validations, status="diverged" if score is None else "finished",
        best=BestPart(metric="accuracy", epoch=2, value=score or 0.0, step=18),
        arguments={**record_of("fp32", run.seed).arguments, **set_by_flags(run.flags)},
    )  # fmt: skip


def test_a_choice_needs_examples_that_do_not_enter_the_result():
    def trial(reported, **splits):
        compared = {"reported split": reported}
        return TrialResult(ESTIMATE, ("fp32",), splits=splits, compared=compared)

    for one in (trial("validation", validation="ab"), trial("test", test="ab")):
        with pytest.raises(InputError, match="the data need a validation and a test split"):
            _check_selection("base", "low", {"base": one, "low": one})
    one, other = trial("test", validation="ab"), trial("test", validation="cd")
    _check_selection("base", "low", {"base": one, "low": one})
    with pytest.raises(InputError, match="low and base have different validation examples"):
        _check_selection("base", "low", {"base": one, "low": other})


@pytest.mark.add_ons
def test_the_metric_is_that_of_the_task_that_the_trial_found():
    def trial(kind):
        return TrialResult(ESTIMATE, ("fp32",), splits={}, compared={KIND_OF_LABELS: kind})

    words = [*ARMS, "--", "--train_file", "a.conll"]
    unnamed = parse_compare_arms_arguments(words).design.metric
    named = parse_compare_arms_arguments([*words, "--task", "tokens"]).design.metric
    assert metric_of_task(unnamed, trial("token_labels")) == named == "micro_f1"
    assert metric_of_task(unnamed, trial("single_label")) == "accuracy"
    requested = parse_compare_arms_arguments(["--metric", "token_accuracy", *words]).design.metric
    assert metric_of_task(requested, trial("token_labels")) == "token_accuracy"
    with pytest.raises(InputError, match="--metric: received 'token_accuracy'"):
        metric_of_task(requested, trial("single_label"))


@pytest.mark.parametrize("arm", ["{}: --learning_rate 1e-5", "low: --note {}"])
def test_an_arm_with_a_token_is_refused(arm):
    arm = arm.format(CANARIES["HF_TOKEN"])
    with pytest.raises(InputError, match="a token or a password is in its settings") as caught:
        parse_compare_arms_arguments(["--arm", "base", "--arm", arm, "--", "--train_file", "a.csv"])
    assert CANARIES["HF_TOKEN"] not in str(caught.value)
