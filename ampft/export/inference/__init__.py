"""Predict with trained models in several precisions, and measure what that costs."""
