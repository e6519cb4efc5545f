"""comparison.json back to the `Comparison` that it was written from."""

from __future__ import annotations

from pathlib import Path

from ampft.comparison.findings import COMPARISON_NAME, SCHEMA, Comparison
from ampft.errors import InputError
from ampft.text.json_io import check_schema, from_json, read_json_object


def read_comparison(path: Path) -> Comparison:
    """Read a comparison; it equals what was written, except that non-finite numbers become NaN.

    Args:
        path: The file, or the folder that holds it.

    Raises:
        InputError: The file is missing, is not a comparison, or has another version's layout.
    """
    file = path / COMPARISON_NAME if path.is_dir() else path
    try:
        values = read_json_object(file)
    except OSError as error:
        raise InputError(
            f"COMPARISON {file}: cannot be read ({error.strerror}). Name the --output_dir of a "
            f"comparison, which holds {COMPARISON_NAME}."
        ) from error
    except ValueError as error:
        raise InputError(f"COMPARISON {file}: is not JSON ({error}). Compare again.") from error
    check_schema(file, values, SCHEMA, "Compare again.")
    try:
        found = from_json(Comparison, values, "comparison")
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"COMPARISON {file}: is not a comparison as ampft writes it ({error}). Compare again."
        ) from error
    if not found.arms:
        raise InputError(f"COMPARISON {file}: has no arms. Compare again.")
    if not 0 < found.margin < 1:
        raise InputError(
            f"COMPARISON {file}: its margin is {found.margin:g}, not between 0 and 1. "
            "Compare again."
        )
    return found
