"""The task of words with tags, and its kind of data."""

from ampft.kinds import OF_WORDS, Kind, lazy_function
from ampft.tasks import TaskRow

WORDS = Kind(
    name="token",
    case="sentence",
    module="ampft.words.tensors",
    open_rows=lazy_function("ampft.words.tensors:open_rows"),
    rows_in_memory=lazy_function("ampft.words.tensors:rows_in_memory"),
    ask=lazy_function("ampft.integrations.pipeline_answers:ask_words"),
    samples=lazy_function("ampft.kinds.rows:sample_sentences"),
    view=lazy_function("ampft.words.view:show_sentence"),
    receipt_row=lazy_function("ampft.words.view:receipt_row"),
    new_output=lazy_function("ampft.words.tensors:sentence_output"),
    units="words, which have a class each",
    flags=OF_WORDS,
    has_words=True,
    examples=('"a text"',),
    has_windows=True,
)
TASKS = {
    "tokens": TaskRow(
        WORDS, "ampft.words.token_labels:TokenLabels", "AutoModelForTokenClassification",
        "token-classification", pipeline_arguments={"aggregation_strategy": "first"},
        decides_per_case=False,
    ),
}  # fmt: skip
