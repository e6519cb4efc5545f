"""The gradient of a large embedding table, bit for bit the same in reused memory."""

import copy
import gc
import math
import pickle
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from exact_step import Training, flat_weights, text_problem
from tiny_text import tiny_task
from torch import nn

from ampft.fast import embedding_gradient as embeddings
from ampft.fast.embedding_gradient import MMAP_THRESHOLD, reuse_embedding_gradient_memory

WIDTH = 64
WORDS = MMAP_THRESHOLD // 4 // WIDTH + 1


def table(**options):
    torch.manual_seed(0)
    return nn.Embedding(WORDS, WIDTH, **options)


def words(count=500):
    # Word frequencies are skewed, so that many occurrences of a word are summed in one row.
    return (torch.rand(4, count) ** 4 * WORDS).long()


def train(layer, ids, scale=1.0):
    weights = torch.rand(*ids.shape, WIDTH, generator=torch.Generator().manual_seed(1))
    (layer(ids) * weights * scale).sum().backward()
    return layer.weight.grad


def reused_address(layer):
    return layer.gradient_memory._block.ctypes.data


@pytest.fixture
def lookups(monkeypatch):
    """Ids of the tables whose lookup used reused memory."""
    table_ids, apply = [], embeddings._Lookup.apply
    monkeypatch.setattr(
        embeddings._Lookup,
        "apply",
        lambda weight, *rest: table_ids.append(id(weight)) or apply(weight, *rest),
    )
    return table_ids


def assert_uses_torchs_lookup(layer, lookups):
    """Check that `layer` uses torch's own lookup, and a changed table of the same kind does not."""
    control = table()
    reuse_embedding_gradient_memory(control)
    ids = torch.tensor([1, 2])
    control(ids)
    assert torch.equal(layer(ids), nn.functional.embedding(ids, layer.weight))
    assert lookups == [id(control.weight)]


@pytest.mark.parametrize("padding_idx", [None, 0, 7])
def test_outputs_and_gradients_equal_torchs(padding_idx):
    plain, reusing = table(padding_idx=padding_idx), table(padding_idx=padding_idx)
    reuse_embedding_gradient_memory(reusing)
    for _ in range(3):  # the second step reuses the memory of the first
        ids = words()
        ids[:, -20:] = 7
        assert torch.equal(reusing(ids), plain(ids))
        assert torch.equal(train(reusing, ids), train(plain, ids))
        plain.zero_grad()
        reusing.zero_grad()


def test_the_memory_is_the_same_in_every_step():
    layer = table()
    reuse_embedding_gradient_memory(layer)
    addresses = set()
    for _ in range(4):
        addresses.add(train(layer, words()).data_ptr())
        layer.zero_grad()
    assert addresses == {reused_address(layer)}


@pytest.mark.slow
def test_gradients_accumulate_over_micro_batches_in_the_reused_memory():
    plain, reusing = table(), table()
    reuse_embedding_gradient_memory(reusing)
    addresses = set()
    for _ in range(3):
        for _ in range(3):
            ids = words()
            train(plain, ids)
            addresses.add(train(reusing, ids).data_ptr())
        assert torch.equal(reusing.weight.grad, plain.weight.grad)
        plain.zero_grad()
        reusing.zero_grad()
    assert addresses == {reused_address(reusing)}


@pytest.mark.parametrize(
    "view", [lambda g: g, lambda g: g.detach(), lambda g: g[5:].view(-1), lambda g: g.numpy()]
)
def test_a_gradient_that_is_still_referenced_is_not_overwritten(view):
    layer = table()
    reuse_embedding_gradient_memory(layer)
    held = []
    for _ in range(4):
        gradient = train(layer, words())
        held.append((view(gradient), torch.as_tensor(view(gradient)).clone()))
        del gradient
        layer.zero_grad()
    for actual, expected in held:
        assert torch.equal(torch.as_tensor(actual), expected)


def test_nan_values_of_earlier_steps_are_cleared():
    layer = table()
    reuse_embedding_gradient_memory(layer)
    train(layer, words(), scale=float("inf")).mul_(
        0
    )  # NaN in the rows of the words, as after clipping
    layer.weight.grad.fill_(float("nan"))
    layer.zero_grad()
    assert train(layer, words()).isfinite().all()


@pytest.mark.slow
def test_a_copy_has_its_own_gradients():
    model = nn.Sequential(table())
    reuse_embedding_gradient_memory(model)
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
def test_unsupported_tables_use_torchs_lookup(change, lookups):
    layer = table()
    reuse_embedding_gradient_memory(layer)
    change(layer)
    assert_uses_torchs_lookup(layer, lookups)


@pytest.mark.slow
def test_a_gradient_can_be_differentiated():
    plain, reusing = table(), table()
    reuse_embedding_gradient_memory(reusing)
    gradients = []
    for layer in (plain, reusing):
        ids = torch.tensor([[3, 5, 3]])
        (gradient,) = torch.autograd.grad(layer(ids).pow(3).sum(), layer.weight, create_graph=True)
        gradient.pow(2).sum().backward()
        gradients.append(layer.weight.grad)
    assert torch.equal(*gradients)


