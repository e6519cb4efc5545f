"""What `ampft.Training` records, by the predictions that its loop gives; no flag names them."""

from ampft.kinds import Kind, lazy_function
from ampft.tasks import TaskRow

# Whatever an own loop trains on. Its rows are known to its code only.
OWN = Kind(
    name="own",
    case="example",
    module="",
    open_rows=lazy_function("ampft.kinds.rows:refuse_own_rows"),
    rows_in_memory=lazy_function("ampft.kinds.rows:refuse_own_rows"),
)
TASKS = {
    OWN.name: TaskRow(OWN, "ampft.tasks.single_label:SingleLabel", "", ""),
    "own-multi-label": TaskRow(OWN, "ampft.labels.multi_label:MultiLabel", "", ""),
    "own-losses": TaskRow(OWN, "ampft.own.case_losses:CaseLosses", "", ""),
}
