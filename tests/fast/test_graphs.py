"""Graphs of the gradient: the shapes that they need, and what they repeat."""

import copy
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from representatives import full_except
from tape import TapeRecorder, masked_attention
from tiny_encoders import (
    PackedAs,
    loss_and_gradient,
    relative_error,
    right_padded,
    tiny,
    without_dropout,
)
from tiny_media import media_task
from tiny_text import save_tiny_bert, tiny_task
from tiny_words import tiny_word_task

from ampft.data.step_batches import MicroBatch, StepBatches
from ampft.engine.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    make_optimizer,
    make_schedule,
)
from ampft.engine.step import accumulate_gradient, apply_step, replace_update_call
from ampft.engine.trained_parameters import check_optimizer_updates_parameters
from ampft.fast import graphs as graphs_module
from ampft.fast.graph_choice import uses_graphs
from ampft.fast.graphed_update import GraphedUpdate
from ampft.fast.graphs import CudaRecorder, GraphedGradient
from ampft.fast.packing.install import install_packing
from ampft.fast.packing.layout import pack_layout
from ampft.fast.packing.packed_attention import grouped_attention
from ampft.fast.queue_timer import SKIPPED_STEPS, TIMED_STEPS, QueueTimer
from ampft.fast.static_shapes import StaticShapes, graph_key
from ampft.precision.accelerator import make_accelerator
from ampft.precision.resolve import resolve

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

LENGTHS = [3, 17, 17, 1, 30]
FP64_TOLERANCE, FP32_TOLERANCE = 1e-13, 1e-6
CPU = torch.device("cpu")


# The shapes


def bucketed_batch(model, bucket, longest=40):
    batch = right_padded(model, LENGTHS)
    inputs = {**batch, "labels": torch.zeros(len(LENGTHS), dtype=torch.int64)}
    micro_batch = MicroBatch(np.arange(5), inputs, counted=True, is_last=True)
    shaped = StaticShapes(model, longest, bucket).shaped(micro_batch)
    names = [name for name in shaped.inputs if name != "labels"]
    return {name: shaped.inputs[name] for name in names}, shaped.packing


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bucket", [16, 68, 128])
@pytest.mark.parametrize(
    "name",
    full_except(
        ["bert", "bert, tokens", "deberta-v3", "llama", "modernbert, mean", "roberta", "t5"],
        ["bert", "bert, tokens", "llama", "roberta"],
    ),
)
def test_a_bucket_has_the_gradient_of_the_packed_step(name, bucket, dtype):
    plain = without_dropout(tiny(name)).to(dtype)
    other = copy.deepcopy(plain)
    install_packing(plain)
    handle = install_packing(other)
    expected = loss_and_gradient(plain, right_padded(plain, LENGTHS))
    batch, packing = bucketed_batch(other, bucket)
    assert packing.total % bucket == 0
    actual = loss_and_gradient(PackedAs(other, packing), batch)
    assert handle.paths == {"packed": 1}
    tolerance = FP64_TOLERANCE if dtype == torch.float64 else FP32_TOLERANCE
    for one, two in zip(actual, expected, strict=True):
        assert relative_error(one, two) <= tolerance


def test_fillers_that_attend_to_a_text_would_change_the_gradient():
    """The negative control: fillers belong to the longest text."""
    model = without_dropout(tiny("bert")).double()
    install_packing(model)
    expected = loss_and_gradient(model, right_padded(model, LENGTHS))
    batch, packing = bucketed_batch(model, 128)
    *short, last = packing.groups[: len(packing.groups) - 2]
    fillers = packing.fillers
    longer = replace(last, lengths=(*last.lengths[:-1], last.lengths[-1] + fillers))
    wrong = replace(packing, groups=(*short, longer), least_longest=longer.longest)
    actual = loss_and_gradient(PackedAs(model, wrong), batch)
    assert relative_error(actual[2], expected[2]) > 1e-3


