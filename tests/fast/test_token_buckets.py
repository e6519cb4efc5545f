"""Fillers up to a multiple of tokens: shapes become few, and results stay the same."""

import copy
import dataclasses

import pytest
import torch
from tiny_encoders import loss_and_gradient, relative_error, right_padded, tiny, without_dropout
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.fast.packing.install import install_packing
from ampft.fast.packing.layout import PackedLayout, pack_layout

NAMES = [
    "bert",
    "bert, tokens",
    "deberta-v3",
    "llama",
    "modernbert, mean",
    "mpnet",
    "roberta",
    "t5",
]
LENGTHS = [3, 17, 17, 1, 30]  # 68 tokens
FP64_TOLERANCE = 1e-13


@pytest.mark.parametrize("bucket", [16, 100, 128])
@pytest.mark.parametrize("name", NAMES)
def test_fillers_change_neither_logits_nor_gradients(name, bucket):
    plain = without_dropout(tiny(name)).double()
    filled = copy.deepcopy(plain)
    install_packing(plain)
    handle = install_packing(filled, token_buckets=bucket)
    batch = right_padded(plain, LENGTHS)
    expected, actual = loss_and_gradient(plain, batch), loss_and_gradient(filled, batch)
    assert handle.paths == {"packed": 1}
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= FP64_TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_fillers_contain_does_not_matter(name, dtype, monkeypatch):
    model = without_dropout(tiny(name))
    install_packing(model, token_buckets=64)
    batch = right_padded(model, LENGTHS)

    def run():
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            return loss_and_gradient(model, batch)

    expected, fill = run(), PackedLayout.filled

    def with_another_token(layout, bucket):
        layout = fill(layout, bucket)
        tokens = layout.host_tokens.clone()
        tokens[-layout.fillers :] = 31  # the second token of the second text
        return dataclasses.replace(layout, host_tokens=tokens)

    monkeypatch.setattr(PackedLayout, "filled", with_another_token)
    for one, other in zip(run(), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("width", "bucket"), [(5, 8), (5, 64), (30, 8), (3, 1)])
def test_a_filled_row(width, bucket):
    mask = torch.arange(width) < torch.tensor([width, 2, 1])[:, None]
    layout = pack_layout(mask)
    filled = layout.filled(bucket)
    assert filled.total % bucket == 0
    assert 1 <= filled.fillers <= bucket
    assert filled.total == sum(filled.lengths) == layout.total + filled.fillers
    assert filled.longest == width
    assert int(filled.columns.max()) < width
    ends = [group.start + group.tokens for group in filled.groups]
    assert [0, *ends[:-1]] == [group.start for group in filled.groups]
    assert ends[-1] == filled.total
    values = torch.arange(mask.numel()).view(mask.shape)
    assert torch.equal(filled.scatter(filled.gather(values)), values * mask)


class Shapes(TorchDispatchMode):
    """Collects the shapes of the products of linear layers."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name() in ("aten::addmm", "aten::mm"):
            self.seen.add(tuple(a.shape for a in args if isinstance(a, torch.Tensor)))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("bucket", [None, 64])
def test_products_have_the_same_shapes_for_other_lengths(bucket):
    model = without_dropout(tiny("bert"))
    install_packing(model, token_buckets=bucket)
    seen = []
    for lengths in ([5, 17, 1, 17], [4, 19, 2, 12]):
        with Shapes() as shapes:
            loss_and_gradient(model, right_padded(model, lengths))
        seen.append(shapes.seen)
    assert seen[0]
    assert (seen[0] == seen[1]) == (bucket is not None)
