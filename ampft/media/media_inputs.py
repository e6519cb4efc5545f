"""Images and sounds, decoded on request, and the model that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig

from ampft.errors import InputError
from ampft.kinds.input_settings import InputSettings
from ampft.media.media_columns import media_reference
from ampft.models.pretrained import enable_gradient_checkpointing, load_pretrained
from ampft.models.training_mode import evaluation_mode
from ampft.models.weights import LoadedModel


@dataclass(frozen=True)
class MediaInputs:
    """Images or sounds, and the model that reads them."""

    notes: tuple[str, ...]  # Sentences to print.
    model_path: str | None  # Folder or hub id of the model; None for the default model.
    processor: Any = field(repr=False)  # Image processor or feature extractor.
    # Examples of each split, with the data set of their `files`.
    splits: Mapping[str, Any] = field(repr=False)
    # Function that returns configuration and name of the default model for labels.
    default: Callable[[Mapping[str, Any]], tuple[PreTrainedConfig, str]]
    # Function that prepares a loaded model for the examples, raises `InputError` if it cannot run
    # on them, and returns notes.
    adapt: Callable[[Any], tuple[str, ...]]

    def load_model(
        self, model_class: str, label_arguments: Mapping[str, Any], settings: InputSettings
    ) -> LoadedModel:
        """Return the named model in float32, or the default model with random weights."""
        model, name, notes = load_or_create(
            model_class,
            self.model_path,
            label_arguments,
            lambda: self.default(label_arguments),
            trust_remote_code=settings.trust_remote_code,
            gradient_checkpointing=settings.gradient_checkpointing,
            as_it_is=settings.evaluate_only is not None,
        )
        if settings.channels_last:
            model.to(memory_format=torch.channels_last)
        notes = (*notes, *self.adapt(model))
        return LoadedModel(model, name, False, notes, is_random=self.model_path is None)

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return a reference to each file, see `media.media_columns.media_reference`."""
        files = self.splits[split].files
        return {
            "reference": [
                media_reference(files, split, i) for i in range(*rows.indices(len(files)))
            ]
        }

    def save_processor(self, folder: Path) -> None:
        """Save the image processor or feature extractor."""
        self.processor.save_pretrained(folder)


def load_or_create(
    model_class: str,
    path: str | None,
    label_arguments: Mapping[str, Any],
    default: Callable[[], tuple[PreTrainedConfig, str]],
    *,
    trust_remote_code: bool,
    gradient_checkpointing: bool,
    as_it_is: bool = False,
) -> tuple[Any, str, tuple[str, ...]]:
    """Return a model in float32, its name, and notes: the named one, or one with random weights.

    Args:
        model_class: Name of the class in transformers that loads it.
        path: Folder or hub id; None creates the default model.
        default: Function that returns configuration and name of the default model.
        trust_remote_code: Whether code from the model's repository may run.
        gradient_checkpointing: Whether activations are recomputed in the backward pass.
        as_it_is: Whether no weight may be new, because nothing is trained.

    Raises:
        InputError: The model cannot be loaded, or does not support gradient checkpointing.
    """
    auto_class = getattr(transformers, model_class)
    notes: tuple[str, ...] = ()
    if path is None:
        config, name = default()
        model = auto_class.from_config(config)
    else:
        model, notes = load_pretrained(
            auto_class,
            path,
            label_arguments,
            trust_remote_code=trust_remote_code,
            as_it_is=as_it_is,
        )
        name = path
    if gradient_checkpointing:
        enable_gradient_checkpointing(model)
    return model, name, notes


@contextmanager
def refused_inputs(model: Any, place: str, what: str, remedy: str) -> Iterator[None]:
    """Run a model in evaluation mode; turn an error about its inputs into a message.

    Args:
        place: Beginning of the message: the flag with its value, or the file.
        what: The inputs, such as "images of 8 x 8 pixels".

    Raises:
        InputError: The model cannot run on the inputs.
    """
    try:
        with evaluation_mode(model):
            yield
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        name = type(model).__name__
        raise InputError(
            f"{place}: {name} cannot run on {what} ({error_in_one_line(error)}). {remedy}"
        ) from error


def error_in_one_line(error: Exception) -> str:
    """Return the message of an error in one line, without its full stop."""
    return " ".join(str(error).split()).rstrip(".")
