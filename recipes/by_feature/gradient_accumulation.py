"""Exact gradient accumulation: the result is the gradient of the whole effective batch.

    python recipes/by_feature/gradient_accumulation.py fp16

A mean over each micro-batch would give the examples of a small one too much weight, as in the last
step of an epoch. Here each micro-batch adds a sum, which is divided by the weight of the step.
After https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Gradient accumulation".
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


def main(mode: str = "fp32", *, epochs: int = 6, micro_batches: int = 4) -> None:
    """Train in `mode`, each step in several micro-batches, and print the accuracy."""
    torch.manual_seed(0)
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = pixels.float() / 16
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with TemporaryFolder("gradient-accumulation") as folder:
        training = ampft.Training(
            model,
            optimizer,
            (images[:1397], labels[:1397]),
            precision=mode,
            batch_size=32,
            micro_batches=micro_batches,
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
