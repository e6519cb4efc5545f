"""The public names of the doctor; `__init__.py` imports each when it is first used."""

from .examine import locate as locate
from .examine import scan as scan
from .findings import Cause as Cause
from .findings import Cure as Cure
from .findings import Diagnosis as Diagnosis
from .findings import Fault as Fault
from .findings import LossScales as LossScales
from .findings import ModuleRange as ModuleRange
from .ranges import RangeRecorder as RangeRecorder
from .show import diagnosis_text as diagnosis_text
from .watch import OperationWatch as OperationWatch
