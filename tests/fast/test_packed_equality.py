import copy
import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_encoders import (
    ENCODERS,
    LONGEST,
    loss_and_gradient,
    relative_error,
    right_padded,
    tiny,
    without_dropout,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampft.emulation import Emulation
from ampft.fast.packing import install, verification
from ampft.fast.packing.families import FAMILIES
from ampft.fast.packing.install import install_packing
from ampft.fast.packing.layout import SequenceGroup, pack_layout
from ampft.fast.packing.verification import verify_packing

# float32: the same products, summed in another order; 1.06e-6 was seen with AVX512 (qwen2).
FP32_TOLERANCE = 2e-6
# 16 bits: operands and results of each product are rounded to 2^-9 (bfloat16) or 2^-12 (binary16),
# at different points of the two paths: the padded attention kernel computes in float32 internally.
BF16_TOLERANCE = 2e-2
FP16_TOLERANCE = 2e-3

LENGTHS = st.lists(st.integers(1, LONGEST), min_size=1, max_size=7)


@pytest.fixture(scope="module", params=sorted(ENCODERS))
def models(request):
    padded = without_dropout(tiny(request.param))
    packed = copy.deepcopy(padded)
    handle = install_packing(packed)
    yield padded, packed, handle
    handle.remove()


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lengths=LENGTHS)
def test_logits_loss_and_gradients_equal_those_of_the_padded_model(models, lengths):
    padded, packed, handle = models
    before = handle.paths["packed"]
    batch = right_padded(padded, lengths)
    expected = loss_and_gradient(padded, batch)
    actual = loss_and_gradient(packed, batch)
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= FP32_TOLERANCE
    assert handle.paths["packed"] == before + 1


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [1, LONGEST], [LONGEST] * 2])
def test_extreme_lengths(models, lengths):
    padded, packed, _ = models
    batch = right_padded(padded, lengths)
    for one, other in zip(
        loss_and_gradient(packed, batch), loss_and_gradient(padded, batch), strict=True
    ):
        assert relative_error(one, other) <= FP32_TOLERANCE


