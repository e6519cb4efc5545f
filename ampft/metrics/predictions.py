"""The predictions of one model on one split, and the check that every example is there once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

# A float32 softmax over C classes is within C * 2^-23 of one; this admits thousands of classes
# and still finds logits that were passed for probabilities.
SUM_TOLERANCE = 1e-3


def check_census(ids: IntArray, n: int) -> None:
    """Check that `ids` holds each of 0..n-1 exactly once, in any order.

    Args:
        ids: Example ids, shape (m,), any integer dtype.
        n: Number of examples of the split.

    Raises:
        ValueError: When an id is missing, counted twice or foreign; the message names up to
            five of each.
    """
    unique, counts = np.unique(ids, return_counts=True)
    found = {
        "missing": np.setdiff1d(np.arange(n), unique),
        "counted more than once": unique[counts > 1],
        "outside the split": unique[(unique < 0) | (unique >= n)],
    }
    problems = [f"{_some(which)} {problem}" for problem, which in found.items() if which.size]
    if problems:
        raise ValueError(
            f"an evaluation must count each of {n} examples once, got {ids.size} ids: "
            + "; ".join(problems)
        )


@dataclass(frozen=True)
class Predictions:
    """Class probabilities of a model for every example of a split.

    Attributes:
        example_ids: Shape (n,), int64: 0..n-1, ascending; the row of the split.
        labels: Shape (n,), int64: indices into `label_names`.
        probabilities: Shape (n, C), float32: softmax in float32, so rows sum to one.
        label_names: The C class names, distinct.
        split: The split's name, for instance "test".

    Raises:
        ValueError: When a shape, a dtype, a value or the census is wrong; non-finite
            probabilities among them. The message names the first example that is wrong.
    """

    example_ids: IntArray
    labels: IntArray
    probabilities: FloatArray
    label_names: tuple[str, ...]
    split: str

    def __post_init__(self) -> None:
        self._check_shapes()
        check_census(self.example_ids, len(self.example_ids))
        if np.any(np.diff(self.example_ids) < 0):
            raise ValueError("example_ids must ascend; sort them together with the predictions")
        self._check_labels()
        self._check_probabilities()

    @property
    def predicted(self) -> IntArray:
        """The most probable class, shape (n,), int64; the lowest index where two are equal."""
        return self.probabilities.argmax(axis=1).astype(np.int64)

    @property
    def confidence(self) -> FloatArray:
        """The probability of the predicted class, shape (n,), float32."""
        return self.probabilities.max(axis=1)

    def __len__(self) -> int:
        return len(self.example_ids)

    def _check_shapes(self) -> None:
        n, classes = len(self.example_ids), len(self.label_names)
        expected: dict[str, tuple[npt.NDArray[Any], tuple[int, ...], type]] = {
            "example_ids": (self.example_ids, (n,), np.int64),
            "labels": (self.labels, (n,), np.int64),
            "probabilities": (self.probabilities, (n, classes), np.float32),
        }
        for name, (array, shape, dtype) in expected.items():
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"{name} must have shape {shape} and dtype {np.dtype(dtype)}, "
                    f"got {array.shape} and {array.dtype}"
                )
        if n == 0:
            raise ValueError(f"the split {self.split!r} has no examples to report on")
        if classes < 2 or len(set(self.label_names)) != classes:
            raise ValueError(f"label_names must be two or more distinct, got {self.label_names}")

    def _check_labels(self) -> None:
        classes = len(self.label_names)
        wrong = (self.labels < 0) | (self.labels >= classes)
        if wrong.any():
            first = int(wrong.argmax())
            raise ValueError(
                f"labels must lie in 0..{classes - 1}: {int(wrong.sum())} do not, "
                f"the first is {self.labels[first]} of example {first}"
            )

    def _check_probabilities(self) -> None:
        rows = self.probabilities
        # float64: a float32 sum over many classes has an error of its own.
        off = np.abs(rows.sum(axis=1, dtype=np.float64) - 1) > SUM_TOLERANCE
        checks = {
            "are not finite": ~np.isfinite(rows).all(axis=1),
            "lie outside [0, 1]": ((rows < 0) | (rows > 1)).any(axis=1),
            "do not sum to one (are they logits?)": off,
        }
        for problem, wrong in checks.items():
            if wrong.any():
                raise ValueError(
                    f"the probabilities of {int(wrong.sum())} of {len(rows)} examples {problem}; "
                    f"the first is example {int(wrong.argmax())}"
                )


def _some(ids: IntArray, limit: int = 5) -> str:
    shown = ", ".join(str(i) for i in ids[:limit])
    return shown if ids.size <= limit else f"{shown} and {ids.size - limit} more"
