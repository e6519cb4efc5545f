"""Hooks that let an encoder run on the real tokens of a padded batch, and a check of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ampft.errors import InputError
from ampft.models.packing.attention import ATTENTION_NAME, register_packed_attention
from ampft.models.packing.dropout import install_quick_dropout
from ampft.models.packing.families import Family, Trim, family_of, packing_support
from ampft.models.packing.layout import PackedLayout, pack_layout

Kwargs = dict[str, Any]
Output: TypeAlias = tuple[torch.Tensor, ...] | BaseModelOutput
_PACKED_TENSORS = ("input_ids", "attention_mask", "token_type_ids")
_UNPACKED_OPTIONS = ("output_attentions", "output_hidden_states", "past_key_values", "use_cache")


class PackedModel:
    """Handle of a model whose encoder runs without padding; `remove` undoes it.

    Attributes:
        model: The model that was given.
        paths: How many calls went which way: "packed", or "padded: " and the reason.
    """

    def __init__(self, model: PreTrainedModel, family: Family, *, trim: bool) -> None:
        self.model = model
        self.paths: Counter[str] = Counter()
        self._family = family
        self._trim = family.trim if trim else None
        self._cutting: PackedLayout | None = None
        self._former_attention = model.config._attn_implementation
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        """Take the hooks away and give the model its attention back."""
        while self._undo:
            self._undo.pop()()
        if self.model.config._attn_implementation == ATTENTION_NAME:
            self.model.config._attn_implementation = self._former_attention

    def attach(self, *, quick_dropout: bool) -> None:
        """Register the hooks; called once, by `install_packing`."""
        register_packed_attention()
        base = self.model.base_model
        encoder = base.get_submodule(self._family.encoder)
        enter = base.register_forward_pre_hook(self._enter, with_kwargs=True)
        leave = encoder.register_forward_hook(self._leave, with_kwargs=True)
        self._undo += [enter.remove, leave.remove]
        if quick_dropout:
            self._undo.append(install_quick_dropout(base))
        if self._trim is not None:
            self._attach_trim(base, self._trim)
        # The name stays for as long as the hooks do, not for one call: gradient checkpointing runs
        # the layers again in the backward pass. Without a layout it means `sdpa`.
        self.model.config._attn_implementation = ATTENTION_NAME

    def _attach_trim(self, base: nn.Module, trim: Trim) -> None:
        layers = base.get_submodule(trim.layers)
        assert isinstance(layers, nn.ModuleList)
        attention, cut = (layers[-1].get_submodule(path) for path in (trim.attention, trim.cut))
        hooks = (
            attention.register_forward_pre_hook(self._remember, with_kwargs=True),
            cut.register_forward_pre_hook(self._cut),
        )
        self._undo += [hook.remove for hook in hooks]

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: Kwargs) -> None:
        # The module to be cut runs right after this one and is handed no keyword arguments.
        del module, args
        self._cutting = kwargs.get("packing")

    def _cut(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        del module
        layout, self._cutting = self._cutting, None
        return args if layout is None else tuple(layout.first_tokens(hidden) for hidden in args)

    def _enter(
        self, base: nn.Module, args: tuple[Any, ...], kwargs: Kwargs
    ) -> tuple[tuple[Any, ...], Kwargs] | None:
        layout, kwargs = kwargs.get("packing"), {k: v for k, v in kwargs.items() if k != "packing"}
        obstacle = self._obstacle(args, kwargs)
        if obstacle is None and layout is None:
            layout = _layout_of(args, kwargs)
            obstacle = "the batch is not right-padded" if layout is None else None
        if obstacle is not None or layout is None:
            self.paths[f"padded: {obstacle}"] += 1
            return args, kwargs
        self.paths["packed"] += 1
        return (), self._packed_kwargs(base, args, kwargs, layout)

    def _obstacle(self, args: tuple[Any, ...], kwargs: Kwargs) -> str | None:
        if len(args) > 1:
            return "arguments after input_ids were given by position"
        given = [
            name
            for name, value in kwargs.items()
            if (isinstance(value, torch.Tensor) and name not in _PACKED_TENSORS)
            or (name in _UNPACKED_OPTIONS and value is not None and value is not False)
        ]
        config = self.model.config
        given += [n for n in ("output_attentions", "output_hidden_states") if getattr(config, n)]
        if given:
            return f"{given[0]} was given"
        if config._attn_implementation != ATTENTION_NAME:
            return f"attn_implementation became {config._attn_implementation!r} after installation"
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
        packed["position_ids"] = self._family.positions(base, ids, layout)
        packed["attention_mask"] = dict.fromkeys(self._family.mask_kinds) or None
        if packed.get("token_type_ids") is not None:
            packed["token_type_ids"] = layout.gather(packed["token_type_ids"])
        packed["packing"] = layout
        return packed

    def _leave(
        self, encoder: nn.Module, args: tuple[Any, ...], kwargs: Kwargs, output: Output
    ) -> Output | None:
        del encoder, args
        layout = kwargs.get("packing")
        if layout is None:
            return None
        if isinstance(output, tuple):
            return (self._padded(output[0], layout), *output[1:])
        assert output.last_hidden_state is not None
        output.last_hidden_state = self._padded(output.last_hidden_state, layout)
        return output

    def _padded(self, packed: torch.Tensor, layout: PackedLayout) -> torch.Tensor:
        # After a cut there is one token left of each sequence: (1, B, H) becomes (B, 1, H).
        return layout.scatter(packed) if self._trim is None else packed.transpose(0, 1)


def install_packing(
    model: PreTrainedModel, *, trim_last_layer: bool = True, quick_dropout: bool = True
) -> PackedModel:
    """Let `model` run its encoder on the real tokens of each batch.

    The call stays `model(input_ids=..., attention_mask=...)` with a right-padded batch, and so do
    its results. A batch that cannot be packed takes the padded path; the handle's `paths` say why.
    Weights, their names and the saved configuration are untouched.

    Args:
        model: A model of a supported family, whose attention implementation is `sdpa`.
        trim_last_layer: Where the head reads the first token alone, let the last layer's
            feed-forward part work on first tokens alone: same logits, same gradients, less work.
        quick_dropout: Draw the masks of `nn.Dropout` as `packing.dropout` does, on a CPU.

    Returns:
        The handle, whose `remove` undoes the installation.

    Raises:
        InputError: The model is not supported, or already packed.
    """
    support = packing_support(model)
    family = family_of(model)
    if not support.supported or family is None:
        raise InputError(
            f"model: {type(model).__name__} cannot run without padding ({support.reason}). "
            "Ask packing_support(model) first and keep the padded path."
        )
    readers = frozenset() if family.trim is None else family.trim.heads
    handle = PackedModel(model, family, trim=trim_last_layer and type(model).__name__ in readers)
    handle.attach(quick_dropout=quick_dropout)
    return handle


def _ids_of(args: tuple[Any, ...], kwargs: Kwargs) -> torch.Tensor | None:
    ids = args[0] if args else kwargs.get("input_ids")
    return ids if isinstance(ids, torch.Tensor) else None


def _layout_of(args: tuple[Any, ...], kwargs: Kwargs) -> PackedLayout | None:
    ids, mask = _ids_of(args, kwargs), kwargs.get("attention_mask")
    assert ids is not None
    return pack_layout(torch.ones(ids.shape) if mask is None else mask, device=ids.device)


def verify_packing(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> float:
    """Return how far packed logits are from padded ones, dropout off.

    Args:
        model: A supported model without packing installed; left as it was.
        batch: What the model is called with: `input_ids` (B, T), `attention_mask` and so on.

    Returns:
        The largest absolute difference of the first output (logits, or hidden states at real
        tokens) over the largest absolute padded value; infinity when packing did not run.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            padded = model(**batch)[0]
            handle = install_packing(model)
            try:
                packed = model(**batch)[0]
            finally:
                handle.remove()
    finally:
        model.train(was_training)
    if handle.paths["packed"] != 1:
        return float("inf")
    if padded.shape[:2] == batch["input_ids"].shape:
        real = batch["attention_mask"] != 0
        padded, packed = padded[real], packed[real]
    return float((padded - packed).abs().max() / padded.abs().max())


# Without padding nearly every step multiplies matrices of new shapes. In bfloat16 on a CPU oneDNN
# compiles a kernel for each, of some 0.3 MB, and keeps 1024 (its documentation, "Primitive cache");
# ideep, between torch and oneDNN, keeps the primitives of 1024 more. What one step needs suffices.
CAPACITIES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}


def limit_kernel_caches(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let oneDNN and ideep keep fewer kernels, unless the user has said how many.

    Both read their variable when they first need it: later it has no effect.
    """
    for name, capacity in CAPACITIES.items():
        environ.setdefault(name, capacity)
