"""Precision modes, their support on a device, and the dtypes that were executed."""
