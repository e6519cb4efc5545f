"""Evaluation: every example of a split counts once, in any number of processes."""
