"""What a CUDA graph demands of a step, on a device that computes nothing.

Nothing waits for the host or comes from it, and the operators of two batches of a bucket are the
same, with the same shapes, numbers and addresses.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from fake_cuda import CUDA, Copies, cuda_autocast, fake_mode, outputs, precision_of, to_cuda
from global_state import fresh_global_state
from representatives import full_except
from test_tasks import CASES, _host, fake_accelerator, read  # noqa: F401 # fixtures
from tiny_encoders import ENCODERS, right_padded, tiny
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ampft.data.step_batches import MicroBatch, StepBatches
from ampft.engine import step
from ampft.engine.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    make_optimizer,
    make_schedule,
)
from ampft.fast import graphs as graphs_module
from ampft.fast.graphed_update import GraphedUpdate
from ampft.fast.graphs import CaptureCheck, GraphedGradient
from ampft.fast.packing.install import install_packing
from ampft.fast.static_shapes import CannotCapture, StaticBatch, StaticShapes, graph_key
from ampft.precision import transfer

FAMILIES = ("bert", "roberta", "llama", "modernbert, mean")
# No kernel computes a whole row with a bias.
GROUPED = {"deberta-v2", "deberta-v3", "mpnet", "mt5", "t5"}
# The shapes of other tasks differ from step to step.
CAPTURED = (
    "texts, focal", "words", "several labels", "LoRA", "images", "spectrograms", "ERFNet",
)  # fmt: skip


class Trace(TorchDispatchMode):
    """Records operators with shapes and numbers, and the tensors that were there before."""

    def __init__(self):
        super().__init__()
        self.calls, self._made, self.outer = [], {}, {}

    def _name(self, tensor):
        if id(tensor) not in self._made:
            self.outer[id(tensor)] = tensor
        return tuple(tensor.shape), tensor.stride(), tensor.dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        named = tree_map_only(torch.Tensor, self._name, (args, kwargs))
        result = func(*args, **kwargs)
        tree_map_only(torch.Tensor, lambda t: self._made.setdefault(id(t), t), result)
        self.calls.append((func.name(), str(named)))
        return result


class TraceRecorder:
    """Captures nothing, but records what a capture would see."""

    def __init__(self):
        self.traces = []

    def warming_up(self):
        return nullcontext()

    def capture(self, function):
        with CaptureCheck(CUDA), Trace() as trace:
            result = function()
        self.traces.append(trace)
        return (lambda: None), result


def memory_of(model, graphs):
    """Return the ids of all tensors that stay where they are."""
    (batch,) = graphs._batches.values()
    (micro_batch,) = batch.step_batch.micro_batches
    layout = micro_batch.packing
    kept = [*model.parameters(), *model.buffers(), *graphs.gradients.values()]
    kept += [cast for casts in graphs._kept for _, cast in casts.values()]
    kept += [*batch._inputs.values(), batch._weight]
    kept += [] if layout is None else [*layout._indices, layout.offsets, batch._indices]
    return {id(tensor) for tensor in kept}


@pytest.fixture
def _without_generator(monkeypatch):
    """A fake device has no generator, whose state would be restored after a trial."""

    class Snapshot:
        def __init__(self, model):
            self._model = model

        def restore(self):
            self._model.zero_grad()

    monkeypatch.setattr(graphs_module, "RandomAndBufferSnapshot", Snapshot)
    # The device is a mode itself.
    monkeypatch.setattr(graphs_module, "_disable_current_modes", nullcontext)
    monkeypatch.setattr(graphs_module, "_get_current_dispatch_mode", lambda: None)
    monkeypatch.setattr(graphs_module, "VERIFIED", 0)  # it has no values to compare


@pytest.mark.usefixtures("capability", "no_probe", "read", "_host", "_without_generator")
@pytest.mark.parametrize("case", full_except(CAPTURED, CAPTURED[:3]))
def test_the_step_of_a_task_can_be_captured(tmp_path, monkeypatch, case):
    constants, constant = [], transfer._constant.__wrapped__
    kept = cache(lambda *args: constants.append(constant(*args)) or constants[-1])
    monkeypatch.setattr(transfer, "_constant", kept)
    with fresh_global_state():
        task = CASES[case](tmp_path)
        accelerator = fake_accelerator(precision_of("bf16"))
        batches = StepBatches.for_process(accelerator, task.examples("train"), batch_size=2)
        (step_batch,) = replace(batches, pinned=False).epoch(0, stop=1)
        model, recorder, lines = task.load_model().model.train(), TraceRecorder(), []
        with fake_mode():
            to_cuda(model)
            shapes = StaticShapes(model, 24)
            with unset_fake_temporarily():
                parts = tuple(shapes.shaped(micro_batch) for micro_batch in step_batch)[:1]
            step_batch = replace(step_batch, micro_batches=parts)
            graphs = GraphedGradient(model, CUDA, shapes, recorder, lines.append)
            prepared = accelerator.prepare(model)

            def compute(batch):
                with step.shared_autocast_cache(accelerator, prepared, batch):
                    return step.accumulate_gradient(accelerator, prepared, task.loss, batch)

            graphs.gradient(compute, step_batch)
            assert lines == []
            assert graphs.replayed == 1
            (trace,) = recorder.traces
            foreign = trace.outer.keys() - memory_of(model, graphs) - set(map(id, constants))
            assert {t.dim() for i, t in trace.outer.items() if i in foreign} <= {0}, "addresses"


@pytest.mark.usefixtures("capability", "no_probe", "read", "_host", "_without_generator")
@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_the_update_can_be_captured(tmp_path, mode):
    with fresh_global_state():
        task, precision = CASES["texts, focal"](tmp_path), precision_of(mode)
        accelerator, recorder = fake_accelerator(precision), TraceRecorder()
        model, lines = task.load_model().model.train(), []
        with fake_mode():
            to_cuda(model)
            optimizer = make_optimizer(model, OptimizerSettings(learning_rate=1e-3), precision)
            schedule = make_schedule(optimizer, 10, ScheduleSettings())
            prepared, optimizer = accelerator.prepare(model, optimizer)
            graphs = GraphedGradient(model, CUDA, StaticShapes(model, 24), recorder, lines.append)
            graphs.gradients.update({p: torch.zeros_like(p) for p in model.parameters()})
            update = GraphedUpdate(graphs, accelerator, optimizer.optimizer, _unverified=0)
            if accelerator.scaler is not None:
                accelerator.scaler.scale(torch.zeros((), device=CUDA))  # makes its scale
            for _ in range(3):
                graphs._attach_zeros()
                losses = [torch.zeros((), device=CUDA)]
                with step.replace_update_call(update), Copies() as copies:
                    step.apply_step(
                        accelerator, prepared, optimizer, schedule, losses=losses, max_grad_norm=1.0
                    )
                assert copies.waits == []
        assert lines == []
        assert (update.replayed, update.others) == (2, 1)
        (trace,) = recorder.traces
        state = optimizer.optimizer.state.values()
        kept = [*model.parameters(), *graphs.gradients.values()]
        kept += [tensor for entry in state for tensor in entry.values()]
        foreign = trace.outer.keys() - set(map(id, kept))
        assert {trace.outer[each].dim() for each in foreign} <= {0}, "addresses"


def trace_of(model, batch, static):
    with cuda_autocast(torch.bfloat16), CaptureCheck(CUDA), Trace() as trace:
        inputs = {n: t for n, t in static._inputs.items() if n != "labels"}
        (micro_batch,) = static.step_batch.micro_batches
        logits = outputs(model, inputs, packing=micro_batch.packing)
        logits.float().sum().backward()
    model.zero_grad()
    return trace.calls


@pytest.mark.usefixtures("capability", "_host")
@pytest.mark.parametrize("name", full_except(sorted(ENCODERS), FAMILIES))
def test_two_batches_of_a_bucket_are_the_same_operators(name, monkeypatch):
    model = tiny(name)
    with fake_mode():
        to_cuda(model)
        install_packing(model)
        shapes = StaticShapes(model, 40, 64)
        with unset_fake_temporarily():
            parts = [
                shapes.shaped(
                    MicroBatch(None, right_padded(model, lengths), counted=True, is_last=True)
                )
                for lengths in ([5, 17, 1, 20], [30, 2, 9, 4])
            ]
        assert graph_key(parts[0]) == graph_key(parts[1])
        statics = [StaticBatch(part, CUDA) for part in parts]
        if name in GROUPED:
            with pytest.raises(CannotCapture, match="groups"):
                trace_of(model, parts[0], statics[0])
            return
        one, other = (trace_of(model, p, s) for p, s in zip(parts, statics, strict=True))
    assert one == other
    assert len(one) > 50


@pytest.mark.usefixtures("capability", "_host")
@pytest.mark.parametrize(
    "wait", [lambda t: t.sum().item(), lambda t: t.cpu(), lambda t: t + torch.ones(3).to(CUDA)]
)
def test_a_wait_or_a_copy_is_refused(wait):
    """The negative control."""
    with fake_mode():
        tensor = torch.empty(3, device=CUDA)
        assert isinstance(tensor, FakeTensor)
        with CaptureCheck(CUDA), pytest.raises(CannotCapture):
            wait(tensor)
