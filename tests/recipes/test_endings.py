"""However a run ends: at most one message, the right exit code, a correct record."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from running import (
    BIN,
    CLASSIFY,
    REPOSITORY,
    call,
    call_here,
    clean_environment,
    last_of_each,
    record_of,
    succeeded,
    text_settings,
)
from warm_processes import WarmPopen

pytestmark = pytest.mark.slow

LONG = ("--num_train_epochs", "400")


def start(words, **how):
    return WarmPopen(
        last_of_each(sys.executable, CLASSIFY, *words), cwd=REPOSITORY, env=clean_environment(),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
    )  # fmt: skip


def wait_for_steps(folder, steps):
    for _ in range(600):
        history = folder / "history.jsonl"
        if history.exists() and len(history.read_text().splitlines()) >= steps:
            return
        time.sleep(0.1)
    raise AssertionError(f"no {steps} steps within a minute")


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (signal.SIGTERM, 75, "SIGTERM after step "),
        (signal.SIGHUP, 129, "SIGHUP"),
        (signal.SIGINT, 75, "SIGINT after step "),
    ],
)
def test_a_signal_ends_a_run_with_a_correct_record(
    files, tiny_model, tmp_path, number, code, reason
):
    left = {"run.json", "history.jsonl"} | ({"checkpoints"} if code == 75 else set())
    folder = tmp_path / "run"
    process = start([*text_settings(files, tiny_model, folder), *LONG])
    wait_for_steps(folder, 12)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in stderr
    record = record_of(folder)
    assert record["status"] == ("preempted" if code == 75 else "interrupted")
    assert record["reason"].startswith(reason)
    assert record["steps"]["applied"] >= 12
    assert {path.name for path in folder.iterdir()} == left


def test_the_death_of_the_launcher_ends_its_run_with_a_checkpoint(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    words = [*text_settings(files, tiny_model, folder), *LONG]
    launcher = WarmPopen(
        last_of_each(BIN / "accelerate", "launch", "--num_processes", "1", CLASSIFY, *words),
        cwd=REPOSITORY, env=clean_environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for_steps(folder, 12)
    launcher.kill()  # SIGKILL, which no launcher can forward
    launcher.wait()
    for _ in range(300):
        if record_of(folder)["status"] != "running":
            break
        time.sleep(0.1)
    assert record_of(folder)["status"] == "preempted"
    assert record_of(folder)["reason"].startswith("SIGTERM after step ")
    assert list((folder / "checkpoints").glob("step-*/MANIFEST.json"))


def test_a_closed_pipe_does_not_end_the_training(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    process = start([*text_settings(files, tiny_model, folder), "--num_train_epochs", "1"])
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        stderr = process.stderr.read()
    assert process.wait(timeout=120) == 0, stderr
    assert record_of(folder)["status"] == "finished"


def test_a_full_disk_gives_one_message_that_names_the_folder(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    limit = 20_000  # bytes per file: enough for the record, but not for the weights

    def bounded():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = start(
        [*text_settings(files, tiny_model, folder), "--max_train_samples", "8"], preexec_fn=bounded
    )
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2, stderr
    assert f"error: --output_dir {folder}: the folder cannot be written" in stderr
    assert "Traceback" not in stderr
    assert record_of(folder)["status"] in {"interrupted", "running"}


@pytest.mark.parametrize("moment", ["training", "saving"])
def test_a_folder_removed_during_the_run_is_an_error(files, tiny_model, tmp_path, moment):
    folder = tmp_path / "run"
    settings = [*text_settings(files, tiny_model, folder), "--max_train_steps", "1"]
    script = f"""
import shutil, sys
import ampft
sys.path.insert(0, "recipes")
import classify
from transformers import BertForSequenceClassification as Model
save = Model.save_pretrained
def save_after_removal(self, *words, **more):
    shutil.rmtree({str(folder)!r})
    save(self, *words, **more)
step = ampft.apply_step
def step_after_removal(*words, **more):
    shutil.rmtree({str(folder)!r})
    return step(*words, **more)
if {moment!r} == "saving":
    Model.save_pretrained = save_after_removal
