"""Every planted fault is named: module, direction, operation, cause and examples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from historical import HISTORICAL
from planted_faults import FAULTS

from ampft.lab.doctor.case import ExaminedModel
from ampft.lab.doctor.examine import examine, scan
from ampft.precision.resolve import resolve


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAULTS, *HISTORICAL])
def test_the_fault_is_named(name):
    planted = {**FAULTS, **HISTORICAL}[name]()

    diagnosis = scan(planted.model, planted.batches, planted.loss, **planted.options)

    first = diagnosis.faults[0]
    assert (first.module, first.direction, first.operation, first.cause) == (
        planted.module, planted.direction, planted.operation, planted.cause
    )  # fmt: skip
    if planted.examples is not None:
        assert list(first.example_ids) == list(planted.examples)
    if first.in_float32 is not None:
        assert first.in_float32 is planted.in_float32
    assert first.is_harmless is planted.is_harmless
    assert diagnosis.holds is planted.is_harmless
    assert first.remedy


def test_the_twin_of_tf32_is_float32():
    policies = []

    def loss(model, batch):
        policies.append(torch._C._get_fp32_precision_getter("cuda", "matmul"))
        return model(batch["x"]).sum() / 0

    tf32 = replace(resolve("fp32", torch.device("cpu")), mode="tf32")
    case = ExaminedModel(torch.nn.Linear(2, 2), [{"x": torch.ones(1, 2)}], loss, tf32)
    (fault,) = examine(case, only_first=True).faults
    assert fault.in_float32
    assert policies == ["tf32", "ieee"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [*FAULTS, *HISTORICAL])
def test_native_binary16_gives_the_same_verdict(name):
    planted = {**FAULTS, **HISTORICAL}[name]()
    batches = [{key: value.cuda() for key, value in batch.items()} for batch in planted.batches]

    diagnosis = scan(planted.model.cuda(), batches, planted.loss, **planted.options)

    assert diagnosis.setting.execution == "native"
    first = diagnosis.faults[0]
    assert (first.module, first.direction, first.cause) == (
        planted.module, planted.direction, planted.cause
    )  # fmt: skip
    assert diagnosis.holds is planted.is_harmless
