"""Learning rate and length, chosen within a time by successive halving."""
