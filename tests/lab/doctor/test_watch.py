"""The watch in any loop: what it names, and that it leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from planted_faults import FAULTS, WIDTH, Function, around, cross, inputs, plain
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertForSequenceClassification

import ampft
from ampft.fast.packing.install import install_packing
from ampft.lab.doctor.batch import Examination
from ampft.lab.doctor.diagnosis import Fault
from ampft.lab.doctor.watch import NonfiniteEvent, NonfiniteOrigins, OperationWatch

LENGTHS = (9, 3, 7, 1)


def bert(*, scale: float = 1.0) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_labels=3,
        intermediate_size=64,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.weight.mul_(scale)
    return model


def padded_batch() -> dict[str, torch.Tensor]:
    mask = (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(3, 50, mask.shape, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids * mask, "attention_mask": mask}


def text_loss(model, batch):
    return functional.cross_entropy(model(**batch).logits.float(), torch.tensor([0, 1, 2, 0]))


def largest_of_a_layer(model, batch):
    """Return the largest output of the scaled layer for each token, in float64."""
    seen = []
    layer = model.bert.encoder.layer[1].intermediate.dense
    handle = layer.register_forward_hook(lambda _, __, output: seen.append(output))
    model.double()(**batch)
    handle.remove()
    model.float()
    return seen[0].detach().abs().amax(-1)


@pytest.mark.parametrize("packed", [False, True])
def test_tokens_are_named_in_a_padded_and_in_a_packed_batch(packed):
    batch = padded_batch()
    tokens = largest_of_a_layer(bert(), batch) * batch["attention_mask"]
    # Between the largest token and the third one, so that two overflow.
    sizes = tokens.flatten().sort(descending=True).values
    model = bert(scale=float(65520 / (sizes[1] * sizes[2]).sqrt()))
    expected = largest_of_a_layer(model, batch).gt(65520) & (batch["attention_mask"] == 1)
    if packed:
        install_packing(model, trim_last_layer=False)

    fault = ampft.doctor.locate(model, [batch], text_loss)

    assert fault.module == "bert.encoder.layer.1.intermediate.dense"
    real = [token for token in fault.tokens if batch["attention_mask"][token] == 1]
    assert real == [tuple(each) for each in expected.nonzero().tolist()]
    assert len(real) == 2
    assert "modeling_bert.py" in fault.source


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_tokens_are_named_where_rows_are_rounded(mode, packed):
    """In native bfloat16 on a CPU, a row without padding has fillers."""
    batch, model = padded_batch(), bert()
    token = int(batch["input_ids"][0, 3])
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[token] = torch.inf
    if packed:
        install_packing(model, trim_last_layer=False)

    fault = ampft.doctor.locate(model, [batch], text_loss, mixed_precision=mode)

    assert fault.tokens == ((0, 3),)


def test_a_healthy_model_has_no_first_fault():
    assert ampft.doctor.locate(plain(), [inputs()], cross) is None


def test_the_fault_of_a_checkpointed_module_is_found():
    model = around(lambda x: checkpoint(lambda y: (y * (y > 0)).sqrt(), x, use_reentrant=False))

    fault = ampft.doctor.locate(model, [inputs()], cross)

    assert (fault.module, fault.cause) == ("1", "gradient of a root at 0")


def test_nothing_is_left_behind_after_a_scan():
    planted = FAULTS["deep linear"]()
    model = planted.model
    cross(model, inputs()).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()

    ampft.doctor.scan(model, planted.batches, planted.loss)

    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_batch_statistics_are_those_before_the_scan():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 3)).train()

    ampft.doctor.scan(model, [inputs()], cross)

    assert int(model[0].num_batches_tracked) == 0
    assert torch.equal(model[0].running_mean, torch.zeros(WIDTH))


def test_the_watch_works_in_any_loop_and_leaves_no_hook_after_an_exception():
    def fail(x):
        raise ZeroDivisionError("stopped here")

    model = around(fail)
    with pytest.raises(ZeroDivisionError, match="stopped"), OperationWatch(model):
        cross(model, inputs())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())

    broken = around(lambda x: (x - 10).log())
    with OperationWatch(broken) as watch:
        loss = cross(broken, inputs())
    (event,) = watch.events_of([loss])
    assert event.key == ("1", "forward", "log", 0)


def test_the_watch_changes_no_digit():
    model, batch = bert().train(), padded_batch()
    torch.manual_seed(3)
    text_loss(model, batch).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.manual_seed(3)
    with OperationWatch(model):
        text_loss(model, batch).backward()

    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


class PartsOf(torch.nn.Module):
    """Computes something too large, and writes it into a buffer in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.inner = Function(lambda x: x * 1e7)

    @torch.no_grad()  # as an attention by hand, which writes with out=
    def forward(self, x):
        large, rows, half = self.inner(x), len(x), len(x) // 2
        buffer = {"zeros": torch.zeros_like, "ones": torch.ones_like}.get(
            self.way, torch.empty_like
        )(large)
        if self.way == "out":
            torch.mul(large[:half], 1, out=buffer[:half])
            torch.mul(x[half:], 1, out=buffer[half:])
        elif self.way == "index":
            buffer[torch.arange(half)] = large[:half]
            buffer[torch.arange(half, rows)] = x[half:].to(large.dtype)
        elif self.way == "added":
            buffer = large.clone()
            buffer[half:] = x[half:]
            buffer.add_(1).mul_(2)
        else:
            buffer[:half] = large[:half]
            buffer[half:] = x[half:]
        return buffer


