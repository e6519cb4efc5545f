"""Autocast as a decorator of `forward`, for models that other threads or programs call.

    python recipes/by_feature/autocast_decorator.py bf16

Autocast applies to one thread. A model that DataParallel or a server calls in another thread does
not use the autocast of the caller. After https://docs.pytorch.org/docs/stable/notes/amp_examples.html,
"Working with multiple GPUs".
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from sklearn.datasets import load_digits
from torch import nn

import ampft


class Classifier(nn.Module):
    """A network that uses its precision in every thread."""

    def __init__(self, precision: ampft.Precision) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.forward = precision.autocast()(self.forward)  # type: ignore[method-assign]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return (m, 10) logits of (m, 64) images."""
        return self.layers(images)


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train in `mode`, predict in another thread, and print the accuracy."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = ampft.resolve(mode, device)
    scaler = precision.scaler()

    torch.manual_seed(0)
    pixels, labels = (torch.from_numpy(array).to(device) for array in load_digits(return_X_y=True))
    images = (pixels / 16).to(precision.storage_dtype)
    model = Classifier(precision).to(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    with ampft.numerics(precision):
        for _ in range(epochs):
            for batch in torch.randperm(1397, device=device).split(32):
                loss = nn.functional.cross_entropy(model(images[batch]).float(), labels[batch])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    with torch.no_grad(), ThreadPoolExecutor(1) as threads:
        logits = threads.submit(model, images[1397:]).result()
    accuracy = (logits.argmax(dim=1) == labels[1397:]).float().mean()
    print(f"accuracy {accuracy:.4f}, logits {logits.dtype}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
