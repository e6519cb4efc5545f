"""Runs with --auto_micro_batch: unchanged if everything fits, and possible in little memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from running import CLASSIFY, REPOSITORY, Finished, call, call_here, printed, succeeded

import ampft

LIMITED = REPOSITORY / "tests/recipes/limited_memory.py"
# In one micro-batch, the feed-forward layers below save about 1000 MiB for 128 texts.
LIMIT_MIB = 700


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory) -> Path:
    """A BERT with large activations and few weights."""
    import torch
    from transformers import BertConfig, BertModel
    from word_tokenizer import save_tokenizer

    folder = tmp_path_factory.mktemp("wide-bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=save_tokenizer(folder), hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=2**16, max_position_embeddings=32, pad_token_id=0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


def limited(files: Path, model: Path, folder: Path, *more: str):
    return call(
        sys.executable, LIMITED, CLASSIFY, LIMIT_MIB, "--model_name_or_path", model,
        "--train_file", files / "train.csv", "--validation_file", files / "validation.csv",
        "--output_dir", folder, "--per_device_train_batch_size", "128", "--max_train_steps", "2",
        "--per_device_eval_batch_size", "16", "--use_cpu", "--cpu_threads", "1", *more,
        MALLOC_ARENA_MAX="1",
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS needs Linux")
def test_a_step_too_large_for_memory_uses_smaller_micro_batches(files, wide_model, tmp_path):
    refused = limited(files, wide_model, tmp_path / "without")
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert "ran out of memory" in refused.stderr
    assert "Add --auto_micro_batch" in refused.stderr
    assert "Traceback" not in refused.stderr
    record = json.loads((tmp_path / "without" / "run.json").read_text())
    assert record["status"] == "interrupted"

    done = succeeded(limited(files, wide_model, tmp_path / "with", "--auto_micro_batch"))
    run = Finished(tmp_path / "with", done.stdout, done.stderr)
    micro_batches = run.record["steps"]["micro_batches"]
    assert 2 <= micro_batches <= 16
    assert run.record["steps"]["effective_batch_size"] == 128
    assert [row["examples"] for row in run.history] == [128, 12]
    assert [row["micro_batches"] for row in run.history] == [micro_batches, min(micro_batches, 12)]
    assert "the largest that fit" in printed(run.stdout, "steps")


DIGITS = (
    "--dataset_name", "digits", "--max_train_samples", "150", "--max_eval_samples", "20",
    "--max_predict_samples", "20", "--max_train_steps", "6", "--use_cpu", "--cpu_threads", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "plain"
    done = succeeded(call_here(CLASSIFY, *DIGITS, "--output_dir", folder))
    return Finished(folder, done.stdout, done.stderr)


@pytest.mark.full
@pytest.mark.slow
def test_if_everything_fits_the_run_is_identical_bit_for_bit(plain_run, tmp_path):
    words = (*DIGITS, "--output_dir", tmp_path / "auto", "--auto_micro_batch")
    done = succeeded(call_here(CLASSIFY, *words))
    auto = Finished(tmp_path / "auto", done.stdout, done.stderr)
    keys = ("loss", "grad_norm", "micro_batches")
    for one, two in zip(plain_run.history, auto.history, strict=True):
        assert [one[key] for key in keys] == [two[key] for key in keys]
    weights = [(run.folder / "model.safetensors").read_bytes() for run in (plain_run, auto)]
    assert weights[0] == weights[1]


@pytest.mark.full
@pytest.mark.slow
def test_a_repeated_step_is_printed_and_recorded(plain_run, tmp_path, monkeypatch):
    calls, exact = [], ampft.backward

    def backward(accelerator, loss):
        """Raise an out-of-memory error once, in the backward pass of the third step."""
        calls.append(exact(accelerator, loss))
        if len(calls) == 3:
            raise torch.OutOfMemoryError("planted. More words")
        return calls[-1]

    monkeypatch.setattr(ampft, "backward", backward)
    words = (*DIGITS, "--output_dir", tmp_path / "run", "--auto_micro_batch")
    done = succeeded(call_here(CLASSIFY, *words))
    run = Finished(tmp_path / "run", done.stdout, done.stderr)
    assert printed(run.stdout, "memory") == (
        "ran out in epoch 1, step 3: this step and all later ones now use 2 micro-batches"
    )
    assert [row["micro_batches"] for row in run.history] == [1, 1, 2, 2, 2, 2]
    assert run.record["steps"]["micro_batches"] == 2
    assert run.record["example_ids_sha256"] == plain_run.record["example_ids_sha256"]
    losses = [[row["loss"] for row in each.history] for each in (run, plain_run)]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0] == pytest.approx(losses[1], rel=0.2)  # other dropout masks from step 3 on
