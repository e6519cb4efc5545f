"""Your own differentiable function with autocast: matrix products in 16 bits, exp in float32.

    python recipes/by_feature/custom_function.py fp16

After https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Autocast and custom autograd
functions".
"""

import sys
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

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Swish(torch.autograd.Function):
    """x * sigmoid(x), always in float32: exp of a float16 overflows above 11."""

    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE.type, cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return x / (1 + exp(-x)) in float32, regardless of autocast."""
        ctx.save_for_backward(x)
        return x / (1 + torch.exp(-x))

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE.type)  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """Return the gradient; autocast is as it was in the forward pass."""
        (x,) = ctx.saved_tensors
        sigmoid = 1 / (1 + torch.exp(-x))
        return grads[0] * sigmoid * (1 + x * (1 - sigmoid))


class Network(nn.Module):
    """A network with this function between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return (m, 10) logits of (m, 64) images."""
        hidden: torch.Tensor = Swish.apply(self.first(images))
        return self.last(hidden.to(self.last.weight.dtype))


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train in `mode` and print the accuracy."""
    torch.manual_seed(0)
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = pixels.float() / 16
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with TemporaryFolder("custom-function") as folder:
        training = ampft.Training(
            model,
            optimizer,
            (images[:1397], labels[:1397]),
            precision=mode,
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