def test_batches_of_a_bucket_have_the_same_key_and_the_sequences_have_room():
    model = tiny("bert")
    install_packing(model)
    generator = torch.Generator().manual_seed(0)
    keys = set()
    for _ in range(50):
        lengths = torch.randint(1, 31, (4,), generator=generator).tolist()
        mask = (torch.arange(30) < torch.tensor(lengths)[:, None]).long()
        layout = pack_layout(mask).bucketed(64, 30)
        assert sum(layout.lengths) == layout.total == layout.host_targets.shape[0]
        assert int(layout.columns.max()) < 30
        inputs = {"input_ids": mask}
        keys.add(graph_key(MicroBatch(np.arange(4), inputs, True, True, layout)))
    assert 1 < len(keys) <= 2  # 4 to 120 tokens: one or two buckets of 64


# What is repeated


def give_dropout(model, p=0.1):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = p


def trained(task, recorder=None, *, mode="fp32", device=CPU, epochs=3, **options):
    """Train; return weights, outcomes of the steps, the generator's state, and the graphs."""
    precision = resolve(mode, device)
    micro_batches = options.get("micro_batches", 1)
    accelerator = make_accelerator(precision, gradient_accumulation_steps=micro_batches)
    torch.manual_seed(0)
    model = task.load_model().model.train()
    give_dropout(model, options.get("dropout", 0.1))
    batches = StepBatches.for_process(accelerator, task.examples("train"), batch_size=4)
    settings = OptimizerSettings(learning_rate=1e-3, name=options.get("optim", "adamw_torch"))
    optimizer = make_optimizer(model, settings, precision)
    schedule = make_schedule(optimizer, 100, ScheduleSettings())
    prepared, optimizer = accelerator.prepare(model, optimizer)
    check_optimizer_updates_parameters(model, optimizer)
    compute = partial(accumulate_gradient, accelerator, prepared, task.loss)
    graphs = update = None
    if recorder is not None:
        lines = []
        shapes, timer = StaticShapes(model, 30, 64), options.get("timer")
        graphs = GraphedGradient(model, device, shapes, recorder, lines.append, timer)
        graphs.lines = lines
        compute = partial(graphs.gradient, compute)
        graphs.update = update = GraphedUpdate(graphs, accelerator, optimizer.optimizer)
    outcomes = []
    torch.manual_seed(1)
    for step_batch in (batch for epoch in range(epochs) for batch in batches.epoch(epoch)):
        losses = compute(step_batch)
        if len(outcomes) in options.get("poisoned", ()):
            next(p for p in model.parameters() if p.grad is not None).grad.fill_(torch.inf)
        with replace_update_call(update):
            outcome = apply_step(
                accelerator,
                prepared,
                optimizer,
                schedule,
                losses=losses,
                max_grad_norm=1.0,
                skip_nonfinite=True,
            )
        outcomes.append(outcome)
        optimizer.zero_grad()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    state = torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()
    if graphs is not None:
        graphs.optimizer_state = optimizer.state_dict()
    return weights, outcomes, state, graphs


@pytest.fixture
def _one_call(monkeypatch):
    attention = "ampft.fast.packing.packed_attention.choose_kernel"
    monkeypatch.setattr(attention, lambda *_, **__: masked_attention)


