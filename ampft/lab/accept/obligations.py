"""What a machine owes, and the judgement of what commands recorded there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.text.json_io import read_json_object

if TYPE_CHECKING:
    from torch import Tensor

    from ampft.lab.accept.reference import Reference

GREEN, RED, ABSENT, OPEN = "green", "red", "not here", "open"
# Unit roundoff of the operands of products, and how many of them the change of the weights may
# differ from float64 by. Errors of products are independent, so that few add up.
ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-9, "fp16": 2.0**-12}
UNITS = 16
LEAST_TOLERANCE = 1e-5  # of sums in float32 in another order, and of weights rounded to float32
COMPUTED = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
SERVED_TOLERANCE = 5e-3  # of a probability that is predicted in another batch, in 16 bits too


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    name: str  # Its name in the table.
    mode: str  # Precision that it asked for.
    kind: str  # What it did, such as "train".
    steps: int  # Steps of a training.
    folder: Path  # Folder that it wrote.
    exit_code: int | None  # None if it was ended because its time was over.
    seconds: float
    last_line: str  # Of what it printed.
    absent: str = ""  # Why it cannot be here.
    is_late: bool = False  # Whether it was not started because the time was over.

    @property
    def record(self) -> dict[str, Any]:
        return read_json_object(self.folder / "run.json")

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights of a run, by name, on the CPU."""
        from safetensors.torch import load_file

        return load_file(self.folder / "model.safetensors")


@dataclass(frozen=True)
class Judgement:
    """One row of the table."""

    obligation: str  # What is owed.
    command: str  # Name of the command that shows it.
    colour: str  # `GREEN`, `RED`, `ABSENT` or `OPEN`.
    evidence: str  # What was recorded, or why it is not here.


Judge = Callable[[Done, Mapping[str, Done], "Reference"], Iterator[tuple[str, bool | None, str]]]
"""Yields obligation, whether it holds (None: not here) and evidence of an ended command."""


def tolerance(mode: str) -> float:
    """Return the largest relative error of the change of all weights in a mode."""
    return max(LEAST_TOLERANCE, UNITS * ROUNDOFF[mode])


def judge(done: Mapping[str, Done], reference: Reference) -> list[Judgement]:
    """Judge all commands by what they recorded.

    Args:
        done: Ended commands by name.
        reference: Float64 training of the same steps.
    """
    rows = []
    for name, command in done.items():
        if command.is_late:
            text = "the time was over before it began; --max_minutes gives more"
            rows.append(Judgement("the command runs", name, OPEN, text))
            continue
        if command.absent:
            rows.append(Judgement("the command runs", name, ABSENT, command.absent))
            continue
        ended = command.exit_code == 0
        said = f"exit code {command.exit_code}, {command.seconds:.0f} s"
        said += "" if ended else f": {command.last_line}"
        rows.append(Judgement("the command runs", name, GREEN if ended else RED, said))
        if not ended:
            continue
        for judged in JUDGES.get(command.kind, ()):
            try:
                for obligation, holds, evidence in judged(command, done, reference):
                    colour = GREEN if holds else RED
                    if holds is None:
                        colour = ABSENT
                    rows.append(Judgement(obligation, name, colour, evidence))
            except (OSError, KeyError, ValueError, TypeError, IndexError) as error:
                text = f"what it recorded cannot be read: {type(error).__name__}: {error}"
                rows.append(Judgement("the record is complete", name, RED, text))
    return rows


