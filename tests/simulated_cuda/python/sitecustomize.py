"""Gives each Python that starts here `torch.cuda` on the simulated device."""

import simulated_cuda

simulated_cuda.install()
