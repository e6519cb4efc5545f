"""Compare the speed of ampft with the Trainer on a GPU, in turns.

All systems train on the same batches of random texts, in the same order, and repeat them pass by
pass. The first pass is cold: libraries plan kernels for each new shape. Two passes are not counted,
in which CUDA graphs are captured and compared. In the passes after these, which are timed, every
shape has been seen. Length grouping composes its batches of the same texts, once.

The arms of ampft are the product's default, which decides by itself about CUDA graphs, and both
choices. Last, a profiler counts the kernels of a pass, and names the operators and the kernels of
attention that ran, for all systems alike. Results are written as they are measured, and are not
measured again: call the program again to measure what did not fit into its time.

Needs no network, data or pretrained weights; what needs a package that is missing is skipped, with
the reason. The padding-free collator of transformers is not measured: it joins the texts of a batch
into one, for which a classifier would have one label.

    python benchmarks gpu_turns --out gpu-turns.json
    python benchmarks gpu_turns --out gpu-turns.json --table       # of what was measured so far
    python benchmarks gpu_turns --out rehearsed.json --rehearse    # on a CPU, tiny
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState, GradientState
from provenance import command_line, provenance
from random_texts import SIZES, RandomTexts, bert, lengths_of_texts, pad, random_texts
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_pt_utils import get_length_grouped_indices

import ampft
from ampft.engine.launch_bound import QueueTimer
from ampft.engine.optimizer import OptimizerSettings, ScheduleSettings
from ampft.engine.out_of_memory import release_memory, reset_peak_memory
from ampft.engine.step import replace_update_call
from ampft.errors import InputError
from ampft.fast.graphed_update import GraphedUpdate
from ampft.fast.graphs import CudaRecorder, GraphedGradient
from ampft.fast.packing.install import install_packing, with_layout
from ampft.fast.packing.verification import grouped_attention_reason
from ampft.fast.static_shapes import StaticShapes
from ampft.files import write_text
from ampft.kinds.logits import forward_logits
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.text.page import Table, terminal

LEARNING_RATE = 5e-5
SETTLING_PASSES = 2
MOST_STEPS = 10**6  # of a schedule; a turn ends earlier
TURN_SECONDS = 8.0  # that must be left before a turn begins
COMPILED_SECONDS = 60.0  # the same, before one that compiles
MODES = ("bf16", "fp16", "tf32", "fp32")
COPIES = ("Memcpy", "Memset")
LAUNCHES = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
    "cudaGraphLaunch",  # of all kernels of a graph
)
ATTENTION = ("attention", "flash", "fmha")  # parts of names of its operators and kernels
# What results in one file must have in common.
CONDITIONS = ("rehearsal", "commit", "changed_files", "versions", "hardware")


class SkippedError(Exception):
    """Something that cannot be measured here; the message is the reason."""


@dataclass(frozen=True)
class Scale:
    """How large and how long measurements are."""

    device: torch.device  # Device of all measurements.
    sizes: dict[str, tuple[int, int]]  # Layers and width of each model by name.
    vocabulary: int  # Number of token ids.
    batch_size: int  # Batch size, in examples.
    # Mean and maximum length of the texts, in tokens, of each case.
    tokens: tuple[tuple[int, int], ...]
    batches: int  # Batches of a pass.
    turn_seconds: float  # Seconds after which no further pass is timed; one always is.
    rate_seconds: float  # Limit on a single matrix product, when the rate is measured.

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Job:
    """A training that systems run in turns."""

    scale: Scale  # Scale of the measurements.
    mode: str  # Mode of precision.
    size: str  # Name of the size of the model.
    tokens: tuple[int, int]  # Mean and maximum length of the texts, in tokens.

    @property
    def name(self) -> str:
        """The job in words."""
        mean, longest = self.tokens
        length = f"{mean} tokens" if mean == longest else f"{mean} of {longest} tokens"
        return f"{self.size}, {self.mode}, batch {self.scale.batch_size}, {length}"

    def texts(self) -> RandomTexts:
        """Return the texts of a pass."""
        number = self.scale.batches * self.scale.batch_size
        return texts_of(self.tokens, self.scale.vocabulary, number)

    def model(self) -> Any:
        """Return a new copy of the model, on the CPU."""
        return copy.deepcopy(model_of(self.scale.sizes[self.size], self.scale.vocabulary))

    def precision(self) -> ampft.Precision:
        """Return the precision.

        Raises:
            SkippedError: The device does not have it.
        """
        try:
            return ampft.resolve(self.mode, self.scale.device)
        except InputError as error:
            raise SkippedError(str(error)) from error

    def gflop_per_step(self) -> float:
        """Return 10^9 operations of a step: 6 per real token and weight of linear layers."""
        layers = self.model().bert.encoder
        weights = sum(m.weight.numel() for m in layers.modules() if isinstance(m, nn.Linear))
        return float(6 * weights * self.texts().lengths.mean() * self.scale.batch_size / 1e9)


@cache
def texts_of(tokens: tuple[int, int], vocabulary: int, number: int) -> RandomTexts:
    """Return random texts of a mean and a maximum length."""
    mean, longest = tokens
    return random_texts(lengths_of_texts(number, mean, longest=longest), vocabulary)


@cache
def model_of(shape: tuple[int, int], vocabulary: int) -> Any:
    """Return the model of a size, with the same random weights each time."""
    torch.manual_seed(0)
    return bert(*shape, vocabulary=vocabulary)


def step_batches(job: Job) -> ampft.StepBatches:
    """Return the batches of epoch 0, on which every system trains in each pass."""
    return ampft.StepBatches(job.texts(), job.scale.batch_size, padded=False)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@cache
def energy_meter() -> Callable[[], float] | None:
    """Return a function that reads the energy of GPU 0 in joules; None without NVML."""
    if find_spec("pynvml") is None:
        return None
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    except pynvml.NVMLError:
        return None
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000


class Turn(TrainerCallback):
    """Times the passes of a turn; the Trainer and the other loops call it after each step.

    The device is synchronized only between passes.

    Attributes:
        cold_step: Mean seconds of a step of the first pass.
        warm_steps: Mean seconds of a step of each timed pass.
        joules: Energy of a timed step; None without a meter.
        notes: What a system says about itself.
    """

    def __init__(self, scale: Scale) -> None:
        self.cold_step = 0.0
        self.warm_steps: list[float] = []
        self.joules: float | None = None
        self.notes: dict[str, object] = {}
        self.scale = scale
        self._steps = 0
        self._begin = self._first_timed = 0.0
        self._energy = 0.0

    def begin(self) -> None:
        """Begin the first pass: the model is prepared."""
        synchronize(self.scale.device)
        self._begin = time.perf_counter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin the first pass of the Trainer."""
        self.begin()

    def step_ended(self) -> bool:
        """Record the end of a step; return whether the turn is over."""
        self._steps += 1
        passes, rest = divmod(self._steps, self.scale.batches)
        return rest == 0 and self.pass_ended(passes)

    def pass_ended(self, passes: int) -> bool:
        """Record the end of a pass, counted from 1; return whether the turn is over."""
        synchronize(self.scale.device)
        now, meter = time.perf_counter(), energy_meter() if self.scale.on_gpu else None
        seconds, self._begin = (now - self._begin) / self.scale.batches, now
        if passes == 1:
            self.cold_step = seconds
        if passes == 1 + SETTLING_PASSES:
            self._first_timed, self._energy = now, meter() if meter else 0.0
        if passes <= 1 + SETTLING_PASSES:
            return False
        self.warm_steps.append(seconds)
        if now - self._first_timed < self.scale.turn_seconds:
            return False
        steps = len(self.warm_steps) * self.scale.batches
        self.joules = (meter() - self._energy) / steps if meter else None
        return True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Stop the Trainer when the turn is over."""
        del args, state
        control.should_training_stop = self.step_ended()
        return control


class ProfiledTurn(Turn):
    """Counts the kernels of the first pass after the settling ones.

    Attributes:
        counts: Mean number of launches by the host, of kernels and of copies per step, and the
            names of attention's operators and kernels.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale)
        self.counts: dict[str, object] = {}
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] * scale.on_gpu
        self._profiler = torch.profiler.profile(activities=activities)

    def pass_ended(self, passes: int) -> bool:
        """Begin to count after the settling passes, and stop after the next pass."""
        synchronize(self.scale.device)
        if passes == 1 + SETTLING_PASSES:
            self._profiler.start()
        if passes <= 1 + SETTLING_PASSES:
            return False
        self._profiler.stop()
        events = list(self._profiler.events() or ())
        of_device = [e.name for e in events if e.device_type.name == "CUDA"]
        copies = sum(name.startswith(COPIES) for name in of_device)
        launches = sum(event.name in LAUNCHES for event in events)
        named = {e.name for e in events if any(part in e.name.lower() for part in ATTENTION)}
        self.counts = {"attention": sorted(named)}
        if self.scale.on_gpu:
            numbers = {"launches": launches, "kernels": len(of_device) - copies, "copies": copies}
            self.counts |= {name: number / self.scale.batches for name, number in numbers.items()}
        return True


