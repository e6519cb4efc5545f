"""scikit-learn's handwritten digits as images: image classification without a download."""

from __future__ import annotations

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from PIL import Image as PILImage
from sklearn.datasets import load_digits as read_digits
from sklearn.model_selection import train_test_split

MAX_PIXEL = 16  # scikit-learn's pixels are 0 to 16


def load_digits(*, split_seed: int = 0) -> DatasetDict:
    """Return 1,797 images of digits, 8 x 8 grey values of 0 to 255, in three stratified splits.

    Args:
        split_seed: Seed of the split: 65 % `train`, 10 % `validation`, 25 % `test`.

    Returns:
        Splits with `image` (PIL, mode `L`) and `label` (ClassLabel `0` to `9`).
    """
    digits = read_digits()
    pixels = np.rint(digits.images * (255 / MAX_PIXEL)).astype(np.uint8)
    indices = np.arange(len(pixels))
    rest, test = train_test_split(
        indices, test_size=0.25, stratify=digits.target, random_state=split_seed
    )
    train, validation = train_test_split(
        rest, test_size=0.10 / 0.75, stratify=digits.target[rest], random_state=split_seed
    )
    features = Features({"image": Image(), "label": ClassLabel(names=[str(d) for d in range(10)])})
    chosen = {"train": train, "validation": validation, "test": test}
    return DatasetDict(
        {
            split: Dataset.from_dict(
                {
                    "image": [PILImage.fromarray(pixels[i]) for i in rows],
                    "label": digits.target[rows].tolist(),
                },
                features=features,
            )
            for split, rows in ((split, np.sort(rows)) for split, rows in chosen.items())
        }
    )
