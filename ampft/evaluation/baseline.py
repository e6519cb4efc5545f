"""The bag-of-words baseline: what can be had without any pretrained model."""

from __future__ import annotations

import time

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score

from ampft.data.dataset import ClassificationData
from ampft.errors import InputError

# scikit-learn's default of 1 regularises too strongly for unit-length rows of some thousand texts
INVERSE_REGULARISATION = 10.0


def bag_of_words_baseline(data: ClassificationData, eval_split: str) -> dict[str, float]:
    """Fit TF-IDF (words and pairs of words, logarithmic counts) with logistic regression.

    Trained on `train`. The two texts of a pair are joined.

    Args:
        data: Texts or pairs of texts.
        eval_split: The split to judge on.

    Returns:
        `accuracy` and `macro_f1` (over all classes of the label map; one that is neither there nor
        predicted counts as 0) on `eval_split`, and `seconds` for fitting and predicting.

    Raises:
        InputError: When the inputs are no texts, or hold no words.
    """
    if data.kind != "text":
        raise InputError(f"--baseline: counts words; {data.name} has {data.kind}s. Leave it away.")
    begun = time.perf_counter()
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(C=INVERSE_REGULARISATION, solver="newton-cg")
    try:
        words = vectorizer.fit_transform(joined_texts(data, "train"))
    except ValueError as error:
        raise InputError(f"--baseline: {data.name}: {error}. Leave it away.") from None
    model.fit(words, data.splits["train"]["label"][:])
    predicted = model.predict(vectorizer.transform(joined_texts(data, eval_split)))
    labels = data.splits[eval_split]["label"][:]
    classes = list(range(len(data.label_names)))
    return {
        "accuracy": float(accuracy_score(labels, predicted)),
        "macro_f1": float(
            f1_score(labels, predicted, labels=classes, average="macro", zero_division=0.0)
        ),
        "seconds": time.perf_counter() - begun,
    }


def joined_texts(data: ClassificationData, split: str) -> list[str]:
    """Return one string per example: the text, or the texts of a pair on two lines."""
    columns = (data.splits[split][name][:] for name in data.input_columns)
    return ["\n".join(texts) for texts in zip(*columns, strict=True)]


def baseline_sentence(data: ClassificationData, split: str) -> str:
    """Return what TF-IDF with logistic regression reaches on `split`, or why there is no result."""
    try:
        figures = bag_of_words_baseline(data, split)
    except InputError as error:  # a trained model is not given up for it
        return f"none: {error}"
    return (
        f"TF-IDF with logistic regression: accuracy {figures['accuracy']:.4f}, macro F1 "
        f"{figures['macro_f1']:.4f}, {figures['seconds']:.1f} s"
    )
