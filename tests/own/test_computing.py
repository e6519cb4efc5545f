"""The context that computes in a precision, compared with autocast around each forward pass."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

import ampft
from ampft.errors import InputError, PrecisionContradicted


@pytest.mark.parametrize(
    ("mode", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_a_layer_inside_computes_in_the_precision(mode, dtype):
    layer, x = nn.Linear(8, 4), torch.randn(2, 8)
    with ampft.computing_in(mode, "cpu") as precision:
        inside = layer(x)
    assert inside.dtype == getattr(torch, dtype)
    assert precision == ampft.resolve(mode, torch.device("cpu"))
    assert layer(x).dtype == torch.float32
    assert not modules._global_forward_hooks
    assert not modules._global_forward_pre_hooks


def test_numerics_alone_does_not_cast():
    with ampft.numerics("fp16"):
        assert nn.Linear(8, 4)(torch.randn(2, 8)).dtype == torch.float32


class Float32Inside(nn.Module):
    """A network that leaves autocast, and so contradicts every 16-bit precision."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.layer(x)


def test_the_first_module_that_contradicts_the_precision_is_refused():
    network, x = nn.Sequential(nn.LayerNorm(8), Float32Inside()), torch.randn(2, 8)
    with ampft.computing_in("fp16", "cpu"):
        nn.ReLU()(x)  # without products, so the next module is checked
        with pytest.raises(PrecisionContradicted, match=r"first module \(Sequential\) ran in"):
            network(x)
    with ampft.computing_in("fp32", "cpu"):
        network(x)


def test_float32_weights_are_refused_where_16_bits_are_stored():
    layer, x = nn.Linear(8, 4), torch.randn(2, 8)
    context = ampft.computing_in("bf16-true", "cpu")
    with context, pytest.raises(PrecisionContradicted, match="bf16-true was requested, but 1 of"):
        layer(x)
    with ampft.computing_in("bf16-true", "cpu") as precision:
        assert layer.to(precision.storage_dtype)(x.bfloat16()).dtype == torch.bfloat16


def test_an_error_inside_a_module_leaves_no_recorder():
    with ampft.computing_in("fp16", "cpu"):
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            nn.Linear(8, 4)(torch.randn(2, 7))
        assert nn.Linear(8, 4)(torch.randn(2, 8)).dtype == torch.float16
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


def trained(step):
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16)),
        *(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)),
    )
    optimizer = torch.optim.AdamW(network.parameters())
    x, y = torch.randn(32, 1, 8, 8), torch.randint(0, 3, (32,))
    step(network, optimizer, lambda: nn.functional.cross_entropy(network(x), y))
    return [parameter.detach() for parameter in network.parameters()]


def update(scaler, optimizer, loss):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@pytest.mark.parametrize("mode", ["fp16", "bf16", "fp32"])
def test_it_trains_as_autocast_around_each_forward_pass_does(mode):
    """Bit for bit: no cast outlives an update, and no product of a backward pass is cast."""

    def inside(network, optimizer, loss):
        with ampft.computing_in(mode, "cpu") as precision:
            scaler = precision.scaler()
            for _ in range(4):
                update(scaler, optimizer, loss())

    def around_each_pass(network, optimizer, loss):
        precision = ampft.resolve(mode, "cpu")
        scaler = precision.scaler()
        with ampft.numerics(precision):
            for _ in range(4):
                with precision.autocast():
                    value = loss()
                update(scaler, optimizer, value)

    pairs = zip(trained(inside), trained(around_each_pass), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_mode_is_accepted_by_name():
    assert ampft.resolve("fp16", "cpu") == ampft.resolve("fp16", torch.device("cpu"))
    with pytest.raises(InputError, match="'fp17' is not a precision mode"):
        ampft.computing_in("fp17", "cpu").__enter__()
    with pytest.raises(InputError, match="precision fp8: not available on this device"):
        ampft.computing_in("fp8", "cpu").__enter__()


@pytest.mark.parametrize(("outer", "inner"), [("bf16", "fp32"), ("fp32", "bf16"), ("bf16", "fp16")])
def test_contexts_can_be_nested(outer, inner):
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    layer, x = nn.Linear(8, 4), torch.randn(2, 8)

    class Inside(nn.Module):
        def forward(self, x):
            with ampft.computing_in(inner, "cpu"):
                return layer(x)

    with ampft.computing_in(outer, "cpu"):
        with ampft.computing_in(inner, "cpu"):
            assert layer(x).dtype == dtypes[inner]
            assert layer(x).dtype == dtypes[inner]  # after the check of the first one
        assert Inside()(x).dtype == dtypes[inner]
        assert layer(x).dtype == dtypes[outer]
    if outer != "fp32":  # the check still follows
        with ampft.computing_in(outer, "cpu"):
            Inside()(x)
            with pytest.raises(PrecisionContradicted):
                Float32Inside()(x)
    assert not modules._global_forward_hooks


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_message():
    with pytest.raises(InputError, match=r"fp16 on cuda: this torch .* finds no GPU"):
        ampft.computing_in("fp16", "cuda").__enter__()
