"""The first steps of the baseline on a node, whose bits must equal those on other nodes.

    python -m ampft.lab.cluster.canary REQUEST RESULT

The process is launched like a run. REQUEST is a JSON file with `classify_argv`, the arguments of
the baseline's first run. RESULT is the JSON file to write: the facts of a node, or `error`, the
message of an `InputError`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampft.comparison.execution.launch import write_subprocess_result

STEPS = 3


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What a node computes with, and what it computed."""

    kind: str  # Kind of device: the name of the GPU, or the model of the CPU.
    code: str  # SHA-256 of the sources of ampft.
    versions: Mapping[str, str]  # Versions of the packages, as in a run record.
    # SHA-256 of each file of the data, by path.
    files: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str]  # Fingerprints of the splits.
    initial_weights: str  # SHA-256 of the weights before training.
    cpu_threads: int  # CPU threads of a process.
    bits: str  # SHA-256 of the weights after the first steps.

    def differences(self, other: NodeFacts) -> str | None:
        """Return how `other` differs, for readers; None if it computes the same.

        Bits are compared only if both are of the same kind.
        """
        names = {
            "code": "the code of ampft",
            "versions": "the versions of packages",
            "files": "the data files",
            "data": "the data",
            "initial_weights": "the initial weights",
            "cpu_threads": "the number of CPU threads",
        }
        found = [
            text for name, text in names.items() if getattr(self, name) != getattr(other, name)
        ]
        if not found and self.kind == other.kind and self.bits != other.bits:
            found = [f"the weights after {STEPS} steps, with the same device, data and versions"]
        return ", ".join(found) or None


def code_hash() -> str:
    """Return the SHA-256 of the sources of ampft."""
    import ampft

    root, digest = Path(str(ampft.__file__)).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def measure_node(request: Mapping[str, Any]) -> NodeFacts:
    """Train the first steps as a run does, and return the facts of this node."""
    import torch

    from ampft.arguments import parse_classify_arguments
    from ampft.engine.step import accumulate_gradient, apply_step
    from ampft.engine.threads import restore_cpu_threads
    from ampft.machine import hardware, versions
    from ampft.models.weights import weights_hash
    from ampft.precision.accelerator import numerics, training_device
    from ampft.precision.resolve import resolve
    from ampft.runs.prepare import load_task, prepare_mode, start_clock

    started = start_clock()
    args = parse_classify_arguments(request["classify_argv"])
    device = training_device(cpu=args.use_cpu)
    threads = restore_cpu_threads(args.cpu_threads)
    precision = resolve(args.mixed_precision or "fp32", device)
    prepared = prepare_mode(args, precision, load_task(args), started=started)
    prepared.model.train()
    batches = prepared.step_batches
    with numerics(precision):
        for batch in batches.epoch(0, start=0, stop=min(STEPS, len(batches))):
            losses = accumulate_gradient(
                prepared.accelerator, prepared.model, prepared.task.loss, batch
            )
            apply_step(
                prepared.accelerator,
                prepared.model,
                prepared.optimizer,
                prepared.schedule,
                losses=losses,
                max_grad_norm=args.max_grad_norm or None,
            )
            prepared.optimizer.zero_grad()
    data = prepared.task.data
    machine = hardware([torch.cuda.get_device_name()] if device.type == "cuda" else [])
    return NodeFacts(
        kind=recorded_device_kind(machine["cpu"], machine["gpus"]),
        code=code_hash(),
        versions=versions(),
        files=data.files,
        data=data.fingerprints,
        initial_weights=prepared.loaded.float32_sha256,
        cpu_threads=threads,
        bits=weights_hash(prepared.accelerator.unwrap_model(prepared.model)),
    )


def recorded_device_kind(cpu: object, gpus: object) -> str:
    """Return the kind of device of a node, from the hardware in a run record."""
    names = [str(name) for name in gpus] if isinstance(gpus, (list, tuple)) else []
    return ", ".join(names) or str(cpu or "CPU")


if __name__ == "__main__":
    write_subprocess_result(measure_node, *sys.argv[1:])