def test_the_change_can_be_reverted(lookups):
    layer = table()
    undo = reuse_embedding_gradient_memory(layer)
    undo()
    assert type(layer) is nn.Embedding
    assert not hasattr(layer, "gradient_memory")
    assert_uses_torchs_lookup(layer, lookups)


def test_a_table_can_be_replaced_by_one_of_another_size():
    layer = table()
    reuse_embedding_gradient_memory(layer)
    train(layer, words())
    layer.weight = nn.Parameter(torch.zeros(WORDS + 10, WIDTH))
    assert train(layer, words() + 10).shape == (WORDS + 10, WIDTH)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_training_is_the_same_bit_for_bit(tiny_bert, mode, micro_batches, monkeypatch):
    ends, addresses = [], []
    for threshold in (math.inf, 0):
        monkeypatch.setattr(embeddings, "MMAP_THRESHOLD", threshold)
        subject = Training(
            mode,
            text_problem(tiny_task(tiny_bert, train=24)),
            batch_size=12 // micro_batches,
            micro_batches=micro_batches,
        )
        gradients = [] if threshold else addresses
        weight = subject.model.get_input_embeddings().weight
        weight.register_post_accumulate_grad_hook(
            lambda w, to=gradients: to.append(w.grad.data_ptr())
        )
        assert len(list(subject.steps(epochs=2))) == 4
        ends.append(flat_weights(subject.model))
    assert torch.equal(*ends)
    assert set(addresses) == {reused_address(subject.model.get_input_embeddings())}


def test_two_threads_never_receive_the_same_memory(monkeypatch):
    memory, shape, is_locked = (
        embeddings.ReusableGradientBuffer(),
        torch.Size((4, 4)),
        threading.Event(),
    )
    memory.zeros(shape)  # allocates the block, which is free again
    lent = []

    def slow_ref(referent):
        is_locked.set()
        time.sleep(0.2)
        return weakref.ref(referent)

    monkeypatch.setattr(embeddings, "weakref", SimpleNamespace(ref=slow_ref))
    first = threading.Thread(target=lambda: lent.append(memory.zeros(shape)))
    first.start()
    is_locked.wait()
    lent.append(memory.zeros(shape))
    first.join()
    assert lent[0].data_ptr() != lent[1].data_ptr()


@pytest.mark.parametrize("copied", [copy.copy, lambda layer: layer._replicate_for_data_parallel()])
def test_a_shallow_copy_looks_up_its_own_weights(copied):
    layer = table()
    reuse_embedding_gradient_memory(layer)
    twin = copied(layer)
    twin._parameters = {"weight": nn.Parameter(torch.full((WORDS, WIDTH), 5.0))}
    twin.weight = twin._parameters["weight"]
    assert torch.equal(twin(torch.tensor([3])), torch.full((1, WIDTH), 5.0))


def test_an_unreferenced_layer_is_freed():
    layer = table()
    reuse_embedding_gradient_memory(layer)
    train(layer, words())
    alive = weakref.ref(layer.weight)
    gc.disable()
    try:
        del layer
        assert alive() is None
    finally:
        gc.enable()


def test_a_pass_without_gradients_frees_the_memory():
    layer = table()
    reuse_embedding_gradient_memory(layer)
    train(layer, words())
    block = weakref.ref(layer.gradient_memory._block)
    layer.zero_grad()
    assert block() is not None
    with torch.no_grad():
        layer(input=torch.tensor([1]))
    assert block() is None


def test_another_default_dtype_has_no_effect():
    layer = table()
    reuse_embedding_gradient_memory(layer)
    torch.set_default_dtype(torch.float64)
    try:
        (layer(words())).sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:.torch\.jit\.\w+. is deprecated:FutureWarning")  # 2.14
def test_transformations_of_torch_work_as_before():
    ids, plain, reusing = torch.tensor([3, 5, 3]), table(), table()
    reuse_embedding_gradient_memory(reusing)

    def loss(weight, layer):
        return torch.func.functional_call(layer, {"weight": weight}, ids).pow(3).sum()

    def forward_mode(layer):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(layer.weight, torch.ones_like(layer.weight))
            out = torch.func.functional_call(layer, {"weight": dual}, ids)
            return torch.autograd.forward_ad.unpack_dual(out).tangent

    def vmapped(layer):
        return torch.func.vmap(layer)(ids[:, None])

    def traced(layer):
        return torch.jit.trace(layer, ids)(ids)

    for transformed in (forward_mode, vmapped, traced):
        assert torch.equal(transformed(reusing), transformed(plain)), transformed
    gradients = [torch.func.grad(loss)(layer.weight.detach(), layer) for layer in (reusing, plain)]
    assert torch.equal(*gradients)


def test_batched_gradients_raise_an_error():
    reusing = table()
    reuse_embedding_gradient_memory(reusing)
    out = reusing(torch.tensor([3, 5, 3]))
    with pytest.raises(RuntimeError, match="vmap"):
        torch.autograd.grad(out, reusing.weight, torch.ones(2, *out.shape), is_grads_batched=True)
