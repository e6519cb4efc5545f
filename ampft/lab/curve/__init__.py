"""The score against the number of labels, and what twice the labels would add."""
