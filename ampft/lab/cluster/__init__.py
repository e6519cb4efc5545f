"""Runs of a comparison on the nodes of a Ray cluster."""
