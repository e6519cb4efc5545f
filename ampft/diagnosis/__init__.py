"""What a machine, its packages and a model make of mixed precision."""
