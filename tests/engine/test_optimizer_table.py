"""Each optimizer of the table equals a loop in plain torch, and its state is known exactly."""

from __future__ import annotations

import copy
import inspect
import json

import pytest
import torch
from bitsandbytes.optim import AdamW8bit
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, T5Config
from transformers import T5ForSequenceClassification as T5

from ampft.arguments.classify import OPTIMIZERS as NAMES
from ampft.arguments.parsing import parse_classify_arguments
from ampft.engine.checkpoints.training_state import (
    load_optimizer,
    optimizer_tensors,
    optimizer_values,
)
from ampft.engine.checkpoints.writing import DTYPES, write_tensors
from ampft.engine.optimizer import (
    OPTIMIZERS,
    OptimizerSettings,
    ScheduleSettings,
    default_learning_rate,
    expected_optimizer_state,
    make_optimizer,
    make_schedule,
    rule_of,
)
from ampft.engine.trained_parameters import check_optimizer_updates_parameters
from ampft.errors import InputError, PrecisionContradicted
from ampft.precision.resolve import resolve

STEPS, RATE, DECAY = 5, 1e-2, 0.1
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
CONFIG = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 512, "vocab_size": 20}


def bert(layers=2):
    torch.manual_seed(0)
    sizes = {**CONFIG, "num_hidden_layers": layers, "max_position_embeddings": 8}
    return BertForSequenceClassification(BertConfig(**sizes)).train()


