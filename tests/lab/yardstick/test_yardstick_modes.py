"""The yardstick of a tiny BERT in several modes, and its command."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_text import tiny_task, tiny_texts

from ampft import cli
from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.checks.blocks import blocks_of
from ampft.data.step_batches import StepBatches
from ampft.files import hashed_text, read_hashed
from ampft.lab.yardstick.figures import Yardstick, format_yardstick
from ampft.lab.yardstick.measure import GradientInFloat64, GradientInMode, measure_yardstick
from ampft.lab.yardstick.yardstick import YARDSTICK
from ampft.precision.accelerator import separate_accelerators
from ampft.precision.resolve import resolve
from ampft.runs.prepare import prepare_mode, start_clock
from ampft.text.json_io import from_json, json_text

CPU = torch.device("cpu")
BLOCKS = ("embeddings", "encoder.layer.0", "encoder.layer.1", "pooler", "classifier")


@pytest.fixture(scope="module")
def words(tiny_bert, tmp_path_factory) -> list[str]:
    """Arguments of classify.py for the tiny BERT on 60 texts."""
    file = tmp_path_factory.mktemp("data") / "train.csv"
    texts = tiny_texts(60)
    names = ("ant", "bee", "cow")
    rows = [f"{text},{names[label]}" for text, label in zip(*texts.values(), strict=True)]
    file.write_text("\n".join(["text,label", *rows]) + "\n")
    return [
        "--model_name_or_path", str(tiny_bert), "--train_file", str(file), "--use_cpu",
        "--validation_fraction", "0.1", "--test_fraction", "0.1", "--cpu_threads", "1",
    ]  # fmt: skip


@pytest.fixture
def run_of(words, tiny_bert, tmp_path):
    """Return a function that creates a run folder with these weights and a changed record."""

    def make(name: str, **changed) -> str:
        folder = shutil.copytree(tiny_bert, tmp_path / name)
        record = {
            "schema": 3, "status": "finished", "arguments": {}, "command": [], "task": "text",
            "label_names": ["ant", "bee", "cow"],
            "data": {"name": "d", "kind": "text", "fingerprints": {}, "examples": {}},
            "model": {
                "name": "m", "architecture": changed.pop(
                    "architecture", "BertForSequenceClassification"
                ),
                "parameters": 1, "trainable_parameters": 1, "initial_weights_sha256": "",
            },
            "precision": {"requested": "fp32", "resolved": {"mode": "fp32"}},
            "topology": {"num_processes": 1, "cpu_threads": 1, "device": "cpu"},
            "steps": {"total": 1}, "memory": None, "best": None,
        }  # fmt: skip
        (folder / "run.json").write_text(hashed_text(record | changed))
        return str(folder)

    return make


@pytest.mark.slow
def test_modes_are_in_order_and_checkpoints_are_measured(words, run_of, fresh_accelerate):
    args = parse_classify_arguments(words)
    yardstick = measure_yardstick(
        args, ["fp32", "bf16", "fp16"], batches=8, checkpoints=[run_of("run")]
    )
    initial, saved = yardstick.checkpoints
    assert tuple(module.name for module in initial.modules) == BLOCKS
    fp32, bf16, fp16 = (mode.whole.error_over_noise for mode in initial.modes)
    assert 1e-8 < fp32 < 1e-5
    assert 1e-3 < bf16 < 0.1
    # Three more bits of the significand: an eighth of the error.
    assert fp16 == pytest.approx(bf16 / 8, rel=0.5)
    assert [mode.initial_scale for mode in initial.modes] == [None, None, 65536.0]
    assert "bfloat16" in initial.modes[1].executed
    # The folder holds the initial weights of the run, including its head.
    assert saved.whole == initial.whole
    assert [mode.whole for mode in saved.modes] == [mode.whole for mode in initial.modes]
    assert from_json(Yardstick, json.loads(json_text(yardstick))) == yardstick
    short = dataclasses.replace(yardstick.settings, model="model", data="data")  # paths are long
    text = format_yardstick(
        dataclasses.replace(yardstick, settings=short, checkpoints=yardstick.checkpoints[:1])
    )
    assert max(map(len, text.splitlines())) <= 100
    assert "bf16       The gradient error is" in text


def sources(folder, *modes, **settings):
    task = tiny_task(folder, train=40, **settings)
    padded = tiny_task(folder, train=40, remove_padding=False)
    steps = StepBatches(task.examples("train"), 8)
    reference = GradientInFloat64(padded, padded.load_model().model, CPU)
    args = ClassifyArguments(per_device_train_batch_size=8)
    gradients = [
        GradientInMode(prepare_mode(args, resolve(mode, CPU), task, started=start_clock()))
        for mode in modes
    ]
    return steps, reference, gradients


def difference(one, other):
    gaps = [(one[name].double() - other[name]).norm() ** 2 for name in other]
    return float(sum(gaps) / sum(part.norm() ** 2 for part in other.values())) ** 0.5


@pytest.mark.slow
def test_the_reference_is_float64_for_all_micro_batches_and_paddings(tiny_bert):
    steps, reference, _ = sources(tiny_bert)
    packed_task = tiny_task(tiny_bert, train=40)
    packed = GradientInFloat64(packed_task, packed_task.load_model().model, CPU)
    (whole,) = steps.epoch(0, stop=1)
    (parts,) = dataclasses.replace(steps, micro_batches=3).epoch(0, stop=1)
    exact = {k: g.clone() for k, g in reference(whole).gradient.items()}
    assert {g.dtype for g in exact.values()} == {torch.float64}
    assert difference(reference(parts).gradient, exact) < 1e-14
    assert 0 < difference(packed(whole).gradient, exact) < 1e-14


@pytest.mark.slow
def test_each_mode_keeps_its_precision_next_to_others(tiny_bert, fresh_accelerate):
    with separate_accelerators():
        steps, reference, (bf16, fp32) = sources(tiny_bert, "bf16", "fp32")
        for step_batch in steps.epoch(0, stop=2):
            exact = reference(step_batch).gradient
            assert difference(fp32(step_batch).gradient, exact) < 1e-6
            assert difference(bf16(step_batch).gradient, exact) > 1e-4
        assert bf16.prepared.accelerator.mixed_precision == "bf16"
        assert fp32.prepared.accelerator.mixed_precision == "no"


def test_gradient_and_error_scale_with_the_weights_as_predicted(tiny_bert, fresh_accelerate):
    # A layer norm follows the embeddings: four times as large, they have a quarter of the gradient,
    # and a power of two rounds as one does.
    with separate_accelerators():
        steps, reference, (bf16,) = sources(tiny_bert, "bf16")
        (step_batch,) = steps.epoch(0, stop=1)
        name, before = "bert.embeddings.word_embeddings.weight", []
        for _ in range(2):
            exact, result = reference(step_batch).gradient[name], bf16(step_batch).gradient[name]
            before.append((float(exact.norm()), float((result - exact).norm())))
            for model in (reference.model, bf16.model):
                for table in model.bert.embeddings.children():
                    if isinstance(table, torch.nn.Embedding):
                        table.weight.data *= 4
    (gradient, error), (smaller_gradient, smaller_error) = before
    assert smaller_gradient == pytest.approx(gradient / 4, rel=1e-6)
    assert smaller_error == pytest.approx(error / 4, rel=0.05)
    assert error > 1e-3 * gradient


@pytest.mark.slow
def test_an_overflow_halves_the_scale_only_for_its_batch(tiny_bert, fresh_accelerate):
    with separate_accelerators():
        steps, reference, (fp16,) = sources(tiny_bert, "fp16")
        first, second = steps.epoch(0, stop=2)
        weight = fp16.model.classifier.weight
        # Not finite above 65536 / 4, like a gradient of 65504 at a quarter of the scale.
        hook = weight.register_hook(
            lambda g: g * torch.inf if fp16.prepared.accelerator.scaler.get_scale() > 16384 else g
        )
        result = fp16(first)
        assert (result.overflowed, result.scale) == (True, 16384.0)
        assert difference(result.gradient, reference(first).gradient) < 0.01
        hook.remove()
        result = fp16(second)
        assert (result.overflowed, result.scale) == (False, 65536.0)
        weight.register_hook(lambda g: g * torch.inf)
        assert fp16(first).gradient is None


def test_blocks_of_plain_modules_are_their_submodules():
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    model = torch.nn.ModuleDict(
        {"body": layers, "head": torch.nn.Sequential(torch.nn.Linear(2, 1))}
    )
    model.token = torch.nn.Parameter(torch.zeros(3))
    blocks = blocks_of(model)
    assert dict(zip(blocks.names, blocks.sizes, strict=True)) == {
        "top-level parameters": 3, "body.0": 6, "body.1": 6, "head": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["--modes", "fp32,bf61"], "'bf61' is not a precision mode. Did you mean 'bf16'?"),
        (["--modes", "fp32,tf32"], "not available on this device"),
        (["--modes", "bf16,bf16"], "a mode appears twice"),
        (["--batches", "1"], "--batches: received 1; it must be at least 2"),
        (["--checkpoints", "no/such/run"], "--checkpoints no/such/run: the folder does not exist"),
        (["--checkpoints", "{model}"], "is not the folder of a run"),
        (["--checkpoints", "{unfinished}"], "the status of the run is diverged"),
        (["--checkpoints", "{other}"], "is a ViTForImageClassification"),
        (["--checkpoints", "{labels}"], "has the labels x, y"),
        (["--output", "no/such/folder/y.json"], "its folder does not exist"),
        (["--bathces", "3"], "unknown flag --bathces. Did you mean '--batches'?"),
        (["--", "--mixed_precision", "bf16"], "--modes before ` -- ` names the precisions"),
        (["--", "--per_device_train_batch_size", "40"], "a step batch has 40"),
    ],
)
def test_invalid_input_is_refused(flags, match, words, run_of, tiny_bert, fresh_accelerate, capsys):
    folders = {
        "model": tiny_bert,
        "unfinished": run_of("unfinished", status="diverged"),
        "other": run_of("other", architecture="ViTForImageClassification"),
        "labels": run_of("labels", label_names=["x", "y"]),
    }
    argv = [flag.format(**folders) for flag in flags]
    split = argv.index("--") if "--" in argv else len(argv)
    command = ["yardstick", *argv[:split], "--", *words, *argv[split + 1 :]]
    assert cli.main(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert match in line


@pytest.mark.slow
def test_the_command_prints_and_writes(words, tmp_path, fresh_accelerate, capsys):
    output = tmp_path / "yardstick.json"
    own = ["--modes", "bf16", "--batches", "2", "--output", str(output)]
    YARDSTICK([*own, "--", *words], "ampft yardstick")
    printed = capsys.readouterr().out
    assert "bf16, " in printed
    assert printed.splitlines()[-1] == f"wrote      {output}"
    yardstick = from_json(Yardstick, read_hashed(output)[0])
    assert yardstick.settings.batches == 2
    assert list(Path(tmp_path).iterdir()) == [output]
