"""Diagnose how a machine, its packages and a model handle mixed precision."""
