"""Checkpoints: complete or invisible, verified before use, and restored bit for bit."""
