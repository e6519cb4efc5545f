"""A run with --cuda_graphs, whose graphs are tapes of operators on a CPU."""

import json
import shutil

import pytest
from resumed_runs import LATEST, evidence, interrupted, two_epochs
from running import CLASSIFY, call_here
from tape import TapeRecorder, masked_attention

from ampft.fast import graph_choice as graphs_of_runs

WORDS = ("--checkpointing_steps", "2", "--max_train_steps", "12", "--learning_rate", "1e-3")


@pytest.mark.full
@pytest.mark.slow
def test_a_run_by_graphs_resumes_bit_for_bit(files, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(graphs_of_runs, "check_cuda_graphs", lambda prepared: None)
    monkeypatch.setattr(graphs_of_runs, "CudaRecorder", lambda device: TapeRecorder())
    attention = "ampft.fast.packing.packed_attention.choose_kernel"
    monkeypatch.setattr(attention, lambda *_, **__: masked_attention)
    graphs = "--cuda_graphs"
    for name, stop, more in (
        ("one", None, [graphs]),
        ("two", 8, [graphs]),
        ("without", None, ["--no-cuda_graphs", *LATEST]),
        ("two", None, [graphs, *LATEST]),
    ):
        if name == "without":
            shutil.copytree(tmp_path / "two", tmp_path / name)
        with interrupted(stop):
            done = call_here(
                CLASSIFY, *two_epochs(files, tiny_model, tmp_path / name, *WORDS, *more)
            )
        assert done.returncode == (130 if stop else 0), done.stderr
        assert "graphs     not used" not in done.stderr
    without = json.loads((tmp_path / "without" / "run.json").read_text())
    assert without["steps"]["applied"] == 12
    assert "cuda_graphs" not in without["timings"]
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two")]
    assert records[1]["resumes"][0]["step"] == 6
    graphs = [record["timings"]["cuda_graphs"] for record in records]
    assert [each["reason"] for each in graphs] == [None, None]
    assert all(each["replayed_micro_batches"] > 0 for each in graphs)
    # The first step of a process, whose dtypes are recorded, is not replayed.
    assert all(each["other_micro_batches"] > 0 for each in graphs)
    assert all(each["replayed_updates"] > 0 for each in graphs)
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
