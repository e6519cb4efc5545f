"""The one door to data: a request goes in, labelled and checked examples come out."""

from __future__ import annotations

from datasets import DatasetDict

from ampft.data.dataset import ClassificationData, fingerprint
from ampft.data.request import DataRequest
from ampft.data.splits import limit_splits
from ampft.errors import InputError

BUILT_IN = ("stdlib", "digits")


def load_data(request: DataRequest) -> ClassificationData:
    """Read, check and split the data that a request names.

    Args:
        request: What the user asked for.

    Returns:
        The data; its notes say every decision that was made on the way.

    Raises:
        InputError: For data or options that have to be mended; one message each.
    """
    if request.dataset_name in (None, "stdlib"):
        from ampft.data.stdlib import CONFIGURATIONS, load_stdlib

        splits = load_stdlib(request.dataset_config_name)
        name = f"stdlib ({request.dataset_config_name or CONFIGURATIONS[0]})"
        return finish(splits, request, input_columns=("text",), kind="text", name=name)
    if request.dataset_name == "digits":
        from ampft.data.digits import load_digits

        splits = load_digits(split_seed=request.split_seed)
        return finish(splits, request, input_columns=("image",), kind="image", name="digits")
    raise InputError(f"--dataset_name: got {request.dataset_name!r}; built in: {BUILT_IN}.")


def finish(
    splits: DatasetDict,
    request: DataRequest,
    *,
    input_columns: tuple[str, ...],
    kind: str,
    name: str,
    notes: tuple[str, ...] = (),
) -> ClassificationData:
    """Cut the splits to the sizes asked for and take their fingerprints."""
    kept, cut = limit_splits(splits, request.limits, seed=request.split_seed)
    return ClassificationData(
        splits=kept,
        input_columns=input_columns,
        kind=kind,
        name=name,
        fingerprints={split: fingerprint(rows, input_columns) for split, rows in kept.items()},
        notes=(*notes, *cut),
    )
