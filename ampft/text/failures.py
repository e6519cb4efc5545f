"""Errors of the system and of other libraries that a user can do something about, as messages."""

from __future__ import annotations

from ampft.files import is_disk_error, is_path_error

# Torch and transformers raise plain errors, which only their text tells apart.
_KNOWN = (
    (
        "DataLoader worker (pid",
        "a process of --dataloader_num_workers was killed, usually because memory or shared memory "
        "ran out. Lower --dataloader_num_workers, or free memory, and start again; with "
        "--checkpointing_steps, a run continues with --resume_from_checkpoint latest.",
    ),
    (
        "Expected more than 1 value per channel when training",
        "the model has batch norm, which cannot train on a micro-batch of one example. Raise "
        "--per_device_train_batch_size, lower --gradient_accumulation_steps, or remove examples so "
        "that the last batch of an epoch has more than one.",
    ),
    (
        "Kernel size can't be greater than actual input size",
        "an input is shorter than the model can read, such as a text of one character for CANINE. "
        "Remove or lengthen such inputs, or choose another model.",
    ),
    (
        "Input language unknown",
        "the model has an adapter for each language and does not know which to use. Call "
        "model.set_default_language, such as with 'en_XX', save the model, and pass its folder.",
    ),
)


def failure_message(error: Exception) -> str | None:
    """Return what is wrong and what to do; None if the error is a bug of this program.

    Args:
        error: Error that no code of this program raised.
    """
    if isinstance(error, BrokenPipeError):
        return None
    if is_disk_error(error):
        return f"{error}. Free disk space, or set TMPDIR to a folder on another disk."
    if isinstance(error, OSError | ValueError) and is_path_error(error):
        return f"{error}. Name another path."
    if isinstance(error, RuntimeError | ValueError):
        return next((message for text, message in _KNOWN if text in str(error)), None)
    return None
