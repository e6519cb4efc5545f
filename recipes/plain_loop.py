"""Your own training loop in any precision, with a small network and scikit-learn's digits.

    python recipes/plain_loop.py fp16

It needs two calls of ampft: `resolve` refuses a precision that the device does not have, and
`numerics` sets up the computation in it. `by_feature/` shows clipping, accumulation and more, one
at a time.
"""

import sys

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    import ampft
except ImportError as error:  # a forgotten environment
    hint = f" ({sys.executable}). Activate the environment of ampft." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)


def main(mode: str = "fp32", *, epochs: int = 6) -> None:
    """Train in `mode` and print the report."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = ampft.resolve(mode, device)
    if precision.rounding not in (None, "nearest"):
        raise ampft.InputError(f"{mode} needs AdamW, but this loop uses SGD. Use bf16-true.")
    autocast, scaler = precision.autocast(), precision.scaler()

    torch.manual_seed(0)
    pixels, labels = (torch.from_numpy(array).to(device) for array in load_digits(return_X_y=True))
    images = (pixels.view(-1, 1, 8, 8) / 16).to(precision.storage_dtype)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(1152, 10)),
    ).to(device, precision.storage_dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train, test = slice(1397), slice(1397, None)

    with ampft.numerics(precision):
        for _ in range(epochs):
            for batch in torch.randperm(1397, device=device).split(64):
                with autocast:
                    loss = nn.functional.cross_entropy(model(images[train][batch]), labels[batch])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        with torch.no_grad(), autocast:
            logits = model(images[test]).float()

    predictions = ampft.Predictions.from_logits(logits, labels[test], label_names="0123456789")
    print(ampft.classification_report(predictions).text())
    print(f"{precision.mode}, {precision.execution}")


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:2])))
