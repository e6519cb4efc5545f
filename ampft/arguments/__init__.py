"""What a user may set: flags of the command line and keys of a configuration file."""

from ampft.arguments.classify import ClassifyArguments, parse_classify_arguments

__all__ = ["ClassifyArguments", "parse_classify_arguments"]
