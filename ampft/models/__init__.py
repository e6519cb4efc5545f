"""Models: loading them, storing their weights, and running them without padding."""
