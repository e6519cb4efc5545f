"""The one door to data: a request goes in, labelled and checked examples come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, List

from ampft.data.checks import class_names, digests, label_notes, shared_rows
from ampft.data.dataset import ClassificationData, fingerprint, row_labels
from ampft.data.intake import LabelledRows
from ampft.data.request import DataRequest
from ampft.data.splits import cut, missing_splits
from ampft.errors import InputError

SPLITS = ("train", "validation", "test")


def load_data(request: DataRequest) -> ClassificationData:
    """Read, check and split the data that a request names.

    Args:
        request: What the user asked for.

    Returns:
        The data; its notes say every decision that was made on the way.

    Raises:
        InputError: For data or options that have to be mended; one message each.
    """
    refuse_idle_options(request)
    if request.files:
        return load_own_files(request)
    if request.several_labels and request.dataset_name in (None, "stdlib", "digits"):
        raise InputError(
            f"--task: the built-in {request.dataset_name or 'stdlib'} has one label per example. "
            "Remove the flag, or name a data set whose examples have several labels."
        )
    if request.dataset_name in (None, "stdlib"):
        from ampft.data.sources.stdlib import CONFIGURATIONS, load_stdlib

        splits = load_stdlib(request.dataset_config_name)
        name = f"stdlib ({request.dataset_config_name or CONFIGURATIONS[0]})"
        return finish(splits, request, input_columns=("text",), kind="text", name=name)
    if request.dataset_name == "digits":
        from ampft.data.sources.digits import load_digits

        splits = load_digits(split_seed=request.split_seed)
        return finish(splits, request, input_columns=("image",), kind="image", name="digits")
    return load_from_hub(request)


def refuse_idle_options(request: DataRequest) -> None:
    """Raise InputError for an option that would have no effect on the source asked for."""
    columns: dict[str, object] = {
        "--text_column_names": request.text_column_names,
        "--label_column_name": request.label_column_names,
        "--image_column_name": request.image_column_name,
    }
    configuration: dict[str, object] = {"--dataset_config_name": request.dataset_config_name}
    # Embedded data come with splits of their own.
    fractions: dict[str, object] = {
        f"--{name}": value
        for name in ("validation_fraction", "test_fraction")
        if (value := getattr(request, name)) != getattr(DataRequest, name)
    }
    idle: dict[str, object]
    if request.files:
        source = "files"
        idle = {"--image_column_name": request.image_column_name, **configuration}
    elif request.dataset_name in (None, "stdlib"):
        source, idle = "the built-in stdlib", {**columns, **fractions}
    elif request.dataset_name == "digits":
        source, idle = "the built-in digits", {**columns, **configuration, **fractions}
    else:
        return
    given = [flag for flag, value in idle.items() if value is not None]
    if given:
        raise InputError(f"{given[0]}: has no effect on {source}. Leave it away.")


def load_own_files(request: DataRequest) -> ClassificationData:
    """Read files of the user's own."""
    from ampft.data.sources.files import load_files

    if request.dataset_name is not None:
        raise InputError(
            f"--dataset_name: got {request.dataset_name!r} and"
            f" {', '.join(map(str, request.files.values()))} as well; give one or the other."
        )
    rows, columns, notes = load_files(request)
    return assemble(
        rows,
        request,
        input_columns=columns.inputs,
        kind="text",
        name=", ".join(map(str, request.files.values())),
        notes=notes,
    )


def load_from_hub(request: DataRequest) -> ClassificationData:
    """Read a dataset of the hub, or a folder that stands for one."""
    from ampft.data.sources.hub import load_hub

    rows, columns, notes = load_hub(request)
    config = f" ({request.dataset_config_name})" if request.dataset_config_name else ""
    return assemble(
        rows,
        request,
        input_columns=columns.inputs,
        kind=columns.kind,
        name=f"{request.dataset_name}{config}",
        notes=notes,
    )


def assemble(
    rows: Mapping[str, LabelledRows],
    request: DataRequest,
    *,
    input_columns: tuple[str, ...],
    kind: str,
    name: str,
    notes: Sequence[str],
) -> ClassificationData:
    """Check the splits against each other, make those that are missing, and label them.

    Args:
        rows: Splits as their source gives them, `train` among them.
        request: Fractions, seed, limits, whether shared rows are refused.
        input_columns: The inputs.
        kind: `text` or `image`.
        name: What the data is called.
        notes: What was said so far.

    Raises:
        InputError: As `class_names`, `shared_rows` and `missing_splits`.
    """
    names = class_names(rows)
    seen = {split: digests(part, input_columns) for split, part in rows.items()}
    said = [*notes, *(note for part in rows.values() for note in part.notes)]
    said += label_notes(names, rows["train"].labels, several=request.several_labels)
    said += shared_rows(rows, seen, refuse=request.fail_on_leak)
    made, note = missing_splits(
        rows["train"].labels.strata(),
        seen["train"],
        frozenset(rows),
        validation_fraction=request.validation_fraction,
        test_fraction=request.test_fraction,
        seed=request.split_seed,
    )
    parts = {
        split: labelled(part, names, several=request.several_labels) for split, part in rows.items()
    }
    whole = parts["train"]
    parts.update({s: whole if len(r) == len(whole) else whole.select(r) for s, r in made.items()})
    return finish(
        DatasetDict({split: parts[split] for split in SPLITS if split in parts}),
        request,
        input_columns=input_columns,
        kind=kind,
        name=name,
        notes=(*said, *([note] if note else [])),
    )


def labelled(part: LabelledRows, names: tuple[str, ...], *, several: bool) -> Dataset:
    """Return the inputs with their `label`, an index into `names`, or a list of such indices."""
    index = {name: place for place, name in enumerate(names)}
    order = np.array([index[name] for name in part.names], dtype=np.int64)
    codes, feature = order[part.labels.codes], ClassLabel(names=list(names))
    if not several:
        return part.inputs.add_column("label", codes, feature=feature)
    sets = np.split(codes, np.cumsum(part.labels.counts)[:-1])
    return part.inputs.add_column(
        "label", [sorted(s.tolist()) for s in sets], feature=List(feature)
    )


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
    kept, said = {}, list(notes)
    for split, part in splits.items():
        rows, note = cut(row_labels(part).strata(), split, request.limits, seed=request.split_seed)
        kept[split] = part if rows is None else part.select(rows)
        said += [note] if note else []
    return ClassificationData(
        splits=DatasetDict(kept),
        input_columns=input_columns,
        kind=kind,
        name=name,
        fingerprints={split: fingerprint(part, input_columns) for split, part in kept.items()},
        notes=tuple(said),
    )
