"""Kills a small training at random, again and again, and compares it with an undisturbed one.

    python tests/soak.py --kills 200 --output benchmarks/results/soak.json

The training is in fp16, begins with a loss scale at which steps are skipped, draws dropout masks,
and writes a checkpoint after every step. It is killed with SIGKILL or SIGTERM after a random time,
and continued; when it finishes, its weights, predictions, metrics and history must be bit for bit
those of the undisturbed training, and the next one begins. Data and model are loaded once: each
training is a fork of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "recipes")]

STEPS_PER_EPOCH, EPOCHS, LARGE_SCALE = 7, 2, 2.0**26
KILLED = -signal.SIGKILL
# Threads do not survive a fork.
os.environ.update(TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
# Interrupted by SIGTERM (75: preempted, with a checkpoint), or finished before it arrived.
ENDED_BY_TERMINATION = (75, 143, 0)


@dataclass
class Tally:
    """What happened.

    Attributes:
        kills: Kills by signal.
        trainings: Trainings that finished after kills, each equal to the undisturbed one.
        in_one_epoch: Largest number of continued trainings that were killed within one epoch.
        at_step: Kills by the step of the last checkpoint.
        half_written: Kills that left an unfinished checkpoint.
        while_finishing: Kills after the last step.
        finished: Kills after the record said that the training has finished.
    """

    kills: Counter[str] = field(default_factory=Counter)
    trainings: int = 0
    in_one_epoch: int = 0
    at_step: Counter[int] = field(default_factory=Counter)
    half_written: int = 0
    while_finishing: int = 0
    finished: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "kills": self.kills.total(),
            **{f"kills_{name.lower()}": count for name, count in sorted(self.kills.items())},
            "trainings": self.trainings,
            "kills_in_one_epoch": self.in_one_epoch,
            "kills_after_checkpoint_of_step": dict(sorted(self.at_step.items())),
            "kills_during_a_checkpoint": self.half_written,
            "kills_after_the_last_step": self.while_finishing,
            "kills_after_the_record": self.finished,
        }


def soak(kills: int, seed: int, folder: Path) -> Tally:
    """Kill trainings `kills` times; raise AssertionError if one ends with other results."""
    from resumed_runs import evidence

    train = prepare(folder)
    threads = [(path / "comm").read_text() for path in Path("/proc/self/task").iterdir()]
    # No other thread survives a fork. That of jemalloc, which pyarrow uses, is started again.
    assert len([name for name in threads if not name.startswith("jemalloc")]) == 1, threads
    started = time.monotonic()
    assert wait(start(train, folder / "straight")) == 0, "the undisturbed training failed"
    seconds = time.monotonic() - started
    expected = evidence(folder / "straight")
    assert expected["steps"]["skipped"] > 0, "no step was skipped"
    generator, tally = random.Random(seed), Tally()
    while tally.kills.total() < kills:
        run = folder / "killed"
        kill_until_finished(train, run, generator, tally, seconds, kills)
        assert evidence(run) == expected, f"other results after {tally.kills.total()} kills"
        tally.trainings += 1
        shutil.rmtree(run)
    return tally


def prepare(folder: Path) -> Callable[[Path], int]:
    """Return a function that trains into a folder, from its last checkpoint if there is one."""
    import torch
    import tqdm
    from running import CLASSIFY, rows, write_csv
    from tiny_text import save_tiny_bert
    from transformers import AutoModelForSequenceClassification

    import ampft
    from ampft.arguments import parse_classify_arguments
    from ampft.exit_codes import run_main
    from ampft.runs.resume import find_resume_point

    tqdm.tqdm.monitor_interval = 0  # it would start a thread
    model = save_tiny_bert(folder / "model")
    AutoModelForSequenceClassification.from_pretrained(
        model, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2
    ).save_pretrained(model)
    data = write_csv(folder / "data.csv", rows(80, 0), ("text", "label"))
    flags = {
        "train_file": data, "model_name_or_path": model, "mixed_precision": "fp16",
        "output_dir": folder / "unused", "per_device_train_batch_size": 8, "learning_rate": 1e-3,
        "num_train_epochs": EPOCHS, "checkpointing_steps": 1, "checkpoint_total_limit": 2,
        "resume_from_checkpoint": "latest", "cpu_threads": 1,
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    recipe = runpy.run_path(str(REPOSITORY / CLASSIFY))["train"]
    scaler = partial(torch.amp.GradScaler, init_scale=LARGE_SCALE)
    with patch.object(torch.amp, "GradScaler", scaler):
        prepared = ampft.prepare(parse_classify_arguments([*words, "--use_cpu"]))
    assert len(prepared.step_batches) == STEPS_PER_EPOCH

    def train(output: Path) -> int:
        args = replace(prepared.args, output_dir=str(output))
        point = find_resume_point(args)
        here = replace(prepared, args=args, output_dir=output, resume_point=point)
        with patch.object(ampft, "prepare", lambda _: here):
            return run_main(lambda: recipe(args))

    return train


def start(train: Callable[[Path], int], run: Path) -> int:
    """Return the id of a child process that trains into a folder."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        log = os.open(f"{run}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = train(run)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_until_finished(
    train: Callable[[Path], int],
    run: Path,
    generator: random.Random,
    tally: Tally,
    seconds: float,
    kills: int,
) -> None:
    """Train into a folder, killed after random times until `kills` is reached or it finishes."""
    in_epoch: Counter[int] = Counter()
    while True:
        child = start(train, run)
        sent = None
        if tally.kills.total() < kills:
            time.sleep(generator.uniform(0, 0.4 * seconds))
            sent = generator.choice([signal.SIGKILL, signal.SIGTERM])
            with suppress(ProcessLookupError):
                os.kill(child, sent)
        code = wait(child)
        if code == 0:
            return
        log = Path(f"{run}.log").read_text()
        expected = (KILLED,) if sent == signal.SIGKILL else ENDED_BY_TERMINATION
        # A signal before Python has installed its handler ends the process at once.
        assert sent is not None, f"exit code {code}\n{log}"
        assert code in (*expected, -sent), f"exit code {code}\n{log}"
        tally.kills[sent.name] += 1
        if is_finished(run):  # killed between its record and its end
            tally.finished += 1
            return
        step = check_killed(run, tally)
        tally.at_step[step] += 1
        in_epoch[step // STEPS_PER_EPOCH] += 1
        tally.in_one_epoch = max(tally.in_one_epoch, *in_epoch.values())


def is_finished(run: Path) -> bool:
    """Return whether a record says that the training has finished; then it has all its files."""
    from ampft.runs.manifest import check_files
    from ampft.runs.record import read_record

    if not (run / "run.json").exists():
        return False
    record = read_record(run)
    if record.status == "finished":
        check_files(run, record.files, record.files)
    return record.status == "finished"


def check_killed(run: Path, tally: Tally) -> int:
    """Check what a killed training left; return the step of its last checkpoint."""
    from ampft.engine.checkpoints.store import CheckpointStore, verify

    store = CheckpointStore(run)
    steps = [verify(checkpoint).cursor.step for checkpoint in store.complete()]
    entries = [path.name for path in store.path.iterdir()] if store.path.exists() else []
    tally.half_written += any(".tmp-" in name for name in entries)
    last = max(steps, default=0)
    tally.while_finishing += last == STEPS_PER_EPOCH * EPOCHS
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ampft-soak-") as name:
        tally = soak(args.kills, args.seed, Path(name))
    result = {"seed": args.seed, **tally.as_dict()}
    print(json.dumps(result))
    if args.output is not None:
        from benchmarks.provenance import provenance

        text = json.dumps({**provenance(), **result}, indent=2)
        args.output.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