TASKS = {
    "texts": lambda folder: tiny_task(save_tiny_bert(folder), train=14, class_weights="balanced"),
    "words": lambda folder: tiny_word_task(save_tiny_bert(folder), train=14, max_seq_length=16),
    "padded texts": lambda folder: tiny_task(
        save_tiny_bert(folder), train=14, remove_padding=False, pad_to_multiple_of=32
    ),
    "images": lambda folder: media_task(folder, "vit"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("_one_call")
@pytest.mark.parametrize("micro_batches", full_except([1, 2], [2]))
@pytest.mark.parametrize("name", full_except(TASKS, ["texts"]))
def test_a_training_by_graphs_is_the_same_bit_for_bit(tmp_path, monkeypatch, name, micro_batches):
    task = TASKS[name](tmp_path)
    check_equal(monkeypatch, task, micro_batches=micro_batches)


def same(one, other):
    """Return whether outcomes are equal, even where they are not numbers."""
    return repr(one) == repr(other)


def check_equal(monkeypatch, task, **options):
    """Check that a training has the same bits with graphs and, in the same shapes, without."""
    weights, outcomes, state, graphs = trained(task, TapeRecorder(), epochs=4, **options)
    assert graphs.lines == []
    assert graphs.replayed > 3
    assert graphs.update.replayed > 3
    monkeypatch.setattr(graphs_module, "MAX_GRAPHS", 0)
    monkeypatch.setattr(GraphedUpdate, "_may_capture", lambda self: False)
    plain = trained(task, TapeRecorder(), epochs=4, **options)
    assert plain[3].replayed == plain[3].update.replayed == 0
    assert torch.equal(weights, plain[0])
    assert same(outcomes, plain[1])
    assert torch.equal(state, plain[2])  # so that a run resumed anywhere draws the same masks
    one, other = graphs.optimizer_state, plain[3].optimizer_state
    assert one["param_groups"] == other["param_groups"]
    assert all(isinstance(group["lr"], float) for group in one["param_groups"])
    for name, values in one["state"].items():
        assert all(torch.equal(value, other["state"][name][key]) for key, value in values.items())
    return outcomes


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("_one_call")
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_an_update_that_is_not_finite_is_skipped_by_the_graph(tmp_path, monkeypatch, mode):
    poisoned = (9, 12)
    outcomes = check_equal(monkeypatch, TASKS["texts"](tmp_path), mode=mode, poisoned=poisoned)
    assert all(outcomes[number].skipped for number in poisoned)
    scales = [outcome.loss_scale for outcome in outcomes]
    if mode == "fp16":
        assert scales[12] == scales[8] / 4


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("_one_call")
def test_an_optimizer_that_cannot_be_captured_updates_as_usual(tmp_path):
    task = TASKS["texts"](tmp_path)
    *_, graphs = trained(task, TapeRecorder(), optim="adafactor")
    assert graphs.replayed > 3
    assert graphs.update.replayed == 0
    assert [line.split()[1:] for line in graphs.lines] == [
        ["without", "the", "update:", "Adafactor", "computes", "on", "the", "host"]
    ]


class FaultyRecorder(TapeRecorder):
    """Captures the gradient or the update with an error, or so that it repeats something else."""

    def __init__(self, part, *, fails):
        super().__init__()
        self.part, self.fails = part, fails

    def capture(self, function):
        replay, result = super().capture(function)
        if self.part != ("update" if isinstance(result, list) else "gradient"):
            return replay, result
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        # Without scalars, which it also only reads, such as the learning rate.
        former = (tensor for tensor, _ in self.tapes[-1].former if tensor.dim() > 0)
        changed = {id(tensor): tensor for tensor in former}

        def replay_wrongly():
            replay()
            with torch.no_grad():
                for tensor in changed.values():
                    tensor.mul_(1.5)

        return replay_wrongly, result


@pytest.mark.slow
@pytest.mark.usefixtures("_one_call")
@pytest.mark.parametrize(
    ("part", "mode", "fails", "message"),
    full_except(
        [
            ("gradient", "fp32", True, "not permitted when stream is capturing"),
            ("update", "fp16", True, "not permitted when stream is capturing"),
            ("gradient", "fp32", False, "the gradient of a graph is not the one without it"),
            ("update", "fp16", False, "an update by the graph is not the one without it"),
        ],
        [("update", "fp16", True, "not permitted when stream is capturing")],
    ),
)
def test_a_graph_that_fails_changes_no_bit(tmp_path, monkeypatch, part, mode, fails, message):
    task = TASKS["texts"](tmp_path)
    *result, graphs = trained(task, FaultyRecorder(part, fails=fails), mode=mode)
    (line,) = graphs.lines
    assert line.endswith(message)
    assert (graphs.replayed if part == "gradient" else graphs.update.replayed) == 0
    monkeypatch.setattr(graphs_module, "MAX_GRAPHS", 0)
    monkeypatch.setattr(GraphedUpdate, "_may_capture", lambda self: False)
    *plain, _ = trained(task, TapeRecorder(), mode=mode)
    assert torch.equal(result[0], plain[0])
    assert same(result[1], plain[1])


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (True, {}),
        (False, {"name": "deberta-v3"}),  # a bias is added to its attention
        (False, {"name": "t5"}),
        (False, {"padding_free": False}),
        (False, {"processes": 2}),
        (False, {"device": "cpu"}),
        (False, {"gradient_checkpointing": True}),
        (False, {"watch": "training"}),
        (False, {"load_in_4bit": True}),
        (False, {"cuda_graphs": False}),
        (True, {"cuda_graphs": True, "padding_free": False}),
    ],
)
def test_where_steps_have_the_shapes_of_graphs(expected, changes):
    usual = {"cuda_graphs": None, "watch": None, "load_in_4bit": False}
    values = usual | {"gradient_checkpointing": False} | changes
    plugin = SimpleNamespace(backend=SimpleNamespace(value="NO"))
    accelerator = SimpleNamespace(
        device=torch.device(changes.get("device", "cuda")),
        num_processes=changes.get("processes", 1),
        state=SimpleNamespace(dynamo_plugin=plugin),
    )
    loaded = SimpleNamespace(
        model=tiny(changes.get("name", "bert")), padding_free=changes.get("padding_free", True)
    )
    args, precision = SimpleNamespace(**values), resolve("fp32", CPU)
    assert uses_graphs(args, precision, accelerator, loaded) == expected


