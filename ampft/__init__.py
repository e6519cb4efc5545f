"""Fine-tune classifiers in mixed precision, and say with evidence which precision to use.

A loop of your own; see `recipes/own_loop.py`:

    training = ampft.Training(model, optimizer, examples, precision="fp16", output_dir="runs/a")
    with training:
        for step_batch in training:
            training.step(lambda batch: summed_loss(model, batch))

A part of one; see `recipes/plain_loop.py`:

    with ampft.computing_in("fp16") as precision:
        ...

`__init__.pyi` lists the public names and where each has its home.
"""

import sys

from ampft.errors import refuse_environment

if sys.version_info < (3, 11):  # noqa: UP036  (a checkout runs in any Python)
    version = ".".join(map(str, sys.version_info[:2]))
    refuse_environment(f"ampft needs Python 3.11 or later, and this is {version}")
try:
    import lazy_loader
except ModuleNotFoundError as error:
    refuse_environment(str(error))

# torch takes seconds to import; `ampft --help` should not wait for it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
