"""Two models with two losses and two optimizers, each update with its own exact gradient.

    python recipes/by_feature/several_models.py fp16

Each update computes gradients of one model only. A loop for a GAN looks the same. After
https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Working with multiple models,
losses, and optimizers".
"""

import sys
from functools import partial
from typing import Any

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    import ampft
    from ampft.ownership import TemporaryFolder
except ImportError as error:  # a forgotten environment
    hint = f" ({sys.executable}). Activate the environment of ampft." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train two classifiers in `mode`, each also on the other's output, and print accuracies."""
    torch.manual_seed(0)
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = pixels.float() / 16
    models = {
        f"width {width}": nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        for width in (64, 128)
    }
    optimizers = {n: torch.optim.SGD(model.parameters(), lr=0.5) for n, model in models.items()}

    def loss(name: str, batch: Any) -> torch.Tensor:
        logits = {each: model(batch[0]).float() for each, model in models.items()}
        shares = [each.softmax(dim=1) for each in logits.values()]
        difference = ampft.summed_squared_error(*shares) / 10
        return ampft.summed_cross_entropy(logits[name], batch[1]) + difference

    with TemporaryFolder("several-models") as folder:
        training = ampft.Training(
            models,
            optimizers,
            (images[:1397], labels[:1397]),
            precision=mode,
            epochs=epochs,
            output_dir=folder,
        )
        with training:
            for _ in training:
                for name in models:
                    training.step(partial(loss, name), update=name)
            with training.evaluation():
                test = images[1397:].to(training.device)
                predicted = [model(test).argmax(dim=1).cpu() for model in models.values()]
    accuracies = [f"{(each == labels[1397:]).float().mean():.4f}" for each in predicted]
    print(f"accuracy {' and '.join(accuracies)}, {training.precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
