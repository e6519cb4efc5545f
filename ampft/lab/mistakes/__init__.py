"""The mistakes of a run: its most confident errors and the pairs of classes that it confuses."""