@pytest.mark.parametrize("way", ["zeros", "ones", "empty", "out", "index", "added"])
def test_a_write_into_a_part_of_a_buffer_keeps_the_origin_of_the_rest(way):
    torch.manual_seed(0)
    linear, head = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 3)
    model = torch.nn.Sequential(linear, PartsOf(way), head)

    for _ in range(3):
        fault = ampft.doctor.locate(model, [inputs()], cross)
        assert (fault.module, fault.operation) == ("1.inner", "mul")
        assert fault.cause == "overflow of a product"


def test_memory_that_nothing_wrote_has_no_origin():
    """What new memory contains is not a result; without the record it would hide one."""
    origins = NonfiniteOrigins()
    event = NonfiniteEvent(("", "forward", "mul", 0), "overflow of a product")
    memory = torch.full((2, 3), float("nan"))
    assert bool(origins.bad(memory).all())
    origins.allocated(memory)
    assert not bool(origins.bad(memory).any())
    memory[0] = 1.0
    origins.write_finite(memory[0])
    memory[1, :2] = torch.inf
    origins.write(memory[1, :2], frozenset({event}))
    assert origins.bad(memory).tolist() == [[False] * 3, [True, True, False]]
    assert origins.events(memory[0]) == frozenset()
    assert origins.events(memory[1]) == {event}
    memory[1, 0] = 0.0
    origins.write_finite(memory[1, :1])
    assert origins.events(memory[1, :1]) == frozenset()
    assert origins.events(memory) == {event}
    origins.write_finite(torch.zeros_like(memory))
    assert origins.events(memory) == {event}
    memory.zero_()
    origins.write_finite(memory)
    assert origins.events(memory) == frozenset()


def test_several_causes_in_different_batches_are_all_reported():
    large, log = inputs(1), inputs(2)
    large["x"] = large["x"] * 1e4
    log["labels"] = log["labels"] * 0

    def loss(model, batch):
        value = cross(model, batch)
        return value + (value * 0).log() * 0 if batch is log else value

    faults = ampft.doctor.scan(around(torch.relu, gain=30), [inputs(), large, log], loss).faults

    assert [fault.cause for fault in faults] == ["overflow of a product", "log of 0"]
    assert [min(fault.example_ids) for fault in faults] == [8, 16]


def test_each_batch_is_compared_with_itself_in_float32():
    model = around(lambda x: x / (x * x), gain=1e-4)
    torch.nn.init.zeros_(model[0].bias)
    zeros = {**inputs(), "x": torch.zeros_like(inputs()["x"])}
    faults = ampft.doctor.scan(model, [inputs(), zeros], cross).faults
    assert {fault.cause: fault.in_float32 for fault in faults} == {
        "underflow, then x/0": False,
        "0/0": True,
    }


@pytest.mark.parametrize(
    ("one", "other", "both"), [(False, True, True), (True, False, True), (False, False, False)]
)
def test_a_fault_of_several_batches_is_one_of_float32_if_any_of_them_is(one, other, both):
    found = Examination()
    for in_float32 in (one, other):
        found.add_fault(
            Fault(
                module="1", direction="forward", operation="div", cause="x/0", in_float32=in_float32
            )
        )
    assert [fault.in_float32 for fault in found.faults] == [both]


def test_the_message_names_a_mode_that_is_not_examined():
    with pytest.raises(ampft.InputError, match="float32 weights"):
        ampft.doctor.scan(plain(), [inputs()], cross, mixed_precision="bf16-true")
    with pytest.raises(ampft.InputError, match="at least one batch"):
        ampft.doctor.scan(plain(), [], cross)


def test_a_dimension_of_features_is_not_taken_for_tokens():
    batch = padded_batch()
    model = bert()
    pooled = torch.nn.Linear(32, 9)  # as many features as the batch has columns
    model.classifier = torch.nn.Sequential(pooled, torch.nn.Linear(9, 3))
    with torch.no_grad():
        pooled.weight.mul_(1e7)

    fault = ampft.doctor.locate(model, [batch], text_loss)

    assert fault.module == "classifier.0"
    assert list(fault.example_ids) == [0, 1, 2, 3]
    assert fault.tokens == ()
