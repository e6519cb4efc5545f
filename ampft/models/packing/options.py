"""What attention over a packed row computes, besides its operands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionOptions:
    """Options of every attention kernel.

    Attributes:
        dropout: Probability that an attention weight is dropped, in [0, 1).
        scale: Factor of the scores.
        sliding_window: Tokens at most `sliding_window - 1` apart see each other; all do when None.
    """

    dropout: float
    scale: float
    sliding_window: int | None = None
