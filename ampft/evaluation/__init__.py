"""Evaluation: predictions of a split, and baselines for them."""
