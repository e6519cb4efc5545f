"""A run that is interrupted and continued gives the same bits as one that is not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from resumed_runs import (
    LATEST,
    checkpoints,
    evidence,
    full_memory,
    interrupted,
    large_loss_scale,
    two_epochs,
)
from running import (
    BIN,
    CLASSIFY,
    REPOSITORY,
    call,
    call_here,
    clean_environment,
    last_of_each,
    printed,
    succeeded,
)
from warm_processes import WarmPopen
from word_tokenizer import save_tokenizer, tiny_config

import ampft.runs.checkpoint_content as run_state
from ampft.arguments import ClassifyArguments
from ampft.ownership import read_token, write_token
from ampft.runs.resume import find_resume_point
from ampft.runs.run_text import format_run

pytestmark = pytest.mark.slow

EVERY_2 = ("--checkpointing_steps", "2")


@pytest.fixture(scope="session")
def model_with_dropout(tmp_path_factory) -> Path:
    """The folder of a BERT that draws dropout masks, so that every random state matters."""
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("bert-with-dropout")
    config = tiny_config(save_tokenizer(folder))
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.2
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def train(files, model_with_dropout):
    """Return a function that trains into a folder: 2 epochs of 9 steps."""

    def run(folder: Path, *more: object, stop: int | None = None, saving=False, code=0):
        words = two_epochs(files, model_with_dropout, folder, *more)
        with interrupted(stop, saving=saving):
            done = call_here(CLASSIFY, *words)
        assert done.returncode == (130 if stop else code), done.stderr
        return done

    return run


def resumes(folder):
    return [part["step"] for part in json.loads((folder / "run.json").read_text())["resumes"]]


def test_fp16_with_skipped_steps_interrupted_three_times_in_one_epoch(train, tmp_path):
    folder, mode = tmp_path / "run", ("--mixed_precision", "fp16")
    with large_loss_scale():
        train(tmp_path / "straight", *mode)
        train(folder, *mode, "--checkpointing_steps", 1, stop=3)
        for step in (4, 6, 8):
            train(folder, *mode, "--checkpointing_steps", 1, *LATEST, stop=step)
        train(folder, *mode, "--checkpointing_steps", 1, *LATEST)
    straight = evidence(tmp_path / "straight")
    assert evidence(folder) == straight
    assert resumes(folder) == [2, 3, 5, 7]
    assert any(row["skipped"] for row in straight["history"][:2]), "before the first resume"
    assert any(row["skipped"] for row in straight["history"][2:]), "after it"
    record = json.loads((folder / "run.json").read_text())
    assert record["timings"]["covers"].startswith("the whole run in 5 parts")
    assert record["timings"]["steps_timed"] == 13
    shown = succeeded(call_here(BIN / "ampft", "report", folder)).stdout
    assert "resumed    4 times, after step 2, 3, 5, 7\n" in shown
    listed = succeeded(call_here(BIN / "ampft", "checkpoint", "list", folder)).stdout
    assert listed.splitlines()[9].split()[:4] == ["step-9", "2", "0", "0"]  # MiB
    assert succeeded(call_here(BIN / "ampft", "checkpoint", "verify", folder)).stdout.count(
        "intact    "
    ) == len(checkpoints(folder))


@pytest.mark.full
def test_padded_at_the_border_of_epochs_with_workers(train, tmp_path):
    flags = ("--mixed_precision", "bf16", "--padding", "--dataloader_num_workers", 1)
    train(tmp_path / "straight", *flags)
    folder, flags = tmp_path / "run", (*flags, "--checkpointing_steps", "epoch")
    train(folder, *flags, stop=12)
    assert checkpoints(folder) == ["step-9"]
    train(folder, *flags, *LATEST, stop=18)
    train(folder, *flags, *LATEST)
    assert evidence(folder) == evidence(tmp_path / "straight")
    assert resumes(folder) == [9, 9]
    assert checkpoints(folder) == ["step-18", "step-9"]


@pytest.mark.full
@pytest.mark.parametrize("rounding", ["kahan", "stochastic"])
def test_16_bit_weights_with_micro_batches_cut_again_and_a_pending_validation(
    train, tmp_path, rounding, quick_garbage_collection
):
    mode = ("--mixed_precision", f"bf16-true-{rounding}", "--auto_micro_batch", "--eval_steps", 4)
    folder, flags = tmp_path / "run", (*mode, *EVERY_2)
    with full_memory(step=6):
        train(tmp_path / "straight", *mode)
        train(folder, *flags, stop=8, saving=True)
        assert checkpoints(folder)[-1] == "step-8"
        for stop in (13, None):
            done = train(folder, *flags, *LATEST, stop=stop)
            assert "ran out in epoch" not in done.stdout, "the cut is restored"
    straight = evidence(tmp_path / "straight")
    assert evidence(folder) == straight
    assert [row["micro_batches"] for row in straight["history"]] == [1] * 5 + [2] * 13
    assert [part["step"] for part in straight["validations"]] == [4, 8, 12, 16, 18]


@pytest.fixture(scope="module")
def stopped(train, tmp_path_factory):
    """A run in fp32 with background checkpoints, interrupted after step 6 of 18."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    limit = ("--checkpoint_total_limit", 2)
    train(folder, *EVERY_2, *limit, "--async_checkpoints", stop=7)
    assert checkpoints(folder) == ["step-4", "step-6"]
    return folder