class Generator:
    """A random generator of a CUDA device, which does not draw during or after a broken capture."""

    def __init__(self, device, state=(1, 8)):
        self.device, self.shared = device, SimpleNamespace(state=state, is_broken=False)

    def get_state(self):
        return self.shared.state

    def set_state(self, state):
        self.shared.state = state

    def graphsafe_get_state(self):
        return self

    def graphsafe_set_state(self, other):
        self.shared = other.shared


def test_a_failed_capture_leaves_a_stream_a_generator_and_memory_that_work(monkeypatch):
    """As torch 2.11 to 2.13 leave them: `capture_end` raises before it puts them back."""
    used, device = ["the default stream"], torch.device("cuda", 0)
    pools, left = iter([(0, 1), (0, 2)]), []
    generator = Generator(device, state=(5, 12))

    @contextmanager
    def graph(*_, **__):
        used[0], generator.shared.is_broken = "the stream of the capture", True
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    stand_ins = {
        "CUDAGraph": SimpleNamespace,
        "Stream": lambda device: SimpleNamespace(device=device),
        "current_stream": lambda: used[0],
        "default_generators": [generator],
        "graph": graph,
        "graph_pool_handle": lambda: next(pools),
        "set_stream": lambda stream: used.__setitem__(0, stream),
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *given: left.append(given), raising=False)
    monkeypatch.setattr(torch, "Generator", lambda device: Generator(device))
    with pytest.raises(RuntimeError, match="during capture"):
        CudaRecorder(device).capture(lambda: None)
    assert used == ["the default stream"]
    assert not generator.shared.is_broken
    assert generator.get_state() == (5, 12)
    assert left == [(0, (0, 1)), (0, (0, 1))]


