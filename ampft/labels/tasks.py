"""Tasks of texts with several labels, several columns of labels, ordered labels, or numbers."""

from ampft.kinds import TEXT
from ampft.tasks import OF_CLASSES, TaskRow

TASKS = {
    "multi-label": TaskRow(
        TEXT, "ampft.labels.multi_label:MultiLabel", "AutoModelForSequenceClassification",
        "text-classification", several_labels=True, pipeline_arguments={"top_k": None},
        flags=OF_CLASSES | {"threshold", "label_separator"},
    ),
    "columns": TaskRow(
        TEXT, "ampft.labels.label_columns:ColumnLabels", "AutoModelForSequenceClassification",
        "text-classification", several_labels=True, labels_of_columns=True,
        pipeline_arguments={"top_k": None}, decides_per_case=False,
        flags=(OF_CLASSES | {"label_separator"}) - {"class_weights"},
    ),
    "regression": TaskRow(
        TEXT, "ampft.labels.regression:Regression", "AutoModelForSequenceClassification",
        "text-classification", number_labels=True, decides_per_case=False,
        flags=frozenset({"huber_delta"}),
    ),
    "ordinal": TaskRow(
        TEXT, "ampft.labels.ordinal:Ordinal", "AutoModelForSequenceClassification",
        "text-classification", ordered_labels=True,
        flags=(OF_CLASSES | {"label_order"}) - {"label_smoothing_factor", "focal_gamma"},
    ),
}  # fmt: skip
