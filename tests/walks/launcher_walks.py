"""Variables of launchers that a training refuses."""

from __future__ import annotations

from data_walks import Remedy, Walk
from prepared import train
from training_walks import changed, instead, without


def launched(variables: str, *remedies: Remedy, flags: str = "") -> Walk:
    """Return the walk of a training with variables of a launcher."""
    return changed(f"{variables} {train(flags)}", *remedies)


SHARDED = "ACCELERATE_USE_FSDP=true FSDP_VERSION=2"
WALKS = {
    "DeepSpeed": launched(
        "ACCELERATE_USE_DEEPSPEED=true",
        instead("ACCELERATE_USE_DEEPSPEED=true", SHARDED, "Use FSDP2"),
    ),
    "FSDP of the first version": launched(
        "ACCELERATE_USE_FSDP=true FSDP_VERSION=1",
        instead("FSDP_VERSION=1", "FSDP_VERSION=2", "Set fsdp_version: 2"),
    ),
    "activations that FSDP recomputes": launched(
        f"{SHARDED} FSDP_ACTIVATION_CHECKPOINTING=true",
        instead(
            "FSDP_ACTIVATION_CHECKPOINTING=true",
            "FSDP_ACTIVATION_CHECKPOINTING=false",
            "Set it to false",
        ),
    ),
    "parameters off the device": launched(
        f"{SHARDED} FSDP_OFFLOAD_PARAMS=true",
        instead("FSDP_OFFLOAD_PARAMS=true", "FSDP_OFFLOAD_PARAMS=false", "Set it to false"),
    ),
    "a precision that FSDP lacks": launched(
        SHARDED,
        instead("bf16-true", "bf16", "--mixed_precision bf16"),
        without(SHARDED, "train without FSDP"),
        flags="--mixed_precision bf16-true",
    ),
    "compiled fp16": launched(
        "ACCELERATE_DYNAMO_BACKEND=EAGER",
        instead("BACKEND=EAGER", "BACKEND=NO", "Launch with --dynamo_backend no"),
        flags="--mixed_precision fp16",
    ),
    "several processes of the launcher": launched(
        "ACCELERATE_DYNAMO_MODE=default MASTER_ADDR=localhost",
        without("MASTER_ADDR=localhost", "unset MASTER_ADDR"),
    ),
}
