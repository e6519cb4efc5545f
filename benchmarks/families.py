"""Model families without padding: errors of logits and gradients against single texts.

Every model has a published architecture at a small size and random weights. `errors` computes a
batch without padding, and each of its texts alone, in float32. It adds the differences of logits
and gradients to a JSON file, and `table` writes them into docs/speed.md. The speeds in that table
are stored ones; `speed.py --model FAMILY` measures the speed of a family.

    python benchmarks families errors --layers 2 --hidden 96 --out families.json
    python benchmarks families table --out families.json
"""

from __future__ import annotations

import inspect
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from provenance import command_line, provenance
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from ampft.fast.packing.families import packing_support
from ampft.fast.packing.install import install_packing
from ampft.models.by_length import padding_difference
from ampft.text.terminal import quiet_libraries

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
LOGITS_LIMIT, GRADIENT_LIMIT = 1e-5, 1e-6
LENGTHS = (3, 17, 17, 1, 30, 29, 61, 64)
CLASSES = 6


@dataclass(frozen=True)
class Size:
    """The size of a model; heads have 32 features, and a feed-forward layer 4 * hidden."""

    layers: int = 6
    hidden: int = 384
    vocabulary: int = 30522


def like_bert(size: Size) -> dict[str, Any]:
    """Return the options that most configurations share."""
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.hidden // 32,
        "intermediate_size": 4 * size.hidden,
        "pad_token_id": 0,
    }


