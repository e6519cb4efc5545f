"""Models, batches and autocast on the fake CUDA device."""

from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda", 0)


def fake_mode():
    # Constants, such as a scale, may stay real; tensors of the CPU are refused by the operators.
    return FakeTensorMode(allow_non_fake_inputs=True)


def on_cuda(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)


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
    """Run CUDA's autocast kernels; `torch.autocast` disables itself on a build without CUDA."""
    torch.set_autocast_enabled("cuda", dtype != torch.float32)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()
