"""Texts whose label a word says, a third of them in capitals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tiny_text import LABELS, tiny_texts


def write_rows(path: Path, n: int, seed: int) -> Path:
    """Write n texts, a third of them with capitals, in which a word says the label."""
    rng = np.random.default_rng(seed)
    lines = []
    for text in tiny_texts(n, seed=seed)["text"]:
        label = rng.choice(3, p=[0.5, 0.3, 0.2])
        words = f"{text} w{label}"
        words = words.upper() if rng.random() < 1 / 3 else words
        lines.append(json.dumps({"text": words, "label": LABELS[label]}))
    path.write_text("\n".join(lines))
    return path