def test_each_gradient_separately(models):
    padded, packed, _ = models
    batch = right_padded(padded, [3, 17, 17, 1, 30])
    scale = loss_and_gradient(padded, batch)[2].norm()
    loss_and_gradient(packed, batch)
    for (name, one), other in zip(packed.named_parameters(), padded.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if other.grad is not None:
            assert float((one.grad - other.grad).norm() / scale) <= FP32_TOLERANCE, name


@pytest.mark.parametrize("lengths", [[3, 17, 17, 1, 30], [8, 9, 10, 11]])
def test_bfloat16_within_its_rounding(models, lengths):
    padded, packed, _ = models
    batch = right_padded(padded, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = loss_and_gradient(packed, batch), loss_and_gradient(padded, batch)
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= BF16_TOLERANCE


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_bfloat16_weights_within_their_rounding(name):
    padded = without_dropout(tiny(name)).bfloat16()
    packed = copy.deepcopy(padded)
    install_packing(packed)
    batch = right_padded(padded, [3, 17, 17, 1, 30])
    actual, expected = loss_and_gradient(packed, batch), loss_and_gradient(padded, batch)
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= BF16_TOLERANCE


def test_emulated_binary16_within_its_rounding(models):
    padded, packed, _ = models
    batch = right_padded(padded, [3, 17, 17, 1, 30])
    with Emulation(torch.float16), torch.autocast("cpu", torch.float16):
        actual, expected = loss_and_gradient(packed, batch), loss_and_gradient(padded, batch)
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= FP16_TOLERANCE


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_evaluation_without_a_graph(models, context):
    padded, packed, _ = models
    batch = right_padded(padded, [5, 2, 9, 9])
    with context():
        actual, expected = packed.eval()(**batch).logits, padded.eval()(**batch).logits
    packed.train()
    padded.train()
    if actual.dim() == 3:
        actual, expected = (logits[batch["attention_mask"] != 0] for logits in (actual, expected))
    assert relative_error(actual, expected) <= FP32_TOLERANCE


def test_attention_without_boundaries_would_differ(models):
    padded, packed, _ = models
    batch = right_padded(padded, [5, 7])
    layout = pack_layout(batch["attention_mask"])
    one_sequence = dataclasses.replace(layout, lengths=(12,), groups=(SequenceGroup(0, (12,)),))
    actual = loss_and_gradient(packed, {**batch, "packing": one_sequence})
    expected = loss_and_gradient(padded, batch)
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) > 100 * FP32_TOLERANCE


def test_gradient_checkpointing_recomputes_the_same(models):
    padded, packed, handle = models
    if not packed.supports_gradient_checkpointing:
        pytest.skip(f"{packed.config.model_type} does not support gradient checkpointing")
    name = "activation_checkpointing"
    if not hasattr(packed, f"{name}_enable"):
        name = "gradient_checkpointing"  # its name before transformers 5.23
    getattr(packed, f"{name}_enable")()
    try:
        batch = right_padded(padded, [3, 17, 17, 1, 30])
        before = handle.paths["packed"]
        actual, expected = loss_and_gradient(packed, batch), loss_and_gradient(padded, batch)
    finally:
        getattr(packed, f"{name}_disable")()
    assert handle.paths["packed"] == before + 1
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= FP32_TOLERANCE


def test_verify_packing_measures_the_difference_and_does_not_change_the_model(models):
    padded, _, _ = models
    before = padded.config._attn_implementation
    batch = right_padded(padded, [4, 1, 20])
    assert max(verify_packing(padded, batch)) <= FP32_TOLERANCE
    assert padded.training
    assert padded.config._attn_implementation == before
    left = {name: tensor.flip(1) for name, tensor in batch.items()}
    assert verify_packing(padded, left) == (float("inf"), float("inf"))


def test_the_sketch_estimates_the_norm_of_a_gradient_and_keeps_small_ones():
    generator = torch.Generator().manual_seed(1)
    for shape in ((30_000, 8), (300, 4, 5), (64, 64)):
        gradient = torch.randn(shape, generator=generator)
        sketch = verification._sketch(gradient)
        assert sketch.shape == (16, *shape[1:])
        assert 0.5 < float(sketch.norm() / gradient.norm()) < 2
        changed = gradient.clone()
        changed[7] = 0  # one row
        assert not torch.equal(verification._sketch(changed), sketch)
    bias = torch.randn(300, generator=generator)
    assert torch.equal(verification._sketch(bias), bias)


def test_the_sketch_makes_no_copy_of_the_gradient():
    gradient = torch.randn(4096, 8)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                storage = tensor.untyped_storage()
                if storage.data_ptr() != gradient.untyped_storage().data_ptr():
                    largest = max(largest, storage.nbytes())
            return result

    with Watch():
        verification._sketch(gradient)
    assert 0 < largest <= gradient.nbytes / 4


def test_verify_packing_sees_a_wrong_gradient_behind_right_logits(models, monkeypatch):
    padded, _, _ = models
    batch = right_padded(padded, [4, 1, 20])
    calls = iter((1.0, 1.01))
    original = verification._output_and_gradient

    def one_matrix_is_scaled(model, batch, **packing):
        scale = next(calls)
        weight = next(w for w in reversed(list(model.parameters())) if w.dim() == 2)
        hook = weight.register_hook(lambda gradient: gradient * scale)
        try:
            return original(model, batch, **packing)
        finally:
            hook.remove()

    monkeypatch.setattr(verification, "_output_and_gradient", one_matrix_is_scaled)
    error = verify_packing(padded, batch)
    assert error.logits <= FP32_TOLERANCE
    assert 1e-4 < error.gradient <= 2e-2


def test_verify_packing_keeps_no_whole_gradient_of_a_matrix(models, monkeypatch):
    padded, _, _ = models
    kept, original = [], torch.autograd.grad

    def spy(*args, **options):
        kept.extend(original(*args, **options))
        return kept

    monkeypatch.setattr(torch.autograd, "grad", spy)
    _, gradient = verification._output_and_gradient(padded, right_padded(padded, [4, 1, 20]))
    assert len(kept) > 10
    assert max(p.untyped_storage().nbytes() for p in kept if p is not None) <= 8  # one number
    rows = verification.SKETCH_ROWS
    assert all(part.dim() < 2 or len(part) <= rows for part in gradient)


def test_a_parameter_that_only_one_path_uses_is_a_wrong_gradient():
    logits, gradient = torch.ones(2, 3), torch.ones(4, 5)
    without = (logits, [gradient.new_zeros(())])
    assert verification._error((logits, [gradient]), without) == (0, 1)
    assert verification._error(without, (logits, [gradient])).gradient > 1


def test_verify_packing_runs_the_groups_of_a_training_and_one_per_length(models, monkeypatch):
    layouts = []

    def spy(*args, **options):
        layouts.append(pack_layout(*args, **options))
        return layouts[-1]

    monkeypatch.setattr(verification, "pack_layout", spy)
    verify_packing(models[0], right_padded(models[0], [4, 1, 20]))
    assert [[group.lengths for group in layout.groups] for layout in layouts] == [
        [(1, 4, 20)],
        [(1,), (4,), (20,)],
    ]


def test_a_few_lengths_make_even_and_uneven_groups_in_these_tests(models):
    mask = right_padded(models[0], [3, 17, 17, 1, 30])["attention_mask"]
    groups = install.pack_layout(mask).groups
    assert [group.lengths for group in groups] == [(1, 3), (17, 17), (30,)]


def test_every_family_is_tested():
    assert {ENCODERS[name]().config.model_type for name in ENCODERS} == set(FAMILIES)
