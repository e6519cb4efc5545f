"""The encoder without padding, compiled with the attention kernels of a GPU."""

import pytest
import torch
import torch._dynamo
from fake_cuda import CUDA, cuda_autocast, fake_mode, outputs, to_cuda
from representatives import full_except
from test_tasks import _host  # noqa: F401 # a fixture
from tiny_encoders import right_padded, tiny, without_dropout
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ampft.data.step_batches import MicroBatch
from ampft.fast.packing.install import install_packing
from ampft.fast.static_shapes import StaticShapes

KERNELS = {
    torch.bfloat16: "_flash_attention_forward",
    torch.float32: "_efficient_attention_forward",
}


@pytest.mark.filterwarnings("ignore")  # of torch about itself, while it traces
@pytest.mark.usefixtures("capability", "_host")
@pytest.mark.parametrize("dtype", KERNELS)
@pytest.mark.parametrize("name", full_except(["bert", "llama", "roberta"], ["bert"]))
def test_the_kernel_for_whole_rows_is_in_the_compiled_graph(name, dtype):
    """So that no custom operator is needed: the only breaks are at the ends of the encoder."""
    model, targets = tiny(name).train(), []
    if dtype == torch.float32:
        without_dropout(model)  # which the kernel does not have

    def recorded(graph, inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    with fake_mode():
        to_cuda(model)
        install_packing(model)
        with unset_fake_temporarily():
            batch = right_padded(model, [5, 17, 1, 20])
            part = StaticShapes(model, 40, 64).shaped(MicroBatch(None, batch, True, True))
        inputs = {key: value.to(CUDA) for key, value in part.inputs.items()}
        compiled = torch.compile(model, backend=recorded)
        torch._dynamo.reset()
        counters.clear()
        with cuda_autocast(dtype):
            outputs(compiled, inputs, packing=part.packing)
    layers = model.config.num_hidden_layers
    assert sum(KERNELS[dtype] in target for target in targets) == layers
    breaks = [reason.split("PackedModel.")[-1].split()[0] for reason in counters["graph_break"]]
    # The encoder of llama is the whole base model, whose hooks are called before and after a graph.
    assert sorted(breaks) == (["_pack"] if name == "llama" else ["_pack", "_unpack"])
