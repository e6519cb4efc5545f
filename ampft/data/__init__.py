"""What the examples are and in which order they come: sources, checks, splits, step batches.

`ampft.data.load.load_data` is the one door to every source.
"""
