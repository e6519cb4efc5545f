"""`ampft predict --engine ray` with faults: the folder must equal the one without Ray.

Three nodes of one core, each in a network namespace of its own. In turns nothing happens, a worker
is killed or stopped, a node is killed, the network to a node is cut, or the command is killed and
repeated.
Prints one line of JSON with a row per fault.

    python benchmarks/cluster_predict.py --files 12 --rows 4000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "recipes"))
from namespace_cluster import NamespaceCluster, in_own_network, ray_address
from provenance import provenance

KINDS = ("none", "worker", "driver", "node", "cut", "stopped")
NODES = ("one", "two", "three")


def ampft(*words: object) -> list[str]:
    """Return a command of ampft."""
    return [sys.executable, "-m", "ampft", *map(str, words)]


def prepare(place: Path, files: int, rows: int) -> None:
    """Train a tiny model, write the inputs, and predict them here."""
    from running import rows as labelled_rows  # type: ignore[import-not-found]
    from running import write_csv
    from tiny_text import save_tiny_bert  # type: ignore[import-not-found]

    write_csv(place / "train.csv", labelled_rows(60, 0), ("text", "label"))
    (place / "bert").mkdir()
    save_tiny_bert(place / "bert")
    (place / "in").mkdir()
    for number in range(files):
        write_csv(
            place / "in" / f"part-{number:03}.csv", labelled_rows(rows, number), ("text", "label")
        )
    words = ["--train_file", place / "train.csv", "--model_name_or_path", place / "bert"]
    words += ["--output_dir", place / "run", "--max_train_steps", 2, "--use_cpu"]
    subprocess.run(ampft("train", *words), check=True, stdout=sys.stderr)
    began = time.monotonic()
    words = ["--model", place / "run", place / "in", "--output_dir", place / "here"]
    subprocess.run(ampft("predict", *words), check=True, stdout=sys.stderr)
    print(f"here: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def one(kind: str, number: int, place: Path, cluster: NamespaceCluster) -> dict[str, Any]:
    """Predict with a fault, repeat the command until it succeeds, and judge the folder."""
    draw, output, began = random.Random(number), place / f"out{number}", time.monotonic()
    words = ampft("predict", "--model", place / "run", place / "in", "--output_dir", output)
    codes: list[int] = []
    workers_at_work = 0
    log = (place / f"out{number}.log").open("ab")
    name = draw.choice(NODES)
    while not codes or (codes[-1] and len(codes) < 3):
        command = [*words, "--engine", "ray"]
        with subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as driver:
            if not codes and kind != "none":
                wanted = draw.randint(1, 3)
                while driver.poll() is None and len(list(output.glob("*.parquet"))) < wanted:
                    time.sleep(0.05)
                workers_at_work = len(cluster.workers("ShardActor"))
                if kind in ("worker", "stopped"):
                    for worker in cluster.workers("ShardActor")[:1]:
                        worker.send_signal(signal.SIGKILL if kind == "worker" else signal.SIGSTOP)
                elif kind == "driver" and driver.poll() is None:
                    os.kill(driver.pid, signal.SIGKILL)
                elif kind == "node":
                    cluster.kill(name)
                elif kind == "cut":
                    cluster.cut(name)
        codes.append(driver.returncode)
    seconds = time.monotonic() - began
    if kind in ("node", "cut"):
        cluster.kill(name)
        cluster.wait_until_gone(name)
        cluster.add(name)
    text = (place / f"out{number}.log").read_text(encoding="utf-8", errors="replace")
    print(text, file=sys.stderr)
    return {
        "number": number,
        "kind": kind,
        "seconds": round(seconds, 1),
        "exit_codes": codes,
        "workers_at_work": workers_at_work,
        "equal": contents(output) == contents(place / "here"),
        "written": text.count("wrote "),
        "files": len(list((place / "in").iterdir())),
    }


def main() -> None:
    """Predict in a new network namespace, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--files", type=int, default=12, metavar="INT")
    parser.add_argument("--rows", type=int, default=4000, metavar="INT")
    parser.add_argument("--faults", type=int, default=5, metavar="INT")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="LIST")
    args = parser.parse_args()
    in_own_network()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    kinds, rows = args.kinds.split(","), []
    with tempfile.TemporaryDirectory(prefix="predict-") as folder:
        prepare(Path(folder), args.files, args.rows)
        with NamespaceCluster(*NODES) as cluster, ray_address(cluster):
            for number in range(args.faults):
                rows.append(one(kinds[number % len(kinds)], number, Path(folder), cluster))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    # A shard is written once, or again if the command was killed between file and message.
    good = [row["equal"] and row["exit_codes"][-1] == 0 for row in rows]
    print(json.dumps({"rows": rows, "good": sum(good), **provenance()}))
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main()
