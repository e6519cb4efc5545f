"""The recorder of executed dtypes, on steps whose products are counted by hand."""

import dataclasses
import json
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ampft.errors import InputError
from ampft.precision.accelerator import numerics
from ampft.precision.executed import (
    ExecutedDtypes,
    ProductRecorder,
    ProductRow,
    check_trainable_dtype,
    count_tensor_dtypes,
    precision_contradiction,
)
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Attentive(nn.Module):
    """A convolution, a projection and an attention over it."""

    def __init__(self, dropout):
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)
        self.projection = nn.Linear(8, 8)
        self.dropout = dropout

    def forward(self, inputs):
        heads = self.projection(inputs).unflatten(-1, (2, 4)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=self.dropout)
        return attended.float().sum() + self.convolution(inputs[:, None]).float().sum()


def step(mode, *, dropout=0.0, recorded=True):
    """One optimizer step in `mode`; returns what was measured, the loss and the model."""
    torch.manual_seed(0)
    precision = resolve(mode, CPU)
    model = Attentive(dropout)
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = ProductRecorder(precision)

    def train():
        with torch.autocast("cpu", dtype=precision.compute_dtype, enabled=mode != "fp32"):
            loss = model(torch.randn(2, 5, 8, requires_grad=True))
        loss.backward()
        optimizer.step()
        return loss.detach()

    with numerics(precision):
        if recorded:
            with recorder:
                loss = train()
        else:
            loss = train()
    return recorder.census(model, optimizer), loss, model


def counts(executed, kind):
    by_direction = Counter()
    for row in executed.rows:
        if row.kind == kind:
            by_direction[row.direction] += row.count
    return dict(by_direction)


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", DTYPES)
def test_products_are_counted_with_their_dtypes(mode):
    executed, _, _ = step(mode)
    assert counts(executed, "projection") == {"forward": 1, "backward": 2}
    assert counts(executed, "convolution") == {"forward": 1, "backward": 1}
    assert counts(executed, "attention") == {"forward": 1, "backward": 1}
    assert {dtype for row in executed.rows for dtype in row.inputs} == {DTYPES[mode]}
    assert {row.output for row in executed.rows} == {DTYPES[mode]}
    assert {row.accumulator for row in executed.rows} == {"float32"}
    assert executed.is_emulated == resolve(mode, CPU).emulates_products
    assert executed.float32_products_lose_bits is None


@pytest.mark.add_ons
@pytest.mark.parametrize("requested", DTYPES)
@pytest.mark.parametrize("actual", DTYPES)
def test_a_step_contradicts_every_other_mode(requested, actual):
    executed, _, _ = step(actual)
    message = precision_contradiction(resolve(requested, CPU), executed)
    if requested == actual:
        assert message is None
    else:
        assert f"mode {requested} was requested" in message
        assert DTYPES[actual] in message


def test_attention_with_dropout_multiplies_in_float32_and_is_reported():
    # On a CPU the math path leaves autocast. This is reported, but is not a contradiction.
    executed, _, _ = step("bf16", dropout=0.1)
    if executed.is_emulated:
        pytest.skip("this CPU has no bfloat16 instructions, and emulated attention multiplies it")
    rows = [row for row in executed.rows if row.kind == "attention"]
    assert counts(executed, "attention") == {"forward": 2, "backward": 4}
    assert {dtype for row in rows for dtype in row.inputs} == {"float32"}
    assert "attention float32 x float32 -> float32 (float32 sums)" in executed.summary()
    assert precision_contradiction(resolve("bf16", CPU), executed) is None


@pytest.mark.add_ons
def test_emulated_attention_with_dropout_multiplies_16_bits():
    for mode in [mode for mode in ("fp16", "bf16") if resolve(mode, CPU).emulates_products]:
        executed, _, _ = step(mode, dropout=0.1)
        rows = [row for row in executed.rows if row.kind == "attention"]
        assert rows
        assert {dtype for row in rows for dtype in row.inputs} == {DTYPES[mode]}


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", DTYPES)
def test_recording_changes_no_bit(mode):
    _, loss, model = step(mode)
    _, plain_loss, plain_model = step(mode, recorded=False)
    assert torch.equal(loss, plain_loss)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, plain_model.get_parameter(name).grad)


