"""Verification of a packed model against the padded one, with its kernels, in its precision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from transformers import PreTrainedModel

from ampft.errors import InputError
from ampft.fast.packing.install import install_packing, layout_on_host, packing_of, set_attention
from ampft.fast.packing.layout import PackedLayout, pack_layout
from ampft.fast.packing.packed_attention import (
    PACKED_NAMES,
    has_one_call_kernels,
    problem_of_dropout,
)
from ampft.models.training_mode import evaluation_mode
from ampft.models.weights import has_shards

# Rounding to bfloat16 in every layer reaches a few percent of the largest logit.
PACKED_TOLERANCE_IN_PRECISION = 0.2
SKETCH_ROWS = 16


class PackingError(NamedTuple):
    """Difference between a packed and the padded model, without dropout."""

    # Largest absolute difference of the first output (logits, or hidden states at real tokens),
    # divided by the largest absolute padded value.
    logits: float
    # Norm of the difference of the whole gradient, divided by the norm of the padded one; 0 if
    # nothing is trained. Both norms are estimated from a sketch.
    gradient: float


_NOT_PACKED = PackingError(float("inf"), float("inf"))


def verify_packing(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> PackingError:
    """Return the differences between packed and padded logits and gradients.

    Attention runs once in the groups of a training, with gradient, and once in one group per
    length, because a few short texts may be a single group.

    Args:
        model: A supported model without packing installed; it is not changed.
        batch: Arguments of the model: `input_ids` (B, T), `attention_mask` and so on.

    Returns:
        The differences; infinity if the batch was not packed.
    """
    mask = batch["attention_mask"]
    groups, lengths = (pack_layout(mask, group_cost=cost) for cost in (None, 0.0))
    with evaluation_mode(model):
        padded = _output_and_gradient(model, batch)
        handle = install_packing(model)
        try:
            packed = _output_and_gradient(model, batch, packing=groups)
            by_length = _real(model(**batch, packing=lengths)[0], batch)
        finally:
            handle.remove()
    if handle.paths["packed"] != 2:
        return _NOT_PACKED
    error = _error(padded, packed)
    return error._replace(logits=max(error.logits, _difference(padded[0], by_length)))


def grouped_attention_reason(
    prepared: nn.Module, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]
) -> str | None:
    """Check that a packed model runs on its device, in its precision, as the padded one does.

    `verify_packing` compares in float32 on a CPU, where other attention kernels run. Where a kernel
    computes the whole row in one call, gradients and dropout are checked too, and attention runs in
    groups if they are wrong. A model whose padded logits are not finite passes.

    Args:
        prepared: Callable that computes in the precision of the run.
        batch: Arguments of the model, on its device.

    Returns:
        Why attention runs in groups; None if it does not have to.

    Raises:
        InputError: The packed path fails, or its logits are too different.
        TorchDynamoException: torch cannot compile the model.
    """
    with evaluation_mode(prepared):
        problem = _problem_of_one_call(model, batch)
        note = None
        if problem is not None:
            packing_of(model).allows_one_call = False
            note = f"attention runs in groups of similar length: {problem}"
        try:
            packed = _real(prepared(**batch)[0], batch)
            with _padded_attention(model), torch.compiler.set_stance("force_eager"):
                padded = _real(prepared(**batch)[0], batch)
        except TorchDynamoException:
            raise  # the model cannot be compiled, with or without padding
        except RuntimeError as error:
            difference, problem = float("inf"), f"running without padding fails ({error})"
        else:
            if not padded.isfinite().all():
                return note  # the model overflows in this precision anyway, and training says so
            difference = _difference(padded, packed)
            problem = f"logits without padding differ by {difference:.1e}"
    if not difference <= PACKED_TOLERANCE_IN_PRECISION:
        device = next(model.parameters()).device
        raise InputError(
            f"model: on this device ({device}) and in this precision {problem}. Pass --padding."
        )
    return note


def _problem_of_one_call(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> str | None:
    """Return the problem of the kernels that compute the whole row in one call, or None."""
    layout = layout_on_host(model, {"attention_mask": batch["attention_mask"].cpu()})
    if layout is None or not has_one_call_kernels(layout.device) or has_shards(model):
        return None
    try:
        packed = _output_and_gradient(model, batch, packing=layout)
        with _attention_in_training(model):
            training = layout_on_host(model, {"attention_mask": batch["attention_mask"].cpu()})
            model(**batch, packing=training)
        assert training is not None
        if missing := layout.one_calls.keys() - training.one_calls.keys():
            names = ", ".join(sorted(kernel.__name__ for kernel in missing))
            return f"{names} has no correct dropout of attention weights"
        for kernel, (row, options) in training.one_calls.items():
            if options.dropout > 0 and (problem := problem_of_dropout(kernel, row, options)):
                return problem
        if not layout.one_calls:
            return None
        with _padded_attention(model):
            padded = _output_and_gradient(model, batch)
    except RuntimeError as error:
        return f"its kernel fails ({error})"
    if not all(part.isfinite().all() for part in (padded[0], *padded[1])):
        return None  # the model overflows in this precision anyway, and training says so
    logits, gradient = _error(padded, packed)
    if max(logits, gradient) <= PACKED_TOLERANCE_IN_PRECISION:
        return None
    return (
        f"its kernel gives other logits (by {logits:.1e}) or another gradient (by {gradient:.1e}) "
        "than the padded model"
    )


@contextmanager
def _attention_in_training(model: nn.Module) -> Iterator[None]:
    """Let attention drop weights, and nothing else; no random number is consumed.

    Attention modules have children, and pass their probability to the kernel only in training.
    Dropout modules and norms have none, and stay as they are.
    """
    changed = [module for module in model.modules() if next(module.children(), None) is not None]
    before = [module.training for module in changed]
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for module in changed:
            module.training = True
        try:
            yield
        finally:
            for module, was_training in zip(changed, before, strict=True):
                module.training = was_training


@contextmanager
def _padded_attention(model: PreTrainedModel) -> Iterator[None]:
    """Run a packed model with padding: its hooks leave other attention implementations alone."""
    packed_attention = model.config._attn_implementation
    replaced = {packed: name for name, packed in PACKED_NAMES.items()}
    set_attention(model, replaced[packed_attention])
    try:
        yield
    finally:
        set_attention(model, packed_attention)


def _output_and_gradient(
    model: nn.Module, batch: Mapping[str, torch.Tensor], **packing: PackedLayout | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the output at real tokens, and a sketch of its gradient by each trained parameter."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sketches: dict[int, torch.Tensor] = {}

    def keep_sketch(index: int, gradient: torch.Tensor) -> torch.Tensor:
        sketches[index] = _sketch(gradient)
        return gradient.new_zeros(()).expand_as(gradient)  # so that autograd keeps no gradient

    with torch.enable_grad():
        output = _real(model(**batch, **packing)[0], batch)
        if not trained:
            return output, []
        hooks = [
            parameter.register_hook(partial(keep_sketch, index))
            for index, parameter in enumerate(trained)
        ]
        weights = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
        try:
            torch.autograd.grad((output * weights).sum(), trained, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
    unused = output.new_zeros(())
    return output.detach(), [sketches.get(index, unused) for index in range(len(trained))]


def _sketch(gradient: torch.Tensor) -> torch.Tensor:
    """Return sums of rows with random signs; their norm estimates the norm of the gradient.

    Two whole gradients would take twice the memory of the weights, which would be the peak of a
    run that trains few of them. The signs are the same in each call (Charikar et al. 2002,
    "Finding frequent items in data streams", with neighboring rows in a bucket).

    Args:
        gradient: (R, ...).

    Returns:
        (16, ...), or the gradient itself if it has at most 16 rows or one dimension.
    """
    if gradient.dim() < 2 or len(gradient) <= SKETCH_ROWS:
        return gradient.detach().clone()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (len(gradient),), generator=generator).mul(2).sub(1).to(gradient)
    signs = signs.view(-1, *[1] * (gradient.dim() - 1))
    parts = (tensor.tensor_split(SKETCH_ROWS) for tensor in (gradient.detach(), signs))
    return torch.stack([(rows * of_rows).sum(0) for rows, of_rows in zip(*parts, strict=True)])


def _real(output: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the first output of a model as float32, without padding positions."""
    if output.dim() == 3 and output.shape[:2] == batch["input_ids"].shape:
        output = output[batch["attention_mask"] != 0]
    return output.float()


def _difference(padded: torch.Tensor, packed: torch.Tensor) -> float:
    return float((padded - packed).abs().max() / padded.abs().max())


def _error(
    padded: tuple[torch.Tensor, Sequence[torch.Tensor]],
    packed: tuple[torch.Tensor, Sequence[torch.Tensor]],
) -> PackingError:
    pairs = list(zip(padded[1], packed[1], strict=True))
    wrong = sum(float((one - other).float().norm()) ** 2 for one, other in pairs)
    whole = sum(float(one.float().norm()) ** 2 for one, _ in pairs)
    gradient = math.sqrt(wrong / whole) if whole > 0 else math.sqrt(wrong)
    return PackingError(_difference(padded[0], packed[0]), gradient)