def _dtypes(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """Judge the dtypes that the first step multiplied."""
    del others, reference
    executed = done.record["precision"]["executed"]
    rows = [row for row in executed["rows"] if row["kind"] == "projection"]
    found = sorted({dtype for row in rows for dtype in row["inputs"]})
    holds = found == [COMPUTED[done.mode]]
    lost = executed["float32_products_lose_bits"]
    text = f"projections of {' and '.join(found) or 'no dtype'}"
    if lost is not None:
        holds = holds and lost == (done.mode == "tf32")
        text += f", float32 {'loses' if lost else 'keeps'} the bits that TF32 drops"
    yield "the precision that was asked for ran", holds, text
    kernels = executed.get("attention_kernels") or []
    yield "the attention kernel has a name", bool(kernels), ", ".join(kernels) or "none recorded"


def _padding(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """Judge whether a run trained without padding; a fault of its attention makes it pad."""
    del others, reference
    model = done.record["model"]
    text = "; ".join(model["notes"]) or "no note"
    yield "it trains without padding", model["padding_free"] is True, text


def _weights(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """Judge the trained weights by the float64 training."""
    del others
    weights = done.weights
    error, allowed = reference.error(weights, done.steps), tolerance(done.mode)
    what = "the first gradient" if done.steps == 1 else f"{done.steps} steps"
    evidence = f"relative error {error:.1e}, allowed {allowed:.1e}"
    yield f"{what} as in float64", error <= allowed, evidence
    unmoved = reference.unmoved(weights)
    text = f"unchanged: {', '.join(unmoved[:3])}" if unmoved else f"{len(weights)} tensors"
    yield "every parameter moved", not unmoved, text


def _graphs(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """Judge whether a run that asked for graphs replayed them."""
    del others, reference
    graphs = done.record["timings"].get("cuda_graphs") or {}
    replayed, updates = graphs.get("replayed_micro_batches", 0), graphs.get("replayed_updates", 0)
    reason = graphs.get("reason") or graphs.get("reason_of_updates")
    text = f"{replayed} micro-batches and {updates} updates of {done.steps} steps"
    text += f"; {reason}" if reason else ""
    yield "graphs are replayed", replayed > 0 and updates > 0 and not reason, text


def _memory(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """Judge the activations of a padded run by those of the same run without padding."""
    del reference
    packed = others[f"{done.mode}, {done.steps} steps"]
    if packed.exit_code != 0:
        yield "less memory than padded", None, f"{packed.name} did not run"
        return
    padded, ours = (each.record["memory"]["activations"] for each in (done, packed))
    text = f"activations {ours / 2**20:.2f} MiB, padded {padded / 2**20:.2f} MiB"
    yield "less memory than padded", ours < padded, text


def _resumed(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """`ampft resume-check` compares bit for bit and says so by its exit code."""
    del done, others, reference
    text = "same weights, predictions and history as an uninterrupted run"
    yield "a killed run continues bit for bit", True, text


def _predicted(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """Judge the predictions of the test file by those of the report."""
    import pyarrow.parquet as parquet

    del reference
    trained = others[f"{done.mode}, {done.steps} steps"].folder / "predictions.parquet"
    ours = parquet.read_table(done.folder / "predicted.parquet").to_pylist()
    theirs = parquet.read_table(trained).to_pylist()
    pairs = list(zip(ours, theirs, strict=True))
    labels = sum(one["prediction"] == other["prediction"] for one, other in pairs)
    gap = max(abs(one["confidence"] - other["confidence"]) for one, other in pairs)
    text = f"{labels} of {len(pairs)} labels equal, confidences within {gap:.1e}"
    yield "predictions are the report's", labels == len(pairs) and gap <= SERVED_TOLERANCE, text


def _certified(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """`ampft export` verifies what it writes, and says so by its exit code."""
    del others, reference
    names = sorted(path.name for path in done.folder.iterdir())
    yield (
        "an exported model has its certificate",
        any("certificate" in n for n in names),
        (f"{len(names)} files"),
    )


def _one_process(
    done: Done, others: Mapping[str, Done], reference: Reference
) -> Iterator[tuple[str, bool | None, str]]:
    """Judge the weights of several processes by those of one."""
    del reference
    single = others[f"{done.mode}, {done.steps} steps"]
    number = done.record["topology"]["num_processes"]
    if single.exit_code != 0:
        yield "several processes equal one", None, f"{single.name} did not run"
        return
    ours, theirs = done.weights, single.weights
    gap = max(float((ours[n] - theirs[n]).abs().max()) for n in theirs)
    text = f"{number} processes, weights within {gap:.1e}"
    yield "several processes equal one", number > 1 and gap <= LEAST_TOLERANCE, text


JUDGES: dict[str, Sequence[Judge]] = {
    "train": (_dtypes, _padding, _weights),
    "graphs": (_dtypes, _padding, _weights, _graphs),
    "padded": (_dtypes, _weights, _memory),
    "adapters": (_dtypes,),
    "processes": (_dtypes, _weights, _one_process),
    "resume": (_resumed,),
    "predict": (_predicted,),
    "export": (_certified,),
}
