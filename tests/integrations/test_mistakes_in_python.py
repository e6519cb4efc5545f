"""Values of a wrong type, shape or content, as people pass them in Python."""

import pickle

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from running import rows
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV

import ampft

TEXTS, LABELS = (list(part) for part in zip(*rows(30, 0), strict=True))
NUMBERS = [float(number) for number in range(30)]
QUICK = {"use_cpu": True, "cpu_threads": 1, "max_train_steps": 2}


def changed(values, value, place=0):
    """Return a list with one value replaced."""
    return [value if i == place else each for i, each in enumerate(values)]


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (None, "the target y is None"),
        (changed(LABELS, None, 7), "NaN or None: 1 of 30 .* first at position 7"),
        (np.array(changed(LABELS, np.nan), dtype=object), "NaN or None: 1 of 30"),
        (pd.Series(changed(LABELS, None), dtype="string"), "NaN or None: 1 of 30"),
        (pd.Series(changed(LABELS, None)).astype("category"), "NaN or None: 1 of 30"),
        (pd.Series(changed([0, 1] * 15, None), dtype="Int64"), "NaN or None: 1 of 30"),
        (np.array(changed([0.0, 1.0] * 15, np.nan)), "NaN or None: 1 of 30"),
        (pd.Series(changed(pd.to_datetime(["2020", "2021"] * 15), pd.NaT)), "NaN or None: 1 of 30"),
        ([["a", "b"], ["a"]] * 15, "the labels cannot be read as a table"),
        ("a", r"30 texts, and y the shape \(\)"),
        ((label for label in LABELS), r"y the shape \(\)"),
        (LABELS[:-1], r"30 texts, and y the shape \(29,\)"),
        (np.zeros((30, 2, 2)), "y the shape"),
    ],
)
def test_labels_that_are_missing_or_misshapen(labels, match) -> None:
    with pytest.raises(ValueError, match=match):
        ampft.Classifier(settings=QUICK).fit(TEXTS, labels)


@pytest.mark.parametrize(
    ("labels", "kind", "match"),
    [
        (LABELS, ValueError, "^y: received .*Pass finite numbers"),
        (changed(NUMBERS, np.nan), ValueError, "y contains NaN or None: 1 of 30"),
        (changed(NUMBERS, None), ValueError, "y contains NaN or None: 1 of 30"),
        (changed(NUMBERS, np.inf), ValueError, "y contains NaN or infinity"),
        (np.array(NUMBERS) * 1j, TypeError, "y: received complex128. Pass real numbers"),
        (pd.date_range("2020", periods=30), TypeError, "y: received datetime64"),
        (changed(NUMBERS, 10**400), ValueError, "Pass finite numbers"),
        (np.linspace(0, 1e300, 30), ValueError, "numbers from 0 to 1e.300, which the float32"),
        (np.linspace(0, 1e-300, 30), ValueError, "numbers from 0 to 1e-300, which the float32"),
        ([1.0] * 30, ValueError, "all 30 rows have the label 1.0"),
        (np.zeros((30, 2)), ValueError, "y the shape"),
    ],
)
def test_numbers_that_cannot_be_learned(labels, kind, match) -> None:
    with pytest.raises(kind, match=match):
        ampft.Regressor(settings=QUICK).fit(TEXTS, labels)


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ([], "X has no texts"),
        ("one text", "texts have one dimension"),
        (None, "texts have one dimension"),
        (changed(TEXTS, None), "received None, which is not a text"),
        (pd.Series(changed(TEXTS, np.nan)), "received nan, which is not a text"),
        (changed(TEXTS, ""), "position 0 .*nothing in column 'text'"),
        (changed(TEXTS, "\ud800"), "which is half a character"),
        ([text.encode() for text in TEXTS], "which is not a text"),
        ({"text": TEXTS}, "texts have one dimension"),
        (pd.DataFrame({"a": TEXTS, "b": TEXTS}), "texts have one dimension"),
    ],
)
def test_texts_that_are_none(texts, match) -> None:
    with pytest.raises(ValueError, match=match):
        ampft.Classifier(settings=QUICK).fit(texts, LABELS)


@pytest.mark.parametrize(
    ("weights", "kind", "match"),
    [
        ([1.0], ValueError, r"shape \(1,\), and X has 30 texts"),
        (2.0, ValueError, r"shape \(\), and X has 30 texts"),
        (np.ones((30, 1)), ValueError, r"shape \(30, 1\)"),
        (changed([1.0] * 30, -1.0), ValueError, "at least 0"),
        ([0.0] * 30, ValueError, "one of them above 0"),
        (changed([1.0] * 30, np.nan), ValueError, "sample_weight contains NaN"),
        (changed([1.0] * 30, None), ValueError, "sample_weight contains NaN"),
        ("balanced", ValueError, "sample_weight: received 'balanced'"),
        ({"a": 1}, TypeError, "sample_weight: received"),
    ],
)
def test_weights_that_are_none(weights, kind, match) -> None:
    with pytest.raises(kind, match=match):
        ampft.Classifier(settings=QUICK).fit(TEXTS, LABELS, sample_weight=weights)


