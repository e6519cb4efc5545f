"""Weights that runs left: checked to fit the model, then loaded into every copy of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import nn

from ampft.errors import InputError
from ampft.models.pretrained import CHECKPOINT, load_saved
from ampft.runs.record import RunRecord, read_record
from ampft.text.escaping import inert


def check_record(folder: Path) -> RunRecord:
    """Return the record of a finished run.

    Raises:
        InputError: The folder holds none.
    """
    if not folder.is_dir():
        raise InputError(f"{CHECKPOINT} {folder}: is no folder; name the --output_dir of a run.")
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(
            f"{CHECKPOINT} {folder}: the run is {record.status}; it has no final model. Name a "
            "finished one."
        )
    return record


def check_model(
    folder: Path, record: RunRecord, model: nn.Module, label_names: tuple[str, ...]
) -> None:
    """Check that a run trained this architecture on these labels.

    Raises:
        InputError: It did not.
    """
    here = type(model).__name__
    if record.model.architecture != here:
        raise InputError(
            f"{CHECKPOINT} {folder}: is a {inert(record.model.architecture)}, and the arguments "
            f"after -- name a {here}. Give the arguments of that run."
        )
    if tuple(record.label_names) != label_names:
        theirs, ours = (inert(", ".join(names)) for names in (record.label_names, label_names))
        raise InputError(
            f"{CHECKPOINT} {folder}: has the labels {theirs}, and the data have {ours}. Give the "
            "arguments of that run."
        )


def load_weights(folder: Path, models: Iterable[nn.Module]) -> None:
    """Copy the weights of a run into `models`, in their own dtypes.

    Raises:
        InputError: They cannot be loaded, are not finite, or have other shapes.
    """
    for model in models:
        saved = load_saved(type(model), str(folder), flag=CHECKPOINT).state_dict()
        own = model.state_dict()
        strays = sorted(
            name
            for name in own.keys() | saved.keys()
            if name not in own or name not in saved or own[name].shape != saved[name].shape
        )
        if strays:
            raise InputError(
                f"{CHECKPOINT} {folder}: its {inert(strays[0])} has another shape than the model's "
                "that the arguments after -- name. Give the arguments of that run."
            )
        model.load_state_dict(saved)
