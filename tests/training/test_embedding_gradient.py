"""The gradient of a large embedding table: the same bits, in memory that is kept."""

import copy
import math
import pickle

import pytest
import torch
from exact_step import Training, flat_weights, text_problem
from tiny_text import tiny_task
from torch import nn

from ampft.tasks import embeddings
from ampft.tasks.embeddings import MAPPED_BYTES, keep_gradient_memory

WIDTH = 64
WORDS = MAPPED_BYTES // 4 // WIDTH + 1


def table(**options):
    torch.manual_seed(0)
    return nn.Embedding(WORDS, WIDTH, **options)


def words(count=500):
    # Word frequencies are skewed: many occurrences of one word add up in one row.
    return (torch.rand(4, count) ** 4 * WORDS).long()


def train(layer, ids, scale=1.0):
    weights = torch.rand(*ids.shape, WIDTH, generator=torch.Generator().manual_seed(1))
    (layer(ids) * weights * scale).sum().backward()
    return layer.weight.grad


@pytest.mark.parametrize("padding_idx", [None, 0, 7])
def test_outputs_and_gradients_are_those_of_torch(padding_idx):
    plain, kept = table(padding_idx=padding_idx), table(padding_idx=padding_idx)
    keep_gradient_memory(kept)
    for _ in range(3):  # the second step finds the first one's memory
        ids = words()
        ids[:, -20:] = 7
        assert torch.equal(kept(ids), plain(ids))
        assert torch.equal(train(kept, ids), train(plain, ids))
        plain.zero_grad()
        kept.zero_grad()


def test_the_memory_is_the_same_in_every_step():
    layer = table()
    keep_gradient_memory(layer)
    addresses = set()
    for _ in range(4):
        addresses.add(train(layer, words()).data_ptr())
        layer.zero_grad()
    assert len(addresses) == 1


def test_gradients_add_up_over_micro_batches_in_two_blocks(monkeypatch):
    plain, kept = table(), table()
    keep_gradient_memory(kept)
    allocated = []
    monkeypatch.setattr(
        torch, "empty", lambda *a, _empty=torch.empty, **k: allocated.append(a) or _empty(*a, **k)
    )
    for _ in range(2):
        for _ in range(3):
            ids = words()
            train(plain, ids)
            train(kept, ids)
        assert torch.equal(kept.weight.grad, plain.weight.grad)
        plain.zero_grad()
        kept.zero_grad()
    assert allocated == [((WORDS, WIDTH),), ((WORDS, WIDTH),)]


@pytest.mark.parametrize(
    "view", [lambda g: g, lambda g: g.detach(), lambda g: g[5:].view(-1), lambda g: g.numpy()]
)
def test_a_gradient_that_somebody_holds_is_not_written_to(view):
    layer = table()
    keep_gradient_memory(layer)
    held = []
    for _ in range(4):
        gradient = train(layer, words())
        held.append((view(gradient), torch.as_tensor(view(gradient)).clone()))
        del gradient
        layer.zero_grad()
    for found, expected in held:
        assert torch.equal(torch.as_tensor(found), expected)


def test_what_was_not_finite_does_not_stay():
    layer = table()
    keep_gradient_memory(layer)
    train(layer, words(), scale=float("inf")).mul_(0)  # as clipping leaves it: NaN in touched rows
    layer.weight.grad.fill_(float("nan"))
    layer.zero_grad()
    assert train(layer, words()).isfinite().all()


def test_a_copy_has_gradients_of_its_own():
    model = nn.Sequential(table())
    keep_gradient_memory(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        train(twin[0], words())
        assert model[0].weight.grad is None
        before = twin[0].weight.grad.clone()
        train(model[0], words())
        assert torch.equal(twin[0].weight.grad, before)
        model.zero_grad()


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.bfloat16(),
        lambda layer: setattr(layer, "sparse", True),
        lambda layer: setattr(layer, "scale_grad_by_freq", True),
        lambda layer: setattr(layer, "max_norm", 1.0),
        lambda layer: layer.requires_grad_(requires_grad=False),
        lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight[:100].detach())),
    ],
    ids=["bfloat16", "sparse", "scaled", "max_norm", "frozen", "small"],
)
def test_other_tables_stay_as_they_are(change, monkeypatch):
    layer = table()
    keep_gradient_memory(layer)
    change(layer)
    monkeypatch.setattr(embeddings, "_Lookup", None)
    layer(torch.tensor([1, 2]))


def test_no_gradient_no_memory(monkeypatch):
    layer = table()
    keep_gradient_memory(layer)
    monkeypatch.setattr(embeddings, "_Lookup", None)
    with torch.inference_mode():
        layer(torch.tensor([1, 2]))


def test_a_gradient_can_be_differentiated():
    plain, kept = table(), table()
    keep_gradient_memory(kept)
    found = []
    for layer in (plain, kept):
        ids = torch.tensor([[3, 5, 3]])
        (gradient,) = torch.autograd.grad(layer(ids).pow(3).sum(), layer.weight, create_graph=True)
        gradient.pow(2).sum().backward()
        found.append(layer.weight.grad)
    assert torch.equal(*found)


def test_it_can_be_undone(monkeypatch):
    layer = table()
    undo = keep_gradient_memory(layer)
    undo()
    monkeypatch.setattr(embeddings, "_Lookup", None)
    layer(torch.tensor([1, 2]))


def test_a_table_of_another_size_takes_its_place():
    layer = table()
    keep_gradient_memory(layer)
    train(layer, words())
    layer.weight = nn.Parameter(torch.zeros(WORDS + 10, WIDTH))
    assert train(layer, words() + 10).shape == (WORDS + 10, WIDTH)


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_training_is_the_same_bit_for_bit(tiny_bert, mode, micro_batches, monkeypatch):
    ends, addresses = [], []
    for smallest in (math.inf, 0):
        monkeypatch.setattr(embeddings, "MAPPED_BYTES", smallest)
        subject = Training(
            mode,
            text_problem(tiny_task(tiny_bert, train=24)),
            batch_size=12 // micro_batches,
            micro_batches=micro_batches,
        )
        gradients = [] if smallest else addresses
        weight = subject.model.get_input_embeddings().weight
        weight.register_post_accumulate_grad_hook(
            lambda w, to=gradients: to.append(w.grad.data_ptr())
        )
        assert len(list(subject.steps(epochs=2))) == 4
        ends.append(flat_weights(subject.model))
    assert torch.equal(*ends)
    assert len(set(addresses)) == 1
