"""Settings of a model: how it is loaded and run, and which part of it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from ampft.errors import InputError
from ampft.flag import EVALUATION, MODEL, TRAINED, flag
from ampft.hub import HubSettings, go_offline_if_unreachable

ADAPTER_FOLDER = "adapter"  # subfolder of a run whose adapters were merged
_model = partial(flag, group=MODEL)
_trained = partial(flag, group=TRAINED)
_FROZEN_BY_ADAPTERS = {
    "lora_r": "with adapters the whole encoder is frozen already, and --lora_target_modules "
    "chooses the layers with adapters"
}


@dataclass(frozen=True)
class ModelSettings(HubSettings):
    """The model, and how it runs. `--help` describes each setting."""

    model_name_or_path: str | None = _model(
        None,
        "model folder or hub id, or erfnet for images with masks; if none, all-MiniLM-L6-v2 for "
        "text, and a small, randomly initialised ViT for images or AST for sounds",
    )
    model_revision: str | None = _model(
        None,
        "branch, tag or commit of the model on the hub; if none, its main branch",
        needs=("model_name_or_path",),
    )
    processor_name: str | None = _model(
        None,
        "folder or hub id of the tokenizer, image processor or feature extractor; if none, the "
        "model's",
        needs=("model_name_or_path",),
    )
    pooling: str | None = _model(
        None,
        "what the head of a text classifier reads: first, the first token as in transformers, or "
        "mean, the mean of the tokens, brought there by an added layer (BERT, RoBERTa, DistilBERT; "
        "a ModernBERT needs none); if none, mean for a sentence encoder without a head whose files "
        "say so, if texts have one label each, and otherwise first",
        choices=("first", "mean"),
        excludes={"lora_r": "adapters are saved without the layer that --pooling mean adds"},
    )
    max_seq_length: int = _model(
        128,
        "maximum text length in tokens; longer texts are truncated or split, see --long_text "
        "(stdlib: 64)",
        at_least=2,
    )
    long_text: str = _model(
        "truncate",
        "what to do with texts of more than --max_seq_length tokens: truncate, or windows, which "
        "splits them and takes the mean of the logits (words with labels always get windows)",
        choices=("truncate", "windows"),
    )
    stride: int | None = _model(
        None,
        "tokens that neighbouring windows of a text share; if none, a quarter of --max_seq_length",
        at_least=0,
    )
    padding: bool = _model(False, "pad inputs even if the model can run without padding")
    pad_to_multiple_of: int | None = _model(
        None, "pad inputs to a multiple of this many tokens", at_least=1
    )
    token_buckets: int | None = _model(
        None,
        "without padding, fill the tokens of every micro-batch up to a multiple of this, so that "
        "fewer shapes of matrices occur; changes no result but the dropout masks (default: 64 "
        "where a CPU multiplies bfloat16 itself, with the same masks)",
        at_least=1,
        excludes={"padding": "buckets are for models that run without padding"},
    )
    cuda_graphs: bool | None = _model(
        None,
        "on one GPU, repeat steps as CUDA graphs: one per shape, with buckets of 256 tokens unless "
        "--token_buckets says otherwise, and one for the update; if neither flag is passed, where "
        "launching kernels takes the time of the first steps",
    )
    fsdp_gathers: str = _model(
        "float32",
        "dtype in which FSDP2 gathers weights: float32 computes as one process does; bfloat16, in "
        "mode bf16, sends half as much, and rounds norms, embeddings and hidden states too",
        choices=("float32", "bfloat16"),
    )
    gradient_checkpointing: bool = _model(
        False, "recompute activations in the backward pass; uses less memory, but is slower"
    )
    channels_last: bool = _model(
        False,
        "store the channels of a pixel next to each other, which can make convolutions faster",
    )
    trust_remote_code: bool = _model(False, "run code from the model's repository")
    evaluate_only: str | None = flag(
        None,
        "train nothing: report on these splits by the model as it is, and predict the last of "
        "them; scripts of transformers say it by --do_eval and --do_predict without --do_train",
        group=EVALUATION,
        choices=("validation", "test", "validation,test"),
    )

    @property
    def model_path(self) -> str | None:
        """The folder or hub id to load: of a revision, or with `--cache_dir`, its folder there.

        Raises:
            InputError: The revision cannot be had.
        """
        return self._place(self.model_name_or_path, self.model_revision)

    @property
    def processor_path(self) -> str | None:
        """The folder or hub id of the tokenizer or processor.

        Raises:
            InputError: It cannot be had.
        """
        name = self.processor_name
        return self.model_path if name is None else self._place(name, None)

    @property
    def processor_flag(self) -> str:
        """The flag that names the tokenizer or processor, for messages."""
        return "--model_name_or_path" if self.processor_name is None else "--processor_name"

    def _place(self, name: str | None, revision: str | None) -> str | None:
        is_usual = revision is None and self.cache_dir is None
        if (
            name is None
            or is_usual
            or (revision is None and (Path(name).exists() or name[0] in "./"))
        ):
            return name
        return str(pinned_folder(name, revision, self.cache_dir))


@dataclass(frozen=True)
class TrainedPartSettings:
    """Settings of the part that is trained: all, some layers, or the head with adapters (LoRA)."""

    freeze: str | None = _trained(
        None,
        "parameters or modules that are not trained, as globs over their paths, as in "
        "--fp32_modules: embeddings,layer.0",
        joined=True,
        excludes=_FROZEN_BY_ADAPTERS,
    )
    head_init: str | None = _trained(
        None,
        "how the last layer of the head begins: random (or as in the model, if that was trained "
        "for the same labels), or probe, which fits logistic regression on what the layer reads; "
        "if none, probe where the default of --pooling is mean, and otherwise random",
        choices=("random", "probe"),
    )
    probe_scale: float | None = _trained(
        None,
        "share of the probe's logits that the head begins with, where it begins at a probe; if "
        "none, 0.25, or with at least 20 classes of at most 20 rows as much more as folds ask for",
        above=0,
        at_most=1,
    )
    train_layers: int | None = _trained(
        None,
        "train only the head and this many layers below it; 0 trains the head (linear probing)",
        at_least=0,
        excludes=_FROZEN_BY_ADAPTERS,
    )
    lora_r: int | None = _trained(
        None,
        "train the head and adapters of this rank (LoRA) instead of the encoder; 8 is usual; needs "
        "the package peft",
        at_least=1,
    )
    lora_alpha: int | None = _trained(
        None,
        "the output of adapters is multiplied by lora_alpha / lora_r; if none, by 2",
        at_least=1,
        needs=("lora_r",),
    )
    lora_dropout: float = _trained(
        0.0,
        "probability that an input of an adapter is dropped in training",
        at_least=0,
        below=1,
        needs=("lora_r",),
    )
    lora_target_modules: str | None = _trained(
        None,
        "all-linear, or names of layers that get adapters: query,value; if none, those that PEFT "
        "chooses for the model family, or all",
        joined=True,
        needs=("lora_r",),
    )
    merge_lora: bool | None = _trained(
        None,
        "add the adapters to the weights after training, and save a whole model that any client "
        "loads, with the adapters in the subfolder adapter; if neither flag is passed, unless the "
        "base has 4 bits",
        needs=("lora_r",),
    )
    load_in_4bit: bool = _trained(
        False,
        "store the linear layers below the head in 4 bits (NF4) while adapters are trained "
        "(QLoRA); needs the package bitsandbytes",
        needs=("lora_r",),
    )

    @property
    def merges_lora(self) -> bool:
        """Whether adapters are added to the weights after training."""
        merges = not self.load_in_4bit if self.merge_lora is None else self.merge_lora
        return self.lora_r is not None and merges

    @property
    def trains_all(self) -> bool:
        """Whether the whole model is trained."""
        return (self.freeze, self.train_layers, self.lora_r) == (None, None, None)

    @property
    def trains_head_or_adapters(self) -> bool:
        """Whether only adapters or the head are trained, which takes a higher learning rate."""
        return self.lora_r is not None or self.train_layers == 0


# Weights in other formats than safetensors, which are never opened.
_NOT_NEEDED = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.gguf", "*.ckpt")


@cache
def pinned_folder(name: str, revision: str | None, cache_dir: str | None) -> Path:
    """Return the folder in the hub's cache that holds a revision of a model, downloaded if needed.

    Its name is the commit, so that a branch that moves later is another folder.

    Args:
        name: Hub id of the model.
        revision: Branch, tag or commit; None for the main branch.
        cache_dir: Folder of the cache; None for the usual one.

    Raises:
        InputError: The model is a folder, or the revision cannot be had.
    """
    from huggingface_hub import snapshot_download

    if Path(name).exists():
        raise InputError(
            f"--model_revision {revision}: {name} is a folder, which has no revisions. Remove the "
            "flag."
        )
    problem = go_offline_if_unreachable()
    try:
        folder = snapshot_download(
            name, revision=revision, cache_dir=cache_dir, ignore_patterns=list(_NOT_NEEDED)
        )
    except Exception as error:  # the client raises many kinds
        reason = problem or " ".join(str(error).split())
        what = f"--cache_dir {cache_dir}: {name}"
        if revision is not None:
            what = f"--model_revision {revision}: this revision of {name}"
        raise InputError(
            f"{what} is not in the cache, and cannot be downloaded: {reason}"
        ) from error
    return Path(folder)
