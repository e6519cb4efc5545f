"""The numbers of the range scan, against float64, and the loss scales against a GradScaler."""

from __future__ import annotations

import pytest
import torch
from historical import focal, images
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from ampft.lab.doctor.diagnosis_text import diagnosis_answer
from ampft.lab.doctor.examine import scan
from ampft.lab.doctor.ranges import ExponentCounts, RangeRecorder
from ampft.precision.accelerator import numerics
from ampft.precision.resolve import resolve

SHARE_TOLERANCE = 2e-3  # float32 moves a few values across a power of two
RELATIVE = 1e-4  # of float32 after two layers, forward and backward


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_labels=3,
        intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config).train()


def batches(count=3):
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(50, (4, 9), generator=generator)} for _ in range(count)
    ]  # fmt: skip


def loss(model, batch):
    return functional.cross_entropy(model(**batch).logits.float(), torch.tensor([0, 1, 2, 0]))


def in_float64(model):
    """Return the outputs and their gradients of all modules in float64, without the doctor."""
    copy = BertForSequenceClassification(model.config).double().train()
    copy.load_state_dict(model.state_dict())
    seen: dict[str, list[torch.Tensor]] = {}
    for name, module in copy.named_modules():

        def keep(_, __, output, name=name):
            if isinstance(output, torch.Tensor):
                output.retain_grad()
                seen.setdefault(name, []).append(output)

        module.register_forward_hook(keep)
    gradients = {name: [] for name, _ in copy.named_parameters()}
    for batch in batches():
        copy.zero_grad()
        loss(copy, batch).backward()
        for name, parameter in copy.named_parameters():
            gradients[name].append(parameter.grad.clone())
    return seen, gradients


@pytest.mark.slow
def test_values_are_those_of_float64(model):
    ranges = scan(model, batches(), loss).ranges
    seen, gradients = in_float64(model)
    forward = {each.module: each for each in ranges if each.direction == "forward"}
    backward = {each.module: each for each in ranges if each.direction == "backward"}

    assert len(seen) > 30
    for name, outputs in seen.items():
        sizes = torch.cat([output.detach().abs().flatten() for output in outputs])
        assert forward[name].largest == pytest.approx(float(sizes.max()), rel=RELATIVE)
        assert forward[name].headroom == pytest.approx(
            float(torch.log2(65504 / sizes.max())), abs=1e-3
        )
        positive = sizes[sizes > 0]
        below = float((positive < 2**-24).double().mean())
        subnormal = float(((positive >= 2**-24) & (positive < 2**-14)).double().mean())
        assert forward[name].below_smallest == pytest.approx(below, abs=SHARE_TOLERANCE)
        assert forward[name].subnormal == pytest.approx(subnormal, abs=SHARE_TOLERANCE)
        own = [g for key, gs in gradients.items() if key.rpartition(".")[0] == name for g in gs]
        grads = [output.grad for output in outputs if output.grad is not None] + own
        top = max(float(gradient.abs().max()) for gradient in grads)
        assert backward[name].largest == pytest.approx(top, rel=RELATIVE)


@pytest.mark.slow
def test_a_loss_scale_loses_what_is_counted_in_float64(model):
    scales = scan(model, batches(), loss).loss_scales
    seen, gradients = in_float64(model)
    leaves = {name for name, module in model.named_modules() if not [*module.children()]}
    sizes = [
        output.grad.abs().flatten()
        for name, outputs in seen.items()
        if name in leaves
        for output in outputs
        if output.grad is not None
    ]
    sizes += [gradient.abs().flatten() for each in gradients.values() for gradient in each]
    positive = torch.cat(sizes)
    positive = positive[positive > 0]

    for scale in (1, 16, 1024, 65536):
        lost = float((positive * scale < 2**-24).double().mean())
        assert scales.lost[f"{scale:g}"] == pytest.approx(lost, abs=SHARE_TOLERANCE)
    assert scales.lost["1"] > scales.lost["1024"]


@pytest.mark.parametrize("kind", ["text", "images"])
def test_the_largest_scale_is_the_one_that_a_scaler_finds(model, kind):
    torch.manual_seed(0)
    convolutions = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)
    )
    subject, batch, function = {
        "text": (model, batches(1)[0], loss),
        "images": (convolutions, images(8)[0], lambda m, b: focal(m, b)),
    }[kind]
    predicted = scan(subject, [batch], function).loss_scales.largest

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**32)
    optimizer = torch.optim.SGD(subject.parameters(), lr=0.0)
    with numerics(resolve("fp16", torch.device("cpu"))):
        while True:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                value = function(subject, batch)
            scaler.scale(value).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= before:
                break

    # Gradients inside of a module can be larger than those at its output.
    assert before / 2 <= predicted <= 2 * before


def test_lost_gradients_of_a_model_without_modules_inside_are_reported():
    diagnosis = scan(
        nn.Linear(8, 2), [torch.ones(4, 8)], lambda m, b: m(b).float().mean() * 1e-9, loss_scale=1.0
    )

    (fault,) = diagnosis.faults
    assert (fault.module, fault.cause) == ("", "gradients lost to underflow")
    assert "loses 100.0 % of the gradient, most of it in `(model)`" in diagnosis_answer(diagnosis)


def test_updates_that_bfloat16_loses_are_counted(model):
    shares = scan(model, batches(1), loss).bf16_lost_updates

    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).bfloat16()
    for rate in (1e-5, 1e-4, 1e-3):
        # Away from 0, because the numbers below a power of two are closer to each other.
        changed = weights.double() + rate * weights.double().sign()
        lost = float((changed.bfloat16() == weights)[weights != 0].double().mean())
        nonzero = float((weights != 0).double().mean())
        assert shares[f"{rate:g}"] == pytest.approx(lost * nonzero, abs=0.02)


def test_exponents_are_counted_exactly():
    values = ExponentCounts()
    values.add(torch.tensor([0.0, 1.0, -1.5, 2.0**-24, 2.0**-25, 65504.0, 2.0**-149, 3e38]))

    assert values.zeros == 1
    assert values.exponents == {-149: 1, -25: 1, -24: 1, 0: 2, 15: 1, 127: 1}
    assert values.share_below(-24) == pytest.approx(2 / 7)
    assert values.largest == pytest.approx(3e38)


def test_the_values_of_several_processes_add_up(model):
    whole, parts = ExponentCounts(), [ExponentCounts(), ExponentCounts()]
    for index, seed in enumerate((1, 2)):
        values = torch.randn(100, generator=torch.Generator().manual_seed(seed))
        whole.add(values)
        parts[index].add(values)
    parts[0].merge(parts[1])

    assert parts[0].exponents == whole.exponents
    assert parts[0].largest == whole.largest


def test_hooks_are_removed_even_after_an_exception(model):
    def hooks():
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]

    before = hooks()
    with pytest.raises(TypeError, match="missing"), RangeRecorder(model):
        model.bert.encoder.layer[0]()
    assert hooks() == before
