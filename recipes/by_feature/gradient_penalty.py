"""Gradient penalty: the loss includes the squared norm of its gradient.

    python recipes/by_feature/gradient_penalty.py fp16

After https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Gradient penalty".
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import ampft


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train in `mode` with a penalty on large gradients, and print the accuracy."""
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
                # Scale the loss, so that small gradients do not become 0 in float16, ...
                scaled_grads = torch.autograd.grad(
                    scaler.scale(loss), list(model.parameters()), create_graph=True
                )
                # ... and unscale the gradients before computing their penalty.
                grads = [grad / scaler.get_scale() for grad in scaled_grads]
                with autocast:
                    penalty = torch.stack([grad.pow(2).sum() for grad in grads]).sum()
                    loss = loss + 1e-3 * penalty
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        with torch.no_grad(), autocast:
            predicted = model(images[1397:]).argmax(dim=1)
    print(f"accuracy {(predicted == labels[1397:]).float().mean():.4f}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
