"""The laboratory: what examines and judges trainings; nothing in the core imports it.

Its commands are in `additions`; the core works where this folder is absent.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
