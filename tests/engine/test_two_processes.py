"""Two processes train like one: same ids, gradients, weights, predictions and skipped steps."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, Training, flat_gradient, relative_error
from two_processes import (
    EFFECTIVE,
    EXAMPLES,
    MEDIA,
    NAMES,
    PARTS,
    dropout_problem,
    media_problem,
    problem_named,
    trained,
)

from ampft.own.replay import replay_step

HERE = Path(__file__).parent
TRAININGS = [
    (mode, name, micro_batches)
    for mode in ("fp32", "fp16")
    for name in (*NAMES, *PARTS)
    for micro_batches in (1, 2)
]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_accelerate")]


@pytest.fixture(scope="module")
def ranks(tiny_bert, tmp_path_factory):
    """The results of each of two processes; they are launched once for all tests."""
    results = tmp_path_factory.mktemp("ranks")
    paths = [HERE, HERE.parent, HERE.parent.parent]
    settings = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    settings["PYTHONHASHSEED"] = "0"
    settings["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
               "2", HERE / "two_processes.py", tiny_bert, results]  # fmt: skip
    with subprocess.Popen(
        list(map(str, command)), env=inherited | settings, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            _, errors = launcher.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # ends its processes too, which `kill` would not
            raise
    assert launcher.returncode == 0, errors[-4000:]
    ranks = [torch.load(results / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    return [{**rank, "folder": results} for rank in ranks]


@pytest.mark.parametrize(("mode", "name", "micro_batches"), TRAININGS)
def test_one_process_and_two_train_alike(ranks, tiny_bert, mode, name, micro_batches):
    problem = problem_named(name, tiny_bert)
    single = trained(mode, problem, batch_size=EFFECTIVE, micro_batches=1)
    pair = [rank[f"{mode} {name} {micro_batches}"] for rank in ranks]
    for rank in pair:
        assert rank["effective_ids"] == single["effective_ids"]
        # Both have the gradient of all examples, although each processed only a share.
        for actual, expected in zip(rank["gradients"], single["gradients"], strict=True):
            assert relative_error(actual, expected) <= GRADIENT_TOLERANCE[mode]
        assert relative_error(rank["weights"], single["weights"]) <= GRADIENT_TOLERANCE[mode]
        assert rank["losses"] == pytest.approx(single["losses"], rel=GRADIENT_TOLERANCE[mode])
    assert torch.equal(pair[0]["weights"], pair[1]["weights"])
    for first, second, both in zip(pair[0]["ids"], pair[1]["ids"], single["ids"], strict=True):
        assert sorted(first + second) == sorted(both)
    assert [len(ids) for ids in pair[0]["ids"]] == [6, 6, 1]
    assert [len(ids) for ids in pair[1]["ids"]] == [6, 6, 0]
    assert sum(map(len, single["ids"])) == EXAMPLES


def test_every_example_counts_once(ranks):
    for rank in ranks:
        assert [(n, batch) for n, batch, *_ in rank["evaluated"]] == [
            (n, batch) for n in range(1, 18) for batch in range(1, 6)
        ]
        for n, _, ids, confusion, _ in rank["evaluated"]:
            assert ids == list(range(n))
            assert np.sum(confusion) == n


def test_predictions_depend_on_neither_process_nor_batch_size(ranks):
    expected = {n: probabilities for n, batch, *_, probabilities in ranks[0]["evaluated"]}
    for rank in ranks:
        for n, _, _, _, probabilities in rank["evaluated"]:
            torch.testing.assert_close(probabilities, expected[n], rtol=0, atol=1e-6)


def test_an_overflow_on_one_process_skips_the_step_on_both(ranks):
    for rank in ranks:
        overflow = rank["overflow"]
        assert overflow["skipped"] == [False, True, False]
        assert overflow["scales"] == [65536.0, 32768.0, 32768.0]
        assert overflow["rates"] == pytest.approx([0.01, 0.005, 0.005])
        first, second, third = overflow["weights"]
        assert torch.equal(first, second)
        assert not torch.equal(second, third)
    pairs = zip(ranks[0]["overflow"]["weights"], ranks[1]["overflow"]["weights"], strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_nan_on_one_process_stops_both_before_the_update(ranks, mode):
    for rank in ranks:
        assert "the gradient is not finite" in rank[f"nan {mode}"]["message"]
        assert rank[f"nan {mode}"]["unchanged"]


def test_all_processes_use_the_smallest_micro_batch_that_one_needs(ranks):
    assert [rank["micro_batches"] for rank in ranks] == [4, 4]


def test_nan_on_one_process_is_skipped_by_both(ranks):
    (first, weights), (second, others) = (rank["skipped_steps"] for rank in ranks)
    assert first == second == [False, True, False]
    assert torch.equal(weights, others)
    assert weights.isfinite().all()


def test_a_step_saved_by_two_processes_is_replayed_by_one(ranks):
    training = Training("fp32", dropout_problem(), 12)
    replay = replay_step(
        ranks[0]["folder"] / "step-1", training.accelerator, training.model, training.problem.loss
    )
    assert replay.is_exact
    assert [len(losses) for losses in replay.losses] == [3, 3]
    gradient = flat_gradient(training.model)
    # Each process multiplied its losses by two, because the gradients are averaged.
    assert relative_error(gradient, ranks[0]["saved_step"]) <= GRADIENT_TOLERANCE["fp32"]


def test_all_processes_stop_when_the_time_limit_passes_on_one(ranks):
    assert [rank["time_limits"] for rank in ranks] == [[False, True]] * 2


def test_a_signal_to_one_process_is_a_request_in_all(ranks):
    assert [rank["stop_requests"] for rank in ranks] == [["none", "SIGUSR1"]] * 2


def test_votes_travel_with_the_loss(ranks):
    assert [rank["votes"] for rank in ranks] == [[3.0, "SIGUSR1"]] * 2


@pytest.mark.parametrize("family", MEDIA)
def test_images_and_sounds_train_alike(ranks, tmp_path, family):
    problem = media_problem(tmp_path / "single", family)
    single = trained("fp32", problem, batch_size=EFFECTIVE, micro_batches=1)
    for rank in (rank[family] for rank in ranks):
        assert rank["effective_ids"] == single["effective_ids"]
        for actual, expected in zip(rank["gradients"], single["gradients"], strict=True):
            # Products of other shapes have sums in another order.
            assert relative_error(actual, expected) <= 10 * GRADIENT_TOLERANCE["fp32"]


@pytest.mark.parametrize("family", MEDIA)
def test_processes_look_for_parameters_without_gradient_only_where_there_are_some(ranks, family):
    assert [rank[family]["finds_unused"] for rank in ranks] == [family == "dinov2"] * 2
