"""Operations per token against known counts, and the rate of matrix products."""

import math

import pytest
import torch
from tiny_text import save_tiny_bert
from torch import nn
from transformers import AutoModelForSequenceClassification

from ampft.features.resources import MAX_PRODUCT_SECONDS, flops_per_token, measure_utilisation
from ampft.precision import matrix_rate
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
WIDTH, FEED_FORWARD, LAYERS = 32, 64, 2
# Queries, keys, values and output, and the two matrices of the feed-forward part.
ENCODER_WEIGHTS = LAYERS * (4 * WIDTH**2 + 2 * WIDTH * FEED_FORWARD)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = save_tiny_bert(tmp_path_factory.mktemp("bert"))
    return AutoModelForSequenceClassification.from_pretrained(folder)


def test_six_operations_for_every_weight_of_the_encoder(bert):
    assert flops_per_token(bert) == 6 * ENCODER_WEIGHTS
    # Negative control: the excluded parameters are a substantial share.
    assert 6 * sum(p.numel() for p in bert.parameters()) > 1.2 * 6 * ENCODER_WEIGHTS
    assert flops_per_token(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3))) == 6 * 12


def test_the_operations_equal_torchs_count():
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    tokens = torch.ones(10, 8, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    assert counter.get_total_flops() == 10 * flops_per_token(model)


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_utilisation_is_relative_to_the_matrix_rate(bert, mode):
    precision = resolve(mode, CPU)
    if precision.is_emulated:
        pytest.skip("this CPU has no instructions for bfloat16")
    measured = measure_utilisation(
        flops_per_token(bert), precision, CPU, tokens_per_second=1e5, num_processes=2
    )
    assert measured.flops_per_token == 6 * ENCODER_WEIGHTS
    assert measured.matrix_rate_gflops > 0.1
    expected = 1e5 * 6 * ENCODER_WEIGHTS / (2 * 1e9 * measured.matrix_rate_gflops)
    assert math.isclose(measured.utilisation, expected)


@pytest.mark.add_ons
def test_emulated_modes_and_images_have_no_utilisation(bert):
    fp16 = measure_utilisation(
        flops_per_token(bert), resolve("fp16", CPU), CPU, tokens_per_second=1e5, num_processes=1
    )
    assert (fp16.matrix_rate_gflops, fp16.utilisation) == (None, None)
    assert fp16.flops_per_token == 6 * ENCODER_WEIGHTS
    images = measure_utilisation(
        flops_per_token(bert), resolve("fp32", CPU), CPU, tokens_per_second=None, num_processes=1
    )
    assert images.matrix_rate_gflops > 0.1
    assert (images.flops_per_token, images.utilisation) == (None, None)


@pytest.mark.parametrize("gflops", [5, 11, 60, 85, 90, 180, 400, 5000])
def test_the_measurement_takes_less_than_a_second(gflops, monkeypatch):
    # Products take as long as on a CPU of the given speed.
    durations = []

    def seconds(operand, device):
        durations.append(2 * len(operand) ** 3 / gflops / 1e9)
        return durations[-1]

    monkeypatch.setattr(matrix_rate, "_seconds", seconds)
    rate = matrix_rate.measure_matrix_rate(
        CPU, torch.float32, name="x", max_seconds=MAX_PRODUCT_SECONDS
    )
    assert math.isclose(rate.gflops, gflops)
    assert sum(durations) < 0.8
