"""A kind of data and a label of another nature, as somebody else would add them.

Numbers in the columns of a CSV file are a time series; its classes have an order, and the distance
between two classes counts. `ROW` is the line of the table of tasks.
"""

from ampft.kinds import Kind, lazy_function
from ampft.tasks import TaskRow

SERIES = Kind(
    name="series",
    case="series",
    module="time_series.series",
    open_rows=lazy_function("time_series.series:open_rows"),
    rows_in_memory=lazy_function("time_series.series:rows_in_memory"),
    samples=lazy_function("time_series.series:samples"),
    load=lazy_function("time_series.series:read_series"),
    examples=("[0.5, 0.25, 1.0]",),
)
ROW = TaskRow(
    SERIES, "time_series.ordinal:Ordinal", "AutoModelForSequenceClassification",
    "tabular-classification",
)  # fmt: skip
