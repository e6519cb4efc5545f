"""The doctor: whether a precision holds, the operation that breaks it, its cause and its cure.

A diagnosis has two passes over the same batches, forward and backward:

1. In float32, the ranges of every module (`ranges`): the largest value compared with binary16's
   largest number, the values too small for binary16, and the loss scales that the gradients allow.
2. In the mode, every operation is watched (`first_fault`). The fault is the first one with finite
   inputs and an output that is not finite, if the loss or the gradient depends on it.

An operation that failed is repeated in float64 with its own inputs, which tells a result that is
too large for the format from one that does not exist, and the batch is repeated in float32, which
tells a fault of the precision from one of the model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
