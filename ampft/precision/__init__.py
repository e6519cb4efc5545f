"""Modes of precision, what a device makes of them, and the dtypes that ran."""
