"""Which run comes after which; plan.json; what a folder goes on with and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import plan

from ampft.arguments import parse_compare_arguments
from ampft.comparison.execution.plan import (
    QUESTION,
    Arm,
    PlannedRun,
    difference,
    interleaved,
    read_plan,
    with_looks,
)
from ampft.comparison.execution.planning import plan_comparison, plan_lines
from ampft.errors import InputError
from ampft.runs.folder import RunFolder
from ampft.text.json_io import json_text

ARMS = tuple(Arm(name, name) for name in ("fp32", "placebo", "tf32", "bf16", "fp16", "fp8"))


def asked(kept, **changes):
    names = (*QUESTION, "looks", "arguments")
    return {name: getattr(kept, name) for name in names} | changes


@given(arms=st.integers(2, 6), seeds=st.integers(3, 24), first=st.integers(0, 2**32 - 100))
def test_runs_are_interleaved_and_every_place_is_shared(arms, seeds, first):
    runs = interleaved(ARMS[:arms], range(first, first + seeds))
    assert len(set(runs)) == len(runs) == arms * seeds
    rounds = [runs[start : start + arms] for start in range(0, len(runs), arms)]
    for seed, of_seed in zip(range(first, first + seeds), rounds, strict=True):
        assert {run.seed for run in of_seed} == {seed}
        assert {run.arm for run in of_seed} == set(ARMS[:arms])
    for place in range(arms):
        counts = Counter(of_seed[place].arm for of_seed in rounds)
        assert max(counts.values()) - min(counts.get(arm, 0) for arm in ARMS[:arms]) <= 1


def test_more_seeds_come_after_those_that_ran():
    kept, more = plan(), plan(looks=(3, 6))
    assert more.runs()[: len(kept.runs())] == kept.runs()
    assert more.runs(3) == kept.runs()


def test_a_run_says_what_tells_it_from_the_others():
    words = ("--mixed_precision", "fp32", "--seed", "43", "--evaluate_fp32")
    assert PlannedRun(Arm("fp32", "fp32"), 43).words == words
    twin = PlannedRun(Arm("placebo", "fp32", is_perturbed=True), 43)
    assert twin.words == (*words, "--perturb_initial_weights")
    assert twin.name == "placebo-seed43"


def test_a_plan_reads_back(tmp_path):
    kept = plan(
        budget=900.0, overrides={"num_train_epochs": 2}, reductions=("a sentence",),
        looks_taken=(3,), own_seconds=1.5, runs_seconds=100.0,
    )  # fmt: skip
    with RunFolder(tmp_path / "cmp") as folder:
        folder.write_json("plan.json", kept)
    assert read_plan(tmp_path / "cmp") == kept
    assert json.loads(json_text(kept)) == json.loads(json_text(asdict(kept)))
    assert read_plan(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}', '{"schema": 99}'])
def test_a_plan_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError, match=r"plan\.json: (is not a plan|has layout 99)"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"modes": ("fp32", "fp16")}, "--modes was fp32,bf16 there and is fp32,fp16 now"),
        ({"first_seed": 7}, "--seed was 42 there and is 7 now"),
        ({"metric": "macro_f1"}, "--metric was accuracy there and is macro_f1 now"),
        ({"budget": 60.0}, "--budget was not given there and is 60.0 now"),
        ({"looks": (2,)}, "--seeds was 3 there and is 2 now"),
        ({"looks": (2, 5)}, "--seeds was 3 there and is 2,5 now"),
        (
            {"arguments": {"seed": 42, "learning_rate": 1.0}},
            "--learning_rate was 0.001 there and is 1.0 now",
        ),
    ],
)
def test_another_plan_is_refused_by_its_difference(changes, said):
    assert difference(plan(), asked(plan(), **changes)) == said


@pytest.mark.parametrize("changes", [{}, {"modes": None}, {"looks": (5,)}, {"looks": (3, 5)}])
def test_the_same_plan_and_more_seeds_go_on(changes):
    assert difference(plan(), asked(plan(), **changes)) is None


def test_seeds_added_after_a_look_are_stamped():
    assert not with_looks(plan(), (5,)).added_after_look
    looked = plan().looked(3)
    assert looked.looks_taken == (3,)
    assert looked.looked(3) == looked
    assert with_looks(looked, (5,)).added_after_look
    assert with_looks(with_looks(looked, (5,)), (5,)).added_after_look
    assert not with_looks(looked, (3,)).added_after_look
    assert not plan(looks=(3, 6)).looked(3).looked(6).added_after_look


def test_the_same_looks_again_are_no_further_looks():
    looked = plan(looks=(3, 6)).looked(3).looked(6)
    assert looked.looks_taken == (3, 6)
    assert looked.looked(3).looked(6) == looked


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "notes").touch()
    with pytest.raises(InputError, match=r"is not empty \(notes\).*there is no plan\.json"):
        plan_comparison(parse_compare_arguments(["--output_dir", str(tmp_path)]))
    with pytest.raises(InputError, match="is not a folder that this user may write to"):
        plan_comparison(parse_compare_arguments(["--output_dir", str(tmp_path / "notes" / "cmp")]))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_folder_that_is_kept_loses_nothing(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with RunFolder(tmp_path, keep=True), pytest.raises(InputError, match="another run is writing"):
        RunFolder(tmp_path, keep=True)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_the_plan_is_shown_with_its_time_and_its_disk(tmp_path):
    made = plan(reductions=("--num_train_epochs 2 in place of 5, to fit the budget.",))
    text = plan_lines(tmp_path / "cmp", made, made.runs()[2:])
    assert "fp32 (native), placebo: fp32 again" in text
    assert "seeds      42 to 44; 9 runs, one after the other, arms interleaved; 2 done" in text
    assert "515 steps = 5 x 103 per epoch" in text
    assert "time       about 10 min; a run: fp32 96 s, bf16 67 s" in text
    assert "disk       0.6 GiB for 7 models" in text
    assert "budget     --num_train_epochs 2 in place of 5" in text
