"""User settings: command line flags and configuration file keys."""

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.compare import CompareCommand, parse_compare_arguments
from ampft.arguments.compare_arms import parse_compare_arms_arguments
from ampft.arguments.parsing import parse_classify_arguments

__all__ = [
    "ClassifyArguments",
    "CompareCommand",
    "parse_classify_arguments",
    "parse_compare_arguments",
    "parse_compare_arms_arguments",
]
