"""Doing a comparison: the plan, the estimate, the runs as processes of their own, the progress."""
