"""`ampft.Classifier` in the tools of scikit-learn."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets
import joblib
import numpy as np
import pandas as pd
import pytest
from running import call, rows, succeeded
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import ampft
from ampft.kinds.prediction import PredictedRows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts():
    return [text for text, _ in rows(90, 0)]


@pytest.fixture(scope="module")
def labels():
    return [label for _, label in rows(90, 0)]


@pytest.fixture
def classifier(tiny_model):
    return ampft.Classifier(
        str(tiny_model), learning_rate=8e-3, num_train_epochs=4,
        settings={"use_cpu": True, "cpu_threads": 1},
    )  # fmt: skip


def test_labels_keep_their_type(classifier, texts, labels):
    names = sorted(set(labels))
    numbers = np.array([names.index(label) - 1 for label in labels])
    fitted = classifier.fit(pd.Series(texts), numbers)
    assert fitted.classes_.tolist() == [-1, 0, 1]
    predicted = fitted.predict(np.array(texts))
    assert predicted.dtype == numbers.dtype
    assert fitted.score(texts, numbers) == np.mean(predicted == numbers) > 0.7
    proba = fitted.predict_proba(pd.DataFrame({"review": texts}))
    assert proba.shape == (90, len(fitted.classes_))
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-15)
    assert (proba != proba.round(6)).any(), "no rounding to the digits of a file"
    assert (fitted.classes_[proba.argmax(axis=1)] == predicted).all()
    assert fitted.predict([]).shape == (0,)


def test_a_column_beside_the_texts_may_have_gaps_as_pandas_writes_them():
    ages = pd.array([17, None], dtype="Int64")
    frame = pd.DataFrame({"body": ["a", "b"], "age": ages, "seen": pd.to_datetime(["2020", None])})
    estimator = ampft.Classifier(settings={"feature_columns": "age,seen"})
    columns = datasets.Dataset.from_dict(estimator._columns(frame))
    assert [row["age"] for row in columns] == [17, None]
    assert [row["seen"] is None for row in columns] == [False, True]


def test_a_column_beside_the_texts_cannot_have_the_name_of_labels():
    frame = pd.DataFrame({"body": ["a", "b", "c", "d"], "y0": [1, 2, 3, 4]})
    classifier = ampft.Classifier(settings={"feature_columns": "y0"})
    with pytest.raises(ValueError, match="feature_columns: rename the column 'y0'"):
        classifier.fit(frame, [["bad", "x"], ["good", "y"]] * 2)


def test_several_columns_of_labels_have_one_answer_each(classifier, texts, labels):
    sizes = np.where(np.array(labels) == "metal", 7, 3)  # numbers, which stay numbers
    y = pd.DataFrame({"kind": labels, "letters": sizes}).to_numpy(dtype=object)
    fitted = classifier.set_params(num_train_epochs=12).fit(texts, y)
    kinds, letters = fitted.classes_
    assert (kinds.tolist(), letters.tolist()) == (["fruit", "metal", "river"], [3, 7])
    first, second = fitted.predict_proba(texts)
    assert (first.shape, second.shape) == ((90, 3), (90, 2))
    np.testing.assert_allclose([*first.sum(1), *second.sum(1)], 1, atol=1e-5)
    predicted = fitted.predict(texts)
    assert predicted.shape == (90, 2)
    assert {type(each) for each in predicted[:, 1]} == {int}
    assert (predicted[:, 0] == kinds[first.argmax(1)]).all()
    assert fitted.score(texts, y) == (predicted == y).all(1).mean() > 0.7
    assert fitted.predict([]).shape == (0, 2)
    with pytest.raises(ValueError, match="y has several columns, so task must be columns"):
        clone(classifier).set_params(settings={"task": "ordinal"}).fit(texts, y)


def test_a_column_has_the_answer_of_the_run_where_shown_probabilities_are_equal():
    names, shares = ("y0=a", "y0=b", "y1=c", "y1=d"), [[0.49999994, 0.50000006, 0.2, 0.8]]
    decoded = {"probabilities": np.array(shares, dtype=np.float32)}
    predicted = PredictedRows(["y0=b,y1=d"], [0.5], decoded, names)
    model = ampft.Classifier()
    model.run_ = SimpleNamespace(
        predict=lambda rows, **options: pd.DataFrame(predicted.columns(**options))
    )
    model.classes_, model._dtype = [np.array(["a", "b"]), np.array(["c", "d"])], np.dtype("<U1")
    assert model.predict(["a text"]).tolist() == [["b", "d"]]
    assert model.predict([]).shape == (0, 2)


def test_five_tools(classifier, texts, labels):
    scores = cross_val_score(classifier, texts, labels, cv=2)
    assert scores.min() > 0.6
    search = GridSearchCV(classifier, {"learning_rate": [1e-6, 8e-3]}, cv=2).fit(texts, labels)
    assert search.best_params_ == {"learning_rate": 8e-3}
    lowered = FunctionTransformer(lambda values: [value.lower() for value in values])
    pipeline = make_pipeline(lowered, clone(classifier)).fit(texts, labels)
    assert pipeline.score(texts, labels) > 0.7
    frame = pd.DataFrame({"review": texts})
    found = permutation_importance(pipeline[-1], frame, labels, n_repeats=2, random_state=0)
    assert found.importances_mean[0] > 0.1
    first = pipeline.classes_[0]
    proba = pipeline.predict_proba(texts)[:, 0]
    true, predicted = calibration_curve(np.array(labels) == first, proba, n_bins=3)
    assert len(true) == len(predicted) > 1
    scorer = get_scorer("roc_auc_ovr")
    assert scorer(pipeline, texts, labels) > 0.7


def test_parameters_and_refusals(classifier, texts, labels):
    assert clone(classifier).get_params() == classifier.get_params()
    assert classifier.set_params(num_train_epochs=2).num_train_epochs == 2
    with pytest.raises(ValueError, match="X has 90 texts, and y the shape"):
        classifier.fit(texts, labels[:-1])
    with pytest.raises(ValueError, match="labels have different types"):
        classifier.fit(texts[:2], np.array([1, "1"], dtype=object))
    with pytest.raises(ValueError, match="which is not a text"):
        classifier.fit([1.0, 2.0], [0, 1])
    with pytest.raises(ValueError, match="texts have one dimension"):
        classifier.fit(np.full((2, 2), "a"), [0, 1])


@pytest.fixture
def quick(classifier):
    return classifier.set_params(num_train_epochs=1)


def test_a_fitted_estimator_carries_its_model(quick, texts, labels, tmp_path, monkeypatch):
    """It is loaded in another folder and another process, after its run is gone."""
    monkeypatch.chdir(tmp_path)
    few = texts[:6]
    kept = clone(quick).set_params(output_dir="runs/a").fit(texts, labels)
    search = GridSearchCV(
        clone(quick).set_params(output_dir="runs/b"), {"random_state": [1, 2]}, cv=2,
        error_score="raise",
    ).fit(texts, labels)  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "a", "b", "b-2", "b-3", "b-4", "b-5",
    ]  # fmt: skip
    expected = {}
    for name, model in (("kept", kept), ("search", search)):
        joblib.dump(model, tmp_path / f"{name}.joblib")
        expected[name] = model.predict_proba(few).tolist()
    shutil.rmtree(tmp_path / "runs")
    code = (
        "import joblib, json, sys\n"
        "models = [joblib.load(path) for path in sys.argv[2:]]\n"
        "answers = [m.predict_proba(json.loads(sys.argv[1])).tolist() for m in models]\n"
        "print(json.dumps(answers))"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    paths = [tmp_path / f"{name}.joblib" for name in expected]
    done = call(sys.executable, "-c", code, json.dumps(few), *paths, cwd=elsewhere, warm=False)
    assert json.loads(succeeded(done).stdout) == list(expected.values())
    carried = vars(kept)["run_"].folder
    assert not carried.exists()
    again = joblib.load(paths[0])
    assert again.run_.folder.is_dir()
    assert pickle.loads(pickle.dumps(again)).predict_proba(few).tolist() == expected["kept"]
    folder = again.run_.folder
    del again
    assert not folder.exists()


def test_a_carried_model_is_safetensors_and_json(quick, texts, labels):
    state = quick.fit(texts, labels).__getstate__()
    files = state["_carried_files"]
    assert all(isinstance(content, bytes) for content in files.values())
    assert {"model.safetensors", "config.json", "tokenizer.json", "run.json"} <= files.keys()
    assert {Path(name).suffix for name in files} <= {".safetensors", ".json", ".txt"}
    assert "_remove" not in state
    (quick.run_.folder / "model.safetensors").write_bytes(b"changed")
    with pytest.raises(ampft.InputError, match=r"model\.safetensors: the file was changed after"):
        pickle.dumps(quick)


def test_a_model_that_is_too_large_for_a_pickle_stays_in_its_folder(
    quick, texts, labels, tmp_path, monkeypatch
):
    monkeypatch.setattr("ampft.integrations.estimator.MOST_CARRIED", 1000)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=r"the model has 0 MiB, .* Pass output_dir to keep it"):
        pickle.dumps(clone(quick).fit(texts, labels))
    kept = clone(quick).set_params(output_dir="run").fit(texts, labels)
    content = pickle.dumps(kept)
    monkeypatch.chdir("/")
    loaded = pickle.loads(content)
    assert loaded.run_.folder == tmp_path / "run"
    assert (loaded.predict(texts[:6]) == kept.predict(texts[:6])).all()


def test_a_refused_fit_leaves_no_folder(quick, texts, labels, tmp_path):
    quick.set_params(output_dir=str(tmp_path / "run"), precision="fp99")
    with pytest.raises(ampft.InputError, match="fp99"):
        quick.fit(texts, labels)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "tool",
    [
        lambda model: GridSearchCV(
            model, {"random_state": [1, 2]}, cv=2, n_jobs=2, error_score="raise"
        ),
        lambda model: VotingClassifier(
            [("a", model), ("b", clone(model).set_params(random_state=1))], voting="soft", n_jobs=2
        ),
        pytest.param(
            lambda model: StackingClassifier([("a", model)], LogisticRegression(), cv=2),
            marks=pytest.mark.full,
        ),
        pytest.param(lambda model: CalibratedClassifierCV(model, cv=2), marks=pytest.mark.full),
    ],
    ids=["search", "voting", "stacking", "calibrated"],
)
def test_tools_that_combine_estimators_are_pickled(quick, texts, labels, tool):
    fitted = tool(quick).fit(texts, labels)
    expected = fitted.predict_proba(texts[:6])
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(fitted)).predict_proba(texts[:6]), expected
    )


# Those of scikit-learn's checks that apply: check_estimator itself runs only the first one for an
# estimator of texts. All others pass tables of numbers (56 of 89 in scikit-learn 1.9), or are for
# parameters and kinds of estimators that this one has not: sample weights, class weights, param
# constraints, transformers, clusterers, outlier detectors and array API.
CHECKS = [
    name
    for name in (
        "check_estimator_cloneable", "check_estimator_repr", "check_no_attributes_set_in_init",
        "check_get_params_invariance", "check_set_params", "check_parameters_default_constructible",
        "check_valid_tag_types", "check_estimator_tags_renamed", "check_supervised_y_no_nan",
        "check_estimator_sparse_tag", "check_estimator_sparse_matrix",
        "check_estimator_sparse_array", "check_mixin_order", "check_estimators_unfitted",
        "check_requires_y_none", "check_n_features_in_after_fitting",
        "check_dataframe_column_names_consistency", "check_fit1d",
        "check_do_not_raise_errors_in_init_or_set_params",
    )
    if hasattr(estimator_checks, name)
]  # fmt: skip


def test_check_estimator_passes():
    assert len(CHECKS) > 15
    with pytest.warns(match="Can't test estimator Classifier which requires input +of type"):
        estimator_checks.check_estimator(ampft.Classifier())


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_scikit_learn(name):
    # A check of scikit-learn returns nothing, and raises where the estimator breaks a convention.
    assert getattr(estimator_checks, name)("Classifier", ampft.Classifier()) is None


def test_labels_that_are_no_classes_are_refused(classifier, texts):
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        classifier.fit(texts, np.linspace(0, 1, len(texts)))
    with pytest.raises(ValueError, match="received only one class, \\['a'\\]"):
        classifier.fit(texts, ["a"] * len(texts))


def test_predict_follows_tuned_thresholds(classifier, texts, labels):
    kinds = sorted(set(labels))
    two = ["low" if label == kinds[0] else "rest" for label in labels]
    tuned = classifier.set_params(
        settings={
            **classifier.settings, "tune_thresholds": "recall=1.0", "positive_label": "low",
            "max_train_steps": 2, "test_fraction": 0.3, "validation_fraction": 0.3,
        },
    ).fit(texts, two)  # fmt: skip
    predicted = tuned.predict(texts)
    assert predicted.tolist() == tuned.run_.predict(texts)["prediction"].tolist()
    most_probable = tuned.classes_[tuned.predict_proba(texts).argmax(axis=1)]
    assert (predicted != most_probable).any()  # the threshold matters here


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"abstain": 0.2}, "settings: abstain leaves rows without a label"),
        ({"task": "multi-label"}, "settings: task is 'multi-label'"),
        ({"task": "regression"}, "settings: task is 'regression'"),
    ],
)
def test_settings_without_a_label_for_each_text_are_refused(classifier, texts, labels, more, match):
    classifier.set_params(settings={**classifier.settings, **more})
    with pytest.raises(ValueError, match=match):
        classifier.fit(texts, labels)


def test_another_run_in_the_folder_is_not_taken_for_the_fitted_one(
    classifier, texts, labels, tmp_path
):
    folder = str(tmp_path / "run")
    fitted = classifier.set_params(output_dir=folder, num_train_epochs=1).fit(texts, labels)
    kept, before = pickle.dumps(fitted), fitted.predict_proba(texts)
    np.testing.assert_array_equal(pickle.loads(kept).predict_proba(texts), before)
    other = clone(classifier).set_params(
        random_state=7, settings={**classifier.settings, "overwrite_output_dir": True}
    )
    after = other.fit(texts, labels).predict_proba(texts)
    assert (after != before).any()
    with pytest.raises(ampft.InputError, match="another run was written to this folder"):
        fitted.predict(texts)
    np.testing.assert_array_equal(pickle.loads(kept).predict_proba(texts), before)
