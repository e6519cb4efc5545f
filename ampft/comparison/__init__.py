"""Compare several runs that differ only in precision."""
