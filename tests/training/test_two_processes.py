"""Two processes do what one does: same ids, gradients, weights, predictions, and skip together."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, relative_error
from two_processes import EFFECTIVE, EXAMPLES, problem_named, trained

HERE = Path(__file__).parent
TRAININGS = [
    (mode, name, micro_batches)
    for mode in ("fp32", "fp16")
    for name in ("padded", "padding-free")
    for micro_batches in (1, 2)
]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_accelerate")]


@pytest.fixture(scope="module")
def ranks(tiny_bert, tmp_path_factory):
    """What each of two processes found; one launch for all tests."""
    results = tmp_path_factory.mktemp("ranks")
    paths = [HERE, HERE.parent, HERE.parent.parent]
    own = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    own["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
               "2", HERE / "two_processes.py", tiny_bert, results]  # fmt: skip
    with subprocess.Popen(
        list(map(str, command)), env=inherited | own, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            _, errors = launcher.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # it ends its processes; killed, it would leave them behind
            raise
    assert launcher.returncode == 0, errors[-4000:]
    return [torch.load(results / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize(("mode", "name", "micro_batches"), TRAININGS)
def test_one_process_and_two_train_alike(ranks, tiny_bert, mode, name, micro_batches):
    problem = problem_named(name, tiny_bert)
    alone = trained(mode, problem, batch_size=EFFECTIVE, micro_batches=1)
    pair = [rank[f"{mode} {name} {micro_batches}"] for rank in ranks]
    for rank in pair:
        assert rank["effective_ids"] == alone["effective_ids"]
        # Both hold the gradient of all, though each saw a share.
        for found, expected in zip(rank["gradients"], alone["gradients"], strict=True):
            assert relative_error(found, expected) <= GRADIENT_TOLERANCE[mode]
        assert relative_error(rank["weights"], alone["weights"]) <= GRADIENT_TOLERANCE[mode]
        assert rank["losses"] == pytest.approx(alone["losses"], rel=GRADIENT_TOLERANCE[mode])
    assert torch.equal(pair[0]["weights"], pair[1]["weights"])
    for first, second, whole in zip(pair[0]["ids"], pair[1]["ids"], alone["ids"], strict=True):
        assert sorted(first + second) == sorted(whole)
    assert [len(ids) for ids in pair[0]["ids"]] == [6, 6, 1]
    assert [len(ids) for ids in pair[1]["ids"]] == [6, 6, 0]
    assert sum(map(len, alone["ids"])) == EXAMPLES


def test_every_example_counts_once(ranks):
    for rank in ranks:
        assert [(n, batch) for n, batch, *_ in rank["evaluated"]] == [
            (n, batch) for n in range(1, 18) for batch in range(1, 6)
        ]
        for n, _, ids, confusion, _ in rank["evaluated"]:
            assert ids == list(range(n))
            assert np.sum(confusion) == n


def test_predictions_depend_on_neither_process_nor_batch_size(ranks):
    whole = {n: probabilities for n, batch, *_, probabilities in ranks[0]["evaluated"]}
    for rank in ranks:
        for n, _, _, _, probabilities in rank["evaluated"]:
            torch.testing.assert_close(probabilities, whole[n], rtol=0, atol=1e-6)


def test_an_overflow_on_one_process_skips_the_step_on_both(ranks):
    for rank in ranks:
        found = rank["overflow"]
        assert found["skipped"] == [False, True, False]
        assert found["scales"] == [65536.0, 32768.0, 32768.0]
        assert found["rates"] == pytest.approx([0.01, 0.005, 0.005])
        first, second, third = found["weights"]
        assert torch.equal(first, second)
        assert not torch.equal(second, third)
    pairs = zip(ranks[0]["overflow"]["weights"], ranks[1]["overflow"]["weights"], strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_nan_on_one_process_stops_both_before_the_update(ranks, mode):
    for rank in ranks:
        assert "the gradient is not finite" in rank[f"nan {mode}"]["message"]
        assert rank[f"nan {mode}"]["unchanged"]


def test_all_processes_take_the_smallest_micro_batch_that_one_needs(ranks):
    assert [rank["micro_batches"] for rank in ranks] == [4, 4]
