"""Gradient clipping: unscale first, so that the norm is that of the unscaled gradient.

    python recipes/by_feature/gradient_clipping.py fp16

After https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Gradient clipping".
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import ampft


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train in `mode` with gradient norms of at most 1, and print the accuracy."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = ampft.resolve(mode, device)
    autocast, scaler = precision.autocast(), precision.scaler()

    torch.manual_seed(0)
    pixels, labels = (torch.from_numpy(array).to(device) for array in load_digits(return_X_y=True))
    images = (pixels / 16).to(precision.storage_dtype)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    with ampft.numerics(precision):
        for _ in range(epochs):
            for batch in torch.randperm(1397, device=device).split(32):
                with autocast:
                    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)  # divides by the loss scale
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                scaler.step(optimizer)  # skipped if a gradient is infinite or NaN
                scaler.update()
                optimizer.zero_grad()
        with torch.no_grad(), autocast:
            predicted = model(images[1397:]).argmax(dim=1)
    print(f"accuracy {(predicted == labels[1397:]).float().mean():.4f}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
