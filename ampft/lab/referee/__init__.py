"""A referee for a sequence of changes that are judged on one test set."""
