"""Your own differentiable function with autocast: matrix products in 16 bits, exp in float32.

    python recipes/by_feature/custom_function.py fp16

After https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Autocast and custom autograd
functions".
"""

import sys
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import ampft

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


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train in `mode` and print the accuracy."""
    precision = ampft.resolve(mode, DEVICE)
    autocast, scaler = precision.autocast(), precision.scaler()

    torch.manual_seed(0)
    pixels, labels = (torch.from_numpy(array).to(DEVICE) for array in load_digits(return_X_y=True))
    images = (pixels / 16).to(precision.storage_dtype)
    first, last = nn.Linear(64, 128).to(images), nn.Linear(128, 10).to(images)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.5)

    def logits(inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = Swish.apply(first(inputs))
        return last(hidden.to(precision.storage_dtype))

    with ampft.numerics(precision):
        for _ in range(epochs):
            for batch in torch.randperm(1397, device=DEVICE).split(32):
                with autocast:
                    loss = nn.functional.cross_entropy(logits(images[batch]), labels[batch])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        with torch.no_grad(), autocast:
            predicted = logits(images[1397:]).argmax(dim=1)
    print(f"accuracy {(predicted == labels[1397:]).float().mean():.4f}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
