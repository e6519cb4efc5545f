"""The same training with less work: models without padding, and CUDA graphs."""
