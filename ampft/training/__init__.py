"""How a step batch becomes an update of the weights."""
