from .classify import ClassifyArguments
from .parsing import parse_classify_arguments

__all__ = ["ClassifyArguments", "parse_classify_arguments"]
