"""The command `ampft doctor`: its files, exit codes and refusals."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from record_fixtures import record_of
from running import call, succeeded
from tiny_text import LABELS, tiny_texts
from transformers import BertForSequenceClassification, BertTokenizerFast

from ampft.arguments import ClassifyArguments
from ampft.cli import main
from ampft.errors import InputError
from ampft.files import describe_file, hashed_text
from ampft.lab.doctor import case

OVERFLOW = "bert.encoder.layer.1.output.dense"


@pytest.fixture(scope="module")
def files(tiny_bert, tmp_path_factory) -> Path:
    """Folder with `train.csv`, the model `healthy` and the model `broken`, which overflows."""
    folder = tmp_path_factory.mktemp("doctor")
    table = tiny_texts(120)
    rows = [
        f"{text},{LABELS[label]}" for text, label in zip(table["text"], table["label"], strict=True)
    ]
    (folder / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    (folder / "healthy").symlink_to(tiny_bert)
    model = BertForSequenceClassification.from_pretrained(tiny_bert)
    with torch.no_grad():
        model.get_submodule(OVERFLOW).weight.mul_(30_000)
    model.save_pretrained(folder / "broken")
    BertTokenizerFast.from_pretrained(tiny_bert).save_pretrained(folder / "broken")
    return folder


def recipe(files: Path, model: str) -> list[str]:
    return [
        *("--model_name_or_path", str(files / model), "--train_file", str(files / "train.csv")),
        *("--cpu_threads", "1", "--use_cpu"),
    ]


@pytest.mark.slow
def test_a_mode_that_holds_is_written_with_exit_code_0(files, tmp_path, fresh_accelerate, capsys):
    code = main(["doctor", "--output_dir", str(tmp_path), "--", *recipe(files, "healthy")])

    written = json.loads((tmp_path / "doctor.json").read_text())
    assert code == 0
    assert (written["holds"], written["faults"], written["cure"]) == (True, [], None)
    assert written["setting"]["mode"] == "fp16"
    assert "fp16 holds on 32 examples" in capsys.readouterr().out
    page = (tmp_path / "doctor.html").read_text()
    assert "fp16 holds" in page
    assert "stored in bf16" in page


@pytest.mark.slow
def test_a_mode_that_does_not_hold_is_named_with_exit_code_4(
    files, tmp_path, fresh_accelerate, capsys
):
    with pytest.raises(SystemExit, match="4"):
        main(["doctor", "--mixed_precision", "fp16", "--output_dir", str(tmp_path), "--no_cure",
              "--", *recipe(files, "broken")])  # fmt: skip

    written = json.loads((tmp_path / "doctor.json").read_text())
    fault = written["faults"][0]
    assert not written["holds"]
    assert (fault["module"], fault["direction"], fault["operation"]) == (
        OVERFLOW, "forward", "addmm"
    )  # fmt: skip
    assert fault["cause"] == "overflow of a product"
    assert fault["largest"] > 65504
    assert len(fault["example_ids"]) == 32
    out = capsys.readouterr().out
    assert f"fp16 will overflow: `{OVERFLOW}` reaches" in out
    assert "modeling_bert.py" in out
    page = (tmp_path / "doctor.html").read_text()
    assert f"<code><bdi>{OVERFLOW}</bdi></code> <bdi>reaches" in page
    assert "<script" not in page


@pytest.mark.slow
def test_bf16_holds_where_fp16_overflows(files, fresh_accelerate, capsys):
    assert main(["doctor", "--mixed_precision", "bf16", "--", *recipe(files, "broken")]) == 0
    out = capsys.readouterr().out.replace("\n", " ")
    assert "where numbers of bf16 are 1024 apart" in out
    assert "Add --output_dir DIR" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batches", "0", "--"], "--batches: received 0; it must be at least 1"),
        (["--tolerated", "1", "--"], "--tolerated: received 1.0; it must be at least 0"),
        (["--", "--mixed_precision", "fp16"], "belongs before ` -- `. Write: ampft doctor"),
        (["--mixed_precision", "fp8", "--"], "fp8"),
        (["--mixed_precision", "bf16-true", "--"], "modes with float32 weights"),
        (["--no_cure", "--trial_steps", "5", "--"], "no cure is searched for. Remove one of them"),
        (["nowhere"], "this is not a folder"),
        (["nowhere", "--mixed_precision", "fp16"], "a saved step is replayed in the mode"),
    ],
)
def test_wrong_use_ends_with_exit_code_2(files, tmp_path, fresh_accelerate, capsys, words, message):
    folder = tmp_path / "out"
    flags = recipe(files, "healthy") if "--" in words else []
    assert main(["doctor", "--output_dir", str(folder), *words, *flags]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.slow
def test_the_saved_step_of_a_run_is_replayed(
    files, tmp_path, fresh_accelerate, capsys, monkeypatch
):
    run = tmp_path / "run"
    assert main(["train", *recipe(files, "broken"), "--mixed_precision", "fp16",
                 "--per_device_train_batch_size", "4", "--output_dir", str(run)]) == 3  # fmt: skip

    with pytest.raises(SystemExit, match="4"):
        main(["doctor", str(run), "--no_cure"])

    out = capsys.readouterr().out
    assert f"fp16 will overflow: `{OVERFLOW}` reaches" in out
    assert "in 4 of 4 examples" in out.replace("\n", " ")
    assert f"step 17 of {run}:" in " ".join(out.split())

    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["doctor", str(run), "--no_cure"]) == 2
    assert "Start ampft doctor without torchrun" in capsys.readouterr().err
    monkeypatch.delenv("WORLD_SIZE")

    (weights,) = run.glob("nonfinite/step-*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    assert main(["doctor", str(run), "--no_cure"]) == 2
    assert f"{weights}: the file was changed after the run" in capsys.readouterr().err


@pytest.mark.slow
def test_too_high_a_rate_is_not_called_a_fault_of_the_precision(files, tmp_path, fresh_accelerate):
    """The trial has the rate of the run; with a usual one, the same weights would be cured."""
    run = tmp_path / "run"
    rate = ("--learning_rate", "30", "--max_grad_norm", "0")
    assert main(["train", *recipe(files, "healthy"), "--mixed_precision", "fp16", *rate,
                 "--per_device_train_batch_size", "4", "--output_dir", str(run)]) == 3  # fmt: skip
    found = {}
    for name, flags in {"own": (), "usual": ("--learning_rate", "5e-5")}.items():
        with pytest.raises(SystemExit, match="4"):
            main(["doctor", str(run), "--trial_steps", "20", "--output_dir", str(tmp_path / name),
                  "--", *flags])  # fmt: skip
        found[name] = json.loads((tmp_path / name / "doctor.json").read_text())
    own, usual = found["own"], found["usual"]
    assert own["float32_trial"]["learning_rate"] == 30
    assert own["cure"] is None
    page = (tmp_path / "own" / "doctor.html").read_text()
    assert "this is not a fault of the precision: float32 fails too with these settings" in page
    assert "Lower --learning_rate" in page
    assert usual["float32_trial"]["learning_rate"] == 5e-5
    assert usual["float32_trial"]["after"] < usual["float32_trial"]["before"]
    assert "not a fault" not in (tmp_path / "usual" / "doctor.html").read_text()


@pytest.mark.slow
def test_a_run_without_a_saved_step_is_examined_from_its_start(
    files, tmp_path, fresh_accelerate, capsys
):
    run = tmp_path / "run"
    assert main(["train", *recipe(files, "broken"), "--mixed_precision", "fp16",
                 "--max_train_steps", "1", "--output_dir", str(run)]) == 3  # fmt: skip
    assert not (run / "nonfinite").exists()

    with pytest.raises(SystemExit, match="4"):
        main(["doctor", str(run), "--no_cure", "--batches", "2"])

    assert "in 16 of 16 examples" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("changed", ["train.csv", "model/config.json"])
def test_a_run_whose_inputs_were_changed_is_not_examined(tmp_path, monkeypatch, changed):
    run, data, model = tmp_path / "run", tmp_path / "train.csv", tmp_path / "model"
    for folder in (run, model):
        folder.mkdir()
    data.write_text("text,label\na,x\n")
    (model / "config.json").write_text("{}")
    record = record_of()
    files = {"config.json": describe_file(model / "config.json").sha256}
    record = replace(
        record,
        data=replace(record.data, files={str(data): describe_file(data).sha256}),
        model=replace(record.model, name=str(model), files=files),
    )
    (run / "run.json").write_text(hashed_text(record))
    monkeypatch.setattr(
        case, "recorded_arguments", lambda record, flags, paths: ClassifyArguments()
    )
    monkeypatch.setattr(case, "recipe_case", lambda *args, **kwargs: "examined")
    assert case.run_case(run, (), steps=1, trial_steps=1) == "examined"
    (tmp_path / changed).write_text("other")
    with pytest.raises(InputError, match=f"{Path(changed).name} was changed since the run read it"):
        case.run_case(run, (), steps=1, trial_steps=1)
    assert case.run_case(run, ("--padding",), steps=1, trial_steps=1) == "examined"


def test_a_file_is_refused_as_the_folder_before_anything_is_examined(files, capsys):
    table = files / "train.csv"
    before = table.read_bytes()
    assert main(["doctor", "--output_dir", str(table), "--", *recipe(files, "healthy")]) == 2
    assert "not a folder in which you can write" in capsys.readouterr().err
    assert table.read_bytes() == before


@pytest.mark.full
@pytest.mark.slow
def test_two_processes_give_one_diagnosis_of_all_examples(files, tmp_path, fresh_accelerate):
    flags = [word for word in recipe(files, "healthy") if word != "--use_cpu"]
    succeeded(
        call(
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--standalone",
            "-m", "ampft", "doctor", "--output_dir", tmp_path / "two", "--", *flags,
            CUDA_VISIBLE_DEVICES="",
        )
    )  # fmt: skip
    main(["doctor", "--output_dir", str(tmp_path / "one"), "--",
          *recipe(files, "healthy"), "--gradient_accumulation_steps", "2"])  # fmt: skip

    one, two = (json.loads((tmp_path / n / "doctor.json").read_text()) for n in ("one", "two"))
    assert (one["setting"]["processes"], two["setting"]["processes"]) == (1, 2)
    assert one["setting"]["examples"] == two["setting"]["examples"] == 64
    assert two["holds"]
    for alone, together in zip(one["ranges"], two["ranges"], strict=True):
        assert together["module"] == alone["module"]
        if alone["direction"] == "forward":
            assert together["largest"] == pytest.approx(alone["largest"], rel=1e-4)


@pytest.mark.full
@pytest.mark.slow
def test_the_main_process_may_search_longer_than_a_collective_operation(tmp_path):
    script = Path(__file__).parent / "waiting_processes.py"
    succeeded(
        call(
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--standalone",
            script, tmp_path, CUDA_VISIBLE_DEVICES="",
        )
    )  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"ended-0", "ended-1"}
