"""Exact gradient accumulation: the result is the gradient of the whole effective batch.

    python recipes/by_feature/gradient_accumulation.py fp16

A mean over each micro-batch would give the examples of a small one too much weight. Here each
micro-batch adds a sum, divided by the weight of the step. After
https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Gradient accumulation".
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import ampft


def main(mode: str = "fp32", *, epochs: int = 6, micro_batches: int = 4) -> None:
    """Train in `mode`, each step in several micro-batches, and print the accuracy."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = ampft.resolve(mode, device)
    autocast, scaler = precision.autocast(), precision.scaler()

    torch.manual_seed(0)
    pixels, labels = (torch.from_numpy(array).to(device) for array in load_digits(return_X_y=True))
    images = (pixels / 16).to(precision.storage_dtype)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    examples = ampft.TensorExamples({"x": images[:1397], "y": labels[:1397]})
    step_batches = ampft.StepBatches(examples, effective_batch_size=32, micro_batches=micro_batches)

    with ampft.numerics(precision):
        for epoch in range(epochs):
            for step_batch in step_batches.epoch(epoch):  # the last step of an epoch is smaller
                for micro_batch in step_batch:
                    x, y = micro_batch.inputs["x"], micro_batch.inputs["y"]
                    with autocast:
                        logits = model(x)
                    loss = ampft.summed_cross_entropy(logits, y) / step_batch.effective_weight
                    scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        with torch.no_grad(), autocast:
            predicted = model(images[1397:]).argmax(dim=1)
    print(f"accuracy {(predicted == labels[1397:]).float().mean():.4f}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
