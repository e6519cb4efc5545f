"""What `ampft.Training` records, by the predictions that its loop gives; no flag names them."""

from typing import Any, NoReturn

from ampft.errors import InputError
from ampft.kinds import Kind, lazy_function
from ampft.tasks import TaskRow

# Whatever an own loop trains on. Its rows are known to its code only.
OWN = Kind(
    name="own",
    case="example",
    module="",
    open_rows=lazy_function("ampft.own.tasks:refuse_own_rows"),
    rows_in_memory=lazy_function("ampft.own.tasks:refuse_own_rows"),
)
TASKS = {
    OWN.name: TaskRow(OWN, "ampft.tasks.single_label:SingleLabel", "", ""),
    "own-multi-label": TaskRow(OWN, "ampft.labels.multi_label:MultiLabel", "", ""),
    "own-losses": TaskRow(OWN, "ampft.own.case_losses:CaseLosses", "", ""),
}


def refuse_own_rows(*_: Any) -> NoReturn:
    """Refuse to read rows for the model of an own loop.

    Raises:
        InputError: Always.
    """
    raise InputError(
        "--model: an own loop trained this model, so only its code can read rows for it. Load "
        "model.safetensors into the model there."
    )
