"""Attention in several groups, also of tiny batches."""

from several_groups import several_groups  # noqa: F401 # for each test of this folder
