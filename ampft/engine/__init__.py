"""Training steps: from a step batch to an update of the weights."""
