"""Examples and their order: sources, checks, splits, step batches.

`ampft.data.load.load_data` loads data from every source.
"""
