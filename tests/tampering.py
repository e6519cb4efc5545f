"""Changes every file that a command wrote, and counts which changes the next command notices.

    python tests/tampering.py [--only NAMES]

Each file is changed in one byte, deleted, and replaced by a link to a copy of itself; and a file is
added beside it. A change is *said* if the exit code differs or the output names the file; *unread*
if neither the output nor what was written differs from the undisturbed command; otherwise *unseen*,
which is a fault. Each command is a fork of one process that has imported everything.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]
os.environ.update(
    TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", COLUMNS="200"
)
# What differs between two runs of one command.
VOLATILE = re.compile(
    r"\d+(\.\d+)?(?= (s|ms|min|h|MiB|GiB|ex/s|examples/s)\b)|took .*|time .*|\d{4}-\d\d-\d\d\S*|"
    r"[0-9a-f]{12,64}|overhead .*|memory .*|speed .*|about .* left|\d+/s|latency.*|peak .*"
)
NEIGHBOURS = ("special_tokens_map.json", "predictions_fp32.parquet", "entry-000099.json")


@dataclass(frozen=True)
class Scenario:
    """A folder that commands wrote, and the command that reads it."""

    name: str
    built: Path  # Folder with everything that the command needs; each trial has a copy.
    tampered: str  # Folder in it whose files are changed.
    words: Sequence[str]  # Command; paths are relative to the copy.
    written: str | None = None  # Output of the command, compared with the undisturbed one.
    pattern: str = "**/*"  # Which files are changed.


def forked(words: Sequence[str], place: Path) -> tuple[int, str]:
    """Run a command of ampft in a folder; return its exit code and its output."""
    log = place.with_suffix(".log")
    child = os.fork()
    if child == 0:
        os.chdir(place)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code: object = 70
        try:
            from ampft.cli import main

            sys.argv = ["ampft", *words]
            code = main(list(words))
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), log.read_text("utf-8", "replace")


def changes(path: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    def flip(target: Path) -> None:
        content = bytearray(target.read_bytes())
        content[len(content) // 2] ^= 1
        target.write_bytes(content)

    def link(target: Path) -> None:
        other = target.parents[1] / f"copy-of-{target.name}"
        shutil.move(target, other)
        target.symlink_to(other)

    if path.stat().st_size:
        yield "byte", flip
    yield "deleted", Path.unlink
    yield "linked", link


def outcome(scenario: Scenario, place: Path) -> tuple[int, str, bytes]:
    code, text = forked(scenario.words, place)
    text = VOLATILE.sub("", text.replace(str(place), "PLACE"))
    written = place / scenario.written if scenario.written else None
    return code, text, written.read_bytes() if written and written.is_file() else b""


def trial(
    scenario: Scenario, expected: tuple[int, str, bytes], work: Path, name: str,
    change: Callable[[Path], None],
) -> tuple[str, str]:  # fmt: skip
    place = Path(tempfile.mkdtemp(dir=work))
    shutil.copytree(scenario.built, place, symlinks=True, dirs_exist_ok=True)
    change(place / scenario.tampered / name)
    code, text, written = outcome(scenario, place)
    shutil.rmtree(place)
    place.with_suffix(".log").unlink()
    if "Traceback" in text:
        return "traceback", text
    if code != expected[0] or (Path(name).name in text and Path(name).name not in expected[1]):
        return "said", text
    return ("unread" if (text, written) == expected[1:] else "unseen"), text


def attack(scenario: Scenario, work: Path) -> Counter[tuple[str, str]]:
    place = Path(tempfile.mkdtemp(dir=work))
    shutil.copytree(scenario.built, place, symlinks=True, dirs_exist_ok=True)
    expected = outcome(scenario, place)
    folder = scenario.built / scenario.tampered
    files = sorted(path for path in folder.glob(scenario.pattern) if path.is_file())
    tally: Counter[tuple[str, str]] = Counter()
    print(f"\n{scenario.name}: exit {expected[0]}, {len(files)} files", flush=True)
    if "Traceback" in expected[1]:
        print(expected[1])

    def one(name: str, kind: str, change: Callable[[Path], None]) -> None:
        result, text = trial(scenario, expected, work, name, change)
        tally[kind, result] += 1
        if result in ("unseen", "traceback"):
            print(f"  {result:9} {kind:8} {name}", flush=True)
            print("      | " + "\n      | ".join(text.strip().splitlines()[-6:]), flush=True)

    for path in files:
        for kind, change in changes(path):
            one(path.relative_to(folder).as_posix(), kind, change)
    for place_ in sorted({path.parent.relative_to(folder) for path in files}):
        for name in NEIGHBOURS:
            if not (folder / place_ / name).exists():
                one((place_ / name).as_posix(), "added", lambda p: p.write_text('{"a": "b"}\n'))
    return tally


TRAIN = (
    *("--model_name_or_path", "model", "--train_file", "data/train.csv"),
    *("--test_file", "data/test.csv", "--use_cpu", "--cpu_threads", "1"),
    *("--per_device_train_batch_size", "16", "--learning_rate", "8e-3"),
)
SEEDS = ("42", "43", "44")
JUDGE = ("judge", "ledger", "--candidate", *(f"cmp/runs/bf16-seed{seed}" for seed in SEEDS))
# Name: what must be built, tampered folder, command, output, pattern.
SCENARIOS: dict[str, tuple[str, str, tuple[str, ...], str | None, str]] = {
    "report RUN": ("run", "run", ("report", "run"), None, "**/*"),
    "errors RUN": ("run", "run", ("errors", "run"), None, "**/*"),
    "audit RUN": ("run", "run", ("audit", "run"), None, "**/*"),
    "predict --model RUN": (
        "run", "run", ("predict", "--model", "run", "data/test.csv", "--output_file", "out.csv"),
        "out.csv", "**/*",
    ),
    "train --model_name_or_path RUN": (
        "run", "run", ("train", "--output_dir", "new", "--num_train_epochs", "1",
        *("run" if word == "model" else word for word in TRAIN)),
        "new/predictions.parquet", "*",
    ),
    "train --resume_from_checkpoint": (
        "half", "half", ("train", "--output_dir", "half", "--num_train_epochs", "2",
        "--checkpointing_steps", "4", "--resume_from_checkpoint", "latest", *TRAIN),
        "half/predictions.parquet", "**/*",
    ),
    "predict --model ARTIFACT": (
        "art", "art", ("predict", "--model", "art", "data/test.csv", "--output_file", "out.csv"),
        "out.csv", "**/*",
    ),
    "audit ARTIFACT": (
        "art", "art", ("audit", "art", "--run", "run", "--no_measure"), None, "**/*",
    ),
    "predict --output_dir": (
        "shards", "shards", ("predict", "--model", "run", "data/parts", "--output_dir", "shards"),
        "shards/b.parquet", "**/*",
    ),
    "report COMPARISON": ("cmp", "cmp", ("report", "cmp"), None, "*"),
    "compare COMPARISON": ("cmp", "cmp", ("compare", "cmp"), None, "*"),
    "compare COMPARISON (its runs)": (
        "cmp", "cmp/runs/fp32-seed43", ("compare", "cmp"), None, "*",
    ),
    "compare, repeated": (
        "cmp", "cmp", ("compare", "--modes", "fp32,bf16", "--seeds", "3", "--anyway",
        "--output_dir", "cmp", "--", *TRAIN), None, "*",
    ),
    "report CURVE": ("curve", "curve", ("report", "curve"), None, "*"),
    "curve, repeated (a run)": (
        "curve", "curve/runs/labels-120-seed43", ("curve", "--sizes", "24,48,120", "--seeds", "3",
        "--output_dir", "curve", "--", *TRAIN), "curve/curve.json", "*",
    ),
    "audit LEDGER": ("ledger", "ledger", ("audit", "ledger"), None, "**/*"),
    "audit LEDGER (a judged run)": (
        "ledger", "cmp/runs/bf16-seed43", ("audit", "ledger"), None, "*",
    ),
    "judge": ("ledger", "ledger", JUDGE, None, "**/*"),
    "judge (a judged run)": ("ledger", "cmp/runs/bf16-seed43", JUDGE, None, "*"),
    "doctor RUN": (
        "diverged", "diverged", ("doctor", "diverged"), None, "**/*",
    ),
}  # fmt: skip
# What is built by which command, after what.
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "run": ("", ("train", "--output_dir", "run", "--num_train_epochs", "1", *TRAIN)),
    "half": ("", ("train", "--output_dir", "half", "--num_train_epochs", "2",
                  "--checkpointing_steps", "4", *TRAIN)),
    "diverged": ("", ("train", "--output_dir", "diverged", "--num_train_epochs", "1",
                      *("1e30" if word == "8e-3" else word for word in TRAIN))),
    "art": ("run", ("export", "run", "--format", "torch", "--output_dir", "art", "--no_measure")),
    "shards": ("run", ("predict", "--model", "run", "data/parts", "--output_dir", "shards")),
    "cmp": ("", SCENARIOS["compare, repeated"][2]),
    "curve": ("", SCENARIOS["curve, repeated (a run)"][2]),
    "ledger": ("cmp", ("judge", "ledger", "--best", *(f"cmp/runs/fp32-seed{s}" for s in SEEDS))),
}  # fmt: skip


def build(work: Path, only: set[str]) -> Iterator[Scenario]:
    """Yield the scenarios, and build the folders that they need."""
    base = work / "base"
    (base / "data" / "parts").mkdir(parents=True)
    if os.fork() == 0:
        write_inputs(base)
        os._exit(0)
    assert os.wait()[1] == 0
    built = {"": base}

    def folder(what: str) -> Path:
        if what not in built:
            before, words = COMMANDS[what]
            place = work / f"built-{what}"
            shutil.copytree(folder(before), place)
            code, text = forked(words, place)
            print(f"built {what}: exit {code}: {text.strip().splitlines()[-1]}", flush=True)
            if what == "ledger":
                forked(JUDGE, place)
            if what == "half":  # as if it had been killed
                interrupt(place / "half")
            built[what] = place
        return built[what]

    for name, (what, tampered, words, written, pattern) in SCENARIOS.items():
        if not only or name in only:
            yield Scenario(name, folder(what), tampered, words, written, pattern)


def write_inputs(base: Path) -> None:
    """Write the model and the tables."""
    from running import rows, write_csv
    from tiny_text import save_tiny_bert

    save_tiny_bert(base / "model")
    for name, count in {"train": 120, "test": 240, "parts/a": 20, "parts/b": 20}.items():
        write_csv(base / "data" / f"{name}.csv", rows(count, len(name)), ("text", "label"))


def interrupt(run: Path) -> None:
    """Leave of a finished run what a kill after its first checkpoints leaves."""
    import json

    from fuzzed_json import signed

    record = json.loads((run / "run.json").read_text())
    for name in record["files"]:
        if name != "history.jsonl":
            (run / name).unlink()
    record |= {"status": "preempted", "files": {}, "metrics": {}}
    (run / "run.json").write_text(signed(record))
    newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    shutil.rmtree(newest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SCENARIOS)
    args = parser.parse_args()
    import ampft.cli
    import ampft.runs.run  # noqa: F401  (shared by all forks)

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tallies = {each.name: attack(each, work) for each in build(work, set(args.only or ()))}
    kinds, results = (
        ("byte", "deleted", "linked", "added"),
        ("said", "unread", "unseen", "traceback"),
    )
    print("\n| command | " + " | ".join(kinds) + " |  (said/unread/unseen/traceback)")
    for name, tally in tallies.items():
        cells = ["/".join(str(tally[kind, result]) for result in results) for kind in kinds]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
