"""Three processes on two nodes train like one; a node is a launcher with a rank of its own."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, Training, flat_weights, relative_error, tensor_problem
from global_state import fresh_global_state
from running import clean_environment
from three_processes import RUN_NAME, SECONDS_UNTIL_HUNG, TRAININGS, run_flags
from tiny_text import LABELS, tiny_texts
from two_processes import EFFECTIVE, problem_named, trained

from ampft.arguments import parse_classify_arguments
from ampft.runs.train import train

HERE = Path(__file__).parent
NODES = (2, 1)  # processes per node

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.usefixtures("fresh_accelerate")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with train.csv, validation.csv and test.csv."""
    folder = tmp_path_factory.mktemp("nodes")
    for seed, (name, count) in enumerate({"train": 25, "validation": 7, "test": 5}.items()):
        texts = tiny_texts(count, seed=seed)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            names = [LABELS[label] for label in texts["label"]]
            writer.writerows(zip(texts["text"], names, strict=True))
    return folder


@pytest.fixture(scope="module")
def ranks(tiny_bert, folder):
    """The results of each process; the nodes are launched once for all tests."""
    returncodes, errors = launched(tiny_bert, folder)
    assert returncodes == [0, 0], "".join(text[-9000:] for text in errors)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(3)]


def launched(tiny_bert: Path, folder: Path) -> tuple[list[int], list[str]]:
    """Launch the nodes once; return the exit codes of the launchers and what they wrote to stderr.

    A process that hangs writes its stacks and ends itself, and its launcher ends the others.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = clean_environment(
        ACCELERATE_USE_CPU="true",
        PYTHONPATH=os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parent.parent))),
    )
    paths = [folder / f"stderr{rank}" for rank in range(len(NODES))]
    with contextlib.ExitStack() as stack:
        launchers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
                     "--node_rank", str(rank), "--nproc_per_node", str(processes),
                     "--master_addr", "127.0.0.1", "--master_port", str(port),
                     HERE / "three_processes.py", tiny_bert, folder],
                    env=environment, stdout=subprocess.DEVNULL,
                    stderr=stack.enter_context(paths[rank].open("w")),
                )
            )
            for rank, processes in enumerate(NODES)
        ]  # fmt: skip
        try:
            deadline = time.monotonic() + 2 * SECONDS_UNTIL_HUNG
            for launcher in launchers:
                launcher.wait(timeout=max(1.0, deadline - time.monotonic()))
        finally:
            for launcher in launchers:
                launcher.terminate()  # ends its processes too, which `kill` would not
    return [launcher.returncode for launcher in launchers], [path.read_text() for path in paths]


def test_the_processes_are_on_two_nodes(ranks):
    assert [rank["node"] for rank in ranks] == [0, 0, 1]


@pytest.mark.parametrize(("mode", "name"), TRAININGS)
def test_one_process_and_three_train_alike(ranks, tiny_bert, mode, name):
    problem = problem_named(name, tiny_bert)
    single = trained(mode, problem, batch_size=EFFECTIVE, micro_batches=1)
    three = [rank[f"{mode} {name}"] for rank in ranks]
    for rank in three:
        assert rank["effective_ids"] == single["effective_ids"]
        for actual, expected in zip(rank["gradients"], single["gradients"], strict=True):
            assert relative_error(actual, expected) <= GRADIENT_TOLERANCE[mode]
        assert rank["losses"] == pytest.approx(single["losses"], rel=GRADIENT_TOLERANCE[mode])
        assert torch.equal(rank["weights"], three[0]["weights"])
    ids_per_step = zip(*(rank["ids"] for rank in three), strict=True)
    for shares, ids in zip(ids_per_step, single["ids"], strict=True):
        assert sorted(np.concatenate(shares)) == sorted(ids)
    assert [[len(ids) for ids in rank["ids"]] for rank in three] == [
        [4, 4, 1],
        [4, 4, 0],
        [4, 4, 0],
    ]


def test_the_first_step_after_a_continuation_adds_in_the_same_order(ranks):
    """`DistributedDataParallel` would arrange gradients anew after its first step."""
    for rank in ranks:
        straight, continued = rank["gradients"]
        assert len(continued) == 2
        for expected, actual in zip(straight[1:], continued, strict=True):
            assert torch.equal(actual, expected)


def test_fewer_examples_than_processes(ranks):
    training = Training("fp32", tensor_problem(n=2), 2)
    single = [step.gradient for step in training.steps(epochs=2)]
    for rank in ranks:
        for actual, expected in zip(rank["fewer"]["gradients"], single, strict=True):
            assert relative_error(actual, expected) <= GRADIENT_TOLERANCE["fp32"]
        error = relative_error(rank["fewer"]["weights"], flat_weights(training.model))
        assert error <= GRADIENT_TOLERANCE["fp32"]
    assert ranks[2]["fewer"]["ids"] == [[], []]
    assert sorted(ranks[0]["fewer"]["ids"][0] + ranks[1]["fewer"]["ids"][0]) == [0, 1]


def test_every_example_counts_once(ranks):
    for rank in ranks:
        assert len(rank["evaluated"]) == 17 * 5
        for n, _, ids, confusion, _ in rank["evaluated"]:
            assert ids == list(range(n))
            assert np.sum(confusion) == n


def test_an_overflow_on_one_process_skips_the_step_on_all(ranks):
    for rank in ranks:
        assert rank["overflow"]["skipped"] == [False, True]
        assert rank["overflow"]["scales"] == [65536.0, 32768.0]
        first, second = rank["overflow"]["weights"]
        assert torch.equal(first, second)
        assert torch.equal(first, ranks[0]["overflow"]["weights"][0])


def test_nan_on_one_process_stops_all_before_the_update(ranks):
    for rank in ranks:
        assert "the gradient is not finite" in rank["nan"]["message"]
        assert rank["nan"]["unchanged"]


def test_one_process_and_three_give_the_same_report(ranks, tiny_bert, folder, tmp_path):
    alone = tmp_path / "alone"
    with fresh_global_state():
        train(parse_classify_arguments(run_flags(tiny_bert, folder, alone, 1)))
    one, three = (read(path, "run.json") for path in (alone, folder / RUN_NAME))
    assert (one["topology"]["num_processes"], three["topology"]["num_processes"]) == (1, 3)
    for name in ("example_ids_sha256", "label_names"):
        assert three[name] == one[name]
    assert three["data"] == one["data"]
    assert three["model"] == one["model"]
    reports = [read(path, "report.json") for path in (alone, folder / RUN_NAME)]
    assert reports[1]["confusion_matrix"] == reports[0]["confusion_matrix"]
    assert reports[1]["log_loss"] == pytest.approx(reports[0]["log_loss"], rel=1e-6)
    assert reports[0]["examples"] == 5


@pytest.mark.add_ons
def test_one_process_confirms_the_run_of_three(ranks, folder):
    with fresh_global_state():
        from ampft.lab.audit.audit import audit_run

        audit = audit_run(folder / RUN_NAME, (), steps=None, cpu=True)
    assert audit.verdict in ("confirmed", "confirmed within tolerance")
    assert audit.machine == ("processes 1 instead of 3",)


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())
