"""What the order of labels gives: the loss of cumulative logits beside the cross entropy.

Run: `python benchmarks/ordinal.py --data ../shared/data --out benchmarks/results/ordinal.json`.
Linear softmax heads on the frozen features of MiniLM (mean of at most 48 tokens, unit length) are
fitted in float64 on three draws of 64 to 1,024 rows of SST-5, with the best of five strengths of
regularisation by each loss's own 200 validation rows, and judged on 800 test rows: by the most
probable label, and by the median of the probabilities, which no pipeline shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from provenance import provenance, write_results
from sklearn.metrics import cohen_kappa_score
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from ampft.models.minilm import default_model
from ampft.tasks.loss import summed_cross_entropy, summed_cumulative_cross_entropy

LOSSES: dict[str, Any] = {"text": summed_cross_entropy, "ordinal": summed_cumulative_cross_entropy}
SIZES, DRAWS, VALIDATION, TEST, CLASSES = (64, 256, 1024), 3, 200, 800, 5
STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def embedded(path: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and labels of some rows."""
    lines = np.array(path.read_text("latin-1").splitlines(), dtype=object)
    chosen = lines[np.random.default_rng(0).permutation(len(lines))[:count]]
    pairs = [line.split(" ", 1) for line in chosen]
    source = default_model(None)[0]
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    parts = []
    for start in range(0, count, 64):
        texts = [text for _, text in pairs[start : start + 64]]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=48, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        parts.append(functional.normalize((states * mask).sum(1) / mask.sum(1)))
    return torch.cat(parts).double(), torch.tensor([int(label) for label, _ in pairs])


def fitted(features: torch.Tensor, labels: torch.Tensor, loss: Any, strength: float) -> Any:
    """Return the function of the logits of features."""
    weight = torch.zeros(features.shape[1], CLASSES, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(CLASSES, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(features @ weight + bias, labels) / len(labels)
        value = value + strength * (weight**2).sum() / 2
        value.backward()
        return value

    optimizer.step(closure)
    return lambda new: (new @ weight + bias).detach()


def main() -> None:
    """Measure all, and print the means over the draws."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    folder = arguments.data / "few_labels"
    pool = embedded(folder / "stsa.fine.train", VALIDATION + 2 * max(SIZES))
    test, truth = embedded(folder / "stsa.fine.test", TEST)
    validation, rest = (
        [part[s] for part in pool] for s in (slice(VALIDATION), slice(VALIDATION, None))
    )
    results = []
    for size in SIZES:
        for draw in range(DRAWS):
            rows = np.random.default_rng(draw).permutation(len(rest[0]))[:size]
            for name, loss in LOSSES.items():
                heads = [fitted(rest[0][rows], rest[1][rows], loss, s) for s in STRENGTHS]
                head = min(heads, key=lambda each: float(loss(each(validation[0]), validation[1])))
                shares = head(test).softmax(1)
                answers = {
                    "most probable": shares.argmax(1),
                    "median": (shares.cumsum(1) < 0.5).sum(1),
                }
                for answer, found in answers.items():
                    results.append(
                        {
                            "size": size,
                            "draw": draw,
                            "task": name,
                            "answer": answer,
                            "mae": float((found - truth).abs().double().mean()),
                            "kappa": float(cohen_kappa_score(truth, found, weights="quadratic")),
                            "accuracy": float((found == truth).double().mean()),
                        }
                    )
    write_results(arguments.out, {**provenance(), "results": results})
    table = pd.DataFrame(results).groupby(["size", "answer", "task"]).mean().drop(columns="draw")
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