def differentiate(model, step):
    """Give all parameters random gradients that depend only on the step."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) / 10


def settings_of(name, **more):
    return OptimizerSettings(learning_rate=RATE, weight_decay=DECAY, name=name, **more)


def in_plain_torch(name, model):
    """Return optimizers made by hand, as one would in a loop of plain torch."""
    named = dict(model.named_parameters())
    in_layers = {n for n in named if ".layer." in n and named[n].ndim == 2}
    rest = [p for n, p in named.items() if name != "muon" or n not in in_layers]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    if name == "adamw_8bit":
        return [AdamW8bit(groups, lr=RATE)]
    if name == "adafactor":
        return [torch.optim.Adafactor(groups, lr=RATE)]
    assert name in ("adamw_torch", "muon"), f"make {name} by hand here"
    adamw = torch.optim.AdamW(groups, lr=RATE, fused=True)
    matrices = [named[n] for n in named if n in in_layers]
    muon = {"weight_decay": DECAY, "adjust_lr_fn": "match_rms_adamw"}
    return [adamw, *([torch.optim.Muon(matrices, lr=RATE, **muon)] if name == "muon" else [])]


@every_optimizer
def test_a_training_equals_plain_torch_bit_for_bit(name):
    ours, plain = bert(), bert()
    optimizer, by_hand = make_optimizer(ours, settings_of(name)), in_plain_torch(name, plain)
    schedules = [make_schedule(o, STEPS, ScheduleSettings()) for o in (optimizer, *by_hand)]
    for step in range(STEPS):
        differentiate(ours, step)
        differentiate(plain, step)
        for stepping in (optimizer, *by_hand, *schedules):
            stepping.step()
    pairs = zip(ours.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_optimizers_differ():
    """The negative control: the test above would notice another optimizer."""
    weights = {}
    for name in OPTIMIZERS:
        model = bert()
        differentiate(model, 0)
        make_optimizer(model, settings_of(name)).step()
        weights[name] = model.bert.encoder.layer[0].output.dense.weight
    assert len({tensor.detach().numpy().tobytes() for tensor in weights.values()}) == len(
        OPTIMIZERS
    )


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adamw_8bit"])
def test_the_table_knows_the_state_exactly(name):
    model = bert()
    optimizer = make_optimizer(model, settings_of(name))
    differentiate(model, 0)
    optimizer.step()
    found = {
        parameter: {
            key: (list(value.shape), DTYPES[value.dtype])
            for key, value in optimizer.state[tensor].items()
        }
        for parameter, tensor in model.named_parameters()
    }
    assert found == expected_optimizer_state(model, optimizer)
    stored = sum(v.numel() for entry in optimizer.state.values() for v in entry.values())
    weights = sum(parameter.numel() for parameter in model.parameters())
    tensors = len(found)  # each has a counter
    assert stored - 2 * tensors <= OPTIMIZERS[name].state_per_weight * weights


@every_optimizer
@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_a_restored_state_continues_bit_for_bit(name, layer_decay, tmp_path):
    settings = settings_of(name, layer_decay=layer_decay)
    straight = bert()
    optimizer = make_optimizer(straight, settings)
    for step in range(2 * STEPS):
        if step == STEPS:
            write_tensors(tmp_path / "state", optimizer_tensors(straight, optimizer))
            values = json.loads(json.dumps(optimizer_values(straight, optimizer)))
            resumed = copy.deepcopy(straight)
        differentiate(straight, step)
        optimizer.step()
    again = make_optimizer(resumed, settings)
    load_optimizer(resumed, again, load_file(tmp_path / "state"), values)
    for step in range(STEPS, 2 * STEPS):
        differentiate(resumed, step)
        again.step()
    pairs = zip(straight.named_parameters(), resumed.parameters(), strict=True)
    assert [n for (n, a), b in pairs if not torch.equal(a, b)] == []


@every_optimizer
def test_the_size_of_an_update_is_known(name):
    """On this the check of the first update relies."""
    model = bert()
    optimizer = make_optimizer(model, OptimizerSettings(learning_rate=RATE, name=name))
    for step in range(2):
        differentiate(model, step)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.step()
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for parameter, old in zip(model.parameters(), before, strict=True):
        state, group = optimizer.state[parameter], group_of[id(parameter)]
        positions = torch.arange(parameter.numel())
        update = rule_of(group).update(parameter, state, group, positions)
        moved = (parameter.detach() - old).abs().flatten().double()
        # Adafactor's rate depends on the weights, which the step changed. 8 bits are rounded.
        is_8_bit = state.get("state1", parameter).dtype == torch.uint8
        tolerance = {"rtol": 0.2, "atol": 1e-4} if is_8_bit else {"rtol": 0.02, "atol": 1e-6}
        close = torch.isclose(update, moved, **tolerance).double().mean()
        assert close > 0.9 if is_8_bit else close == 1


def without_first(optimizer, first):
    """Make the optimizer leave a parameter as it was."""
    step = torch.no_grad()(inspect.unwrap(type(optimizer).step))

    class Forgetful(type(optimizer)):
        def step(self, closure=None):
            before = first.detach().clone()
            step(self, closure)
            with torch.no_grad():
                first.copy_(before)

    optimizer.__class__ = Forgetful
    optimizer._patch_step_function()


@every_optimizer
@pytest.mark.parametrize("which", ["layer.0.output.dense.weight", "classifier.bias"])
def test_a_tensor_that_stays_is_found(name, which):
    model = bert()
    optimizer = make_optimizer(model, settings_of(name))
    (first,) = [p for n, p in model.named_parameters() if n.endswith(which)]
    with torch.no_grad():
        first.fill_(0.5)
    without_first(optimizer, first)
    check_optimizer_updates_parameters(model, optimizer)
    differentiate(model, 0)
    with pytest.raises(PrecisionContradicted, match=f"left 1 of .* among them .*{which}"):
        optimizer.step()


@every_optimizer
def test_updates_below_the_spacing_of_the_weights_are_allowed(name):
    model = bert()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 100.0)
    optimizer = make_optimizer(model, OptimizerSettings(learning_rate=1e-9, name=name))
    check_optimizer_updates_parameters(model, optimizer)
    differentiate(model, 0)
    optimizer.step()


def test_rates_fall_with_the_depth():
    model, decay = bert(layers=3), 0.5
    optimizer = make_optimizer(model, settings_of("adamw_torch", layer_decay=decay))
    rate_per_unit = {
        id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]
    }
    expected = {"embeddings": 4, "layer.0.": 3, "layer.1.": 2, "layer.2.": 1}
    expected |= {"pooler": 0, "classifier": 0}
    for name, parameter in model.named_parameters():
        (depth,) = [depth for part, depth in expected.items() if part in name]
        assert rate_per_unit[id(parameter)] == RATE * decay**depth
    assert all(group["weight_decay"] in (0.0, DECAY) for group in optimizer.param_groups)


def test_without_layer_decay_there_are_two_groups_of_one_rate():
    optimizer = make_optimizer(bert(), settings_of("adamw_torch"))
    groups = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert groups == [(RATE, DECAY), (RATE, 0.0)]


def test_a_model_without_one_list_of_layers_is_refused():
    config = T5Config(d_model=8, d_ff=8, d_kv=4, num_heads=2, num_layers=1, vocab_size=20)
    with pytest.raises(InputError, match=r"^--layer_decay 0\.9: the layers of T5"):
        make_optimizer(T5(config), settings_of("adamw_torch", layer_decay=0.9))
    with pytest.raises(InputError, match=r"^--optim muon: no matrix in a list of layers"):
        make_optimizer(nn.Linear(2, 2), settings_of("muon"))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adamw_torch"])
@pytest.mark.parametrize("mode", ["bf16-true", "bf16-true-kahan"])
def test_16_bit_weights_need_adamw(name, mode):
    precision = resolve(mode, torch.device("cpu"))
    with pytest.raises(InputError, match=f"^--optim {name} is not supported with {mode}"):
        make_optimizer(bert().bfloat16(), settings_of(name), precision)


def test_a_group_of_another_optimizer_has_no_rule():
    """SGD and RMSprop have a momentum, as Muon does."""
    for other in (torch.optim.SGD, torch.optim.RMSprop):
        with pytest.raises(KeyError, match="no update rule"):
            rule_of(other(bert().parameters(), lr=RATE).param_groups[0])


@every_optimizer
@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        ("adam_beta1", {"betas": (0.5, 0.999)}),
        ("adam_beta2", {"betas": (0.9, 0.5)}),
        ("adam_epsilon", {"epsilon": 0.5}),
    ],
)
def test_settings_of_adamw_are_refused_by_optimizers_that_ignore_them(name, flag, setting):
    made = [make_optimizer(bert(), settings_of(name, **more)) for more in ({}, setting)]
    usual, changed = (
        [
            {key: value for key, value in group.items() if key != "params"}
            for group in o.param_groups
        ]
        for o in made
    )
    words = ["--optim", name, f"--{flag}", "0.5"]
    if usual != changed:
        assert getattr(parse_classify_arguments(words), flag) == 0.5
        return
    with pytest.raises(InputError, match=rf"^--{flag} 0\.5 has no effect on --optim {name}\."):
        parse_classify_arguments(words)


def test_flags_name_the_rows_of_the_table():
    assert tuple(OPTIMIZERS) == NAMES
    assert parse_classify_arguments([]).optimizer_settings().name == "adamw_torch"


def test_adafactor_has_its_own_default_rate():
    assert default_learning_rate(bert().config, optimizer="adafactor") == 1e-3
    assert default_learning_rate(bert().config, optimizer="muon") == 1e-4
    assert parse_classify_arguments(["--optim", "adafactor"]).learning_rate is None