class FakeEvent:
    """An event of a device that takes this long for each step."""

    def __init__(self, seconds):
        self.seconds = seconds

    def record(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, end):
        return 1000 * end.seconds


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("_one_call")
@pytest.mark.parametrize(
    ("seconds", "word"), full_except([(1e-6, "on"), (100.0, "off")], [(1e-6, "on")])
)
def test_graphs_are_chosen_by_time_and_change_no_bit(tmp_path, monkeypatch, seconds, word):
    task = TASKS["texts"](tmp_path)
    timer = QueueTimer(lambda: FakeEvent(seconds))
    *result, graphs = trained(task, TapeRecorder(), timer=timer, epochs=4)
    assert graphs.lines[0].split()[1] == f"{word}:"
    assert len(timer.times) == SKIPPED_STEPS + TIMED_STEPS
    assert (graphs.replayed > 0) == (graphs.update.replayed > 0) == (word == "on")
    choice = graphs.as_dict()["choice"]
    assert choice["is_launch_bound"] == (word == "on")
    assert choice["device_seconds"] == pytest.approx(seconds)
    assert choice["queue_seconds"] > 0
    *plain, _ = trained(task, TapeRecorder(), epochs=4)
    assert torch.equal(result[0], plain[0])
    assert same(result[1], plain[1])


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("_one_call")
@pytest.mark.parametrize("name", ["texts", "words"])
def test_without_dropout_graphs_change_nothing_but_the_order_of_sums(tmp_path, name):
    task = TASKS[name](tmp_path)
    _, by_graph, _, graphs = trained(task, TapeRecorder(), dropout=0.0, epochs=1)
    _, plain, _, _ = trained(task, dropout=0.0, epochs=1)
    assert graphs.replayed > 0
    for one, other in zip(by_graph, plain, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("_one_call")
def test_masks_of_dropout_differ_in_each_replay(tmp_path):
    task = TASKS["texts"](tmp_path)
    recorder = TapeRecorder()
    trained(task, recorder, epochs=1)
    losses = []
    for _ in range(2):
        recorder.tapes[0].replay()
        losses.append(float(recorder.results[0]))
    assert losses[0] != losses[1]


def refused(task, loss, monkeypatch):
    """Return the reason why the steps of a loss cannot be captured, and how often they ran."""
    calls = []

    def counted(model, micro_batch):
        calls.append(1)
        return loss(task, model, micro_batch)

    monkeypatch.setattr(type(task), "loss", lambda self, *args: counted(*args))
    *_, graphs = trained(task, TapeRecorder(), epochs=1)
    assert graphs.replayed == 0
    assert graphs.lines
    return graphs.reason


@pytest.mark.slow
@pytest.mark.usefixtures("_one_call")
def test_a_loss_that_reads_what_a_graph_cannot_have_is_not_captured(tmp_path, monkeypatch):
    task = TASKS["texts"](tmp_path)
    original = type(task).loss

    def reads_ids(task, model, micro_batch):
        return original(task, model, micro_batch) * float(micro_batch.ids[0] + 1)

    assert "example ids" in refused(task, reads_ids, monkeypatch)

    def reads_a_scalar(task, model, micro_batch):
        loss = original(task, model, micro_batch)
        return loss if loss.item() > 0 else loss * 2

    assert "the host waits" in refused(task, reads_a_scalar, monkeypatch)


@pytest.mark.slow
def test_a_mask_that_transformers_reads_except_in_a_capture_refuses_none(tmp_path):
    *_, graphs = trained(TASKS["padded texts"](tmp_path), TapeRecorder(), epochs=1)
    assert graphs.lines == []
    assert graphs.as_dict()["graphs"] > 0


@pytest.mark.slow
def test_attention_in_groups_is_not_captured(tmp_path, monkeypatch):
    attention = "ampft.fast.packing.packed_attention.choose_kernel"
    monkeypatch.setattr(attention, lambda *_, **__: grouped_attention)
    *_, graphs = trained(TASKS["texts"](tmp_path), TapeRecorder(), epochs=1)
    assert "groups" in graphs.reason
    assert graphs.replayed == 0