def like_llama(size: Size) -> dict[str, Any]:
    """Return the options of a decoder in which two heads share keys and values."""
    heads = size.hidden // 32
    return {**like_bert(size), "num_key_value_heads": heads // 2, "head_dim": 32}


def like_t5(size: Size) -> dict[str, Any]:
    """Return the options of an encoder and a decoder with half of the layers each."""
    return {
        "vocab_size": size.vocabulary,
        "d_model": size.hidden,
        "d_kv": 32,
        "d_ff": 4 * size.hidden,
        "num_layers": size.layers // 2,
        "num_heads": size.hidden // 32,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        # Scores are not scaled, and weights are drawn for 1 layer of 1 feature.
        "initializer_factor": 0.5,
    }


def like_distilbert(size: Size) -> dict[str, Any]:
    """Return the options of DistilBERT."""
    return {
        "vocab_size": size.vocabulary,
        "dim": size.hidden,
        "n_layers": size.layers,
        "n_heads": size.hidden // 32,
        "hidden_dim": 4 * size.hidden,
        "pad_token_id": 0,
    }


DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
DEBERTA_V3 = {
    **DISENTANGLED,
    "share_att_key": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
}


@dataclass(frozen=True)
class Case:
    """A family of models."""

    checkpoints: str  # What people know of it.
    model_type: str  # Its name in transformers.
    # Function that returns the options of its configuration.
    options: Callable[[Size], dict[str, Any]] = like_bert
    extra: tuple[tuple[str, Any], ...] = ()  # Further options.

    def model(self, size: Size, **labels: Any) -> PreTrainedModel:
        """Return a model with random weights, the same each time."""
        options = {**self.options(size), **dict(self.extra), **labels}
        if "pooler_hidden_size" not in options and self.model_type == "deberta-v2":
            options["pooler_hidden_size"] = size.hidden
        torch.manual_seed(0)
        config = AutoConfig.for_model(self.model_type, **options)
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
        return model


CASES: dict[str, Case] = {
    "BERT": Case("BERT, MiniLM, E5, BGE, GTE", "bert"),
    "RoBERTa": Case("RoBERTa, BERTweet", "roberta"),
    "XLM-RoBERTa": Case("XLM-R, multilingual E5, BGE-M3", "xlm-roberta"),
    "CamemBERT": Case("CamemBERT", "camembert"),
    "DistilBERT": Case("DistilBERT", "distilbert", like_distilbert),
    "ELECTRA": Case("ELECTRA", "electra", extra=(("embedding_size", 128),)),
    "ALBERT": Case("ALBERT", "albert", extra=(("embedding_size", 128),)),
    "MPNet": Case("MPNet, all-mpnet", "mpnet"),
    "DeBERTa-v2": Case("DeBERTa-v2", "deberta-v2", extra=tuple(DISENTANGLED.items())),
    "DeBERTa-v3": Case("DeBERTa-v3, mDeBERTa-v3", "deberta-v2", extra=tuple(DEBERTA_V3.items())),
    "ModernBERT": Case("ModernBERT", "modernbert"),
    "EuroBERT": Case("EuroBERT", "eurobert", like_llama),
    "ERNIE": Case("ERNIE 2.0, 3.0", "ernie"),
    "data2vec": Case("data2vec-text", "data2vec-text"),
    "T5": Case("T5, Flan-T5", "t5", like_t5),
    "mT5": Case("mT5", "mt5", like_t5),
    "GPT-2": Case("GPT-2, DistilGPT-2", "gpt2"),
    "GPT-NeoX": Case("Pythia", "gpt_neox"),
    "Llama": Case("Llama, SmolLM2, TinyLlama", "llama", like_llama),
    "Mistral": Case("Mistral", "mistral", like_llama),
    "Qwen2": Case("Qwen2, Qwen2.5", "qwen2", like_llama),
    "Qwen3": Case("Qwen3", "qwen3", like_llama),
    "Gemma": Case("Gemma 1", "gemma", like_llama),
    "Phi": Case("Phi-1, Phi-2", "phi"),
    "DeBERTa": Case("DeBERTa-v1", "deberta", extra=tuple(DISENTANGLED.items())),
    "BigBird": Case("BigBird", "big_bird", extra=(("attention_type", "original_full"),)),
    "Longformer": Case("Longformer", "longformer", extra=(("attention_window", 64),)),
    "FNet": Case("FNet", "fnet"),
    "ConvBERT": Case("ConvBERT", "convbert"),
}


def example_batch(model: PreTrainedModel, vocabulary: int) -> dict[str, torch.Tensor]:
    """Return a right-padded batch of random tokens; each text ends with the end token."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(LENGTHS)
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    ids = torch.randint(4, vocabulary, mask.shape, generator=generator)
    if model.config.eos_token_id is not None:
        ids[torch.arange(len(ids)), lengths - 1] = min(int(model.config.eos_token_id), 3)
    batch = {"input_ids": ids * mask + int(model.config.pad_token_id or 0) * (1 - mask)}
    takes_mask = "attention_mask" in inspect.signature(model.forward).parameters
    return {**batch, "attention_mask": mask} if takes_mask else batch


def logits_and_gradient(
    model: PreTrainedModel, batches: list[dict[str, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits and the gradient of the summed loss of batches, with dropout off."""
    model.eval()
    model.zero_grad()
    logits = torch.cat([model(**batch).logits for batch in batches])
    labels = torch.arange(len(logits)) % CLASSES
    torch.nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return logits.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def errors(case: Case, size: Size) -> dict[str, Any]:
    """Return the largest error of the logits and the error of the gradient, both relative.

    For a family that needs padding, the error of its padded logits.
    """
    model = case.model(size, num_labels=CLASSES)
    support = packing_support(model)
    result = {"model_type": case.model_type, "padding_free": support.supported}
    batch = example_batch(model, size.vocabulary)
    if not support.supported:
        return {**result, "padded_logits_error": padding_difference(model, batch, batch)}
    texts = [
        {name: tensor[row : row + 1, :length] for name, tensor in batch.items()}
        for row, length in enumerate(LENGTHS)
    ]
    expected_logits, expected_gradient = logits_and_gradient(model, texts)
    handle = install_packing(model)
    logits, gradient = logits_and_gradient(model, [batch])
    assert handle.paths == {"packed": 1}
    difference = (gradient.double() - expected_gradient.double()).norm()
    return {
        **result,
        "logits_error": float((logits - expected_logits).abs().max() / expected_logits.abs().max()),
        "gradient_error": float(difference / expected_gradient.double().norm()),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of docs/speed.md."""
    header = ("family", "checkpoints", "padding-free", "logits", "gradient", "speed")
    lines = ["| " + " | ".join(header) + " |", "| --- | --- | --- | --- | --- | --- |"]
    for name, row in results.items():
        if row["padding_free"]:
            cells = ["yes", f"{row['logits_error']:.0e}", f"{row['gradient_error']:.0e}"]
        else:
            cells = ["no", f"{row['padded_logits_error']:.0e} (padded)", ""]
        cells.append(speed_cell(row.get("speed")))
        lines.append("| " + " | ".join([name, CASES[name].checkpoints, *cells]) + " |")
    return "\n".join(lines)


def speed_cell(speed: dict[str, Any] | None) -> str:
    """Return the ratio to the Trainer with its range over the turns; empty if not measured."""
    if speed is None:
        return ""
    ratios = speed["times_as_fast"]
    if len(ratios) == 1:
        return f"{ratios[0]:.1f}"
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


def main() -> None:
    """Measure, and add the errors to the file; or write the table."""
    parser = command_line(__doc__, out="JSON file to add to")
    parser.add_argument("action", choices=("errors", "table"))
    parser.add_argument("--families", help="comma-separated names (default: all)")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=384, help="features, a multiple of 64")
    args = parser.parse_args()
    quiet_libraries()
    document = json.loads(args.out.read_text()) if args.out.exists() else {"families": {}}
    results = document["families"]
    if args.action == "table":
        text = PAGE.read_text()
        start = text.index("| family |")
        PAGE.write_text(text[:start] + table(results) + text[text.index("\n\n", start) :])
        return
    for name in args.families.split(",") if args.families else CASES:
        found = errors(CASES[name], Size(layers=args.layers, hidden=args.hidden))
        results[name] = {**results.get(name, {}), **found}
    document["provenance of errors"] = provenance()
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
