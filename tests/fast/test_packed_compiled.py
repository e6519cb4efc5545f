"""Models without padding under torch.compile."""

import copy
import shutil

import pytest
import torch
import torch._dynamo
from representatives import full_except
from tape import masked_attention
from tiny_encoders import (
    ENCODERS,
    PackedAs,
    loss_and_gradient,
    relative_error,
    right_padded,
    tiny,
    without_dropout,
)
from torch import nn
from torch._dynamo.utils import counters

from ampft.fast.packing import packed_attention
from ampft.fast.packing.cpu_kernels import install_fast_dropout
from ampft.fast.packing.install import install_packing
from ampft.fast.packing.layout import PackedLayout, pack_layout
from ampft.fast.packing.verification import evaluation_mode
from ampft.precision.compilation import RECOMPILE_LIMIT

# Of torch about itself, while it traces.
pytestmark = pytest.mark.filterwarnings("ignore")
LENGTHS = ([3, 9, 4, 9], [12, 2, 5, 7], [20, 6, 6, 1], [4, 31, 8, 8])


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
        yield
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(ENCODERS))
def test_compiled_steps_draw_the_same_masks_and_have_the_same_gradients(family):
    plain = tiny(family).train()
    twin = copy.deepcopy(plain)
    install_packing(plain)
    install_packing(twin)
    compiled = torch.compile(twin, backend="aot_eager")
    for seed, lengths in enumerate(LENGTHS):
        batch = right_padded(plain, lengths)
        results = []
        for model in (plain, compiled):
            torch.manual_seed(seed)
            results.append(loss_and_gradient(model, batch))
        for one, other in zip(*results, strict=True):
            assert relative_error(one, other) <= 1e-6
        with evaluation_mode(plain), evaluation_mode(compiled):
            one, other = (model(**batch).logits for model in (plain, compiled))
        assert relative_error(one, other) <= 1e-6
    assert counters["stats"]["unique_graphs"] > 0
    assert not any("recompile limit" in reason for reason in counters["unimplemented"])


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_computes_the_same_gradient():
    plain = without_dropout(tiny("bert"))
    twin = copy.deepcopy(plain)
    install_packing(plain)
    install_packing(twin)
    compiled = torch.compile(twin)
    for lengths in LENGTHS:
        batch = right_padded(plain, lengths)
        pairs = zip(
            loss_and_gradient(compiled, batch), loss_and_gradient(plain, batch), strict=True
        )
        for one, other in pairs:
            assert relative_error(one, other) <= 1e-6
    assert counters["stats"]["unique_graphs"] > 0


@pytest.mark.slow
def test_two_dropouts_of_one_compiled_graph_have_two_masks():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, inputs):
            return self.dropout(inputs), self.dropout(inputs + 0)

    model = Twice()
    install_fast_dropout(model)
    one, other = torch.compile(model, backend="aot_eager")(torch.ones(64, 64))
    assert not torch.equal(one, other)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    "family", full_except(["bert", "distilbert", "llama", "roberta"], ["bert"])
)
def test_attention_over_a_whole_row_is_compiled_with_the_encoder(family, monkeypatch):
    """As on a GPU, whose kernels compute whole rows: here plain torch does."""
    monkeypatch.setattr(packed_attention, "choose_kernel", lambda *_, **__: masked_attention)
    is_bucketed = property(lambda layout: layout.host_targets is not None)
    monkeypatch.setattr(PackedLayout, "compiles_attention", is_bucketed)
    plain = without_dropout(tiny(family)).train()
    twin = copy.deepcopy(plain)
    install_packing(plain)
    install_packing(twin)
    compiled = torch.compile(twin, backend="aot_eager")
    graphs = []
    for lengths in LENGTHS:
        batch = right_padded(plain, [*lengths, 31])
        packing = pack_layout(batch["attention_mask"]).bucketed(128, 40)
        expected, actual = (
            loss_and_gradient(PackedAs(model, packing), batch) for model in (plain, compiled)
        )
        for one, other in zip(actual, expected, strict=True):
            assert relative_error(one, other) <= 1e-6
        graphs.append(counters["stats"]["unique_graphs"])
    assert len(set(graphs)) == 1, "compiled again for another batch of the same bucket"
    assert graphs[0] > 0
    reasons = " ".join(counters["graph_break"])
    # The encoder of llama is the whole base model, whose hooks are called before and after a graph.
    assert ("_unpack" in reasons) == (family != "llama"), "the layer after it is called as it is"
    assert "_packed_attention" not in reasons


@pytest.mark.slow
def test_attention_in_groups_is_not_compiled():
    """The negative control."""
    model = without_dropout(tiny("bert")).train()
    install_packing(model)
    batch = right_padded(model, LENGTHS[0])
    loss_and_gradient(torch.compile(model, backend="eager"), batch)
    assert "_packed_attention" in " ".join(counters["graph_break"])