@pytest.fixture(scope="module")
def straight(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    train(folder)
    return evidence(folder)


@pytest.fixture
def copied(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.mark.full
def test_background_checkpoints_and_the_limit(train, copied, straight):
    done = train(copied, *EVERY_2, "--checkpoint_total_limit", 1, "--async_checkpoints", *LATEST)
    assert evidence(copied) == straight
    assert checkpoints(copied) == ["step-18"]
    assert printed(done.stdout, "resume") == (
        f"{copied}/checkpoints/step-6: 6 steps done; continues in epoch 1 at its step 7"
    )
    # A finished run is not trained again.
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    again = train(copied, *LATEST)
    assert again.stdout.splitlines()[-1].startswith(f"{copied}: this run has finished, so nothing")
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before
    refused = train(copied, *LATEST, "--learning_rate", 0.5, code=2)
    assert "--learning_rate  0.008       0.5" in refused.stderr


@pytest.mark.full
def test_without_its_random_state_the_result_differs(train, copied, straight):
    with patch.object(run_state, "restore_random_state", lambda *_: None):
        train(copied, *LATEST)
    different = evidence(copied)
    assert different["weights"] != straight["weights"]
    assert different["example_ids_sha256"] == straight["example_ids_sha256"]


def test_an_older_checkpoint_replaces_the_later_ones(train, copied, straight):
    train(copied, "--resume_from_checkpoint", copied / "checkpoints/step-4", stop=5)
    assert checkpoints(copied) == ["step-4"]
    assert len((copied / "history.jsonl").read_text().splitlines()) == 4
    train(copied, *LATEST)
    assert evidence(copied) == straight
    assert resumes(copied) == [4, 4]


def test_into_another_folder(train, stopped, straight, tmp_path):
    train(tmp_path / "other", "--resume_from_checkpoint", stopped / "checkpoints/step-6")
    assert evidence(tmp_path / "other") == straight
    assert checkpoints(stopped) == ["step-4", "step-6"]


def test_other_settings_are_refused_with_the_difference(train, copied, files):
    (copied / "train.csv").write_text((files / "train.csv").read_text().replace("iron", "zinc"))
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    changes = ("--train_file", copied / "train.csv", "--mixed_precision", "bf16")
    more = ("--learning_rate", 0.5, "--lr_scheduler_type", "cosine", "--num_train_epochs", 4)
    done = train(copied, *LATEST, *changes, *more, "--gradient_accumulation_steps", 1, code=2)
    rows = [line.split("  ")[0] for line in done.stderr.splitlines()[2:]]
    assert rows == [
        "precision", "data of train", "optimizer steps", "steps per epoch", "effective batch size",
        "--learning_rate", "--num_train_epochs", "--lr_scheduler_type",
    ]  # fmt: skip
    assert "effective batch size  16 " in done.stderr
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_another_model_of_the_same_weights_is_refused(train, copied, model_with_dropout, tmp_path):
    model = Path(shutil.copytree(model_with_dropout, tmp_path / "model"))
    for name, old, new in (("config.json", "gelu", "relu"), ("tokenizer.json", "iron", "zink")):
        text = (model / name).read_text()
        assert old in text
        (model / name).write_text(text.replace(old, new))
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    done = train(copied, *LATEST, "--model_name_or_path", model, code=2)
    rows = [line.split("  ")[0] for line in done.stderr.splitlines()[2:]]
    assert rows == ["configuration: hidden_act", "preprocessing: tokenizer.json: model"]
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_another_topology_is_refused_unless_allowed_and_then_recorded(train, copied, straight):
    cut = ("--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 4)
    refused = train(copied, *LATEST, *cut, code=2)
    assert "micro-batches per step and process  2           4" in refused.stderr
    assert "pass --allow_topology_change, which is recorded" in refused.stderr
    done = train(copied, *LATEST, *cut, "--allow_topology_change")
    told = " ".join(done.stdout.split())
    assert "micro-batches per step and process: 2 in the checkpoint, 4 now" in told
    changed = evidence(copied)
    assert changed["example_ids_sha256"] == straight["example_ids_sha256"]
    assert [row["micro_batches"] for row in changed["history"]] == [2] * 6 + [4] * 12
    (part,) = json.loads((copied / "run.json").read_text())["resumes"]
    assert part["topology"] == {"micro-batches per step and process": [2, 4]}


def test_settings_that_may_change_are_recorded(train, copied, straight):
    more = (
        "--max_time",
        "1h",
        "--watch",
        "5",
        "--on_nonfinite",
        "skip",
        "--checkpointing_steps",
        "4",
    )
    before = json.loads((copied / "run.json").read_text())
    point = find_resume_point(
        ClassifyArguments(output_dir=copied, resume_from_checkpoint=LATEST[-1])
    )
    # Steps after the checkpoint were sent to trackers, too, and are not sent twice.
    assert point.sent == len((copied / "history.jsonl").read_text().splitlines())
    done = train(copied, *LATEST, *more)
    expected = {
        "--max_time": [None, "1h"],
        "--watch": [None, 5],
        "--on_nonfinite": ["stop", "skip"],
        "--checkpointing_steps": ["2", "4"],
        "--async_checkpoints": [True, False],
        "--checkpoint_total_limit": [2, None],
    }
    record = json.loads((copied / "run.json").read_text())
    (part,) = record["resumes"]
    assert record["started"] == before["started"] < part["resumed"]
    assert part["settings"] == expected
    assert part["topology"] == part["environment"] == {}
    assert "--on_nonfinite: stop in the checkpoint, skip now" in done.stdout
    shown = format_run(copied)
    assert "from step 6 on, --max_time 1h, before (not set)" in shown
    assert evidence(copied)["example_ids_sha256"] == straight["example_ids_sha256"]


def test_every_setting_that_may_change_is_recorded(make_record):
    """No setting of a training is honoured in silence: it is refused, or a change is recorded."""
    from dataclasses import asdict

    from ampft.arguments import ClassifyArguments
    from ampft.runs.resume import choices_of, settings_of, topology_of

    record = make_record(arguments=asdict(ClassifyArguments()))
    held = {*choices_of(record), *settings_of(record), *topology_of(record)}
    silent = {name for name in asdict(ClassifyArguments()) if f"--{name}" not in held}
    assert silent == {
        "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "allow_topology_change",
    }  # fmt: skip


def test_a_damaged_checkpoint_is_refused_and_named(train, copied):
    path = copied / "checkpoints/step-6/optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = train(copied, *LATEST, code=2)
    assert f"error: --resume_from_checkpoint: {path}: " in done.stderr
    older = copied / "checkpoints/step-4"
    assert f"intact: step-4. To continue from one of them: --resume_from_checkpoint {older}" in (
        done.stderr
    )


def test_the_first_start_says_that_there_is_no_checkpoint(train, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "slurm-17.out").write_text("the log of this job")
    (folder / "README.md").write_text("mine")
    refused = train(folder, *LATEST, *EVERY_2, code=2)
    assert "written or changed by someone else: README.md. Move them" in refused.stderr
    (folder / "README.md").unlink()
    done = train(folder, *LATEST, *EVERY_2, stop=2)
    assert printed(done.stdout, "resume") == (
        f"{folder} has no checkpoint yet, so the training starts at step 1"
    )
    # The same command, as a scheduler repeats it: the run without a checkpoint is replaced.
    train(folder, *LATEST, *EVERY_2, stop=4)
    assert checkpoints(folder) == ["step-2"]
    (folder / "thesis.tex").write_text("mine")
    (folder / "checkpoints/step-2/notes.txt").write_text("mine")
    refused = train(folder, *LATEST, *EVERY_2, code=2)
    assert "step-2/notes.txt: the file was added after the checkpoint" in refused.stderr
    (folder / "checkpoints/step-2/notes.txt").unlink()
    train(folder, "--overwrite_output_dir", stop=2)
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.jsonl", "run.json", "slurm-17.out", "thesis.tex",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--async_checkpoints",), marks=pytest.mark.full)]
)
def test_sigkill(train, files, model_with_dropout, straight, tmp_path, more):
    folder = tmp_path / "run"
    flags = ("--checkpointing_steps", 1, *more)
    words = two_epochs(files, model_with_dropout, folder, *flags)
    process = WarmPopen(
        last_of_each(sys.executable, CLASSIFY, *words), cwd=REPOSITORY, env=clean_environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not (folder / "checkpoints/step-3").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    incomplete = folder / "checkpoints/step-99.tmp-0123456789abcdef"  # of another killed process
    incomplete.mkdir()
    write_token(incomplete, read_token(folder / "checkpoints"), "step-99")
    train(folder, *flags, *LATEST)
    assert evidence(folder) == straight
    assert len(resumes(folder)) == 1
    assert all(name.partition("-")[2].isdecimal() for name in checkpoints(folder))


def test_two_processes(train, stopped, straight, files, model_with_dropout, tmp_path):
    shutil.copytree(stopped, tmp_path / "one")
    words = two_epochs(files, model_with_dropout, Path("unused"))
    position = words.index("--output_dir")
    words[position : position + 2] = []
    words[words.index("--gradient_accumulation_steps") + 1] = "1"
    paths = [REPOSITORY, REPOSITORY / "tests", REPOSITORY / "tests/recipes"]
    succeeded(
        call(
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--standalone",
            REPOSITORY / "tests/recipes/resumed_on_two.py", tmp_path, *words,
            PYTHONPATH=os.pathsep.join(map(str, paths)), timeout=150,
        )
    )  # fmt: skip
    two = evidence(tmp_path / "straight")
    assert evidence(tmp_path / "interrupted") == two
    assert resumes(tmp_path / "interrupted") == [2, 4, 10]
    moved = evidence(tmp_path / "one")
    assert moved["example_ids_sha256"] == two["example_ids_sha256"]
    assert moved["example_ids_sha256"] == straight["example_ids_sha256"]
    assert moved["history"][:6] == straight["history"][:6]
    (part,) = json.loads((tmp_path / "one/run.json").read_text())["resumes"]
    assert part["topology"] == {"processes": [1, 2], "micro-batches per step and process": [2, 1]}
