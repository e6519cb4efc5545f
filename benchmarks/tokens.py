"""Compare ampft with the Trainer of transformers on WNUT-17: speed and entity F1.

The Trainer runs as in transformers' `run_ner.py`: DataCollatorForTokenClassification, -100 for all
but the first token of a word, sentences cut at the maximum length. Both get the same model, batches
of the same size, learning rate, schedule and number of epochs, and keep the last weights.
`beside_trainer.py` says how the systems take turns and what counts as the time of a step.

F1 is that of entities by seqeval's strict rule, computed by the same code for both.

    python benchmarks/tokens.py --data_dir DATA/wnut17 --modes bf16,fp32 --seeds 5 --out tokens.json
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from beside_trainer import Turn, compare, comparison_parser, train_with_recipe, train_with_trainer

FILES = {
    "train": "wnut17train.conll",
    "validation": "emerging.dev.conll",
    "test": "emerging.test.annotated",
}
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "learning_rate": 3e-4,
    "num_train_epochs": 5,
    "warmup_ratio": 0.1,
    "max_seq_length": 128,
}


def run_ampft(data_dir: Path, turn: Turn) -> dict[str, Any]:
    """Run the recipe once."""

    def scores(run: Path) -> dict[str, float]:
        metrics = json.loads((run / "run.json").read_text(encoding="utf-8"))["metrics"]
        return {name: metrics[name] for name in ("micro_f1", "token_accuracy")}

    flags = ["--task=tokens", *(f"--{split}_file={data_dir / n}" for split, n in FILES.items())]
    return train_with_recipe(turn, SETTINGS, flags, scores)


def run_trainer(data_dir: Path, turn: Turn) -> dict[str, Any]:
    """Train once with the Trainer, in this process."""
    import torch
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    from ampft.arguments import ClassifyArguments
    from ampft.data.load import load_data
    from ampft.models.minilm import default_model
    from ampft.models.tokenizer import load_tokenizer

    data = load_data(
        ClassifyArguments(
            train_file=str(data_dir / FILES["train"]),
            validation_file=str(data_dir / FILES["validation"]),
            test_file=str(data_dir / FILES["test"]),
            task="tokens",
        )
    )
    folder, _ = default_model(None)
    tokenizer = load_tokenizer(folder, reads_words=True)

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenizer(
            batch["tokens"],
            is_split_into_words=True,
            truncation=True,
            max_length=SETTINGS["max_seq_length"],
        )
        encoded["labels"] = [
            first_tokens(encoded.word_ids(row), tags) for row, tags in enumerate(batch["label"])
        ]
        return dict(encoded)

    encoded = {
        split: data.splits[split].map(
            encode, batched=True, remove_columns=data.splits[split].column_names
        )
        for split in ("train", "test")
    }
    found, output = train_with_trainer(
        turn,
        SETTINGS,
        encoded,
        load_model=lambda: AutoModelForTokenClassification.from_pretrained(
            folder, num_labels=len(data.label_names), dtype=torch.float32
        ),
        collator=DataCollatorForTokenClassification(tokenizer),
    )
    return {**found, **trainer_scores(data, output.predictions, output.label_ids)}


def first_tokens(word_ids: list[int | None], tags: list[int]) -> list[int]:
    """Return the tags of the first tokens of words, and -100 for all others, as `run_ner.py`."""
    before: list[int | None] = [None, *word_ids[:-1]]
    return [
        -100 if word is None or word == last else tags[word]
        for last, word in zip(before, word_ids, strict=True)
    ]


def trainer_scores(data: Any, logits: Any, labels: Any) -> dict[str, float]:
    """Return the scores of the Trainer over all words; those that were cut off are O."""
    from ampft.metrics.entities import SentenceLayout, entity_sums
    from ampft.metrics.sums import MICRO_F1

    targets = data.labels("test")
    parts = []
    for row, labelled, count in zip(logits.argmax(-1), labels, targets.counts, strict=True):
        tags = np.zeros(count, dtype=np.int64)
        kept = row[labelled != -100][:count]
        tags[: len(kept)] = kept
        parts.append(tags)
    predicted = np.concatenate(parts)
    sentences = SentenceLayout(targets.counts, len(data.label_names) // 2, is_bio=True)
    return {
        "micro_f1": MICRO_F1.value(entity_sums(targets.codes, predicted, sentences)),
        "token_accuracy": float((predicted == targets.codes).mean()),
    }


def main() -> None:
    """Compare the systems."""
    parser = comparison_parser(__doc__.splitlines()[0], data_help="folder of WNUT-17's files")
    args = parser.parse_args()
    systems = {
        "ampft": partial(run_ampft, args.data_dir),
        "trainer": partial(run_trainer, args.data_dir),
    }
    compare(args, SETTINGS, {"micro_f1": "entity F1"}, systems)


if __name__ == "__main__":
    main()
