"""How many operators a step without padding needs on a CUDA device."""

import pytest
from fake_cuda import step_operators
from representatives import TEXT_FAMILIES, full_except
from tiny_encoders import ENCODERS, tiny

# Six groups of similar length.
LENGTHS = (5,) * 3 + (9,) * 3 + (14,) * 3 + (20,) * 3 + (30,) * 2 + (40,) * 2
# DeBERTa's own attention runs on padded cells, which are gathered and scattered in each layer.
GATHERED_PER_LAYER = {"deberta-v2": 15, "deberta-v3": 15}


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    ("name", "mode"),
    full_except(
        [("bert", "fp32"), *((name, "bf16") for name in sorted(ENCODERS))],
        [("bert", "fp32"), *((name, "bf16") for name in TEXT_FAMILIES)],
    ),
)
def test_a_step_without_padding_needs_no_more_operators(name, mode):
    padded = step_operators(tiny(name), LENGTHS, mode, packed=False)
    packed = step_operators(tiny(name), LENGTHS, mode, packed=True)
    layers = 2
    assert 100 < packed <= padded + layers * GATHERED_PER_LAYER.get(name, 0)


@pytest.mark.usefixtures("capability")
def test_groups_of_short_texts_would_need_more(monkeypatch):
    """The negative control: attention in groups, as without a kernel for the whole row."""
    padded = step_operators(tiny("bert"), LENGTHS, "bf16", packed=False)
    monkeypatch.setattr("ampft.models.packing.kernels.one_call_kernel", lambda *_: None)
    monkeypatch.setattr("fake_cuda.GROUP_COST_ON_GPU", 0.0)
    assert step_operators(tiny("bert"), LENGTHS, "bf16", packed=True, joint=False) > padded


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(("mode", "share"), [("bf16", 0.7), ("fp32", 0.9)])
def test_joint_weights_save_operators(mode, share):
    joint, single = (
        step_operators(tiny("bert"), LENGTHS, mode, packed=True, joint=joint)
        for joint in (True, False)
    )
    assert 0 < joint < share * single
