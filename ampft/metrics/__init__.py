"""Metrics: class scores, calibration, and functions of sums over cases. Nothing imports torch."""
