"""The memory of a step by part, against known byte counts where possible."""

import gc

import numpy as np
import pytest
import torch
from tiny_text import tiny_task
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampft.engine.first_step import FirstStepMonitor, SavedTensorBytes, state_bytes, tensor_bytes
from ampft.engine.step import backward
from ampft.errors import PrecisionContradicted
from ampft.precision.accelerator import make_accelerator, numerics
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
FLOAT = 4  # bytes


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def saved_by(model, *batches) -> SavedTensorBytes:
    with SavedTensorBytes(model.parameters()) as saved:
        for batch in batches:
            model(batch).sum().backward()
    return saved


def test_activations_of_a_small_network():
    model = network()
    # The first layer saves its input; ReLU and the second layer save the same tensor.
    expected = 5 * 4 * FLOAT + 5 * 8 * FLOAT
    saved = saved_by(model, torch.ones(5, 4))
    assert saved.peak == expected
    assert saved.current == 0
    # Negative control: if parameters are not excluded, the second layer's weight counts too.
    with SavedTensorBytes(()) as with_parameters:
        model(torch.ones(5, 4)).sum().backward()
    assert with_parameters.peak == expected + 3 * 8 * FLOAT


def test_the_peak_is_that_of_the_largest_micro_batch():
    model = network()
    sizes = (2, 7, 3)
    saved = saved_by(model, *(torch.ones(size, 4) for size in sizes))
    assert saved.peak == 7 * 12 * FLOAT


def test_an_output_saved_by_its_own_node_is_freed():
    gc.disable()
    try:
        values = torch.ones(10, requires_grad=True)
        with SavedTensorBytes([values]) as saved:
            result = values.exp()
            assert saved.current == 10 * FLOAT
            del result
        assert saved.current == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_saves_less(reentrant):
    model = network()
    values = torch.ones(5, 4, requires_grad=True)
    with SavedTensorBytes([*model.parameters(), values]) as without:
        model(values).sum().backward()
    with SavedTensorBytes([*model.parameters(), values]) as saved:
        output = checkpoint(model, values, use_reentrant=reentrant)
        before_backward = saved.current
        output.sum().backward()
    assert before_backward < without.peak == 5 * 8 * FLOAT
    assert saved.current == 0


def test_weights_gradients_and_state_in_bytes():
    model = network()
    count = sum(p.numel() for p in model.parameters())
    assert tensor_bytes(model.parameters()) == count * FLOAT
    assert tensor_bytes([model[0].weight, model[0].weight.view(-1)]) == 32 * FLOAT
    optimizer = torch.optim.AdamW(model.parameters())
    assert state_bytes(optimizer) == 0
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert state_bytes(optimizer) == (2 * count + 4) * FLOAT


def one_step(folder, mode, first_step, **settings):
    """Return the gradients of a step of two micro-batches, the measured memory and the model."""
    precision = resolve(mode, CPU)
    accelerator = make_accelerator(precision, gradient_accumulation_steps=2)
    task = tiny_task(folder, train=8, **settings)
    loaded = task.load_model()
    for module in loaded.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    model, optimizer = accelerator.prepare(
        loaded.model.train(), torch.optim.AdamW(loaded.model.parameters())
    )
    examples = task.examples("train")
    torch.manual_seed(1)
    with numerics(precision), first_step.measured(model, optimizer):
        for ids in ([0, 1, 2], [3, 4, 5, 6, 7]):
            inputs = examples.collate(np.array(ids))
            logits = task.logits(model, inputs)
            backward(accelerator, nn.functional.cross_entropy(logits, inputs["labels"]))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [p.grad.clone() for p in model.parameters()], first_step.memory, model


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize(
    "settings",
    [
        {"remove_padding": True},
        {"remove_padding": False},
        {"remove_padding": True, "gradient_checkpointing": True},
    ],
    ids=["padding-free", "padded", "checkpointed"],
)
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_measuring_changes_no_gradient(tiny_bert, mode, settings):
    precision = resolve(mode, CPU)
    gradients, memory, model = one_step(tiny_bert, mode, FirstStepMonitor(precision), **settings)
    later = FirstStepMonitor(precision, executed=object())  # only the first step is measured
    plain, none, _ = one_step(tiny_bert, mode, later, **settings)
    assert none is None
    assert all(torch.equal(one, other) for one, other in zip(gradients, plain, strict=True))
    count = sum(p.numel() for p in model.parameters())
    assert memory["weights"] == memory["gradients"] == count * FLOAT
    # In fp16 the first step may overflow and be skipped.
    assert memory["optimizer_state"] in {0, (2 * count + len(gradients)) * FLOAT}
    assert memory["activations"] > 10_000


def test_products_of_random_later_steps_are_checked():
    """A model that leaves autocast after its first step."""
    model = network()
    first_step = FirstStepMonitor(resolve("bf16", CPU))

    class Prepared:
        optimizer = torch.optim.AdamW(model.parameters())

    def train(*, strays):
        for _ in range(1000):
            with (
                first_step.measured(model, Prepared()),
                torch.autocast("cpu", torch.bfloat16, enabled=not strays),
            ):
                model(torch.ones(2, 4)).sum().backward()

    train(strays=False)
    with pytest.raises(PrecisionContradicted, match="products of a later step ran in another"):
        train(strays=True)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
def test_checkpointing_halves_the_measured_activations(tiny_bert):
    def activations(mode, **settings):
        first_step = FirstStepMonitor(resolve(mode, CPU))
        return one_step(tiny_bert, mode, first_step, remove_padding=False, **settings)[1][
            "activations"
        ]

    assert activations("fp32", gradient_checkpointing=True) < activations("fp32") / 2


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_the_state_of_the_generators_is_recorded_only_if_dropout_draws(probability):
    model = nn.Sequential(network(), nn.Dropout(probability))
    first_step = FirstStepMonitor(resolve("fp32", CPU))

    class Prepared:
        optimizer = torch.optim.AdamW(model.parameters())

    with first_step.measured(model, Prepared()):
        model(torch.ones(2, 4)).sum().backward()
    assert (first_step.random_state is None) == (probability == 0)


def test_the_state_is_measured_later_if_the_first_step_is_skipped():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())

    class Prepared:
        pass

    prepared = Prepared()
    prepared.optimizer = optimizer
    first_step = FirstStepMonitor(resolve("fp32", CPU))
    states = []
    for applied in (False, True, True):
        with first_step.measured(model, prepared):
            model(torch.ones(2, 4)).sum().backward()
            if applied:
                optimizer.step()
        states.append(first_step.memory["optimizer_state"])
    count = sum(p.numel() for p in model.parameters())
    assert states == [0, (2 * count + 4) * FLOAT, (2 * count + 4) * FLOAT]
