"""Diagnose how a machine, its packages and a model handle mixed precision."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