def train_with_trainer(
    job: Job, turn: Turn, *, attention: str = "sdpa", grouped: bool = False, compiled: bool = False
) -> None:
    """Train with `transformers.Trainer`, on the batches of `step_batches` in their order."""
    precision, scale = job.precision(), job.scale
    if attention == "flash_attention_2":
        _check_flash_attention(job)
    if compiled and not scale.on_gpu:
        raise SkippedError("a rehearsal without a GPU does not compile, which takes half a minute")
    if job.mode == "fp16" and not scale.on_gpu:
        raise SkippedError("the Trainer has no fp16 on a CPU")
    texts, batches = job.texts(), step_batches(job)
    order = [int(i) for step in range(len(batches)) for i in batches.effective_ids(0, step)]
    if grouped:
        generator = torch.Generator().manual_seed(0)
        lengths = texts.lengths.tolist()
        order = get_length_grouped_indices(lengths, scale.batch_size, generator=generator)
    set_seed(0)
    model = job.model()
    model.set_attn_implementation(attention)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=scale.batch_size,
            learning_rate=LEARNING_RATE,
            max_steps=MOST_STEPS,
            bf16=job.mode == "bf16",
            fp16=job.mode == "fp16",
            use_cpu=not scale.on_gpu,
            train_sampling_strategy="sequential",
            torch_compile=compiled,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=RandomTexts([texts.rows[i] for i in order]),
            data_collator=pad,
            callbacks=[turn],
        )
        trainer.remove_callback(PrinterCallback)
        with ampft.numerics(precision):  # the arguments can have allowed TF32
            trainer.train()


