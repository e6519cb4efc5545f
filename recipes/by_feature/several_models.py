"""Two models with two losses and two optimizers, and one gradient scaler.

    python recipes/by_feature/several_models.py fp16

After https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Working with multiple models,
losses, and optimizers".
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import ampft


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train two classifiers in `mode`, each also on the other's output, and print accuracies."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = ampft.resolve(mode, device)
    autocast, scaler = precision.autocast(), precision.scaler()

    torch.manual_seed(0)
    pixels, labels = (torch.from_numpy(array).to(device) for array in load_digits(return_X_y=True))
    images = (pixels / 16).to(precision.storage_dtype)
    models = [
        nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)).to(images)
        for width in (64, 128)
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]

    with ampft.numerics(precision):
        for _ in range(epochs):
            for batch in torch.randperm(1397, device=device).split(32):
                with autocast:
                    logits = [model(images[batch]) for model in models]
                    losses = [nn.functional.cross_entropy(each, labels[batch]) for each in logits]
                    difference = nn.functional.mse_loss(*(each.softmax(dim=1) for each in logits))
                for loss in losses:
                    scaler.scale(loss + difference).backward(retain_graph=True)
                for optimizer in optimizers:
                    scaler.step(optimizer)  # skipped if its gradients are infinite or NaN
                scaler.update()  # once, after all optimizers
                for optimizer in optimizers:
                    optimizer.zero_grad()
        with torch.no_grad(), autocast:
            predicted = [model(images[1397:]).argmax(dim=1) for model in models]
    accuracies = [f"{(each == labels[1397:]).float().mean():.4f}" for each in predicted]
    print(f"accuracy {' and '.join(accuracies)}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
