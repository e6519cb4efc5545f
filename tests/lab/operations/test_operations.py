"""`ampft ops`: what autocast does, against calls that compute, and the operations of a model."""

import json
from functools import cache
from inspect import signature
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from transformers import BertForSequenceClassification

import ampft
from ampft.cli import main
from ampft.emulation import cuda_autocast as table
from ampft.errors import InputError
from ampft.lab.operations import autocast_report as report
from ampft.lab.operations.autocast_report import documented_policies, unlisted_operations
from ampft.lab.operations.probe import (
    FLOAT32,
    LOWER,
    POLICIES,
    REFUSED,
    WIDEST,
    autocast_operations,
    operators_with_kernel,
)
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
A = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(0))


@cache
def probed(mode):
    precision = resolve(mode, CPU)
    with ampft.numerics(precision):
        return {each.name: each.policy for each in autocast_operations(precision)}


# Calls that compute: what comes out of float32, and of 16 bits.
CALLS = {
    "bmm": lambda x: torch.bmm(x, x),
    "linear": lambda x: F.linear(x, x[0]),
    "baddbmm": lambda x: torch.baddbmm(x, x, x),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "prod": lambda x: x.prod(),
    "softmax.int": lambda x: x.softmax(-1),
    "exp": lambda x: x.exp(),
    "layer_norm": lambda x: F.layer_norm(x, (2,)),
    "sum": lambda x: x.sum(),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
}


@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_the_policies_are_those_that_calls_show(mode):
    precision, policies = resolve(mode, CPU), probed(mode)
    dtypes = {}
    with ampft.numerics(precision), torch.autocast("cpu", precision.compute_dtype):
        for name, call in CALLS.items():
            dtypes[name] = (call(A).dtype, call(A.to(precision.compute_dtype)).dtype)
    lower, wide = precision.compute_dtype, torch.float32
    policy_of = {(lower, lower): LOWER, (wide, wide): FLOAT32, (wide, lower): None}
    assert {name: policies.get(name) for name in CALLS} == {
        name: policy_of[pair] for name, pair in dtypes.items()
    }
    assert len(set(dtypes.values())) == (2 if mode == "fp16" else 3)


def test_mixed_inputs_become_the_widest():
    assert probed("bf16")["cat"] == WIDEST
    assert probed("fp16")["addcmul"] == WIDEST
    half = A.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.cat([half, half]).dtype == torch.bfloat16
        assert torch.cat([half, A]).dtype == torch.float32


def test_every_operation_with_an_autocast_kernel_has_a_policy():
    policies = probed("bf16")
    # torch 2.11 has overloads with the names of dimensions.
    known = operators_with_kernel("AutocastCPU")
    assert list(policies) == [name for name in known if "dimname" not in name.lower()]
    assert len(policies) > 100
    assert set(policies.values()) <= set(POLICIES)


def test_the_emulation_has_the_table_of_cuda():
    policies = probed("fp16")
    expected = dict.fromkeys(table.FLOAT16, LOWER)
    expected |= dict.fromkeys((*table.FLOAT32, *table.FLOAT32_OUTPUT, *table.NORM), FLOAT32)
    expected |= dict.fromkeys(table.WIDEST, WIDEST)
    expected |= dict.fromkeys((*table.BANNED, *table.REFUSED), REFUSED)
    assert {name: policies[name] for name in expected if name in policies} == {
        name: policy for name, policy in expected.items() if name in policies
    }
    assert (set(expected) - set(policies)).isdisjoint(operators_with_kernel("AutocastCUDA"))


def test_documented_operations_are_found_with_the_documented_policy():
    for mode, device in (("bf16", "cpu"), ("fp16", "cuda")):
        found = {(name.partition(".")[0], policy) for name, policy in probed(mode).items()}
        documented = documented_policies(device)
        assert len(documented) > 75
        missing = {name for name, policy in documented.items() if (name, policy) not in found}
        # torch 2.15 has no operator `qr` any more.
        assert {name for name in missing if hasattr(torch.ops.aten, name)} == set()


def test_a_mode_without_autocast_is_refused():
    with pytest.raises(InputError, match=r"--mixed_precision fp32 on cpu: autocast is not used"):
        autocast_operations(resolve("fp32", CPU))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        hidden = F.gelu(self.layer(inputs)).transpose(0, 1).contiguous()
        return (hidden + hidden.tanh()).softmax(-1).erf()


records_dtypes = pytest.mark.skipif(
    "input_dtypes" not in signature(FunctionEvent).parameters,
    reason="this version of torch does not record the dtypes of operations",
)


@records_dtypes
def test_operations_of_a_model_that_are_on_no_list():
    model, inputs = Model(), torch.randn(3, 4)
    listed = {mode: {name.partition(".")[0] for name in probed(mode)} for mode in ("fp16", "bf16")}
    found = {}
    for mode, names in listed.items():
        precision = resolve(mode, CPU)
        autocast = torch.autocast("cpu", precision.compute_dtype)
        with ampft.numerics(precision), autocast:
            rows = unlisted_operations(lambda: model(inputs), names)
        found[mode] = {row.name: (row.dtypes, row.calls) for row in rows}
    assert found["fp16"] == {
        "gelu": ("float16", 1), "add": ("float16", 1), "tanh": ("float16", 1),
        "erf": ("float32", 1),
    }  # fmt: skip
    # On a CPU, softmax is on no list, and what follows it stays in bfloat16.
    assert found["bf16"] == dict.fromkeys(
        ("gelu", "add", "tanh", "softmax", "erf"), ("bfloat16", 1)
    )


def test_the_command_prints_the_table(capsys):
    assert main(["ops", "--mixed_precision", "bf16", "--use_cpu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "autocast   bf16 on cpu" in out
    assert "cast to 16 bits (" in out
    assert "cast to the widest dtype among the inputs (3)\n  cat, index_copy, stack\n" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_command_writes_json(capsys):
    assert main(["ops", "--json", "--use_cpu"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"name": "mm", "policy": LOWER} in report["operations"]
    assert (report["mode"], report["execution"], report["table"]) == ("fp16", "emulated", "cuda")
    assert report["not_found"] == []
    assert "scaled_dot_product_attention" in report["undocumented"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mixed_precision", "fp32"], "autocast is not used. Choose fp16 or bf16"),
        (["--mixed_precision", "bf16-true"], "autocast is not used"),
        (["--", "--mixed_precision", "bf16"], "belongs before ` -- `"),
        (["--", "--no_such_flag"], "--no_such_flag"),
    ],
)
def test_wrong_use_is_refused(capsys, flags, message):
    assert main(["ops", "--use_cpu", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_torch_that_records_no_dtypes_is_refused(monkeypatch):
    monkeypatch.setattr(report, "signature", lambda _: SimpleNamespace(parameters={}))
    with pytest.raises(InputError, match=r"does not record the dtypes of a model's operations"):
        unlisted_operations(lambda: None, ())


@records_dtypes
@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
def test_the_command_names_the_operations_of_a_recipe(capsys, tiny_bert, tmp_path):
    assert BertForSequenceClassification.from_pretrained(tiny_bert).config.hidden_act == "gelu"
    rows = "".join(f"w{n} w{n + 1},{'abc'[n % 3]}\n" for n in range(30))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    flags = ["--train_file", str(tmp_path / "train.csv"), "--use_cpu"]
    command = ["ops", "--use_cpu", "--model_name_or_path", str(tiny_bert), "--", *flags]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"{tiny_bert}: operations on no list" in out.replace("\n", " ")
    row = next(line for line in out.splitlines() if line.startswith("gelu "))
    assert row.split() == ["gelu", "float16", "2"]
