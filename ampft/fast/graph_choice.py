"""Whether a run uses CUDA graphs, and the objects that do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from accelerate import Accelerator

from ampft.arguments import ClassifyArguments
from ampft.data.step_batches import MicroBatch, StepBatches
from ampft.errors import InputError
from ampft.fast.graphed_update import GraphedUpdate
from ampft.fast.graphs import CudaRecorder, GraphedGradient
from ampft.fast.packing.families import family_of
from ampft.fast.queue_timer import QueueTimer
from ampft.fast.static_shapes import static_shapes
from ampft.models.weights import LoadedModel
from ampft.precision.compilation import configured_backend
from ampft.precision.resolve import Precision
from ampft.runs.prepared import Prepared


def _problem(args: ClassifyArguments, precision: Precision, accelerator: Accelerator) -> str | None:
    """Return why a run cannot use CUDA graphs, as a clause; None if it can."""
    device, processes = accelerator.device.type, accelerator.num_processes
    backend = configured_backend(accelerator)
    reasons = {
        f"they need a CUDA device, and this run is on {device}": device != "cuda",
        f"they are for one process, and this run has {processes}": processes > 1,
        f"they cannot be combined with --watch {args.watch}": args.watch is not None,
        f"they cannot be combined with --dynamo_backend {backend}": backend is not None,
        "they cannot be combined with --gradient_checkpointing, which reads the state of the "
        "random generator": args.gradient_checkpointing,
        "they are not proven for --load_in_4bit": args.load_in_4bit,
        f"they are not proven for {precision.mode}, which replaces layers": (
            precision.properties.replaces_layers
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def check_cuda_graphs(prepared: Prepared) -> None:
    """Reject `--cuda_graphs` where it cannot be.

    Raises:
        InputError: It cannot; the message says why.
    """
    reason = _problem(prepared.args, prepared.precision, prepared.accelerator)
    if prepared.args.cuda_graphs and reason is not None:
        raise InputError(f"--cuda_graphs: {reason}. Remove the flag.")


def uses_graphs(
    args: ClassifyArguments, precision: Precision, accelerator: Accelerator, loaded: LoadedModel
) -> bool:
    """Return whether steps have the shapes of graphs, which may then be captured.

    Without a flag, they have where the number of shapes is known to be small: for models without
    padding whose attention computes whole rows, and for images. Whether a graph is
    captured is decided by time, which must not change results; so all steps have these shapes.
    """
    if args.cuda_graphs is not None:
        return args.cuda_graphs
    if _problem(args, precision, accelerator) is not None:
        return False
    if not loaded.padding_free:
        return getattr(loaded.model, "main_input_name", None) == "pixel_values"
    family = family_of(loaded.model)
    return family is not None and family.adapt is None  # others add a bias to attention


def shaping(
    args: ClassifyArguments, loaded: LoadedModel, step_batches: StepBatches
) -> Callable[[MicroBatch], MicroBatch]:
    """Return a function that gives micro-batches the shapes of graphs."""
    return static_shapes(args, loaded, step_batches).shaped


def graphs_of(
    prepared: Prepared, write: Callable[[str], None]
) -> tuple[GraphedGradient, GraphedUpdate] | None:
    """Return what computes the steps of a run by graphs, or None.

    Args:
        write: Function that prints a line.
    """
    args, accelerator, loaded = prepared.args, prepared.accelerator, prepared.loaded
    if not uses_graphs(args, prepared.precision, accelerator, loaded):
        return None
    event = partial(torch.cuda.Event, enable_timing=True)
    gradient = GraphedGradient(
        loaded.model,
        accelerator.device,
        static_shapes(args, loaded, prepared.step_batches),
        CudaRecorder(accelerator.device),
        write,
        None if args.cuda_graphs else QueueTimer(event),
    )
    return gradient, GraphedUpdate(gradient, accelerator, prepared.optimizer.optimizer)
