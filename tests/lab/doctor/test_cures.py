"""Historical faults of fp16: found, cured, and trained in fp16 to what float32 reaches."""

import statistics
from functools import cache

import historical
import pytest
import torch
from representatives import full_except

import ampft
from ampft.lab.doctor import scan
from ampft.lab.doctor.case import ExaminedModel, TrialSettings
from ampft.lab.doctor.cure import find_cure
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
SEEDS, STEPS = range(3), 18
CURES = {
    "T5": ("block.1.*.wo",),
    "mT5": ("block.2.*.wo",),
    "DeBERTa": ("self",),
    "ModernBERT": ("layers.0.attn",),
    "detector": (),
}


@cache
def cured(name):
    planted = historical.HISTORICAL[name]()
    found = scan(planted.model, planted.batches, planted.loss, **planted.options)
    assert not found.holds
    assert found.faults[0].module == planted.module
    case = ExaminedModel(
        planted.model,
        planted.batches,
        planted.loss,
        resolve("fp16", CPU),
        loss_scale=planted.options.get("loss_scale"),
        trial=TrialSettings(steps=3),
    )
    return find_cure(case, found).cure


def final_loss(name, mode, seed, patterns):
    """Train with the batches in the order of a seed; return the mean loss of the last steps."""
    planted, precision = historical.HISTORICAL[name](), resolve(mode, CPU)
    model = planted.model
    ampft.keep_in_fp32(model, patterns)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=precision.uses_scaler)
    order = torch.Generator().manual_seed(seed)
    case, losses = ExaminedModel(model, planted.batches, planted.loss, precision), []
    with ampft.numerics(precision):
        scaler.scale(torch.ones(()))  # creates the scale
        for _ in range(STEPS):
            index = int(torch.randint(len(case.batches), (), generator=order))
            scale = scaler.get_scale()
            optimizer.zero_grad()
            losses.append(float(case.differentiate(case.batches[index], scale=scale)))
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() >= 1
    return statistics.mean(losses[-6:])


@pytest.mark.slow
@pytest.mark.parametrize("name", full_except(CURES, ["DeBERTa", "T5"]))
def test_the_cured_model_trains_in_fp16_as_in_float32(name):
    cure = cured(name)
    assert cure.verified
    assert cure.fp32_modules == CURES[name]
    losses = {
        mode: [final_loss(name, mode, seed, cure.fp32_modules) for seed in SEEDS]
        for mode in ("fp32", "fp16")
    }
    noise = max(losses["fp32"]) - min(losses["fp32"])
    differences = [a - b for a, b in zip(losses["fp16"], losses["fp32"], strict=True)]
    assert abs(statistics.mean(differences)) < noise


@pytest.mark.slow
def test_without_the_cure_it_does_not_train():
    assert not torch.isfinite(torch.tensor(final_loss("T5", "fp16", 0, ())))
