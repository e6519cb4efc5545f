"""Models, batches and autocast on the fake CUDA device."""

import dataclasses
from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.models.packing.layout import pack_layout
from ampft.precision.modes import MODE_TABLE
from ampft.precision.resolve import Precision

CUDA = torch.device("cuda", 0)


def precision_of(mode):
    row = MODE_TABLE[mode]
    storage, compute = getattr(torch, row.storage), getattr(torch, row.compute)
    return Precision(mode, "cuda", storage, compute, row.needs_scaler, "native", "fake")


def fake_mode():
    # Constants, such as a scale, may stay real; tensors of the CPU are refused by the operators.
    return FakeTensorMode(allow_non_fake_inputs=True)


def on_cuda(tensor):
    return torch.empty_like(tensor, device=CUDA, requires_grad=False)


def to_cuda(model):
    """Replace all weights and buffers by fake ones on the device; tied weights stay tied."""
    moved = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(on_cuda(parameter), parameter.requires_grad)
                module._parameters[name] = moved.setdefault(id(parameter), new)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = on_cuda(buffer)
    return model


@contextmanager
def cuda_autocast(dtype):
    """Run CUDA's autocast kernels."""
    torch.set_autocast_enabled("cuda", dtype != torch.float32)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


class Copies(TorchDispatchMode):
    """Records the copies between the host and the device."""

    def __init__(self):
        super().__init__()
        self.to_device, self.to_host = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default and args[0].device != result.device:
            to_device = result.device == CUDA
            (self.to_device if to_device else self.to_host).append(kwargs)
        if func is torch.ops.aten.segment_reduce.default and not kwargs.get("unsafe"):
            self.to_host.append(kwargs)  # it reads the lengths to check them
        return result

    @property
    def waits(self):
        """The copies for which the host waits."""
        return [*self.to_host, *(copy for copy in self.to_device if not copy.get("non_blocking"))]


def on_host(function):
    """Return a function of real tensors on the CPU that also computes inside a fake mode."""

    def call(*args, **kwargs):
        assert not any(isinstance(each, FakeTensor) for each in args), "read from the device"
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call


def layout_of_host_mask(mask, *, device=None, **options):
    """`pack_layout`, whose indices depend on values, so that the host computes them."""

    def on_device(part, *names):
        moved = {name: getattr(part, name).to(device, non_blocking=True) for name in names}
        return dataclasses.replace(part, **moved)

    device = mask.device if device is None else device
    layout = on_host(pack_layout)(mask, **options)
    indices = on_host(lambda: layout.group_indices)()
    layout = on_device(layout, "tokens", "columns", "first")
    layout.__dict__["group_indices"] = tuple(
        None if index is None else on_device(index, "padded", "real", "visible")
        for index in indices
    )
    return layout
