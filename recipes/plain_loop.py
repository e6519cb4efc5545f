"""A loop of your own with the pieces of ampft: a small network, digits, any precision.

    python recipes/plain_loop.py fp16

Autocast, scaler, accumulation, clipping and gradient penalty are PyTorch's own, named as in its AMP
examples (https://docs.pytorch.org/docs/stable/notes/amp_examples.html).
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import ampft


def main(mode: str = "fp32", epochs: int = 6) -> None:
    """Train in `mode` and print the report."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = ampft.resolve(mode, device)  # refuses what this device does not have
    if precision.rounding not in (None, "nearest"):
        raise ampft.InputError(f"{mode}: belongs to AdamW, and this loop has SGD. Take bf16-true.")
    mixed = precision.compute_dtype != precision.storage_dtype
    autocast = torch.autocast(device.type, precision.compute_dtype, enabled=mixed)
    pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = (pixels.float().view(-1, 1, 8, 8) / 16).to(precision.storage_dtype)
    train = ampft.TensorExamples({"images": images[:1397], "labels": labels[:1397]})

    torch.manual_seed(0)
    convolutions = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()
    model: nn.Module = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1152, 10)).to(
        device, precision.storage_dtype
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=precision.uses_scaler)
    step_batches = ampft.StepBatches(train, effective_batch_size=64, micro_batches=2)
    skipped = 0
    with ampft.numerics(precision):  # binary16 as a GPU computes it, where the CPU has none
        for epoch in range(epochs):
            for step_batch in step_batches.epoch(epoch):
                for batch in step_batch:
                    x, y = batch.inputs["images"].to(device), batch.inputs["labels"].to(device)
                    with autocast:
                        output = model(x)
                    loss = ampft.summed_cross_entropy(output, y) / step_batch.effective_weight
                    # The penalty is on unscaled gradients; its own gradient is scaled again.
                    scaled_grads = torch.autograd.grad(
                        scaler.scale(loss), list(model.parameters()), create_graph=True
                    )
                    grads = [grad / scaler.get_scale() for grad in scaled_grads]
                    penalty = torch.stack([grad.pow(2).sum() for grad in grads]).sum()
                    scaler.scale(loss + 1e-3 * penalty).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                scale = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                skipped += scaler.get_scale() < scale
                optimizer.zero_grad()
        with torch.no_grad(), autocast:
            probabilities = model(images[1397:].to(device)).float().softmax(dim=-1).cpu().numpy()

    names = tuple(str(digit) for digit in range(10))
    truth = labels[1397:].numpy()
    predictions = ampft.Predictions(np.arange(len(truth)), truth, probabilities, names, "test")
    print(ampft.classification_report(predictions).text())
    print(f"{precision.mode}, {precision.execution}; {skipped} steps skipped")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(sys.argv[1] if sys.argv[1:] else "fp32")))
