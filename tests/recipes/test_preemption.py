"""A run that a signal stops continues from its checkpoint as if nothing had happened."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from pathlib import Path

import pytest
from preempted_run import interrupted_at
from running import BIN, CLASSIFY, call, call_here, printed, record_of, succeeded, text_settings

pytestmark = pytest.mark.slow

LATEST = ("--resume_from_checkpoint", "latest")


def result(folder):
    """Return what must not depend on interruptions."""
    files = ("model.safetensors", "predictions.parquet")
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return (
        [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files],
        [(row["step"], row["loss"], row["learning_rate"]) for row in rows],
        record_of(folder)["validations"],
        record_of(folder)["best"],
    )


def test_a_run_that_is_stopped_at_every_moment_ends_with_the_same_bits(files, tiny_model, tmp_path):
    def train(folder, *more):
        words = text_settings(files, tiny_model, folder)
        flags = ("--num_train_epochs", "2", "--eval_steps", "7", "--learning_rate", "1e-5")
        return call_here(CLASSIFY, *words, *flags, *more)

    straight, folder = tmp_path / "straight", tmp_path / "run"
    succeeded(train(straight))
    assert [each["step"] for each in record_of(straight)["validations"]] == [7, 14, 18]
    stops = [
        ("training", signal.SIGTERM, 5, ()),
        ("validation", signal.SIGINT, 7, ()),
        ("saving", signal.SIGUSR1, 8, ("--checkpointing_steps", "4")),
        ("final evaluation", signal.SIGUSR2, 18, ()),
    ]
    for moment, number, step, more in stops:
        with interrupted_at(moment, number):
            done = train(folder, *LATEST, *more)
        assert done.returncode == 75, (moment, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        record = record_of(folder)
        reason = f"{number.name} after step {step} of 18"
        assert (record["status"], record["reason"]) == ("preempted", reason), moment
        assert reason in printed(done.stdout, "stopped")
        last = done.stdout.splitlines()[-1]
        assert last.endswith(f"--output_dir {folder} --resume_from_checkpoint latest")
        assert (folder / "checkpoints" / f"step-{step}" / "MANIFEST.json").exists()
        shown = succeeded(call_here(BIN / "ampft", "report", folder)).stdout
        ending, remedy = shown.splitlines()[-2:]
        assert reason in ending
        assert remedy.startswith("continue   ampft train ")
    succeeded(train(folder, *LATEST))
    assert result(folder) == result(straight)
    assert not (folder / ".ampft-run").exists()


@pytest.mark.full
def test_one_of_two_processes_receives_the_signal_and_both_stop(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    words = [word for word in text_settings(files, tiny_model, folder) if word != "--use_cpu"]
    words += ["--per_device_train_batch_size", "4", "--checkpointing_steps", "12", *LATEST]
    script = Path(__file__).parent / "preempted_run.py"
    # In training, processes agree together with the loss, and the signal follows that of step 5.
    moments = {"training": 6, "validation": 9, "saving": 12}
    tests = Path(__file__).parents[1]
    succeeded(
        call(
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
            script, ",".join(moments), tmp_path, *words,
            PYTHONPATH=f"{tests}:{tests.parent}", CUDA_VISIBLE_DEVICES="",
        )
    )  # fmt: skip
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert len(first) == 3
    for ending, step in zip(first, moments.values(), strict=True):
        assert ending.startswith(f"75 stopped    SIGTERM after step {step} of 36;")
        assert (folder / "checkpoints" / f"step-{step}" / "MANIFEST.json").exists()
    assert record_of(folder)["status"] == "preempted"
    assert len((folder / "history.jsonl").read_text().splitlines()) == 12
