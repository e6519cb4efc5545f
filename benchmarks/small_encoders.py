"""Small sentence encoders of other families, taught by MiniLM, for `defaults.py --model`.

Run: `python benchmarks/small_encoders.py --data ../shared/data --out encoders`. No other trained
sentence encoder can be had without a hub. DistilBERT begins with three of MiniLM's six layers, the
ModernBERT with its embeddings and random layers. They learn the cosine to MiniLM's embedding of the
same text, on the rows that `defaults.py` draws from and on GoEmotions, without labels and without
any test row. Each folder has the files by which sentence-transformers averages tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import rows_of
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoTokenizer,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
)

from ampft.models.minilm import default_model

SETS = ("ag_news", "banking", "cr", "docstrings", "emotions", "mpqa", "sst2", "subj", "trec")
TEXTS, TOKENS, BATCH, RATE = 40_000, 48, 64, 5e-4
KEPT = (0, 2, 5)  # of MiniLM's layers; DistilBERT was initialised from BERT in the same way
PARTS = {  # of a layer, in BERT and in DistilBERT
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}


def distilbert(teacher: Any) -> Any:
    """Return a DistilBERT with MiniLM's embeddings and the layers `KEPT`."""
    config = teacher.config
    student = DistilBertModel(
        DistilBertConfig(
            vocab_size=config.vocab_size,
            dim=config.hidden_size,
            hidden_dim=config.intermediate_size,
            n_heads=config.num_attention_heads,
            n_layers=len(KEPT),
        )
    )
    mine, others = student.embeddings, teacher.embeddings
    with torch.no_grad():
        mine.word_embeddings.weight.copy_(others.word_embeddings.weight)
        kind = others.token_type_embeddings.weight[0]
        mine.position_embeddings.weight.copy_(others.position_embeddings.weight + kind)
    mine.LayerNorm.load_state_dict(others.LayerNorm.state_dict())
    for number, place in enumerate(KEPT):
        layer = student.transformer.layer[number]
        for old, new in PARTS.items():
            part = teacher.encoder.layer[place].get_submodule(old)
            layer.get_submodule(new).load_state_dict(part.state_dict())
    return student


def modernbert(teacher: Any) -> Any:
    """Return a ModernBERT of four layers with MiniLM's embeddings of tokens."""
    config = teacher.config
    student = ModernBertModel(
        ModernBertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=2 * config.hidden_size,
            num_attention_heads=6,
            num_hidden_layers=4,
            max_position_embeddings=512,
            pad_token_id=0,
            cls_token_id=101,
            bos_token_id=101,
            sep_token_id=102,
            eos_token_id=102,
        )
    )
    with torch.no_grad():
        student.embeddings.tok_embeddings.weight.copy_(teacher.embeddings.word_embeddings.weight)
    return student


FAMILIES = {"distilbert": distilbert, "modernbert": modernbert}


def embedded(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the (n, H) means of the tokens, of length 1."""
    states, mask = model(**inputs).last_hidden_state, inputs["attention_mask"].unsqueeze(-1)
    return functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


def batches(tokenizer: Any, texts: list[str]) -> Iterator[dict[str, Tensor]]:
    """Return batches of texts of similar lengths, in a random order."""
    draw = np.random.default_rng(0)
    order = sorted(draw.permutation(len(texts)), key=lambda place: len(texts[place]) // 20)
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    for part in draw.permutation(len(parts)):
        chosen = [texts[place] for place in parts[part]]
        found = tokenizer(
            chosen, truncation=True, max_length=TOKENS, padding=True, return_tensors="pt"
        )
        yield {name: found[name] for name in ("input_ids", "attention_mask")}


def teach(student: nn.Module, teacher: nn.Module, tokenizer: Any, texts: list[str]) -> None:
    """Train a student once on the teacher's embeddings of texts; print the mean cosine."""
    steps = -(-len(texts) // BATCH)
    optimizer = torch.optim.AdamW(student.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    student.train()
    cosines: list[float] = []
    for step, inputs in enumerate(batches(tokenizer, texts), start=1):
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                target = embedded(teacher, inputs)
            cosine = (embedded(student, inputs) * target).sum(1).mean()
        (1 - cosine).backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        cosines.append(float(cosine.detach()))
        if step % 100 == 0 or step == steps:
            print(f"step {step} of {steps}, mean cosine {np.mean(cosines[-100:]):.3f}", flush=True)


def main() -> None:
    """Teach and save the encoders that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    path, _ = default_model(None)
    teacher, tokenizer = AutoModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    texts = sorted({text for name in SETS for text in rows_of(args.data, name)[0]["text"]})
    texts = [texts[place] for place in np.random.default_rng(0).permutation(len(texts))[:TEXTS]]
    for name, make in FAMILIES.items():
        folder = args.out / name
        if folder.exists():
            continue
        torch.manual_seed(0)
        student, started = make(teacher), time.process_time()
        teach(student, teacher, tokenizer, texts)
        print(f"{name}: {time.process_time() - started:.0f} processor seconds")
        student.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        pooling = folder / "1_Pooling/config.json"
        pooling.parent.mkdir()
        size = teacher.config.hidden_size
        mean = {"word_embedding_dimension": size, "pooling_mode_mean_tokens": True}
        pooling.write_text(json.dumps(mean))


if __name__ == "__main__":
    main()
