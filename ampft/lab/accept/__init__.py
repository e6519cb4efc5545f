"""Acceptance of a machine: commands as users type them, judged by what they recorded."""
