"""User settings: command line flags and configuration file keys."""

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.parsing import parse_classify_arguments

__all__ = ["ClassifyArguments", "parse_classify_arguments"]
