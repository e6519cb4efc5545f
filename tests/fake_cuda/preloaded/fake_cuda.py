"""Models, batches and autocast on the fake CUDA device."""

import dataclasses
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from tiny_encoders import right_padded
from torch import nn
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.fast.joint_weights import joint_weights
from ampft.fast.packing.install import install_packing
from ampft.fast.packing.layout import GROUP_COST_ON_GPU, SequenceGroup, pack_layout
from ampft.models.weights import cast_in_place
from ampft.precision import transfer
from ampft.precision.modes import MODE_TABLE
from ampft.precision.resolve import Precision

CUDA = torch.device("cuda", 0)


def precision_of(mode):
    row = MODE_TABLE[mode]
    storage, compute = getattr(torch, row.storage), getattr(torch, row.compute)
    return Precision(mode, "cuda", storage, compute, row.needs_scaler, "native", "fake")


@contextmanager
def fake_mode():
    transfer._constant.cache_clear()  # a fake tensor belongs to its mode
    # Constants, such as a scale, may stay real; tensors of the CPU are refused by the operators.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, host_operations():
        yield mode


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


class OperatorCounter(TorchDispatchMode):
    """Counts the operators on the device that compute something, and sees all devices used."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.devices = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves((args, kwargs, result))
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
        is_aten = func.namespace == "aten" and "empty" not in func.name()
        self.count += CUDA in devices and is_aten and not func.is_view
        self.devices |= devices
        return result


def outputs(model, batch, **layout):
    """Return the logits; of T5 what its head would read, by values, which a fake device lacks."""
    if not model.config.is_encoder_decoder:
        return model(**batch, **layout).logits
    shifted = batch["input_ids"].roll(1, 1)
    states = model.base_model(**batch, decoder_input_ids=shifted, **layout)
    return model.classification_head(states.last_hidden_state[:, 0])


def on_host(function):
    """Return a function of real tensors on the CPU that also computes inside a fake mode."""

    def call(*args, **kwargs):
        assert not any(isinstance(each, FakeTensor) for each in args), "read from the device"
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call


def layout_of_host_mask(mask, *, device=None, **options):
    """`pack_layout`, whose indices depend on values, so that the host computes them."""
    device = mask.device if device is None else device
    layout = on_host(pack_layout)(mask, **{"group_cost": GROUP_COST_ON_GPU, **options})
    return dataclasses.replace(layout, device=device)


def efficient_attention_backward(mode, func, grad, query, key, value, *args, **kwargs):
    """Return fake gradients; torch's (2.13) own fake operator lacks two of the arguments."""
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


@contextmanager
def host_operations():
    """Compute the indices of groups, which depend on values, on the host, and pin nothing."""
    cells = on_host(SequenceGroup.cells)
    without_fake_operator = {
        torch.ops.aten._efficient_attention_backward.default: efficient_attention_backward,
        torch.ops.aten._fused_adamw_.tensor_lr: lambda *_, **__: None,
        torch.ops.aten._fused_adamw_.default: lambda *_, **__: None,
    }
    with (
        patch.dict(op_implementations_dict, without_fake_operator),
        patch.object(SequenceGroup, "cells", cells),
        patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
    ):
        yield


def fused_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                    enable_gqa=False):  # fmt: skip
    """torch's attention, as the kernel that a GPU chooses; a fake device has only the fallback."""
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -1e9)
    if attn_mask is None and query.dtype != torch.float32:
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if attn_mask is not None:
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        attn_mask = attn_mask.expand(shape)
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


def step_operators(model, lengths, mode, *, packed, joint=True):
    """Return the number of operators of a forward and a backward pass.

    With `joint`, the weights of a packed model are joint, as in a training.
    """
    precision = precision_of(mode)
    batch = right_padded(model, lengths)
    with fake_mode():
        layout = layout_of_host_mask(batch["attention_mask"], device=CUDA)
        cast_in_place(to_cuda(model), precision.storage_dtype)
        if packed:
            install_packing(model)
        batch = {key: value.to(CUDA) for key, value in batch.items()}
        dtype = precision.compute_dtype if precision.uses_autocast else torch.float32
        attention = patch.object(functional, "scaled_dot_product_attention", fused_attention)
        weights = nullcontext()
        if packed and joint:
            weights = joint_weights(model, precision.compute_dtype)
        with attention, OperatorCounter() as operators, weights:
            with cuda_autocast(dtype):
                logits = outputs(model, batch, **({"packing": layout} if packed else {}))
            logits.float().sum().backward()  # a training computes it outside of autocast
    return operators.count


def update_operators(model):
    """Return the number of operators that clip gradients and apply AdamW, in a later step."""
    with fake_mode():
        to_cuda(model)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        optimizer.step()  # makes its state
        with OperatorCounter() as operators:
            # As for real tensors of a GPU, which fake ones are not to this function.
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
    return operators.count
