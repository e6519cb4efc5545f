"""Modules kept in float32: exact gradients, the recorder, patterns, and what they leave behind."""

import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from test_executed import CPU
from torch import nn
from torch.utils.checkpoint import checkpoint

import ampft
from ampft.errors import InputError
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.precision.float32_modules import (
    check_float32_modules,
    float32_module_start,
    keep_in_fp32,
    replaced_forwards,
    uncalled_float32_pattern,
)
from ampft.precision.resolve import resolve

MODES = ("fp16", "bf16")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi = nn.Linear(8, 16)
        self.wo = nn.Linear(16, 8)

    def forward(self, hidden):
        return hidden + self.wo(F.gelu(self.wi(hidden)))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 2)

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Twin(Small):
    """The same function with the casts written out by hand: both `wo` in float32."""

    def forward(self, hidden):
        for block in self.blocks:
            widened = F.gelu(block.wi(hidden)).float()
            with torch.autocast("cpu", enabled=False):
                added = F.linear(widened, block.wo.weight, block.wo.bias)
            hidden = hidden + added
        return self.head(hidden)


def small(kind=Small):
    torch.manual_seed(0)
    return kind()


def gradient(model, mode, *, recorder=None, inputs=None):
    """Every gradient of a step in `mode`, the gradient of the inputs first."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(5, 8, generator=generator) if inputs is None else inputs
    inputs = inputs.clone().requires_grad_()
    precision = resolve(mode, CPU)
    autocast = torch.autocast("cpu", precision.compute_dtype, enabled=precision.uses_autocast)
    model.zero_grad()
    with ampft.numerics(precision), recorder or nullcontext():
        with autocast:
            loss = F.cross_entropy(model(inputs).float(), torch.tensor([0, 1, 0, 1, 1]))
        (loss * 1024).backward()
    return [inputs.grad, *(p.grad.clone() for p in model.parameters())]


def all_equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def is_finite(gradients):
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("mode", [*MODES, "fp32"])
def test_the_gradient_is_that_of_casts_written_by_hand(mode):
    kept = small()
    keep_in_fp32(kept, ["wo"])
    assert all_equal(gradient(kept, mode), gradient(small(Twin), mode))
    assert all_equal(gradient(small(), mode), gradient(small(Twin), mode)) == (mode == "fp32")


@pytest.mark.parametrize("mode", MODES)
def test_products_are_float32_by_request_forward_and_backward(mode):
    model, precision = small(), resolve(mode, CPU)
    keep_in_fp32(model, ["blocks.*.wo"])
    recorder = ProductRecorder(precision)
    gradient(model, mode, recorder=recorder)
    rows = recorder.census().rows
    by_request = {row.direction: row.count for row in rows if row.by_request}
    assert by_request == {"forward": 2, "backward": 4}
    assert {dtype for row in rows if row.by_request for dtype in row.inputs} == {"float32"}
    others = {row.direction: row.count for row in rows if not row.by_request}
    assert others == {"forward": 3, "backward": 6}
    assert precision_contradiction(precision, recorder.census()) is None
    assert "float32 sums, by --fp32_modules" in recorder.census().summary()


def test_a_float32_product_that_nobody_requested_contradicts_the_mode():
    model = small(Twin)
    recorder = ProductRecorder(resolve("fp16", CPU))
    gradient(model, "fp16", recorder=recorder)
    message = precision_contradiction(resolve("fp16", CPU), recorder.census())
    assert "6 of 15 products of the first step ran in another dtype" in message


def test_a_16_bit_product_inside_a_kept_module_is_a_contradiction():
    class Stubborn(Block):
        def forward(self, hidden):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(hidden)

    model = small()
    model.blocks[0].__class__ = Stubborn
    keep_in_fp32(model, ["blocks.0"])
    recorder = ProductRecorder(resolve("bf16", CPU))
    gradient(model, "bf16", recorder=recorder)
    message = precision_contradiction(resolve("bf16", CPU), recorder.census())
    assert message.startswith("--fp32_modules was requested, but 6 products inside these modules")


def test_a_frozen_module_does_not_hide_the_products_around_it():
    model, precision = small(), resolve("bf16", CPU)
    keep_in_fp32(model, ["blocks.0.wi"])
    model.blocks[0].requires_grad_(requires_grad=False)
    recorder = ProductRecorder(precision)
    with torch.autocast("cpu", torch.bfloat16), recorder:
        before = model.head(torch.ones(3, 8))
        model.blocks[0].wi(torch.ones(3, 8))
        before.float().sum().backward()
    rows = recorder.census().rows
    requested = {row.direction: row.by_request for row in rows if row.count == 1}
    assert [row for row in rows if row.direction == "backward" and row.by_request] == []
    assert requested["backward"] is False


class Recomputing(Small):
    def forward(self, hidden):
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return self.head(hidden)


def test_recomputed_activations_stay_in_float32():
    plain, recomputing = small(), small(Recomputing)
    recorder = ProductRecorder(resolve("fp16", CPU))
    for model in (plain, recomputing):
        keep_in_fp32(model, ["wo"])
    assert all_equal(gradient(plain, "fp16"), gradient(recomputing, "fp16", recorder=recorder))
    assert precision_contradiction(resolve("fp16", CPU), recorder.census()) is None


@pytest.mark.parametrize("earlier", range(8))
def test_nodes_of_another_thread_are_not_mistaken_for_those_of_kept_modules(earlier):
    # The backward pass of a GPU runs in a thread that numbers its nodes from 0 again.
    model, precision = small(Recomputing), resolve("bf16", CPU)
    keep_in_fp32(model, ["wo"])

    def forward():
        recorder = ProductRecorder(precision)
        with torch.autocast("cpu", torch.bfloat16), recorder:
            return recorder, model(torch.ones(3, 8)).float().sum()

    def backward(recorder, loss):
        for _ in range(earlier):
            torch.ones(1, requires_grad=True).neg()
        with recorder:
            loss.backward()

    with ThreadPoolExecutor(1) as main, ThreadPoolExecutor(1) as device:
        recorder, loss = main.submit(forward).result()
        device.submit(backward, recorder, loss).result()
    assert precision_contradiction(precision, recorder.census()) is None


def test_an_overflow_in_a_kept_module_is_gone():
    models = [small(), small()]
    for model in models:
        torch.nn.init.constant_(model.blocks[0].wo.bias, 70_000.0)
    keep_in_fp32(models[1], ["blocks.0.wo"])
    # What follows receives the large residual stream in float16, unless it is kept too.
    assert [is_finite(gradient(model, "fp16")) for model in models] == [False, False]
    keep_in_fp32(models[1], ["*"])
    assert is_finite(gradient(models[1], "fp16"))


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        ("wo", ["blocks.0.wo", "blocks.1.wo"]),
        ("blocks.*.wo", ["blocks.0.wo", "blocks.1.wo"]),
        ("blocks.1", ["blocks.1"]),
        ("1.w?", ["blocks.1.wi", "blocks.1.wo"]),
        ("blocks", ["blocks.0", "blocks.1"]),  # a list, which is never called
        ("*", ["blocks.0", "blocks.1", "head"]),
    ],
)
def test_a_pattern_chooses_the_outermost_modules(pattern, modules):
    model = small()
    handle = keep_in_fp32(model, [pattern])
    assert list(handle.names) == modules == list(replaced_forwards(model))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blocks.*.w0", r"--fp32_modules blocks\.\*\.w0: the pattern matches no .* blocks\.\d\.wo"),
        ("haed", r"Similar ones are head\. Use a path"),
        ("xyzzy", r"The first ones are blocks, blocks\.0, blocks\.0\.wi\. Use a path"),
    ],
)
def test_a_pattern_without_a_match_is_refused_with_similar_names(pattern, message):
    model = small()
    with pytest.raises(InputError, match=message):
        keep_in_fp32(model, ["wo", pattern])
    assert replaced_forwards(model) == {}


def test_nothing_is_left_behind():
    model = small()
    expected = gradient(model, "bf16")
    keep_in_fp32(model, ["wo"])
    handle = keep_in_fp32(model, ["wo"])  # a second time
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError, match="shapes"):
            model.blocks[0].wo(torch.ones(3))
        assert torch.is_autocast_enabled("cpu")
        assert float32_module_start() is None
    handle.remove()
    assert "forward" not in model.blocks[0].wo.__dict__
    assert all_equal(gradient(model, "bf16"), expected)


def test_a_copy_keeps_its_own_modules_in_float32():
    model = small()
    keep_in_fp32(model, ["wo"])
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(model.blocks[0].wo.weight)
    assert all_equal(gradient(twin, "fp16"), gradient(small(Twin), "fp16"))
    assert list(model.state_dict()) == list(small().state_dict())


def test_nested_inputs_and_float64_are_cast_as_documented():
    class Reading(nn.Module):
        def forward(self, pair, *, options):
            self.seen = [t.dtype for t in (*pair, *options.values())]
            return pair[0]

    model = nn.ModuleDict({"reading": Reading()})
    keep_in_fp32(model, ["reading"])
    half, wide, ids = torch.ones(2).half(), torch.ones(2).double(), torch.ones(2, dtype=torch.int64)
    model["reading"]((half, ids), options={"wide": wide, "brain": half.bfloat16()})
    assert model["reading"].seen == [torch.float32, torch.int64, torch.float64, torch.float32]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("bf16-true", "it stores all weights in bfloat16"),
        ("bf16-true-kahan", "it stores all weights in bfloat16"),
    ],
)
def test_a_mode_that_cannot_keep_modules_is_refused(mode, reason):
    model = small()
    check_float32_modules(model, resolve(mode, CPU))
    keep_in_fp32(model, ["wo"])
    with pytest.raises(InputError, match=rf"2 modules \(blocks\.0\.wo\).*{mode}.*{reason}"):
        check_float32_modules(model, resolve(mode, CPU))


@pytest.mark.add_ons
def test_float32_for_the_whole_model_is_refused_in_a_mode_of_16_bits():
    model = small()
    keep_in_fp32(model, ["*"])
    check_float32_modules(model, resolve("fp32", CPU))
    with pytest.raises(InputError, match=r"--fp32_modules \*: the whole model .*precision fp32"):
        check_float32_modules(model, resolve("bf16", CPU))
    keep_in_fp32(model, ["*"]).remove()
    keep_in_fp32(model, ["blocks.*"])
    check_float32_modules(model, resolve("bf16", CPU))


class WithTable(nn.Module):
    """Attention without layers of its own between single layers, as in BERT, after a table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.norm = nn.LayerNorm(8)
        self.body = nn.ModuleDict({"query": nn.Linear(8, 8), "block": Block()})
        self.head = nn.Linear(8, 2)

    def forward(self, ids):
        hidden = self.norm(self.table(ids))
        query = self.body["query"](hidden)
        return self.head(self.body["block"](query @ hidden.mT @ hidden))