def _check_flash_attention(job: Job) -> None:
    if find_spec("flash_attn") is None:
        raise SkippedError("flash_attn is not installed")
    if job.mode not in ("bf16", "fp16") or not job.scale.on_gpu:
        raise SkippedError("flash attention needs 16 bits and a CUDA device")


def train_with_ampft(
    job: Job, turn: Turn, *, graphs: bool | None = None, compiled: bool = False
) -> nn.Module:
    """Train with the loop of `recipes/classify.py`; return the model.

    Args:
        job: The training.
        turn: Its turn.
        graphs: Same as `--cuda_graphs`: None lets the time of the first steps decide.
        compiled: Whether the model is compiled.
    """
    if (graphs or compiled) and not job.scale.on_gpu:
        raise SkippedError("a rehearsal without a GPU has no CUDA graphs, and does not compile")
    if compiled:
        os.environ["ACCELERATE_DYNAMO_BACKEND"] = "INDUCTOR"  # restored by `run_turn`
    precision, texts, device = job.precision(), job.texts(), job.scale.device
    with ampft.numerics(precision):
        accelerator = ampft.make_accelerator(precision)
        set_seed(0)
        model = job.model()
        install_packing(model)
        shapes = StaticShapes(model, job.tokens[1])
        is_shaped = job.scale.on_gpu and graphs is not False
        finish = shapes.shaped if is_shaped else partial(with_layout, model)
        batches = replace(step_batches(job), pinned=device.type == "cuda", finish=finish)
        optimizer = ampft.make_optimizer(model, OptimizerSettings(LEARNING_RATE), precision)
        schedule = ampft.make_schedule(optimizer, MOST_STEPS, ScheduleSettings())
        prepared, optimizer = accelerator.prepare(model, optimizer)
        example = dict(texts.collate(batches.effective_ids(0, 0)))
        del example["labels"]
        on_device = {name: tensor.to(device) for name, tensor in example.items()}
        turn.notes["check"] = grouped_attention_reason(prepared, model, on_device) or "passed"
        prepared.train()
        used: tuple[GraphedGradient, GraphedUpdate] | None = None
        if is_shaped and not compiled:
            event = partial(torch.cuda.Event, enable_timing=True)
            timer = None if graphs else QueueTimer(event)
            recorder = CudaRecorder(device)
            gradient = GraphedGradient(model, device, shapes, recorder, print, timer)
            used = gradient, GraphedUpdate(gradient, accelerator, optimizer.optimizer)
        _run_steps(accelerator, prepared, optimizer, schedule, batches, turn, used)
        if used is not None:
            turn.notes["graphs"] = used[0].as_dict() | used[1].as_dict()
    return model


