"""16-bit products on a CPU, computed as a GPU's tensor cores compute them.

`__init__.pyi` lists the public names and where each has its home.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
