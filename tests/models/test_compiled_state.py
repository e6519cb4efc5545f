"""The weights of a compiled model in several processes."""

import torch
from accelerate import Accelerator
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ampft.models.weights import gather_model_state


def test_reading_the_weights_leaves_a_compiled_model_distributed():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = torch.compile(DistributedDataParallel(nn.Linear(2, 2)), backend="eager")
        assert set(gather_model_state(Accelerator(cpu=True), model)) == {"weight", "bias"}
        assert isinstance(model._orig_mod, DistributedDataParallel)
    finally:
        distributed.destroy_process_group()
