"""The public parts of the laboratory; `__init__.py` imports each when it is first used."""

from . import doctor as doctor