# The first leaves `query @ hidden.mT` to 16 bits, the others a layer.
@pytest.mark.parametrize("patterns", ["body.*,head", "block,head", "block,query"])
def test_products_outside_float32_modules_are_allowed(patterns):
    model = WithTable()
    keep_in_fp32(model, patterns.split(","))
    check_float32_modules(model, resolve("bf16", CPU))


@pytest.mark.add_ons
def test_float32_for_all_that_multiplies_is_refused_although_a_table_is_left():
    model = WithTable()
    model.body = nn.ModuleDict({"block": Block()})
    keep_in_fp32(model, ["block", "head"])
    with pytest.raises(InputError, match=r"block,head: the whole model would compute in float32"):
        check_float32_modules(model, resolve("bf16", CPU))


def test_a_pattern_whose_modules_are_never_called_is_reported():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    keep_in_fp32(model, ["self_attn.out_proj", "linear1"])
    model(torch.ones(1, 3, 8)).sum().backward()
    assert uncalled_float32_pattern(model).startswith(
        "--fp32_modules self_attn.out_proj was requested, but"
    )
    keep_in_fp32(model, ["linear2"])
    replaced_forwards(model)["self_attn.out_proj"].restore()
    model(torch.ones(1, 3, 8))
    assert uncalled_float32_pattern(model) is None


@pytest.mark.add_ons
def test_kept_modules_are_not_quantized():
    from ampft.export.int8 import quantize, quantized_layers

    model = small().eval()
    keep_in_fp32(model, ["blocks.1"])
    quantized = quantize(model)
    assert len(quantized_layers(quantized)) == 3
    assert isinstance(quantized.blocks[1].wo, nn.Linear)
    assert quantized(torch.ones(1, 8)).isfinite().all()
