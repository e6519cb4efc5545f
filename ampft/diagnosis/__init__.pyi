"""The public parts of the diagnosis; `__init__.py` imports each when it is first used."""

from . import doctor as doctor
