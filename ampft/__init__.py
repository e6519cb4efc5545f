"""Fine-tune classifiers in mixed precision, and say with evidence which precision to use.

The pieces for a loop of your own; see `recipes/plain_loop.py`:

    precision = ampft.resolve("fp16", device)
    accelerator = ampft.make_accelerator(precision)
    with ampft.numerics(precision):
        ...

`__init__.pyi` lists the public names and where each has its home.
"""

import lazy_loader

# torch takes seconds to import; `ampft --help` should not wait for it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
