"""Your own loop with everything that a run of ampft has: `ampft.Training` around any model.

    python recipes/own_loop.py fp16 runs/own-fp16

Stop it, kill it, and repeat the command: it continues, and ends with the same weights. Compare
precisions with `ampft compare runs/own-*`.
"""

import sys

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    import ampft
except ImportError as error:  # a forgotten environment
    hint = f" ({sys.executable}). Activate the environment of ampft." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)


def main(mode: str = "fp32", output_dir: str = "runs/own-loop", seed: str = "1") -> None:
    """Train in `mode`; the results are in `output_dir`."""
    torch.manual_seed(int(seed))
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = pixels.float().view(-1, 1, 8, 8) / 16
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(1152, 10)),
    )
    train, dev, test = slice(1200), slice(1200, 1397), slice(1397, None)
    training = ampft.Training(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        (images[train], labels[train]),
        precision=mode,
        schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * 19),
        batch_size=64,
        micro_batches=2,
        epochs=4,
        ema_decay=0.99,
        seed=int(seed),
        output_dir=output_dir,
    )
    with training:
        for _ in training:  # continues where the same call was stopped
            training.step(lambda batch: ampft.summed_cross_entropy(model(batch[0]), batch[1]))
            if training.validation_is_due:
                with training.evaluation():  # averaged weights, no gradient, the precision
                    predicted = model(images[dev].to(training.device)).argmax(dim=1).cpu()
                    training.validated(accuracy=(predicted == labels[dev]).float().mean())
        with training.evaluation():  # the best weights
            logits = model(images[test].to(training.device))
        training.finish(ampft.Predictions.from_logits(logits, labels[test], "0123456789"))


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:4])))
