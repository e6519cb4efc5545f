"""A run in two processes through torchrun."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from failing_before_training import SECONDS_BLOCKED
from running import CLASSIFY, Finished, call, clean_environment, printed, succeeded, text_settings

from ampft.engine.ending import LOST

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_processes(files, tiny_model, tmp_path_factory) -> Finished:
    """`fp16_run` in two processes, with half of the micro-batches in each."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    done = succeeded(
        call(
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--standalone",
            CLASSIFY, *(w for w in text_settings(files, tiny_model, folder) if w != "--use_cpu"),
            "--mixed_precision", "fp16", "--gradient_accumulation_steps", 1,
            CUDA_VISIBLE_DEVICES="",  # no flag is needed without a GPU
        )
    )  # fmt: skip
    return Finished(folder, done.stdout, done.stderr)


def test_one_set_of_outputs(two_processes, fp16_run):
    one = {path.name for path in fp16_run.folder.iterdir()}
    two = {path.name for path in two_processes.folder.iterdir()}
    assert two == one - {"ampft", "history.csv"}
    for word in ("device", "precision", "steps", "result", "wrote", "ran"):
        assert printed(two_processes.stdout, word)  # once
    assert "Traceback" not in two_processes.stderr
    assert "effective batch 16 = 2 processes x 1 micro-batch x 8" in printed(
        two_processes.stdout, "steps"
    )


def test_the_same_examples_in_the_same_steps(two_processes, fp16_run):
    one, two = fp16_run.record, two_processes.record
    assert two["topology"]["num_processes"] == 2
    assert two["example_ids_sha256"] == one["example_ids_sha256"]
    assert two["model"]["initial_weights_sha256"] == one["model"]["initial_weights_sha256"]
    assert two["data"]["fingerprints"] == one["data"]["fingerprints"]
    assert [row["examples"] for row in two_processes.history] == [
        row["examples"] for row in fp16_run.history
    ]


def test_the_same_loss_and_rate(two_processes, fp16_run):
    # AdamW amplifies rounding from step to step, so only the first steps agree.
    for one, two in zip(fp16_run.history[:3], two_processes.history[:3], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-2)
        assert two["learning_rate"] == one["learning_rate"]
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=2e-2)


def test_every_example_is_evaluated_once(two_processes):
    assert sum(map(sum, two_processes.report["confusion_matrix"])) == 45
    assert two_processes.report["examples"] == 45


@pytest.mark.full
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    ("how", "reason"),
    [("raises", "process 1 failed first: ValueError: this process had enough"), ("killed", LOST)],
)
def test_the_others_end_with_one_line_about_the_process_that_failed(
    files, tiny_model, tmp_path, how, reason, sharded
):
    words = [w for w in text_settings(files, tiny_model, tmp_path / "run") if w != "--use_cpu"]
    sharding = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if sharded else {}
    done = call(
        sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 3, "--standalone",
        Path(__file__).with_name("failing_process.py"), how, CLASSIFY, *words,
        "--per_device_train_batch_size", 4, CUDA_VISIBLE_DEVICES="", **sharding,
    )  # fmt: skip
    assert done.returncode != 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("interrupted", reason)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    own, _, of_launcher = done.stderr.partition("torch/distributed/elastic")
    assert of_launcher
    assert own.count("Traceback") == (how == "raises"), own
    # A launcher that is quicker ends the others before they print the line.
    assert "Connection" not in own


@pytest.mark.full
def test_a_failure_before_training_ends_the_others_without_a_launcher(files, tiny_model, tmp_path):
    script = Path(__file__).with_name("failing_before_training.py")
    flags = text_settings(files, tiny_model, tmp_path / "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, script, tmp_path, *map(str, flags)],
            env=clean_environment() | {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    begin = time.monotonic()
    _, waiting = started[0].communicate(timeout=300)
    ended = time.monotonic() - begin
    _, failed = started[1].communicate(timeout=300)
    assert started[0].returncode == 1, waiting
    reason = "process 1 failed first: ValueError: this process had enough"
    assert waiting.endswith(f"[rank 0] error: {reason}\n")
    assert "ValueError: this process had enough" in failed
    assert ended < SECONDS_BLOCKED
    assert not (tmp_path / "run").exists()
