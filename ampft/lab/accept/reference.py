"""A small model and texts, and the training that every command must repeat, in float64.

The whole training set is one batch, the weights are all in the folder, and there is no dropout. So
plain PyTorch can follow each step without ampft: another batch, other initial weights or another
order cannot explain a difference.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from ampft.data.step_batches import StepBatches, TensorExamples

LABELS = ("ant", "bee", "cow")
WORDS = tuple(f"w{number}" for number in range(60))
TRAINING_ROWS, TEST_ROWS = 48, 40
# Three different batches, so that a graph that reads the one before is seen.
BATCH_SIZE, SEED = 16, 42
LEARNING_RATE, EPSILON = 0.1, 1.0
MODEL, TRAIN, TEST = "model", "train.csv", "test.csv"
# So large an epsilon makes AdamW's updates proportional to the gradient, which small errors then
# change little. What decides is at its default: dtypes, kernels, padding, graphs.


def settings(folder: Path) -> tuple[str, ...]:
    """Return the settings of every training.

    Args:
        folder: Folder of `make_files`.
    """
    model, train, test = (str(folder / name) for name in (MODEL, TRAIN, TEST))
    return (
        *("--model_name_or_path", model, "--train_file", train, "--validation_file", test),
        *("--test_file", test, "--per_device_train_batch_size", str(BATCH_SIZE)),
        *("--seed", str(SEED)),
        *("--learning_rate", str(LEARNING_RATE), "--adam_epsilon", str(EPSILON)),
        *("--lr_scheduler_type", "constant", "--max_grad_norm", "0", "--no-load_best_model_at_end"),
    )


def make_files(folder: Path) -> None:
    """Write the model with its tokenizer, training data and test data into a folder."""
    draw = random.Random(0)
    for name, number in ((TRAIN, TRAINING_ROWS), (TEST, TEST_ROWS)):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            for row in range(number):
                label = row % len(LABELS)
                # A third of the words tell the label, so that something can be learned.
                words = draw.choices(WORDS, k=draw.randint(1, 28))
                words += draw.choices(WORDS[label::3], k=len(words) // 2 + 1)
                writer.writerow((" ".join(words), LABELS[label]))
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = {word: number for number, word in enumerate((*special, *WORDS))}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder / MODEL)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        id2label=dict(enumerate(LABELS)),
        label2id={name: number for number, name in enumerate(LABELS)},
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder / MODEL)


@dataclass(frozen=True)
class Reference:
    """The float64 training, step by step."""

    initial: dict[str, Tensor]  # Weights before the first step, float64, on the CPU.
    after: list[dict[str, Tensor]]  # Weights after each step.

    def error(self, weights: dict[str, Tensor], steps: int) -> float:
        """Return the relative error of the change of all weights after a number of steps.

        Args:
            steps: Number of steps, from 1.
        """
        exact, ours = self.after[steps - 1], weights
        change = [(exact[n] - start).flatten() for n, start in self.initial.items()]
        error = [(ours[n].double() - exact[n]).flatten() for n in self.initial]
        return float(torch.cat(error).norm() / torch.cat(change).norm())

    def unmoved(self, weights: dict[str, Tensor]) -> list[str]:
        """Return the names of tensors that are as before the first step."""
        return [n for n, start in self.initial.items() if torch.equal(weights[n].double(), start)]


def train_reference(folder: Path, steps: int) -> Reference:
    """Train with transformers and PyTorch alone, padded, in float64 on the CPU.

    Only the order of the rows is ampft's.

    Args:
        folder: Folder of `make_files`.
        steps: Number of steps.
    """
    with (folder / TRAIN).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    tokenizer = BertTokenizer.from_pretrained(folder / MODEL)
    batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    labels = torch.tensor([LABELS.index(row["label"]) for row in rows])
    batches = StepBatches(TensorExamples({"labels": labels}), BATCH_SIZE, seed=SEED)
    model = BertForSequenceClassification.from_pretrained(
        folder / MODEL, attn_implementation="eager", dtype=torch.float64
    )
    initial = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, eps=EPSILON, weight_decay=0.0
    )
    after = []
    model.train()
    for step in range(steps):
        ids = torch.as_tensor(batches.effective_ids(*divmod(step, len(batches))))
        own = {name: tensor[ids] for name, tensor in batch.items()}
        optimizer.zero_grad()
        functional.cross_entropy(model(**own).logits, labels[ids]).backward()
        optimizer.step()
        after.append({name: value.detach().clone() for name, value in model.named_parameters()})
    return Reference(initial, after)
