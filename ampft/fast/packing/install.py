"""Hooks that make an encoder run on the real tokens of a padded batch, and their verification."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any, TypeAlias
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ampft.data.step_batches import MicroBatch
from ampft.errors import InputError
from ampft.fast.packing.cpu_kernels import install_fast_dropout
from ampft.fast.packing.families import Family, Trim, family_of, packing_support
from ampft.fast.packing.layout import PackedLayout, pack_layout
from ampft.fast.packing.packed_attention import PACKED_NAMES, register_packed_attention
from ampft.models.training_mode import checkpoints_gradients
from ampft.precision.compilation import check_hooks_of_compiled_modules, uncompiled

Kwargs = dict[str, Any]
Output: TypeAlias = tuple[torch.Tensor, ...] | BaseModelOutput
_PACKED_TENSORS = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids")
_UNPACKED_OPTIONS = ("output_attentions", "output_hidden_states", "past_key_values", "use_cache")


class PackedModel:
    """Handle of a model whose encoder runs without padding; `remove` restores the model."""

    def __init__(
        self, model: PreTrainedModel, family: Family, *, trim: bool, token_buckets: int | None
    ) -> None:
        self.model = model  # The model.
        # Number of calls by path: "packed", or "padded: " and the reason.
        self.paths: Counter[str] = Counter()
        self._family = family
        self._trim = family.trim if trim else None
        self._token_buckets = token_buckets
        self._given_layout: PackedLayout | None = None
        self._layout: PackedLayout | None = None  # of the forward pass that is running
        self._layout_to_trim: PackedLayout | None = None
        self._original_attention = model.config._attn_implementation
        self._packed_attention = PACKED_NAMES[family.implementation]
        # Whether attention may take a kernel that computes the whole row in one call. Otherwise it
        # runs in groups.
        self.allows_one_call = True
        register_packed_attention()
        check_hooks_of_compiled_modules()
        base = model.base_model
        take = model.register_forward_pre_hook(self._take_layout, with_kwargs=True)
        pack = base.register_forward_pre_hook(self._pack, with_kwargs=True)
        encoder = base.get_submodule(family.encoder)
        unpack = encoder.register_forward_hook(self._unpack, with_kwargs=True)
        self._undo = [take.remove, pack.remove, unpack.remove]
        if family.adapt is not None:
            self._undo += family.adapt(base, lambda: self._layout)
        self._install_fast_dropout(base)
        if self._trim is not None:
            self._attach_trim(base, self._trim)
        # Set for as long as the hooks are installed, not per call, because gradient checkpointing
        # runs the layers again in the backward pass. Without a layout it changes nothing.
        set_attention(model, self._packed_attention)

    def remove(self) -> None:
        """Remove the hooks and restore the model's attention implementation."""
        _HANDLES.pop(self.model, None)
        while self._undo:
            self._undo.pop()()
        if self.model.config._attn_implementation == self._packed_attention:
            set_attention(self.model, self._original_attention)

    def _install_fast_dropout(self, base: nn.Module) -> None:
        undo = install_fast_dropout(base, self._fillers_in)
        if undo is not None:
            self._undo.append(undo)

    def _attach_trim(self, base: nn.Module, trim: Trim) -> None:
        layers = base.get_submodule(trim.layers)
        assert isinstance(layers, nn.ModuleList)
        attention, cut = (layers[-1].get_submodule(path) for path in (trim.attention, trim.cut))

        # The module to be trimmed runs right after attention and receives no layout.
        def remember(module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
            del module
            layouts = (a for a in (*args, *kwargs.values()) if isinstance(a, PackedLayout))
            self._layout_to_trim = next(layouts, None)

        def trim_inputs(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            del module
            layout, self._layout_to_trim = self._layout_to_trim, None
            return args if layout is None else tuple(layout.first_tokens(each) for each in args)

        self._undo.append(attention.register_forward_pre_hook(remember, with_kwargs=True).remove)
        self._undo.append(cut.register_forward_pre_hook(trim_inputs).remove)

    def _take_layout(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Kwargs
    ) -> tuple[tuple[Any, ...], Kwargs]:
        """Take the caller's layout, which not every head would pass to its base model."""
        del model
        kwargs = dict(kwargs)
        self._given_layout = kwargs.pop("packing", None)
        return args, kwargs

    @uncompiled
    def _pack(
        self, base: nn.Module, args: tuple[Any, ...], kwargs: Kwargs
    ) -> tuple[tuple[Any, ...], Kwargs] | None:
        kwargs = dict(kwargs)
        layout = kwargs.pop("packing", self._given_layout)
        self._given_layout = self._layout = None
        reason = self._unsupported_reason(args, kwargs)
        if reason is None and layout is None:
            ids, mask = _ids_of(args, kwargs), kwargs.get("attention_mask")
            assert ids is not None
            mask = torch.ones(ids.shape) if mask is None else mask
            layout = pack_layout(mask, device=ids.device)
            reason = "the batch is not right-padded" if layout is None else None
        if reason is not None or layout is None:
            self.paths[f"padded: {reason}"] += 1
            return args, kwargs
        self.paths["packed"] += 1
        layout = self.filled(layout)
        if not self.allows_one_call:
            layout = replace(layout, allows_one_call=False)
        if layout.compiles_attention:
            layout.offsets  # noqa: B018 # computed on first use, which is not to be compiled
        self._layout = layout
        if base.training:
            self._install_fast_dropout(base)  # in adapters, which are added later
        return (), self._packed_kwargs(base, args, kwargs, layout)

    def filled(self, layout: PackedLayout) -> PackedLayout:
        """Return the layout with fillers if few shapes are wanted, and it has none yet."""
        if layout.is_filled:
            return layout
        if self._token_buckets is not None:
            return layout.filled(self._token_buckets)
        return layout.rounded(ROUNDED_TO) if self._compiles_kernels(layout.device) else layout

    def _compiles_kernels(self, device: torch.device) -> bool:
        """Return whether oneDNN compiles a kernel for each shape: on a CPU, in native bfloat16."""
        if device.type != "cpu" or not _multiplies_bfloat16_natively():
            return False
        autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        dtype = autocast or next(self.model.parameters()).dtype
        # A layer that runs again in the backward pass would not know the layout.
        return dtype == torch.bfloat16 and not checkpoints_gradients(self.model)

    def _fillers_in(self, inputs: torch.Tensor) -> int:
        """Return how many tokens of a row attention does not read."""
        layout = self._layout
        if layout is None or tuple(inputs.shape[:2]) != (1, layout.total):
            return 0
        return layout.total - layout.attended

    def _unsupported_reason(self, args: tuple[Any, ...], kwargs: Kwargs) -> str | None:
        if len(args) > 1:
            return "arguments after input_ids were passed by position"
        unsupported = [
            name
            for name, value in kwargs.items()
            if (isinstance(value, torch.Tensor) and name not in _PACKED_TENSORS)
            or (name in _UNPACKED_OPTIONS and value is not None and value is not False)
        ]
        config = self.model.config
        options = ("output_attentions", "output_hidden_states")
        unsupported += [name for name in options if getattr(config, name)]
        if unsupported:
            return f"{unsupported[0]} is not supported"
        if config._attn_implementation != self._packed_attention:
            return f"attn_implementation was changed to {config._attn_implementation!r}"
        ids, mask = _ids_of(args, kwargs), kwargs.get("attention_mask")
        if ids is None or ids.dim() != 2:
            return "input_ids are not a (batch, tokens) tensor"
        if mask is not None and (not isinstance(mask, torch.Tensor) or mask.dim() != 2):
            return "attention_mask is not a (batch, tokens) tensor"
        return None

    def _packed_kwargs(
        self, base: nn.Module, args: tuple[Any, ...], kwargs: Kwargs, layout: PackedLayout
    ) -> Kwargs:
        ids = _ids_of(args, kwargs)
        assert ids is not None
        packed = dict(kwargs)
        packed["input_ids"] = layout.gather(ids)
        if self._family.positions is not None:
            packed["position_ids"] = self._family.positions(base, ids, layout)
        # transformers returns a mask of four dimensions as it is, and packed attention ignores it.
        mask = layout.tokens.new_ones(1, 1, 1, 1)
        packed["attention_mask"] = mask
        if "decoder_attention_mask" in packed:
            packed["decoder_attention_mask"] = mask
        for name in ("token_type_ids", "decoder_input_ids"):
            if packed.get(name) is not None:
                packed[name] = layout.gather(packed[name])
        if self._family.is_causal:
            packed["use_cache"] = False
        packed["packing"] = layout
        return packed

    @uncompiled
    def _unpack(
        self, encoder: nn.Module, args: tuple[Any, ...], kwargs: Kwargs, output: Output
    ) -> Output | None:
        del encoder, args, kwargs
        layout, self._layout = self._layout, None
        if layout is None:
            return None
        if isinstance(output, tuple):
            return (self._padded(output[0], layout), *output[1:])
        assert output.last_hidden_state is not None
        output.last_hidden_state = self._padded(output.last_hidden_state, layout)
        if output.hidden_states is not None:  # DeBERTa continues with the last of these
            output.hidden_states = (*output.hidden_states[:-1], output.last_hidden_state)
        return output

    def _padded(self, packed: torch.Tensor, layout: PackedLayout) -> torch.Tensor:
        # After trimming, each sequence has one token: (1, B, H) becomes (B, 1, H).
        return layout.scatter(packed) if self._trim is None else packed.transpose(0, 1)


def install_packing(
    model: PreTrainedModel, *, trim_last_layer: bool = True, token_buckets: int | None = None
) -> PackedModel:
    """Make `model` run on only the real tokens of each batch.

    The model is still called as `model(input_ids=..., attention_mask=...)` with a right-padded
    batch, and returns the same results. A batch that cannot be packed takes the padded path; the
    handle's `paths` give the reason. Weights, their names and the saved configuration stay as they
    are. On a CPU, `nn.Dropout` draws its masks as `packing.cpu_kernels` does. `torch.compile` can
    compile the model; torch then checks hooks, in this whole process
    (`torch._dynamo.config.skip_nnmodule_hook_guards`).

    Args:
        model: A model of a supported family, with the attention implementation that transformers
            chooses for it.
        trim_last_layer: Whether to run the feed-forward part of the last layer only on first tokens
            if the head reads only those: same logits, same gradients, less work.
        token_buckets: Every row is filled up to a multiple of this number of tokens, so that few
            matrix shapes occur. Outputs do not contain the fillers. None adds no fillers.

    Returns:
        A handle, whose `remove` restores the model.

    Raises:
        InputError: The model is not supported, or already packed.
    """
    support = packing_support(model)
    family = family_of(model)
    if not support.supported or family is None:
        raise InputError(
            f"model: {type(model).__name__} cannot run without padding ({support.reason}). "
            "Check packing_support(model) first, and use the padded model if it is not supported."
        )
    heads = frozenset() if family.trim is None else family.trim.heads
    handle = PackedModel(
        model,
        family,
        trim=trim_last_layer and type(model).__name__ in heads,
        token_buckets=token_buckets,
    )
    _HANDLES[model] = ref(handle)
    return handle


# The hooks of a model keep its handle alive. A strong reference here would keep both for ever,
# because the handle refers to the model.
_HANDLES: WeakKeyDictionary[nn.Module, ReferenceType[PackedModel]] = WeakKeyDictionary()


def is_packed(model: nn.Module) -> bool:
    """Return whether a model runs without padding."""
    return model in _HANDLES


def packing_of(model: nn.Module) -> PackedModel:
    """Return the handle of a packed model."""
    handle = _HANDLES[model]()
    assert handle is not None, "the hooks of the model were removed without `remove`"
    return handle


def _multiplies_bfloat16_natively() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _ids_of(args: tuple[Any, ...], kwargs: Kwargs) -> torch.Tensor | None:
    ids = args[0] if args else kwargs.get("input_ids")
    return ids if isinstance(ids, torch.Tensor) else None


def layout_on_host(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> PackedLayout | None:
    """Return the argument that keeps a packed model from reading its mask back from the device.

    Args:
        model: Any model, packed or not, prepared by Accelerate or not.
        inputs: Arguments of the model, still on the CPU.

    Returns:
        `packing`: the layout on the device of the model; None if the model is not packed, or the
        batch cannot be.
    """
    plain = getattr(model, "module", model)
    mask = inputs.get("attention_mask")
    implementation = getattr(getattr(plain, "config", None), "_attn_implementation", None)
    if mask is None or implementation not in PACKED_NAMES.values():
        return None
    layout = pack_layout(mask, device=next(model.parameters()).device)
    if layout is None or not is_packed(plain):
        return layout
    return packing_of(plain).filled(layout)


def with_layout(model: nn.Module, micro_batch: MicroBatch) -> MicroBatch:
    """Return a micro-batch with its layout, ready to be copied to the device of a packed model.

    Args:
        model: Same as in `layout_on_host`.
    """
    layout = layout_on_host(model, micro_batch.inputs)
    if layout is not None:
        layout.pin()
    return replace(micro_batch, packing=layout)


def set_attention(model: PreTrainedModel, implementation: str) -> None:
    """Set the attention implementation, also for the stacks of T5, which copy the configuration."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = implementation


ROUNDED_TO = 64
"""Multiple of tokens to which rows are filled up where oneDNN compiles a kernel for each shape."""

# Without padding nearly every step multiplies matrices of new shapes. In bfloat16 on a CPU oneDNN
# compiles a kernel of about 0.3 MB for each shape and caches 1024 of them (its documentation,
# "Primitive cache"); ideep, between torch and oneDNN, caches another 1024. Where rows are rounded,
# the shapes of linear layers come back after a few steps, in which attention compiles some 10 to 20
# other kernels each.
KERNEL_CACHE_CAPACITIES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "16"}


def limit_kernel_caches(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make oneDNN and ideep cache fewer kernels, unless the user has set their capacities.

    Both read their environment variable on first use; later changes have no effect.
    """
    for name, capacity in KERNEL_CACHE_CAPACITIES.items():
        environ.setdefault(name, capacity)
