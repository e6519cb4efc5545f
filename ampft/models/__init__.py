"""Models: loading, storing, and running them without padding."""