def test_nothing_is_recorded_outside():
    executed, _, _ = step("fp32", recorded=False)
    assert executed.rows == ()
    assert "no matrix products recorded" in executed.summary()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns about itself while it traces
def test_a_recorded_model_is_compiled_and_its_compiled_products_are_counted():
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    layer = torch.compile(nn.Linear(4, 4), backend=graphs)
    recorders = []
    for dtype in (torch.bfloat16, torch.float32):
        with (
            ProductRecorder(resolve("bf16", CPU)) as recorder,
            torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16),
        ):
            layer(torch.randn(2, 4, requires_grad=True)).float().sum().backward()
        recorders.append(recorder.census())
    assert graphs.frame_count > 0
    assert counts(recorders[0], "projection") == {"forward": 1, "backward": 2}
    assert precision_contradiction(resolve("bf16", CPU), recorders[0]) is None
    assert precision_contradiction(resolve("bf16", CPU), recorders[1]) is not None
    torch._dynamo.reset()


def test_a_recomputed_forward_belongs_to_the_backward_pass():
    layer = nn.Linear(4, 4)
    # Otherwise recomputation stops before the last product, whose result is not needed.
    with ProductRecorder(resolve("fp32", CPU)) as recorder, set_checkpoint_early_stop(False):
        inputs = torch.randn(2, 4, requires_grad=True)
        checkpoint(layer, inputs, use_reentrant=False).sum().backward()
    assert counts(recorder.census(), "projection") == {"forward": 1, "backward": 3}


def test_composites_are_seen_under_inference_mode():
    layer, images = nn.Linear(4, 4), torch.randn(1, 1, 4, 4)
    with torch.inference_mode(), ProductRecorder(resolve("fp32", CPU)) as recorder:
        heads = layer(torch.randn(2, 4)).view(1, 1, 2, 4)
        F.scaled_dot_product_attention(heads, heads, heads)
        F.conv2d(images, torch.randn(1, 1, 2, 2))
    executed = recorder.census()
    kinds = {row.kind: row.count for row in executed.rows}
    assert kinds == {"projection": 1, "convolution": 1, "attention": 1}


BATCHED_LAYERS = {
    "einsum": lambda inputs, weight: torch.einsum("bsd,dh->bsh", inputs, weight),
    "einsum, weight first": lambda inputs, weight: torch.einsum("dh,bsd->bsh", weight, inputs),
    "baddbmm": lambda inputs, weight: torch.baddbmm(
        torch.zeros(1), inputs, weight.expand(len(inputs), -1, -1)
    ),
    "addbmm": lambda inputs, weight: torch.addbmm(
        torch.zeros(1), inputs, weight.expand(len(inputs), -1, -1)
    ),
    "matmul": lambda inputs, weight: inputs.mT @ weight[None, : inputs.shape[1]],
}


@pytest.mark.parametrize("name", BATCHED_LAYERS)
@pytest.mark.parametrize("inputs_need_gradients", [True, False])
def test_a_batched_product_with_a_weight_is_a_projection(name, inputs_need_gradients):
    weight = nn.Parameter(torch.randn(8, 8))
    inputs = torch.randn(2, 5, 8, requires_grad=inputs_need_gradients)
    with ProductRecorder(resolve("bf16", CPU)) as recorder:
        BATCHED_LAYERS[name](inputs, weight).sum().backward()
    executed = recorder.census()
    backward = 1 + inputs_need_gradients
    assert counts(executed, "projection") == {"forward": 1, "backward": backward}
    assert counts(executed, "attention") == {}
    assert "ran in another dtype" in precision_contradiction(resolve("bf16", CPU), executed)


