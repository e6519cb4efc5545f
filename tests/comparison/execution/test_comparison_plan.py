"""The order of runs, plan.json, and which commands continue the plan in a folder."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace

import pytest
from fuzzed_json import harm, sign
from hypothesis import given
from hypothesis import strategies as st
from planned import SIZE, plan

from ampft import cli
from ampft.comparison.execution.comparison_folder import plan_facts
from ampft.comparison.execution.plan import (
    Arm,
    PlannedRun,
    interleaved_runs,
    plan_difference,
    read_plan,
    with_more_seeds,
)
from ampft.comparison.execution.plan_text import plan_lines
from ampft.comparison.execution.planning import plan_comparison
from ampft.comparison.remarks import remark
from ampft.comparison.settings import parse_compare_arguments
from ampft.errors import InputError
from ampft.files import hashed_text
from ampft.runs.folder import RunFolder
from ampft.text.json_io import json_text

ARMS = tuple(Arm(name, (), name) for name in ("fp32", "placebo", "tf32", "bf16", "fp16", "fp8"))

REDUCED = remark("reduced", flag="num_train_epochs", before=5, after=2)


def requested(existing, **changes):
    arguments = changes.pop("arguments", existing.arguments)
    return replace(existing.design, **changes), arguments


@pytest.mark.slow
@given(arms=st.integers(2, 6), seeds=st.integers(3, 24), first=st.integers(0, 2**32 - 100))
def test_runs_are_interleaved_and_every_arm_takes_every_position(arms, seeds, first):
    runs = interleaved_runs(ARMS[:arms], range(first, first + seeds))
    assert len(set(runs)) == len(runs) == arms * seeds
    rounds = [runs[start : start + arms] for start in range(0, len(runs), arms)]
    for seed, of_seed in zip(range(first, first + seeds), rounds, strict=True):
        assert {run.seed for run in of_seed} == {seed}
        assert {run.arm for run in of_seed} == set(ARMS[:arms])
    for place in range(arms):
        counts = Counter(of_seed[place].arm for of_seed in rounds)
        assert max(counts.values()) - min(counts.get(arm, 0) for arm in ARMS[:arms]) <= 1


def test_more_seeds_come_after_earlier_seeds():
    existing, more = plan(), plan(seed_counts=(3, 6))
    assert more.runs()[: len(existing.runs())] == existing.runs()
    assert more.runs(3) == existing.runs()


def test_the_flags_of_a_run():
    flags = ("--mixed_precision", "fp32", "--evaluate_fp32", "--seed", "43")
    baseline, placebo_arm = plan(modes=("fp32",)).arms
    assert PlannedRun(baseline, 43).flags == flags
    placebo = PlannedRun(placebo_arm, 43)
    assert placebo.flags == (*flags, "--perturb_initial_weights")
    assert placebo.name == "placebo-seed43"


def test_a_plan_reads_back(tmp_path):
    existing = plan(
        budget=900.0, overrides={"num_train_epochs": 2}, reductions=(REDUCED,),
        seeds_analysed=(3,), own_seconds=1.5, runs_seconds=100.0,
    )  # fmt: skip
    with RunFolder(tmp_path / "cmp") as folder:
        folder.write_text("plan.json", hashed_text(existing))
    assert read_plan(tmp_path / "cmp") == existing
    assert json.loads(json_text(existing)) == json.loads(json_text(asdict(existing)))
    assert read_plan(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 4}', '{"schema": 99}'])
def test_an_invalid_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    message = r"plan\.json: (the file is not a valid plan|the file has schema version 99)"
    with pytest.raises(InputError, match=message):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modes": ("fp32", "fp16")}, "--modes was fp32,bf16 and is now fp32,fp16"),
        ({"first_seed": 7}, "--seed was 42 and is now 7"),
        ({"metric": "macro_f1"}, "--metric was accuracy and is now macro_f1"),
        ({"budget": 60.0}, "--budget was not set and is now 60.0"),
        ({"seed_counts": (2,)}, "--seeds was 3 and is now 2"),
        ({"seed_counts": (2, 5)}, "--seeds was 3 and is now 2,5"),
        (
            {"arguments": {"seed": 42, "learning_rate": 1.0}},
            "--learning_rate was 0.001 and is now 1.0",
        ),
    ],
)
def test_the_first_difference_from_a_plan(changes, message):
    assert plan_difference(plan(), *requested(plan(), **changes)) == message


@pytest.mark.parametrize(
    "changes", [{}, {"modes": None}, {"seed_counts": (5,)}, {"seed_counts": (3, 5)}]
)
def test_the_same_plan_and_more_seeds_continue(changes):
    assert plan_difference(plan(), *requested(plan(), **changes)) is None


def test_seeds_added_after_an_analysis_are_marked():
    assert not with_more_seeds(plan(), (5,)).added_after_analysis
    with_analysis = plan().with_analysis(3)
    assert with_analysis.seeds_analysed == (3,)
    assert with_analysis.with_analysis(3) == with_analysis
    assert with_more_seeds(with_analysis, (5,)).added_after_analysis
    assert with_more_seeds(with_more_seeds(with_analysis, (5,)), (5,)).added_after_analysis
    assert not with_more_seeds(with_analysis, (3,)).added_after_analysis
    assert not plan(seed_counts=(3, 6)).with_analysis(3).with_analysis(6).added_after_analysis


def test_a_repeated_analysis_is_counted_once():
    with_analysis = plan(seed_counts=(3, 6)).with_analysis(3).with_analysis(6)
    assert with_analysis.seeds_analysed == (3, 6)
    assert with_analysis.with_analysis(3).with_analysis(6) == with_analysis


def test_seeds_added_to_shortened_runs_are_noted():
    shortened = plan(reductions=("--num_train_epochs reduced from 5 to 2 to fit the budget.",))
    (note,) = with_more_seeds(shortened, (5,)).notes
    assert note.endswith("runs keep that size.")
    assert with_more_seeds(shortened, (3,)).notes == with_more_seeds(plan(), (5,)).notes == ()


def test_a_folder_with_other_contents_is_refused(tmp_path):
    (tmp_path / "notes").touch()
    with pytest.raises(InputError, match=r"is not empty \(notes\) and has no plan\.json"):
        plan_comparison(parse_compare_arguments(["--output_dir", str(tmp_path)]))
    with pytest.raises(InputError, match="is not a folder that this user may write to"):
        plan_comparison(parse_compare_arguments(["--output_dir", str(tmp_path / "notes" / "cmp")]))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_missing_file_is_refused_before_steps_are_timed(tmp_path, monkeypatch):
    monkeypatch.setattr("ampft.comparison.execution.planning.trials_by_arm", None)
    words = ["--output_dir", str(tmp_path / "out"), "--", "--train_file", str(tmp_path / "no.csv")]
    with pytest.raises(InputError, match=r"--train_file: the file .*no\.csv"):
        plan_comparison(parse_compare_arguments(words))
    assert not (tmp_path / "out").exists()


def test_keeping_a_folder_keeps_its_contents(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with (
        RunFolder(tmp_path, keep_files=True),
        pytest.raises(InputError, match="another run is writing"),
    ):
        RunFolder(tmp_path, keep_files=True)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_the_plan_is_printed_with_its_time_and_disk_space(tmp_path):
    shortened = plan(reductions=(REDUCED,))
    text = plan_lines(tmp_path / "cmp", shortened, shortened.runs()[2:])
    assert "fp32 (native), placebo (fp32 with initial" in text
    assert "seeds      42 to 44; 9 runs, one at a time, arms interleaved; 2 already done" in text
    assert "515 steps = 5 epochs x 103;" in text
    few = replace(shortened, size=replace(SIZE, max_steps=3))
    assert "each run   3 steps of the 103 of one epoch;" in plan_lines(tmp_path, few, ())
    assert "time       about 10 min in total; per run: fp32 96 s, bf16 67 s" in text
    assert "disk       0.6 GiB for 7 models" in text
    assert "budget     --num_train_epochs reduced from 5 to 2" in text


FINISHED = {
    "schema": 3, "status": "finished", "arguments": {}, "command": [], "label_names": ["a", "b"],
    "task": "text",
    "data": {"name": "d", "kind": "text", "fingerprints": {}, "examples": {}},
    "model": {
        "name": "m", "architecture": "a", "parameters": 1, "trainable_parameters": 1,
        "initial_weights_sha256": "",
    },
    "precision": {"requested": "fp32", "resolved": {"mode": "fp32"}},
    "topology": {"num_processes": 1, "cpu_threads": 1, "device": "cpu"},
    "steps": {"total": 1}, "memory": None, "best": None,
}  # fmt: skip


def test_report_on_an_interrupted_comparison(tmp_path, capsys):
    def message() -> str:
        assert cli.main(["report", str(tmp_path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    (tmp_path / "plan.json").write_text(hashed_text(plan()))
    none = f"0 of 9 runs are complete. Repeat its command with --output_dir {tmp_path} to continue."
    assert message().endswith(f"the comparison has not finished: {none}")
    for name in ("fp32-seed42", "bf16-seed42"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(hashed_text(FINISHED))
    assert "2 of 9 runs are complete" in message()
    assert message().endswith(f"ampft report {tmp_path / 'runs' / 'fp32-seed42'}")
    for damaged in ("{", '{"schema": 3}', ""):
        (tmp_path / "runs" / "bf16-seed42" / "run.json").write_text(damaged)
        assert "1 of 9 runs are complete" in message()
    for damaged in ("{}", "[", ""):
        (tmp_path / "plan.json").write_text(damaged)
        assert "plan.json" in message()
    (tmp_path / "comparison.json").write_text('{"schema"')
    assert "comparison.json" in message()


def test_the_page_of_a_comparison_that_has_not_finished_is_refused(tmp_path, capsys):
    (tmp_path / "plan.json").write_text(hashed_text(plan()))
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path), "--output_file", str(page)]) == 2
    assert "the comparison has not finished: 0 of 9 runs" in capsys.readouterr().err
    assert not page.exists()


def test_a_command_without_metric_continues_that_of_the_plan():
    existing = plan(metric="macro_f1")
    assert plan_difference(existing, *requested(existing, metric=None)) is None
    changed = plan_difference(existing, *requested(existing, metric="accuracy"))
    assert changed == "--metric was macro_f1 and is now accuracy"


def test_a_changed_plan_is_refused_by_name_or_does_no_harm(tmp_path):
    path = tmp_path / "plan.json"

    def read() -> None:
        found = read_plan(tmp_path)
        assert found is not None
        plan_lines(tmp_path, found, found.runs())
        plan_facts(found, tmp_path, found.design.seed_counts[-1])

    refused, wrong = harm(
        hashed_text(plan()), ["plan.json"], lambda text: path.write_text(sign(text)), read
    )
    assert wrong == []
    assert refused > 40