def _run_steps(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    schedule: Any,
    batches: ampft.StepBatches,
    turn: Turn,
    graphs: tuple[GraphedGradient, GraphedUpdate] | None,
) -> None:
    def gradient(step_batch: ampft.StepBatch) -> ampft.Losses:
        with ampft.shared_autocast_cache(accelerator, model, step_batch):
            return ampft.accumulate_gradient(accelerator, model, summed_loss, step_batch)

    compute = gradient if graphs is None else partial(graphs[0].gradient, gradient)
    turn.begin()
    while True:
        for step_batch in batches.epoch(0):
            losses = compute(step_batch)
            with replace_update_call(None if graphs is None else graphs[1]):
                ampft.apply_step(
                    accelerator, model, optimizer, schedule, losses=losses, max_grad_norm=1.0
                )
            optimizer.zero_grad()
            if turn.step_ended():
                return


def summed_loss(model: nn.Module, micro_batch: ampft.MicroBatch) -> torch.Tensor:
    """Return the summed cross entropy of a micro-batch, a float32 scalar."""
    logits = forward_logits(model, micro_batch.inputs, packing=micro_batch.packing)
    labels = micro_batch.inputs["labels"].to(logits.device, non_blocking=True)
    return ampft.summed_cross_entropy(logits, labels)


SYSTEMS: dict[str, Callable[[Job, Turn], object]] = {
    "trainer": train_with_trainer,
    "trainer (flash attention 2)": partial(train_with_trainer, attention="flash_attention_2"),
    "trainer (length grouping)": partial(train_with_trainer, grouped=True),
    "ampft": train_with_ampft,
    "ampft (graphs)": partial(train_with_ampft, graphs=True),
    "ampft (no graphs)": partial(train_with_ampft, graphs=False),
    "trainer (compiled)": partial(train_with_trainer, compiled=True),
    "ampft (compiled)": partial(train_with_ampft, compiled=True),
}


def run_turn(system: str, job: Job, turn: Turn) -> None:
    """Train once with a system; variables that it sets in the environment are restored."""
    job.precision()  # an unsupported mode is said before anything is prepared
    start_afresh(job.scale.device)
    with patch.dict(os.environ):
        SYSTEMS[system](job, turn)