def test_a_product_of_activations_is_attention():
    query, key = nn.Linear(4, 4), nn.Linear(4, 4)
    with ProductRecorder(resolve("fp32", CPU)) as recorder:
        inputs = torch.randn(2, 5, 4)
        torch.einsum("bsd,btd->bst", query(inputs), key(inputs)).sum().backward()
    assert counts(recorder.census(), "attention") == {"forward": 1, "backward": 2}


def test_bilinear_layers_are_counted_and_left_to_autocast():
    layer, linear = nn.Bilinear(4, 4, 4), nn.Linear(4, 4)
    with ProductRecorder(resolve("bf16", CPU)) as recorder, torch.autocast("cpu", torch.bfloat16):
        linear(layer(torch.randn(2, 4), torch.randn(2, 4)))
    executed = recorder.census()
    assert counts(executed, "bilinear") == {"forward": 1}
    assert "bilinear float32 x float32" in executed.summary()
    assert precision_contradiction(resolve("bf16", CPU), executed) is None


@torch.library.custom_op("ampft_tests::scaled", mutates_args=())
def scaled(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right


def test_custom_operators_are_reported():
    with ProductRecorder(resolve("fp32", CPU)) as recorder:
        scaled(torch.randn(2, 2), torch.randn(2, 2))
    assert counts(recorder.census(), "custom operator") == {"forward": 1}
    assert "custom operator float32 x float32" in recorder.census().summary()


def test_the_products_inside_a_wrapped_tensor_are_counted():
    wrapped = TwoTensor(torch.randn(4, 4), torch.randn(4, 4))
    with ProductRecorder(resolve("fp32", CPU)) as recorder:
        assert isinstance(wrapped @ wrapped, TwoTensor)
    assert counts(recorder.census(), "projection") == {"forward": 2}


@pytest.mark.filterwarnings("ignore")  # of torchao's import
def test_fp8_products_of_torchao_are_counted():
    float8 = pytest.importorskip("torchao.float8", reason="needs torchao (pip install torchao)")
    layer = float8.convert_to_float8_training(nn.Sequential(nn.Linear(32, 64)))
    precision = dataclasses.replace(on_gpu("fp8"), device_type="cpu")
    with ProductRecorder(precision) as recorder:
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(torch.randn(16, 32)).float().sum()
        loss.backward()
    executed = recorder.census()
    inputs = {(row.direction, row.inputs) for row in executed.rows}
    assert ("forward", ("float8_e4m3fn", "float8_e4m3fn")) in inputs
    assert ("backward", ("float8_e5m2", "float8_e4m3fn")) in inputs
    assert {row.accumulator for row in executed.rows} == {"unknown"}
    assert precision_contradiction(precision, executed) is None


@pytest.mark.add_ons
def test_emulated_fp16_is_recorded_only_inside_numerics():
    with (
        pytest.raises(InputError, match=r"inside `ampft\.numerics"),
        ProductRecorder(resolve("fp16", CPU)),
    ):
        pass


# Stored tensors


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", DTYPES)
def test_weights_gradients_and_state_are_float32(mode):
    executed, _, model = step(mode)
    parameters = len(list(model.parameters()))
    assert executed.parameters == executed.gradients == {"float32": parameters}
    # Two moments each; AdamW's step counters are scalars.
    assert executed.optimizer_state == {"float32": 2 * parameters}


def test_the_census_distinguishes_dtypes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    census = count_tensor_dtypes(model, None)
    assert census["parameters"] == {"float32": 2, "float16": 2}
    assert census["gradients"] == census["optimizer_state"] == {}


def test_a_trainable_parameter_in_16_bits_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    with pytest.raises(
        InputError, match=r"parameter 1\.weight is bfloat16; .*dtype=torch\.float32"
    ):
        check_trainable_dtype(model, torch.float32)
    model[1].requires_grad_(False)
    check_trainable_dtype(model, torch.float32)


# Summary and JSON


def test_the_summary_is_one_line():
    executed, _, _ = step("bf16")
    product = "bfloat16 x bfloat16 -> bfloat16 (float32 sums)"
    emulated = ", emulated" if executed.is_emulated else ""
    assert executed.summary() == (
        f"projections {product}, convolutions {product}, attention {product}{emulated}; "
        "weights, gradients, optimizer state float32"
    )


def test_the_summary_of_mixed_products_shows_shares():
    rows = (
        ProductRow("projection", "forward", ("float16", "float16"), "float16", "float32", 3),
        ProductRow("projection", "backward", ("float32", "float32"), "float32", "float32", 1),
    )
    executed = made(rows, gradients={"float16": 1, "float32": 1})
    assert executed.summary() == (
        "projections float16 x float16 -> float16 (float32 sums, 3 of 4) and "
        "float32 x float32 -> float32 (float32 sums, 1 of 4); "
        "weights float32; gradients float16 and float32"
    )


@pytest.mark.add_ons
def test_the_record_survives_json():
    executed, _, _ = step("fp16")
    record = json.loads(json.dumps(executed.as_dict(), allow_nan=False))
    assert record["is_emulated"] is True
    rows = [ProductRow(**(row | {"inputs": tuple(row["inputs"])})) for row in record["rows"]]
    assert tuple(rows) == executed.rows


# Contradictions that need other hardware


def made(rows=(), *, lose_bits=None, gradients=None):
    return ExecutedDtypes(rows, {"float32": 1}, gradients or {}, {}, False, lose_bits)


def projections(dtype):
    return (ProductRow("projection", "forward", (dtype, dtype), "float32", "float32", 4),)


def on_gpu(mode):
    precision = dataclasses.replace(resolve("fp32", CPU), device_type="cuda")
    compute = torch.float8_e4m3fn if mode == "fp8" else torch.float32
    return dataclasses.replace(precision, mode=mode, compute_dtype=compute)


@pytest.mark.parametrize(
    ("mode", "lose_bits", "expected"),
    [
        ("fp32", False, None),
        ("fp32", True, "ran in TF32"),
        ("tf32", True, None),
        ("tf32", False, "did not run in TF32"),
    ],
)
def test_the_probe_decides_about_tf32(mode, lose_bits, expected):
    message = precision_contradiction(
        on_gpu(mode), made(projections("float32"), lose_bits=lose_bits)
    )
    assert (message is None) if expected is None else (expected in message)


def test_sums_in_16_bits_contradict_every_mode_with_16_bits():
    bf16 = dataclasses.replace(on_gpu("bf16"), compute_dtype=torch.bfloat16)
    executed = made(projections("bfloat16"))
    allowed = dataclasses.replace(executed, sums_may_be_rounded=True)
    assert (
        precision_contradiction(bf16, dataclasses.replace(executed, sums_may_be_rounded=False))
        is None
    )
    assert precision_contradiction(bf16, allowed).endswith("its sums were allowed to be in 16 bits")
    assert precision_contradiction(on_gpu("fp32"), dataclasses.replace(allowed, rows=())) is None


def test_fp8_needs_one_fp8_product():
    some = projections("float8_e4m3fn") + projections("bfloat16")
    assert precision_contradiction(on_gpu("fp8"), made(some)) is None
    message = precision_contradiction(on_gpu("fp8"), made(projections("bfloat16")))
    assert "no float8_e4m3fn product was recorded" in message


def test_one_projection_in_another_dtype_is_a_contradiction():
    other = ProductRow("projection", "backward", ("float32", "float32"), "float32", "float32", 1)
    rows = (*projections("bfloat16"), other)
    message = precision_contradiction(resolve("bf16", CPU), made(rows))
    assert "1 of 5 products of the first step" in message
    assert "projections of float32 x float32 in the backward pass" in message


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_16_bits_without_any_product_are_a_contradiction(mode):
    precision = dataclasses.replace(resolve(mode, CPU), execution="native")
    message = f"no {DTYPES[mode]} product was recorded"
    assert message in precision_contradiction(precision, made())
    only_attention = [dataclasses.replace(projections("float32")[0], kind="attention")]
    assert message in precision_contradiction(precision, made(only_attention))
    assert precision_contradiction(resolve("fp32", CPU), made()) is None
