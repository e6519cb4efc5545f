"""The optimizer holds every trained parameter in every mode, and its first update moves them."""

from __future__ import annotations

import pytest
import torch
from running import call_here, last_of_each, text_settings
from safetensors.torch import load_file

from ampft.arguments import parse_classify_arguments
from ampft.engine.step import accumulate_gradient, apply_step
from ampft.errors import InputError
from ampft.precision import accelerator as accelerator_module
from ampft.precision import resolve as resolve_module
from ampft.precision.accelerator import numerics
from ampft.precision.modes import MODES
from ampft.precision.resolve import survey_modes
from ampft.runs.prepare import prepare

CPU = torch.device("cpu")


@pytest.fixture
def fp8_on_cpu(monkeypatch):
    """Torch multiplies fp8 on a CPU, slowly; only the probe refuses it."""
    pytest.importorskip("torchao.float8", reason="needs torchao (pip install torchao)")
    probe = {"fp8": lambda device: ("native", f"{device} simulates it")}
    monkeypatch.setattr(resolve_module, "_PROBES", resolve_module._PROBES | probe)


def settings(text_files, tiny_model, folder, *more):
    return [*text_settings(text_files, tiny_model, folder), *more]


def prepared_in(mode, words):
    return prepare(
        parse_classify_arguments(last_of_each("train", *words, "--mixed_precision", mode)[1:])
    )


def step(prepared):
    """Make the first optimizer step of a prepared training."""
    batches = prepared.step_batches.epoch(0)
    with numerics(prepared.precision):
        losses = accumulate_gradient(
            prepared.accelerator, prepared.model, prepared.task.loss, next(batches)
        )
        return apply_step(
            prepared.accelerator,
            prepared.model,
            prepared.optimizer,
            prepared.schedule,
            losses=losses,
            max_grad_norm=1.0,
        )


MODES_ON_CPU = [m.mode for m in survey_modes(CPU) if m.status != "unavailable"]


@pytest.mark.add_ons
def test_modes_are_swept():
    assert {"fp32", "bf16", "fp16", "bf16-true", "bf16-true-kahan"} <= set(MODES_ON_CPU)
    assert set(MODES) - set(MODES_ON_CPU) == {"tf32", "fp8"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torchao's import
@pytest.mark.parametrize("part", ["all", "head", "adapters"])
@pytest.mark.parametrize("mode", [*MODES_ON_CPU, "fp8"])
def test_every_trained_tensor_moves_in_every_mode(
    mode, part, files, tiny_model, tmp_path, fresh_accelerate, request
):
    if mode == "fp8":
        request.getfixturevalue("fp8_on_cpu")
    flags = {"all": [], "head": ["--freeze", "encoder"], "adapters": ["--lora_r", "2"]}[part]
    if (mode, part) == ("fp8", "adapters"):
        pytest.skip("fp8 refuses adapters")
    words = settings(files, tiny_model, tmp_path / "run", "--warmup_ratio", "0", *flags)
    prepared = prepared_in(mode, words)
    model = prepared.loaded.model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    outcome = step(prepared)
    assert not outcome.skipped
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    with_gradient = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved <= trained
    assert with_gradient
    # The learning rate of 8e-3 exceeds the spacing of all weights of this model but those near 1.
    still = with_gradient - moved
    assert all(before[name].abs().max() >= 1 and "true" in mode for name in still), still


@pytest.mark.filterwarnings("ignore")  # of torchao's import
def test_accelerates_default_for_fp8_is_refused(
    files, tiny_model, tmp_path, fresh_accelerate, fp8_on_cpu, monkeypatch
):
    recipe = accelerator_module._fp8_recipe

    def as_by_default():
        (kwargs,) = recipe()
        return [type(kwargs)(enable_fsdp_float8_all_gather=True)]

    monkeypatch.setattr(accelerator_module, "_fp8_recipe", as_by_default)
    with pytest.raises(InputError, match=r"holds 29 of 41 trainable tensors, and \S+ is not one"):
        prepared_in("fp8", settings(files, tiny_model, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torchao's import
def test_a_run_in_fp8_saves_what_it_trained(files, tiny_model, tmp_path, fp8_on_cpu):
    folder = tmp_path / "run"
    flags = ("--mixed_precision", "fp8", "--num_train_epochs", "1", "--max_train_steps", "3")
    done = call_here("recipes/classify.py", *settings(files, tiny_model, folder, *flags))
    assert done.returncode == 0, done.stderr
    before = {f"bert.{n}": t for n, t in load_file(tiny_model / "model.safetensors").items()}
    after = load_file(folder / "model.safetensors")
    converted = [n for n in after if n.endswith("dense.weight") or ".self." in n]
    assert len(converted) > 12
    assert all(not torch.equal(after[n], before[n]) for n in converted if n in before)


@pytest.mark.parametrize("backend", ["TE", "MSAMP"])
def test_other_libraries_for_fp8_are_refused(backend, monkeypatch):
    monkeypatch.setenv("ACCELERATE_FP8_BACKEND", backend)
    with pytest.raises(InputError, match=rf"FP8_BACKEND={backend} .*only with torchao.*ao, or"):
        accelerator_module._fp8_recipe()
