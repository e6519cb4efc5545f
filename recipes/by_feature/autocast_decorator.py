"""Autocast as a decorator of `forward`, for models that other threads or programs call.

    python recipes/by_feature/autocast_decorator.py bf16

Autocast applies to one thread. A model that DataParallel or a server calls in another thread does
not use the autocast of the caller. After https://docs.pytorch.org/docs/stable/notes/amp_examples.html,
"Working with multiple GPUs".
"""

import sys
from concurrent.futures import ThreadPoolExecutor

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
    precision = ampft.resolve(mode, "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = pixels.float() / 16
    model = Classifier(precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with TemporaryFolder("autocast-decorator") as folder:
        training = ampft.Training(
            model,
            optimizer,
            (images[:1397], labels[:1397]),
            precision=precision,
            epochs=epochs,
            output_dir=folder,
        )
        with training:
            for _ in training:
                training.step(lambda b: ampft.summed_cross_entropy(model(b[0]), b[1]))
        test = images[1397:].to(training.device, precision.storage_dtype)
        with torch.no_grad(), ThreadPoolExecutor(1) as threads:
            logits = threads.submit(model, test).result()
    accuracy = (logits.cpu().argmax(dim=1) == labels[1397:]).float().mean()
    print(f"accuracy {accuracy:.4f}, logits {logits.dtype}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
