"""Flags of the results, checkpoints and trackers."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.arguments.flags import flag

OUTPUT = "output"


@dataclass(frozen=True)
class OutputArguments:
    """Results, checkpoints and trackers."""

    output_dir: str | None = flag(
        None, "folder for the results; if none, a new folder under runs/", group=OUTPUT
    )
    overwrite_output_dir: bool = flag(
        False, "overwrite the results of an earlier run", group=OUTPUT
    )
    checkpointing_steps: str | None = flag(
        None,
        "write a checkpoint every N optimizer steps (500), after every epoch (epoch) or every N "
        "minutes (10min); if none, never",
        group=OUTPUT,
    )
    checkpoint_total_limit: int | None = flag(
        None, "number of checkpoints to keep; if none, all", group=OUTPUT, at_least=1
    )
    async_checkpoints: bool = flag(
        False, "write checkpoints in the background while the training continues", group=OUTPUT
    )
    resume_from_checkpoint: str | None = flag(
        None,
        "continue from a checkpoint: its folder, or latest for the last one in --output_dir, where "
        "the training starts from the beginning if there is none yet",
        group=OUTPUT,
    )
    allow_topology_change: bool = flag(
        False,
        "resume with another number of processes or micro-batches or on another device; the "
        "examples stay the same, the rounding does not, and the record says so",
        group=OUTPUT,
    )
    watch: int | None = flag(
        None,
        "optimizer steps between measurements of headroom, underflow and gradient norm of every "
        "block of the model, which are added to the history; if none, nothing is measured",
        group=OUTPUT,
        at_least=1,
    )
    history_csv: bool = flag(False, "also write the history as CSV", group=OUTPUT)
    with_tracking: bool = flag(False, "send the history to experiment trackers", group=OUTPUT)
    report_to: str = flag(
        "tensorboard",
        "experiment trackers by their Accelerate names, comma-separated, or all",
        group=OUTPUT,
    )
    push_to_hub: bool = flag(
        False, "push the model, its card and its report to the Hugging Face hub", group=OUTPUT
    )
    hub_model_id: str | None = flag(
        None, "name on the hub, USER/NAME; if none, the name of the output folder", group=OUTPUT
    )
    hub_private_repo: bool = flag(False, "make a new repository on the hub private", group=OUTPUT)
