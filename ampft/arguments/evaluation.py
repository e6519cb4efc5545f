"""Flags of validation and of the final evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.arguments.flags import flag

EVALUATION = "evaluation"


@dataclass(frozen=True)
class EvaluationArguments:
    """Validation and the final evaluation."""

    metric_for_best_model: str | None = flag(
        None,
        "validation metric for choosing the best weights; if none, the task's primary metric "
        "(accuracy)",
        group=EVALUATION,
    )
    eval_steps: int | None = flag(
        None,
        "optimizer steps between validations, with one more at the end; if none, one validation "
        "after each epoch",
        group=EVALUATION,
        at_least=1,
    )
    early_stopping_patience: int | None = flag(
        None, "stop after this many validations without improvement", group=EVALUATION, at_least=1
    )
    load_best_model_at_end: bool = flag(
        True,
        "report and save the weights with the best validation metric instead of the last ones",
        group=EVALUATION,
    )
    threshold: float = flag(
        0.5,
        "smallest probability at which a label is predicted (multi-label)",
        group=EVALUATION,
        at_least=0,
        at_most=1,
    )
    tune_thresholds: bool = flag(
        False,
        "choose the threshold of each label by its F1 on the validation split, save them with the "
        "model and use them for the report (multi-label)",
        group=EVALUATION,
    )
    evaluate_fp32: bool = flag(
        False,
        "also predict the final split in fp32, to separate the effect of training in a precision "
        "from that of predicting in it",
        group=EVALUATION,
    )
    baseline: bool = flag(
        False,
        "also report two baselines: logistic regression on TF-IDF, and on the embeddings of the "
        "model before fine-tuning",
        group=EVALUATION,
    )