def start_afresh(device: torch.device) -> None:
    """Forget what the turn before has left: Accelerate's state, compiled code and memory."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    release_memory(device)
    reset_peak_memory(device)


def measure_turn(system: str, job: Job) -> dict[str, Any]:
    """Return seconds, peak memory and energy per step of a system in one turn."""
    turn = Turn(job.scale)
    run_turn(system, job, turn)
    peak = torch.cuda.max_memory_allocated(job.scale.device) if job.scale.on_gpu else None
    return {
        "step_seconds": statistics.median(turn.warm_steps),
        "warm_step_seconds": turn.warm_steps,
        "cold_step_seconds": turn.cold_step,
        "peak_bytes": peak,
        "joules_per_step": turn.joules,
        **turn.notes,
    }


def count_kernels(system: str, job: Job) -> dict[str, Any]:
    """Return the counts of a system, and the names of its attention."""
    turn = ProfiledTurn(job.scale)
    run_turn(system, job, turn)
    if job.scale.on_gpu and not turn.counts["kernels"]:
        raise RuntimeError("torch.profiler has seen no kernel")
    return turn.counts


def measure_rate(job: Job) -> dict[str, Any]:
    """Return the rate of large matrix products in the mode of a job, in 10^9 operations/s."""
    precision, scale = job.precision(), job.scale
    with ampft.numerics(precision):
        rate = measure_matrix_rate(
            scale.device, precision.compute_dtype, name=job.mode, max_seconds=scale.rate_seconds
        )
    return {"gflops": rate.gflops, "matrix_size": rate.size}


@dataclass
class Results:
    """The results in a JSON file, and the time that is left."""

    path: Path  # The file.
    head: dict[str, Any]  # Provenance.
    deadline: float  # Value of `time.monotonic` at which nothing new begins.
    # Result by name: measured values, `skipped` with a reason, or `failed` with the error.
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # Names of what did not fit into the time.

    def measure(self, name: str, function: Callable[[], dict[str, Any]], seconds: float) -> None:
        """Measure and write a result, unless the file has it or less than `seconds` are left."""
        if name in self.rows:
            return
        if self.deadline - time.monotonic() < seconds:
            self.left.append(name)
            return
        try:
            row = function()
        except SkippedError as reason:
            row = {"skipped": str(reason)}
        except Exception as error:  # a failure is a result, and the others are still wanted
            row = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        self.rows[name] = row
        self.write()
        print(f"{self.deadline - time.monotonic():4.0f} s left  {name}: {str(row)[:120]}")
        if "failed" in row and torch.cuda.is_available():
            torch.cuda.synchronize()  # raises if the device no longer works: all others would fail

    def write(self) -> None:
        """Replace the file."""
        content = {**self.head, "left": self.left, "rows": self.rows}
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def scale_of(*, rehearse: bool) -> Scale:
    """Return the scale of the measurements on this machine."""
    if rehearse:
        return Scale(torch.device("cpu"), {"tiny": (1, 48)}, 300, 4, ((6, 12),), 2, 0.0, 1e-4)
    tokens = ((41, 128), (128, 128), (512, 512))
    return Scale(torch.device("cuda", 0), SIZES, 30522, 32, tokens, 16, 1.0, 0.05)


def all_jobs(scale: Scale, modes: Iterable[str] = MODES) -> list[Job]:
    """Return the trainings; short texts come first."""
    return [
        Job(scale, mode, size, tokens)
        for tokens in scale.tokens
        for size in scale.sizes
        for mode in modes
    ]


def systems_of(job: Job) -> list[str]:
    """Return the systems of a job; only the first job is compiled, which takes a minute each."""
    is_first = job == all_jobs(job.scale)[0]
    return [name for name in SYSTEMS if is_first or "compiled" not in name]


def run(results: Results, jobs: list[Job], turns: int) -> None:
    """Measure all systems of all jobs in turns, then count their kernels."""
    for job in jobs:
        results.measure(f"matrix rate, {job.mode}", partial(measure_rate, job), TURN_SECONDS)
    for job in jobs:
        for number in range(1, turns + 1):
            names = systems_of(job)
            for system in names if number % 2 else names[::-1]:
                seconds = COMPILED_SECONDS if "compiled" in system else TURN_SECONDS
                name = f"{job.name}, turn {number}, {system}"
                results.measure(name, partial(measure_turn, system, job), seconds)
    # Last, because a profiler may slow down what follows in its process.
    for job in jobs:
        for system in systems_of(job):
            name = f"{job.name}, counts, {system}"
            results.measure(name, partial(count_kernels, system, job), TURN_SECONDS)


def table(results: Results, jobs: list[Job]) -> Table:
    """Return medians over the turns, with ranges, per job and system."""
    header = (
        *("job, system", "turns", "cold ms", "warm ms", "ampft faster", "rate", "MiB", "J"),
        *("launches", "kernels"),
    )
    return Table(header=header, rows=[row for job in jobs for row in _rows(results, job)], left=1)


def _rows(results: Results, job: Job) -> Iterator[tuple[str, ...]]:
    def turns_of(system: str) -> dict[int, dict[str, Any]]:
        found = {n: results.rows.get(f"{job.name}, turn {n}, {system}", {}) for n in range(1, 100)}
        return {number: row for number, row in found.items() if "step_seconds" in row}

    ours, rate = turns_of("ampft"), results.rows.get(f"matrix rate, {job.mode}", {}).get("gflops")
    for system in SYSTEMS:
        if not (own := turns_of(system)):
            continue
        counts = results.rows.get(f"{job.name}, counts, {system}", {})
        warm = [row["step_seconds"] for row in own.values()]
        ratios = [own[n]["step_seconds"] / ours[n]["step_seconds"] for n in own if n in ours]
        share = job.gflop_per_step() / statistics.median(warm) / rate if rate else None
        yield (
            f"{job.name}, {system}",
            str(len(own)),
            _range([1000 * row["cold_step_seconds"] for row in own.values()]),
            _range([1000 * seconds for seconds in warm]),
            _range(ratios) if ratios else "-",
            "-" if share is None else f"{share:.0%}",
            _largest(own, "peak_bytes", 2**20),
            _largest(own, "joules_per_step", 1),
            *(f"{counts[name]:.0f}" if name in counts else "-" for name in ("launches", "kernels")),
        )


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _largest(turns: dict[int, dict[str, Any]], name: str, unit: int) -> str:
    found = [row[name] for row in turns.values() if row[name] is not None]
    return f"{max(found) / unit:.1f}" if found else "-"


def parse_arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Return the arguments of the command line, and the parser for errors found later."""
    parser = command_line(__doc__, out="JSON file of the results")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="precisions")
    parser.add_argument("--turns", type=int, default=3, help="turns of each system in each job")
    parser.add_argument(
        "--seconds",
        type=float,
        default=510.0,
        help="seconds after which nothing new begins (default: %(default)g)",
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--table", action="store_true", help="only print what the file has")
    return parser.parse_args(), parser


def open_results(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Results:
    """Return the results of the file, to which the program adds; exit if it cannot continue it."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    head = {"rehearsal": args.rehearse, **provenance(names)}
    results = Results(args.out, head, time.monotonic() + args.seconds)
    if not args.out.exists():
        return results
    try:
        stored = json.loads(args.out.read_text(encoding="utf-8"))
        differing = [name for name in CONDITIONS if stored[name] != head[name]]
        results.rows = dict(stored["rows"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        parser.error(f"--out {args.out}: not a file of results. Pass another name.")
    if differing and not args.table:
        parser.error(
            f"--out {args.out}: measured under other conditions ({', '.join(differing)}). "
            "Pass another name."
        )
    return results


def main() -> None:
    """Measure what the file does not have yet, and print the table."""
    args, parser = parse_arguments()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not (args.rehearse or args.table or torch.cuda.is_available()):
        parser.error("a CUDA device is needed. Pass --rehearse to try the program on a CPU.")
    if torch.cuda.device_count() > 1:
        parser.error("set CUDA_VISIBLE_DEVICES=0: with several GPUs the Trainer splits each batch")
    results = open_results(args, parser)
    jobs = all_jobs(scale_of(rehearse=args.rehearse), args.modes)
    if not args.table:
        run(results, jobs, args.turns)
        results.write()
    print(f"\n{terminal([table(results, jobs)])}\n")
    for name, row in results.rows.items():
        if "failed" in row:
            print(f"Failed: {name}: {row['failed']}")
    if results.left:
        print(f"{len(results.left)} results did not fit into the time. Call the program again.")


if __name__ == "__main__":
    main()