@pytest.mark.parametrize(
    ("parameters", "kind", "match"),
    [
        ({"settings": ["use_cpu"]}, TypeError, "settings: received .* Pass a dictionary"),
        ({"settings": {1: 2}}, TypeError, "settings: received .* Pass a dictionary"),
        ({"settings": {"output_dir": "o"}}, ValueError, "is a parameter of the estimator"),
        ({"settings": {"epochz": 1}}, ValueError, "^unknown flag epochz.*lists all settings.$"),
        ({"random_state": "a"}, ValueError, "random_state: received 'a'"),
        ({"random_state": 1.5}, ValueError, "random_state: received 1.5"),
        ({"random_state": np.random.default_rng(0)}, ValueError, "random_state: received Gen"),
        ({"random_state": -1}, ValueError, "seed: received -1"),
        ({"output_dir": 3}, TypeError, "output_dir: received 3. Pass a path"),
        ({"output_dir": ""}, ValueError, "output_dir is empty"),
        ({"output_dir": f"{__file__}/x"}, ValueError, "the folder cannot be made"),
        ({"learning_rate": "high"}, ValueError, "learning_rate: received 'high'"),
        ({"learning_rate": True}, ValueError, "learning_rate: received True; it must be a number"),
        ({"precision": False}, ValueError, "precision: received False; it must be a precision"),
        ({"precision": torch.bfloat16}, ValueError, "Choose from no, fp32"),
        ({"model_name_or_path": torch.nn.Linear(1, 1)}, ValueError, "received an object. Save it"),
    ],
)
def test_parameters_of_another_kind(parameters, kind, match) -> None:
    with pytest.raises(kind, match=match) as caught:
        ampft.Classifier(**parameters).fit(TEXTS, LABELS)
    copy = pickle.loads(pickle.dumps(caught.value))  # as of a search in several processes
    assert str(copy) == str(caught.value)


def test_a_setting_within_the_settings_is_refused_as_a_parameter() -> None:
    search = GridSearchCV(ampft.Classifier(), {"settings__warmup_ratio": [0.1]}, cv=2)
    with pytest.raises(ValueError, match=r"settings is one parameter\. Pass it whole"):
        search.fit(TEXTS, LABELS)


def test_labels_in_a_column_are_flattened_with_a_warning() -> None:
    with (
        pytest.warns(DataConversionWarning, match="A column-vector y was passed"),
        pytest.raises(ValueError, match="received only one class, \\['a'\\]"),
    ):
        ampft.Classifier().fit(TEXTS, [["a"]] * 30)


def test_predictions_before_a_fit() -> None:
    for estimator in (ampft.Classifier(), ampft.Regressor()):
        with pytest.raises(NotFittedError):
            estimator.predict(TEXTS)


@pytest.mark.slow
def test_a_fit_that_fails_leaves_the_earlier_one(tiny_model) -> None:
    classifier = ampft.Classifier(str(tiny_model), settings=QUICK)
    classifier.fit(TEXTS, LABELS)
    before = classifier.predict(TEXTS)
    classifier.set_params(precision="fp99")
    with pytest.raises(ValueError, match="received 'fp99'"):
        classifier.fit(TEXTS, ["x", "y"] * 15)
    assert classifier.classes_.tolist() == sorted(set(LABELS))
    assert (classifier.predict(TEXTS) == before).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "options", "match"),
    [
        (None, {}, "inputs: received None. Pass a list of rows"),
        (5, {}, "inputs: received 5. Pass a list of rows"),
        (["a", float("nan")], {}, r"position 1 \(from 0\): received nan"),
        (pd.DataFrame({"text": ["a"]}), {}, "received a DataFrame"),
        ("a", {"batch_size": "8"}, "batch_size: received '8'; it must be a whole number"),
        ("a", {"batch_size": 1.5}, "batch_size: received 1.5; it must be a whole number"),
        ("a", {"batch_size": None}, "batch_size: received None"),
        ("a", {"top_k": "2"}, "top_k: received '2'; it must be a whole number"),
        ("a", {"top_k": None}, "top_k: received None"),
        ("a", {"decimals": "x"}, "decimals: received 'x'; it must be a whole number"),
        ("a", {"decimals": -1}, "decimals: received -1; it must be at least 0"),
    ],
)
def test_rows_and_options_of_predict(small_run, inputs, options, match) -> None:
    with pytest.raises(ampft.InputError, match=match):
        ampft.FinishedRun(small_run).predict(inputs, **options)


@pytest.fixture(scope="module")
def small_run(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "o"
    ampft.finetune(
        list(zip(TEXTS, LABELS, strict=True)),
        model_name_or_path=str(tiny_model), output_dir=str(folder), **QUICK,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("train", "match"),
    [
        (pd.DataFrame({"text": [], "label": []}), "train: the table has no rows"),
        (datasets.Dataset.from_dict({"text": [], "label": []}), "train: the table has no rows"),
        (
            pd.DataFrame([["a", "b", "c"]], columns=["text", "label", "label"]),
            "two columns are called 'label'. Rename one of them",
        ),
        ([("\ud800", "a"), ("b", "c")], "which is half a character"),
    ],
)
def test_tables_in_memory(train, match) -> None:
    with pytest.raises(ampft.InputError, match=match):
        ampft.finetune(train)


def test_the_folder_of_a_run_is_no_file() -> None:
    with pytest.raises(ampft.InputError, match="not the folder of a run"):
        ampft.FinishedRun(__file__)
