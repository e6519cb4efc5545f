"""Compute the results of a comparison from run folders."""
