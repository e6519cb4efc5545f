"""Gradient penalty: the loss includes the squared norm of its gradient.

    python recipes/by_feature/gradient_penalty.py fp16

The penalty depends on how a step is split, so each step is one micro-batch. After
https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Gradient penalty".
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

SCALE = 2.0**10  # keeps small gradients from becoming 0 in float16


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train in `mode` with a penalty on large gradients, and print the accuracy."""
    torch.manual_seed(0)
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = pixels.float() / 16
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        total = ampft.summed_cross_entropy(model(batch[0]), batch[1])
        mean = total / len(batch[1])
        scaled = torch.autograd.grad(SCALE * mean, list(model.parameters()), create_graph=True)
        penalty = torch.stack([(grad.float() / SCALE).square().sum() for grad in scaled]).sum()
        return total + len(batch[1]) * 1e-3 * penalty

    with TemporaryFolder("gradient-penalty") as folder:
        training = ampft.Training(
            model,
            optimizer,
            (images[:1397], labels[:1397]),
            precision=mode,
            check_loss=False,
            batch_size=32,
            epochs=epochs,
            output_dir=folder,
        )
        with training:
            for _ in training:
                training.step(loss)
            with training.evaluation():
                predicted = model(images[1397:].to(training.device)).argmax(dim=1).cpu()
    accuracy = (predicted == labels[1397:]).float().mean()
    print(f"accuracy {accuracy:.4f}, {training.precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
