"""Five training loops of users, each with a model, a loss and examples of its own.

    python own_loops.py PLAN

PLAN is a JSON list of runs, such as `{"loop": "cnn", "kill_at": 4}`. Each is a process of its own.
The other entries are settings of `ampft.Training`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import ampft

STEPS = 12


def train(training: ampft.Training, step: Any, kill_at: int | None = None) -> None:
    """Make the steps of a training; end the process without a warning after `kill_at` of them."""
    for _ in training:
        step()
        if training.validation_is_due:
            with training.evaluation():
                training.validated(loss=1.0)
        if kill_at is not None and training.steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def regression(kill_at: int | None = None, **settings: Any) -> None:
    """A network with dropout on tensors, averaged weights and a schedule."""
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    y = x @ torch.randn(8, 1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    training = ampft.Training(
        model,
        optimizer,
        (x[:96], y[:96]),
        schedule=lambda each: torch.optim.lr_scheduler.CosineAnnealingLR(each, STEPS),
        ema_decay=0.9,
        **settings,
    )
    with training:
        train(
            training,
            lambda: training.step(lambda b: ampft.summed_squared_error(model(b[0]), b[1])),
            kill_at,
        )
        with training.evaluation():
            losses = (model(x[96:]).float() - y[96:]).square().squeeze(1)
        training.finish(ampft.CaseLossPredictions.from_losses(losses))


class FlippedImages(Dataset[tuple[torch.Tensor, int]]):
    """Images that are flipped at random whenever they are read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(96, 1, 8, 8, generator=generator)
        self.labels = (self.images.mean(dim=(1, 2, 3)) > 0).long().tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), self.labels[index]


def cnn(kill_at: int | None = None, **settings: Any) -> None:
    """A convolutional network with batch norm, on augmented images of a loader."""
    torch.manual_seed(0)
    images = FlippedImages()
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU()),
        *(nn.Conv2d(8, 8, 3), nn.SiLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, 2)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loader = DataLoader(images, batch_size=16, shuffle=True)
    with ampft.Training(model, optimizer, loader, **settings) as training:
        train(
            training,
            lambda: training.step(lambda b: ampft.summed_cross_entropy(model(b[0]), b[1])),
            kill_at,
        )
        with training.evaluation():
            logits = model(images.images)
        labels = torch.tensor(images.labels)
        training.finish(ampft.Predictions.from_logits(logits, labels, ("dark", "bright")))


def gan(kill_at: int | None = None, **settings: Any) -> None:
    """Two models with an optimizer each, which learn from each other."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    models = {"generator": generator, "critic": critic}
    optimizers = {n: torch.optim.Adam(m.parameters(), lr=1e-2) for n, m in models.items()}
    points = torch.randn(96, 2, generator=torch.Generator().manual_seed(1)) + 2
    training = ampft.Training(models, optimizers, {"points": points}, **settings)

    def loss(logits: torch.Tensor, target: float) -> torch.Tensor:
        return ampft.summed_binary_cross_entropy(logits, torch.full_like(logits.float(), target))

    def critic_loss(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            fake = generator(torch.randn(len(batch["points"]), 4))
        return loss(critic(batch["points"]), 1) + loss(critic(fake), 0)

    def generator_loss(batch: Any) -> torch.Tensor:
        return loss(critic(generator(torch.randn(len(batch["points"]), 4))), 1)

    def step() -> None:
        training.step(critic_loss, update="critic")
        training.step(generator_loss, update="generator")

    with training:
        train(training, step, kill_at)


def mixup(kill_at: int | None = None, **settings: Any) -> None:
    """A loop in the style of timm: mixed labels, two groups of parameters, averaged weights."""
    torch.manual_seed(0)
    x = torch.randn(96, 16)
    y = x[:, :4].argmax(dim=1)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1)
    examples = [{"x": row, "y": label} for row, label in zip(x, y, strict=True)]

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        share = float(torch.rand(()))
        order = torch.randperm(len(batch["y"]))
        target = functional.one_hot(batch["y"], 4).float()
        mixed = share * batch["x"] + (1 - share) * batch["x"][order]
        return ampft.summed_cross_entropy(
            model(mixed), share * target + (1 - share) * target[order], label_smoothing=0.1
        )

    training = ampft.Training(
        model, optimizer, examples, schedule=schedule, ema_decay=0.99, **settings
    )
    with training:
        train(training, lambda: training.step(loss), kill_at)
        with training.evaluation():
            logits = model(x)
        training.finish(ampft.Predictions.from_logits(logits, y, "abcd"))


class Decoder(nn.Module):
    """A small causal language model."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.dropout = dropout
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return (m, t, 20) logits of (m, t) tokens."""
        x = self.embedding(tokens)
        parts = self.query(x), self.key(x), self.value(x)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.head(functional.dropout(x + seen, self.dropout, self.training))


def padded(rows: list[list[int]]) -> torch.Tensor:
    """Return (m, t) tokens; -100 pads them."""
    width = max(map(len, rows))
    return torch.tensor([row + [-100] * (width - len(row)) for row in rows])


def token_loss(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of the next tokens, summed, and their number."""
    logits, labels = model(tokens[:, :-1].clamp(min=0)), tokens[:, 1:]
    return ampft.summed_cross_entropy(logits.transpose(1, 2), labels), (labels >= 0).sum()


def decoder(kill_at: int | None = None, **settings: Any) -> None:
    """A decoder on ragged rows with labels of its own; each token has the same weight."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(3, 12, (96,), generator=generator).tolist()
    rows = [torch.randint(0, 20, (size,), generator=generator).tolist() for size in sizes]
    model = Decoder()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2, momentum=0.5)
    training = ampft.Training(model, optimizer, rows, collate=padded, **settings)
    with training:
        train(training, lambda: training.step(lambda b: token_loss(model, b)), kill_at)


LOOPS = {each.__name__: each for each in (regression, cnn, gan, mixup, decoder)}


def in_child(plan: dict[str, Any]) -> int:
    """Run a plan in a process of its own; return how it ended."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        code = 1
        try:
            code = ampft.run_main(lambda: LOOPS[plan.pop("loop")](**plan))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(plans: str) -> None:
    """Run each plan in turn, and print how it ended."""
    assert ampft.Training  # imported once, and not by each child
    for plan in json.loads(Path(plans).read_text()):
        defaults = {"batch_size": 32, "max_train_steps": STEPS, "checkpointing_steps": "3"}
        print("ended", in_child({**defaults, **plan}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
