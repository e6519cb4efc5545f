"""What `ampft accept` judges: each fault is planted in what a command recorded, and is seen."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from running import BIN, call, call_here
from safetensors.torch import save_file

from ampft.data.step_batches import StepBatches
from ampft.lab.accept.accept import STEPS, summary, this_machine
from ampft.lab.accept.obligations import ABSENT, GREEN, OPEN, RED, Done, judge, tolerance
from ampft.lab.accept.reference import make_files, train_reference

pytestmark = pytest.mark.add_ons


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accept")
    make_files(folder)
    return train_reference(folder, 3)


def command(folder, kind, *, name="fp32, 3 steps", mode="fp32", exit_code=0, absent=""):
    return Done(name, mode, kind, 3, folder, exit_code, 1.0, "the last line", absent)


def record(**changes):
    rows = [{"kind": "projection", "inputs": ["float32", "float32"]}]
    executed = {
        "rows": rows,
        "float32_products_lose_bits": None,
        "attention_kernels": ["_flash_attention_forward"],
    }
    graphs = {
        "replayed_micro_batches": 2,
        "replayed_updates": 2,
        "reason": None,
        "reason_of_updates": None,
    }
    found = {
        "precision": {"executed": executed | changes.pop("executed", {})},
        "timings": {"cuda_graphs": graphs | changes.pop("graphs", {})},
        "topology": {"num_processes": 2},
        "memory": {"activations": 10},
        "model": {"padding_free": True, "notes": []},
    }
    return found | changes


def run_folder(folder, reference, *, weights=None, **changes):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(record(**changes)), encoding="utf-8")
    exact = {name: value.float() for name, value in reference.after[2].items()}
    save_file(exact | (weights or {}), folder / "model.safetensors")
    columns = {"prediction": ["ant", "bee"], "confidence": [0.5, 0.75]}
    parquet.write_table(pa.table(columns), folder / "predictions.parquet")
    return folder


def colours(commands, reference):
    rows = judge({each.name: each for each in commands}, reference)
    return {(row.obligation, row.command): row.colour for row in rows}


def test_what_holds_is_green(tmp_path, reference):
    done = command(run_folder(tmp_path / "run", reference), "graphs")
    assert set(colours([done], reference).values()) == {GREEN}


@pytest.mark.parametrize(
    ("obligation", "changes"),
    [
        (
            "the precision that was asked for ran",
            {"executed": {"rows": [{"kind": "projection", "inputs": ["bfloat16", "bfloat16"]}]}},
        ),
        ("the precision that was asked for ran", {"executed": {"rows": []}}),
        (
            "the precision that was asked for ran",
            {"executed": {"float32_products_lose_bits": True}},
        ),
        ("the attention kernel has a name", {"executed": {"attention_kernels": []}}),
        (
            "it trains without padding",
            {"model": {"padding_free": False, "notes": ["its results differ without padding"]}},
        ),
        ("graphs are replayed", {"graphs": {"replayed_micro_batches": 0}}),
        ("graphs are replayed", {"graphs": {"replayed_updates": 0}}),
        ("graphs are replayed", {"graphs": {"reason": "memory has moved"}}),
    ],
)
def test_a_fault_of_a_record_is_red(tmp_path, reference, obligation, changes):
    done = command(run_folder(tmp_path / "run", reference, **changes), "graphs")
    found = colours([done], reference)
    assert found.pop((obligation, done.name)) == RED
    assert set(found.values()) == {GREEN}


def test_a_program_that_fails_is_red(tmp_path, reference):
    found = colours([command(tmp_path, "train", exit_code=1)], reference)
    assert found == {("the command runs", "fp32, 3 steps"): RED}
    assert colours([command(tmp_path, "train", exit_code=None)], reference) == found


def test_a_command_that_cannot_be_here_is_neither(tmp_path, reference):
    found = colours([command(tmp_path, "train", exit_code=None, absent="one GPU")], reference)
    assert set(found.values()) == {ABSENT}


def test_a_command_without_time_is_open(tmp_path, reference):
    late = replace(command(tmp_path, "train", exit_code=None), is_late=True)
    assert set(colours([late], reference).values()) == {OPEN}
    assert summary(judge({late.name: late}, reference)).startswith("undecided")


def test_a_record_that_is_gone_is_red(tmp_path, reference):
    found = colours([command(tmp_path, "graphs")], reference)
    assert found["the record is complete", "fp32, 3 steps"] == RED


@pytest.mark.parametrize(("scale", "colour"), [(1 + 1e-6, GREEN), (1 + 1e-3, RED), (1.1, RED)])
def test_a_wrong_kernel_changes_the_weights(tmp_path, reference, scale, colour):
    name = "bert.encoder.layer.0.attention.self.query.weight"
    start, end = reference.initial[name], reference.after[2][name]
    wrong = {name: (start + scale * (end - start)).float()}
    done = command(run_folder(tmp_path / "run", reference, weights=wrong), "train")
    found = colours([done], reference)
    moved = tolerance("fp32") > 3e-5  # the layer is a part of all weights
    assert not moved
    assert found["3 steps as in float64", done.name] == colour


def test_a_parameter_that_stays_is_red(tmp_path, reference):
    name = "classifier.bias"
    stays = {name: reference.initial[name].float()}
    done = command(run_folder(tmp_path / "run", reference, weights=stays), "train")
    assert colours([done], reference)["every parameter moved", done.name] == RED


@pytest.mark.parametrize(("memory", "colour"), [(20, GREEN), (10, RED), (5, RED)])
def test_memory_is_compared_with_the_padded_run(tmp_path, reference, memory, colour):
    packed = command(run_folder(tmp_path / "one", reference), "train")
    folder = run_folder(tmp_path / "two", reference, memory={"activations": memory})
    padded = command(folder, "padded", name="padded")
    assert colours([packed, padded], reference)["less memory than padded", "padded"] == colour


@pytest.mark.parametrize(
    ("prediction", "confidence", "colour"),
    [("bee", 0.75, GREEN), ("ant", 0.75, RED), ("bee", 0.6, RED)],
)
def test_predictions_are_compared_with_the_report(
    tmp_path, reference, prediction, confidence, colour
):
    trained = command(run_folder(tmp_path / "one", reference), "train")
    predicted = command(tmp_path / "two", "predict", name="predict")
    predicted.folder.mkdir()
    columns = {"prediction": ["ant", prediction], "confidence": [0.5, confidence]}
    parquet.write_table(pa.table(columns), predicted.folder / "predicted.parquet")
    found = colours([trained, predicted], reference)
    assert found["predictions are the report's", "predict"] == colour


@pytest.mark.parametrize(("number", "gap", "colour"), [(2, 0, GREEN), (2, 1e-3, RED), (1, 0, RED)])
def test_several_processes_are_compared_with_one(tmp_path, reference, number, gap, colour):
    single = command(run_folder(tmp_path / "one", reference), "train")
    bias = {"classifier.bias": reference.after[2]["classifier.bias"].float() + gap}
    topology = {"num_processes": number}
    folder = run_folder(tmp_path / "two", reference, weights=bias, topology=topology)
    several = command(folder, "processes", name="several")
    found = colours([single, several], reference)
    assert found["several processes equal one", "several"] == colour


def test_a_graph_that_reads_the_batch_of_the_step_before_is_red(tmp_path, reference, monkeypatch):
    plain = StepBatches.effective_ids

    def before(self, epoch, step):
        return plain(self, epoch, max(step - 1, 0))

    make_files(tmp_path)
    monkeypatch.setattr(StepBatches, "effective_ids", before)
    stale = train_reference(tmp_path, 3).after[2]
    weights = {name: value.float() for name, value in stale.items()}
    done = command(run_folder(tmp_path / "run", reference, weights=weights), "graphs")
    assert colours([done], reference)["3 steps as in float64", done.name] == RED
    for mode in ("bf16", "fp16", "tf32"):
        assert reference.error(weights, 3) > 2 * tolerance(mode)


def test_the_reference_learns_in_float64(reference):
    assert all(value.dtype == torch.float64 for value in reference.after[-1].values())
    assert not reference.unmoved(reference.after[-1])
    assert reference.error(reference.after[-1], 3) == 0


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "mine").write_text("", encoding="utf-8")
    done = call_here(BIN / "ampft", "accept", "--output_dir", tmp_path)
    assert done.returncode == 2
    assert "not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
@pytest.mark.full
def test_every_obligation_holds_on_a_cpu(tmp_path):
    done = call("ampft", "accept", "--use_cpu", "--output_dir", str(tmp_path / "accepted"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "accepted" / "acceptance.json").read_text(encoding="utf-8"))
    assert found["device"] == this_machine(cpu=True).device == "cpu"
    shown = {row["command"] for row in found["rows"] if row["colour"] == GREEN}
    assert {"fp32, 1 step", f"bf16, {STEPS} steps", "fp32, 2 processes", "resume"} <= shown
