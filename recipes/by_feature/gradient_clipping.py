"""Gradient clipping: the norm is that of the unscaled gradient of the whole step.

    python recipes/by_feature/gradient_clipping.py fp16

The gradient is divided by the loss scale before it is clipped, and a step whose gradient is
infinite or NaN is skipped. After https://docs.pytorch.org/docs/stable/notes/amp_examples.html,
"Gradient clipping".
"""

import sys

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
    """Train in `mode` with gradient norms of at most 1, and print the accuracy."""
    torch.manual_seed(0)
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = pixels.float() / 16
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with TemporaryFolder("gradient-clipping") as folder:
        training = ampft.Training(
            model,
            optimizer,
            (images[:1397], labels[:1397]),
            precision=mode,
            max_grad_norm=1.0,
            epochs=epochs,
            output_dir=folder,
        )
        with training:
            for _ in training:
                training.step(lambda b: ampft.summed_cross_entropy(model(b[0]), b[1]))
            with training.evaluation():
                predicted = model(images[1397:].to(training.device)).argmax(dim=1).cpu()
    accuracy = (predicted == labels[1397:]).float().mean()
    print(f"accuracy {accuracy:.4f}, {training.precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
