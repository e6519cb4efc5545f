"""The public names of the doctor; `__init__.py` imports each when it is first used."""

from .diagnosis import Cause as Cause
from .diagnosis import Cure as Cure
from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import Fault as Fault
from .diagnosis import LossScales as LossScales
from .diagnosis import ModuleRange as ModuleRange
from .diagnosis_text import diagnosis_text as diagnosis_text
from .examine import locate as locate
from .examine import scan as scan
from .ranges import RangeRecorder as RangeRecorder
from .watch import OperationWatch as OperationWatch
