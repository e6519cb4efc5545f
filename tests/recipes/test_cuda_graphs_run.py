"""A run with --cuda_graphs, whose graphs are tapes of operators on a CPU."""

import json

import pytest
from resumed_runs import LATEST, evidence, interrupted, two_epochs
from running import CLASSIFY, call_here
from tape import TapeRecorder, masked_attention

from ampft.runs import prepared_checks, state

WORDS = ("--cuda_graphs", "--checkpointing_steps", "2", "--max_train_steps", "12",
         "--learning_rate", "1e-3")  # fmt: skip


@pytest.mark.full
@pytest.mark.slow
def test_a_run_by_graphs_resumes_bit_for_bit(files, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_checks, "_check_cuda_graphs", lambda prepared: None)
    monkeypatch.setattr(state, "CudaRecorder", lambda device: TapeRecorder())
    attention = "ampft.models.packing.attention.choose_kernel"
    monkeypatch.setattr(attention, lambda *_, **__: masked_attention)
    for name, stop, more in (("one", None, ()), ("two", 8, ()), ("two", None, LATEST)):
        with interrupted(stop):
            done = call_here(
                CLASSIFY, *two_epochs(files, tiny_model, tmp_path / name, *WORDS, *more)
            )
        assert done.returncode == (130 if stop else 0), done.stderr
        assert "graphs     not used" not in done.stderr
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two")]
    assert records[1]["resumes"][0]["step"] == 6
    graphs = [record["timings"]["cuda_graphs"] for record in records]
    assert [each["reason"] for each in graphs] == [None, None]
    assert all(each["replayed_micro_batches"] > 0 for each in graphs)
    # The first step of a process, whose dtypes are recorded, is not replayed.
    assert all(each["other_micro_batches"] > 0 for each in graphs)
    assert evidence(tmp_path / "one") == evidence(tmp_path / "two")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cuda_graphs"], "--cuda_graphs: they need a CUDA device, and this run is on cpu"),
        (
            ["--fsdp_gathers", "bfloat16"],
            "--fsdp_gathers bfloat16: the flag is for runs in bf16 that FSDP2 shards",
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused(files, tiny_model, tmp_path, flags, message):
    done = call_here(CLASSIFY, *two_epochs(files, tiny_model, tmp_path / "run", *flags))
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
