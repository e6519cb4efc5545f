"""How many operators a step without padding needs on a CUDA device."""

from itertools import product

import pytest
from fake_cuda import step_operators
from representatives import TEXT_FAMILIES, full_except
from tiny_encoders import ENCODERS, tiny, without_dropout

# Six groups of similar length.
LENGTHS = (5,) * 3 + (9,) * 3 + (14,) * 3 + (20,) * 3 + (30,) * 2 + (40,) * 2
# DeBERTa's own attention runs on padded cells, which are gathered and scattered in each layer. With
# autocast, joint weights save more than that.
GATHERED_PER_LAYER = {
    (name, mode): 15 for name in ("deberta-v2", "deberta-v3") for mode in ("fp32", "bf16-true")
}


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    ("name", "mode"),
    full_except(
        product(sorted(ENCODERS), ("fp32", "fp16", "bf16", "bf16-true")),
        [("bert", "fp32"), *((name, "bf16") for name in TEXT_FAMILIES)],
    ),
)
def test_a_step_without_padding_needs_no_more_operators(name, mode):
    def model():  # the kernel for whole rows has no dropout in float32
        return without_dropout(tiny(name)) if mode == "fp32" else tiny(name)

    padded = step_operators(model(), LENGTHS, mode, packed=False)
    packed = step_operators(model(), LENGTHS, mode, packed=True)
    layers = 2
    assert 80 < packed <= padded + layers * GATHERED_PER_LAYER.get((name, mode), 0)


@pytest.mark.usefixtures("capability")
def test_groups_of_short_texts_would_need_more(monkeypatch):
    """The negative control: attention in groups, as without a kernel for the whole row."""
    padded = step_operators(tiny("bert"), LENGTHS, "bf16", packed=False)
    monkeypatch.setattr("ampft.fast.packing.packed_attention.one_call_kernel", lambda *_: None)
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
