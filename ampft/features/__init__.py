"""The features of a run: each is one file, with its settings, state, hooks and lines."""