else:
    ampft.apply_step = step_after_removal
sys.argv = ["classify.py", *{settings!r}]
sys.exit(ampft.run_main(lambda: classify.train(ampft.parse_classify_arguments())))
"""
    done = call(sys.executable, "-c", script)
    assert done.returncode == 2, done.stderr
    assert f"error: --output_dir {folder}: the folder cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_baseline_without_words_does_not_fail_the_run(files, tiny_model, tmp_path):
    letters = tmp_path / "letters.csv"
    letters.write_text("text,label\n" + "a,x\nb,y\nc,x\nd,y\ne,x\nf,y\ng,x\nh,y\n" * 4)
    folder = tmp_path / "run"
    done = succeeded(
        call_here(
            CLASSIFY, "--train_file", letters, "--model_name_or_path", tiny_model,
            "--output_dir", folder, "--use_cpu", "--cpu_threads", 1, "--baseline",
            "--num_train_epochs", 1,
        )
    )  # fmt: skip
    assert "No result of TF-IDF + regression: --baseline" in done.stdout
    assert record_of(folder)["status"] == "finished"


@pytest.mark.full
def test_a_folder_never_mixes_two_runs(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    words = [*text_settings(files, tiny_model, folder), "--overwrite_output_dir"]
    words += ["--num_train_epochs", "1"]
    succeeded(call_here(CLASSIFY, *words))
    assert (folder / "model.safetensors").exists()
    diverged = call_here(CLASSIFY, *words, "--learning_rate", 1e30)
    assert diverged.returncode == 3, diverged.stderr
    assert record_of(folder)["status"] == "diverged"
    assert {path.name for path in folder.iterdir()} == {"run.json", "history.jsonl", "nonfinite"}
    succeeded(call_here(CLASSIFY, *words))
    assert not (folder / "nonfinite").exists()


def test_a_rate_of_1_stops_at_the_first_validation(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    words = [*text_settings(files, tiny_model, folder), "--warmup_ratio", "0"]
    done = call_here(CLASSIFY, *words, "--learning_rate", 1)
    assert done.returncode == 3, done.stderr
    assert "training destroyed the model. Lower --learning_rate." in done.stderr
    record = record_of(folder)
    assert record["status"] == "diverged"
    assert record["steps"]["applied"] == 9 < record["steps"]["total"]
    assert [part["step"] for part in record["validations"]] == [9]
    assert not (folder / "model.safetensors").exists()


@pytest.mark.full
def test_overwriting_the_current_folder_twice_keeps_the_files_of_the_user(
    files, tiny_model, tmp_path
):
    for file in files.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "my_code.py").write_text("mine")
    users = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(users) == 4
    words = [*text_settings(tmp_path, tiny_model, "."), "--overwrite_output_dir"]
    for _ in range(2):
        succeeded(
            call(
                sys.executable, REPOSITORY / CLASSIFY, *words, "--max_train_steps", 1,
                cwd=tmp_path, PYTHONPATH=str(REPOSITORY),
            )
        )  # fmt: skip
        assert {path: path.read_bytes() for path in users} == users
        assert not {path.name for path in users} & record_of(tmp_path)["files"].keys()


def test_the_record_has_the_effective_batch_set_by_the_environment(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    words = [*text_settings(files, tiny_model, folder), "--max_train_steps", "1"]
    succeeded(call_here(CLASSIFY, *words, ACCELERATE_GRADIENT_ACCUMULATION_STEPS="3"))
    steps = record_of(folder)["steps"]
    assert (steps["effective_batch_size"], steps["micro_batches"]) == (24, 3)


def test_every_report_says_that_one_split_is_used_for_both(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    words = text_settings(files, tiny_model, folder)
    del words[words.index("--test_file") : words.index("--test_file") + 2]
    succeeded(call_here(CLASSIFY, *words, "--test_fraction", 0, "--max_train_steps", 2))
    sentence = "the epoch was also chosen on this split"
    assert sentence in (folder / "report.txt").read_text()
    assert json.loads((folder / "report.json").read_text())["selected"] is True
    shown = succeeded(call_here(BIN / "ampft", "report", folder))
    assert sentence in shown.stdout
