"""A run of a comparison that was killed continues from its checkpoint, with the same result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from planned import plan, write_record
from record_fixtures import record_of
from resumed_runs import evidence, interrupted, two_epochs
from running import CLASSIFY, REPOSITORY, call_here, last_of_each, succeeded

from ampft.comparison.execution.comparison_folder import run_ending, run_folder, runs_without_result
from ampft.comparison.execution.launch import EndedProgram
from ampft.comparison.execution.plan import PlannedRun, mode_arm
from ampft.comparison.execution.session import open_comparison
from ampft.comparison.settings import ArmSettings, parse_compare_arguments
from ampft.errors import InputError
from ampft.files import describe_file

RUN = PlannedRun(mode_arm("bf16"), 43)


@pytest.fixture
def session(files, tiny_model, tmp_path):
    """A comparison whose run trains in this process, which has imported torch already."""
    words = two_epochs(files, tiny_model, tmp_path)
    at = words.index("--output_dir")
    command = parse_compare_arguments(last_of_each("--", *words[:at], *words[at + 2 :]))

    with open_comparison(command, tmp_path / "cmp", plan(), REPOSITORY / CLASSIFY) as session:
        yield session


def train_here(session):
    session._remove_damaged_checkpoints(RUN)
    program = session.program(RUN)
    session.progress.start(RUN, program.folder / "history.jsonl")
    done = call_here(*program.argv)
    program.log.write_text(done.stdout + done.stderr)
    session._end(RUN, EndedProgram(1.0))


@pytest.mark.slow
def test_a_killed_run_continues_from_its_checkpoint(session, tmp_path):
    folder = run_folder(session.folder.path, RUN)
    with interrupted(12, saving=True):
        train_here(session)
    assert RUN in session.missing()
    assert [path.name for path in (folder / "checkpoints").glob("[!.]*")] == ["step-12"]
    train_here(session)
    assert RUN not in session.missing()
    record = json.loads((folder / "run.json").read_text())
    assert [part["step"] for part in record["resumes"]] == [12]
    assert not (folder / "checkpoints").exists()
    *words, _, _ = session.argv(RUN)  # without --resume_from_checkpoint latest
    words[words.index("--output_dir") + 1] = str(tmp_path / "straight")
    succeeded(call_here(*words))
    assert evidence(folder) == evidence(tmp_path / "straight")


@pytest.mark.slow
def test_a_run_without_a_checkpoint_begins_again(session):
    folder = run_folder(session.folder.path, RUN)
    with interrupted(2):
        train_here(session)
    assert RUN in session.missing()
    train_here(session)
    assert json.loads((folder / "run.json").read_text())["resumes"] == []
    assert RUN not in session.missing()


@pytest.mark.slow
def test_a_run_with_a_damaged_checkpoint_begins_again(session, capsys):
    folder = run_folder(session.folder.path, RUN)
    with interrupted(4, saving=True):
        train_here(session)
    weights = folder / "checkpoints" / "step-4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    train_here(session)
    assert f"damaged    {folder}" in capsys.readouterr().out
    assert json.loads((folder / "run.json").read_text())["resumes"] == []
    assert RUN not in session.missing()


@pytest.mark.slow
def test_checkpoints_of_a_run_that_was_waited_for_are_removed(session):
    with interrupted(4, saving=True):
        train_here(session)
    succeeded(call_here(*session.argv(RUN)))  # by another process of the comparison
    checkpoints = run_folder(session.folder.path, RUN) / "checkpoints"
    assert checkpoints.exists()
    session.remove_checkpoints(session.complete())
    assert not checkpoints.exists()


def test_the_flags_of_checkpoints(session):
    assert session.argv(RUN)[-6:] == [
        "--checkpointing_steps", "10min", "--checkpoint_total_limit", "1",
        "--resume_from_checkpoint", "latest",
    ]  # fmt: skip
    fp8 = PlannedRun(mode_arm("fp8"), 43)
    assert session.argv(fp8)[-1] == "--overwrite_output_dir"


def test_the_users_interval_is_kept(tmp_path):
    command = parse_compare_arguments(["--", "--checkpointing_steps", "500"])
    with open_comparison(command, tmp_path / "cmp", plan(), Path("classify.py")) as session:
        words = session.argv(RUN)
    assert words.count("--checkpointing_steps") == 1
    assert words[-2:] == ["--resume_from_checkpoint", "latest"]


def test_no_run_is_added_to_runs_on_other_data(tmp_path):
    data, folder = tmp_path / "train.csv", tmp_path / "cmp"
    data.write_text("text,label\na,x\nb,y\n")
    part = replace(record_of().data, files={str(data): describe_file(data).sha256})
    write_record(folder, RUN, data=part)
    assert run_ending(run_folder(folder, RUN)).is_complete
    command = parse_compare_arguments(["--", "--train_file", str(data), "--use_cpu"])
    with open_comparison(command, folder, plan()) as session:
        assert RUN not in session.missing()
    data.write_text("text,label\na,x\nb,x\n")
    match = r"train.csv was changed since bf16-seed43 was trained.*Restore the file"
    with pytest.raises(InputError, match=match), open_comparison(command, folder, plan()):
        pass
    data.unlink()  # it may be on the nodes of a cluster only
    with open_comparison(command, folder, plan()):
        pass


def test_no_run_is_added_to_runs_from_another_model(tmp_path):
    model, folder = tmp_path / "model", tmp_path / "cmp"
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_bytes(b"one")
    files = {weights.name: describe_file(weights).sha256}
    write_record(folder, RUN, model=replace(record_of().model, name=str(model), files=files))
    command = parse_compare_arguments(["--", "--use_cpu"])
    with open_comparison(command, folder, plan()):
        pass
    weights.write_bytes(b"two")
    match = r"model.safetensors was changed since bf16-seed43 was trained.*from different models"
    with pytest.raises(InputError, match=match), open_comparison(command, folder, plan()):
        pass


def test_a_finished_comparison_is_not_the_answer_for_other_data(tmp_path):
    data, folder = tmp_path / "train.csv", tmp_path / "cmp"
    data.write_text("text,label\na,x\nb,y\n")
    part = replace(record_of().data, files={str(data): describe_file(data).sha256})
    for run in plan().all_runs():
        write_record(folder, run, data=part)
    command = parse_compare_arguments(["--", "--train_file", str(data), "--use_cpu"])
    with open_comparison(command, folder, plan()) as session:
        assert session.missing() == ()
    data.write_text("text,label\na,x\nb,x\n")
    match = r"train\.csv was changed since .* was trained"
    with pytest.raises(InputError, match=match), open_comparison(command, folder, plan()):
        pass


def test_a_file_added_to_a_local_model_is_a_change(tmp_path):
    model, folder = tmp_path / "model", tmp_path / "cmp"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one")
    files = {"model.safetensors": describe_file(model / "model.safetensors").sha256}
    write_record(folder, RUN, model=replace(record_of().model, name=str(model), files=files))
    command = parse_compare_arguments(["--", "--use_cpu"])
    (model / "notes.txt").write_text("no model is loaded from it")
    with open_comparison(command, folder, plan()):
        pass
    (model / "added_tokens.json").write_text("{}")
    match = r"added_tokens\.json was changed since bf16-seed43"
    with pytest.raises(InputError, match=match), open_comparison(command, folder, plan()):
        pass


ARMS = tuple(ArmSettings(name, ("--learning_rate", rate), "fp32") for name, rate in
             (("low", "1e-5"), ("high", "1e-3")))  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "flag"),
    [
        ("low-seed42", "high-seed42", "--learning_rate 0.001"),
        ("low-seed42", "low-seed43", "--seed 43"),
        ("low-seed42", "placebo-seed42", "--perturb_initial_weights"),
    ],
)
def test_exchanged_folders_of_runs_are_refused(tmp_path, one, other, flag):
    planned, folder = plan(arm_settings=ARMS, modes=None), tmp_path / "cmp"
    for run in planned.all_runs():
        write_record(folder, run)
    runs = folder / "runs"
    assert len(runs_without_result(planned.all_runs(), folder)) == 0
    (runs / one).rename(runs / "moved")
    (runs / other).rename(runs / one)
    (runs / "moved").rename(runs / other)
    with pytest.raises(InputError, match=f"(?s){flag}.*renamed or exchanged"):
        runs_without_result(planned.all_runs(), folder)
