"""Run a comparison: its plan, its time estimate, its runs as separate processes, its progress."""
