"""A classifier and a regressor of texts with scikit-learn's interface, over `ampft.finetune`."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ampft.arguments.parsing import messages_for_python
from ampft.data.sources.source_table import MISSING
from ampft.errors import InputError, quoted
from ampft.files import refuse_link
from ampft.flag import split_names
from ampft.integrations.finetune import finetune
from ampft.ownership import TemporaryFolder
from ampft.runs.finished import FinishedRun
from ampft.runs.manifest import RECORD_NAME, check_model_files, model_files
from ampft.text.numbers import byte_size

PROBABILITY = "probability_"
_CARRIED = "_carried_files"
MOST_CARRIED = 2 << 30  # bytes of a model in a pickle


class TextEstimator(BaseEstimator):
    """What the estimators of texts share: their parameters and a run."""

    _takes_columns = False

    def __init__(
        self,
        model_name_or_path: str | None = None,
        *,
        precision: str | None = None,
        num_train_epochs: int | None = None,
        learning_rate: float | None = None,
        per_device_train_batch_size: int | None = None,
        max_seq_length: int | None = None,
        random_state: int | None = 42,
        settings: Mapping[str, Any] | None = None,
        output_dir: str | None = None,
        verbose: bool = False,
    ) -> None:
        """Keep the parameters; None leaves a setting at its default.

        Args:
            model_name_or_path: Folder or hub id; None for all-MiniLM-L6-v2.
            precision: Precision, such as "bf16"; None for fp32.
            num_train_epochs: Passes over the training data.
            learning_rate: Peak learning rate.
            per_device_train_batch_size: Texts per step.
            max_seq_length: Maximum length of a text in tokens.
            random_state: Seed of head, data order and dropout; None draws one.
            settings: Further settings of `ampft train` by name. With `feature_columns`, `X` is a
                table of these columns and of one with the texts.
            output_dir: Folder for the run; None for a temporary one, which lives as long as this
                object. If it exists, as after an earlier fit, the run is beside it: DIR-2, DIR-3.
            verbose: Whether to print what a run prints.
        """
        self.model_name_or_path = model_name_or_path
        self.precision = precision
        self.num_train_epochs = num_train_epochs
        self.learning_rate = learning_rate
        self.per_device_train_batch_size = per_device_train_batch_size
        self.max_seq_length = max_seq_length
        self.random_state = random_state
        self.settings = settings
        self.output_dir = output_dir
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.non_deterministic = self.random_state is None
        return tags

    def _columns(self, X: Any) -> dict[str, list[Any]]:
        """Return the texts as `text`, and the columns that are put before them.

        Raises:
            ValueError: They cannot be found in `X`.
        """
        names = split_names(self._settings().get("feature_columns")) or ()
        if not names:
            return {"text": texts_of(X)}
        if not hasattr(X, "columns") or not {*names} <= {*X.columns}:
            raise ValueError(f"X: feature_columns needs a table with the columns {list(names)}.")
        if reserved := {"text", "label", "weight"} & {*names}:
            raise ValueError(f"feature_columns: rename the column {reserved.pop()!r}.")
        texts = texts_of(X[[name for name in X.columns if name not in names]])
        cells = {
            name: [None if type(each).__name__ in MISSING else each for each in X[name]]
            for name in names
        }
        return {"text": texts, **cells}

    def _predict(self, X: Any, **options: Any) -> Any:
        """Return the table of predictions; None without texts."""
        check_is_fitted(self, "run_")
        columns = self._columns(X)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        with _as_value_errors():
            return self.run_.predict(rows, **options) if rows else None

    def _train(self, X: Any, labels: Any, sample_weight: Any, **named: Any) -> None:
        """Train a run on texts and their labels; `named` are settings of the estimator.

        Labels are a list, or lists by the names of their columns.
        """
        own_columns = labels if isinstance(labels, dict) else {"label": labels}
        columns = self._columns(X)
        if clash := columns.keys() & own_columns.keys():
            raise ValueError(f"feature_columns: rename the column {clash.pop()!r}.")
        rows = {**columns, **own_columns}
        if sample_weight is not None:
            rows["weight"] = _weights(sample_weight, len(rows["text"])).tolist()
            named["weight_column"] = "weight"
        own = {
            "model_name_or_path": self.model_name_or_path,
            "num_train_epochs": self.num_train_epochs,
            "learning_rate": self.learning_rate,
            "per_device_train_batch_size": self.per_device_train_batch_size,
            "max_seq_length": self.max_seq_length,
            "seed": self._seed(),
            "test_fraction": 0.0,
            **named,
        }
        given = {name: value for name, value in own.items() if value is not None}
        settings = self._settings()
        with _as_value_errors(), self._new_folder(settings) as folder:
            printed = contextlib.nullcontext() if self.verbose else _silence()
            with printed:
                self.run_: FinishedRun = finetune(
                    [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)],
                    precision=self.precision,
                    **{**given, **settings, "output_dir": str(folder)},
                )
        self.n_features_in_ = 1

    def _settings(self) -> Mapping[str, Any]:
        """Return the further settings.

        Raises:
            TypeError: They are not a dictionary with names.
            ValueError: One of them is a parameter of the estimator that chooses a folder.
        """
        settings = {} if self.settings is None else self.settings
        if not isinstance(settings, Mapping) or not all(isinstance(n, str) for n in settings):
            raise TypeError(
                f"settings: received {self.settings!r}. Pass a dictionary of settings by name, such"
                ' as {"warmup_ratio": 0.1}.'
            )
        if "output_dir" in settings:
            raise ValueError("settings: output_dir is a parameter of the estimator. Pass it there.")
        return settings

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name.

        Raises:
            ValueError: A name is unknown.
        """
        if inside := [name for name in params if name.startswith("settings__")]:
            name = inside[0].removeprefix("settings__")
            raise ValueError(
                f"{inside[0]}: settings is one parameter. Pass it whole, such as "
                f"settings=[{{{name!r}: VALUE}}, ...] in a search."
            )
        return super().set_params(**params)

    @contextlib.contextmanager
    def _new_folder(self, settings: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the folder of a fit; after an error, nothing is left of it but what a run keeps."""
        remove: Callable[[], object] | None = None
        if not isinstance(self.output_dir, str | os.PathLike | None):
            raise TypeError(f"output_dir: received {self.output_dir!r}. Pass a path.")
        if self.output_dir is not None and not os.fspath(self.output_dir):
            raise ValueError("output_dir is empty. Pass a folder, or None for a temporary one.")
        if self.output_dir is None:
            temporary = TemporaryFolder("estimator")
            remove = weakref.finalize(self, temporary.remove)
            folder = temporary.__enter__() / "run"
        elif settings.get("overwrite_output_dir") or settings.get("resume_from_checkpoint"):
            folder = Path(self.output_dir).absolute()
        else:
            folder = _claimed_folder(Path(self.output_dir).absolute())
        try:
            yield folder
        except BaseException:
            if remove is not None:
                remove()
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise
        if (of_earlier_fit := self.__dict__.pop("_remove", None)) is not None:
            of_earlier_fit()
        if remove is not None:
            self._remove = remove

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, with the files of the model, its record and its report.

        The weights are bytes of safetensors. A model of more than 2 GiB stays in its folder.

        Raises:
            InputError: A file of the model was changed or is missing.
            TypeError: The model has more than 2 GiB, and its folder is temporary.
        """
        state: dict[str, Any] = dict(super().__getstate__())
        is_temporary = state.pop("_remove", None) is not None
        if "run_" not in state:
            return state
        folder, record = self.run_.folder, self.run_.record
        with messages_for_python():
            check_model_files(folder, record.files)
        names = {*model_files(folder, record.files), RECORD_NAME, "report.json", "report.txt"}
        files = [folder / name for name in sorted(names) if (folder / name).is_file()]
        size = sum(path.stat().st_size for path in files)
        if size <= MOST_CARRIED:
            del state["run_"]
            return {**state, _CARRIED: {path.name: path.read_bytes() for path in files}}
        if is_temporary:
            raise TypeError(
                f"the model has {byte_size(size)}, and a pickle carries {byte_size(MOST_CARRIED)}. "
                "Pass output_dir to keep it in a folder, which a pickle then refers to."
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state; the files of a model go to a temporary folder of this object."""
        state = dict(state)
        files = state.pop(_CARRIED, None)
        super().__setstate__(state)
        if files is not None:
            temporary = TemporaryFolder("estimator")
            self._remove = weakref.finalize(self, temporary.remove)
            folder = temporary.__enter__()
            for name, content in files.items():
                (folder / Path(name).name).write_bytes(content)
            self.run_ = FinishedRun(folder)

    def _labels(self, X: Any, y: Any) -> npt.NDArray[Any]:
        """Return the labels.

        Raises:
            ValueError: There are more or fewer labels than texts, a label is missing, or `X` has no
                texts.
        """
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None.")
        texts = self._columns(X)["text"]
        if not texts:
            raise ValueError("X has no texts. Pass at least one.")
        try:
            labels = np.asarray(y)
        except ValueError as error:  # lists of different lengths
            raise ValueError(f"y: the labels cannot be read as a table ({error}).") from None
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = column_or_1d(labels, warn=True)
        has_shape = labels.ndim == 1 or (self._takes_columns and labels.ndim == 2)
        if not has_shape or len(labels) != len(texts):
            raise ValueError(f"X has {len(texts)} texts, and y the shape {labels.shape}.")
        missing = [i for i, each in enumerate(labels) if _is_missing(each)]
        if missing:
            raise ValueError(
                f"y contains NaN or None: {len(missing)} of {len(labels)} labels are missing, the "
                f"first at position {missing[0]}. Remove these texts, or give them labels."
            )
        return labels

    def _seed(self) -> int | None:
        if self.random_state is None:
            return int(np.random.default_rng().integers(2**31))
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        raise ValueError(
            f"random_state: received {self.random_state!r}. Pass a whole number, a "
            "numpy.random.RandomState, or None."
        )


class Classifier(ClassifierMixin, TextEstimator):
    """Fine-tunes a model on texts; an estimator for pipelines, searches and cross-validation.

    Attributes:
        classes_: (K,) labels in the dtype of `y`, sorted; of several columns a list of them.
        run_: The `FinishedRun`.

    Examples:
        >>> cross_val_score(ampft.Classifier(num_train_epochs=5), texts, labels)  # doctest: +SKIP
    """

    _takes_columns = True
    classes_: Any

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Fine-tune on texts.

        Args:
            X: (n,) texts: a list, an array, a Series, or a DataFrame with one column.
            y: (n,) labels of any type, or (n, m) labels of m columns, one head each.
            sample_weight: (n,) weights of the texts in the loss; None for 1.

        Raises:
            ValueError: The data or a setting must be corrected; it is an `InputError` too if a
                training would refuse it.
            TypeError: `X`, `sample_weight` or `settings` have a type that is not supported.
        """
        labels = self._labels(X, y)
        settings = self._settings()
        if settings.get("abstain") is not None:
            raise ValueError(
                "settings: abstain leaves rows without a label, which predict cannot return. "
                "Remove it, or use ampft.finetune."
            )
        if labels.ndim == 2:
            return self._fit_columns(X, labels, sample_weight)
        classes = _classes(labels)
        if settings.get("task") not in (None, "text", "ordinal"):
            raise ValueError(
                f"settings: task is {settings['task']!r}, and this estimator gives one class to "
                "each text. Remove it, or use ampft.Regressor or ampft.finetune."
            )
        if len(classes) < 2:
            raise ValueError(f"y: received only one class, {classes.tolist()}.")
        self._train(X, list(map(str, labels)), sample_weight)
        self.classes_ = classes  # after the training, so that an error keeps the earlier ones
        return self

    def _fit_columns(self, X: Any, labels: npt.NDArray[Any], sample_weight: Any) -> Classifier:
        """Fine-tune on (n, m) labels of m columns."""
        if self._settings().get("task") not in (None, "columns"):
            raise ValueError("settings: y has several columns, so task must be columns. Remove it.")
        import pandas as pd

        # Columns of different types are objects: each one gets its own type again.
        typed = [pd.Series(list(column)).infer_objects().to_numpy() for column in labels.T]
        classes = [_classes(column) for column in typed]
        names = [f"y{place}" for place in range(labels.shape[1])]
        columns = {name: list(map(str, labels[:, i])) for i, name in enumerate(names)}
        self._train(X, columns, sample_weight, task="columns", label_column_name=",".join(names))
        self.classes_, self._dtype = classes, labels.dtype
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes, (n, K), in the order of `classes_`.

        With several columns of labels, it is a list with an array for each column. The model's
        float32 probabilities are divided by their sum in float64.
        """
        table = self._predict(X, all_probabilities=True, decimals=None)
        if isinstance(self.classes_, list):
            if table is None:
                return [np.zeros((0, len(classes))) for classes in self.classes_]
            parts = enumerate(self.classes_)
            names = [[f"{PROBABILITY}y{i}={each}" for each in classes] for i, classes in parts]
            return [_probabilities(table[part]) for part in names]
        if table is None:
            return np.zeros((0, len(self.classes_)))
        columns = [PROBABILITY + str(label) for label in self.classes_]
        return _probabilities(table[columns])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the label that the run predicts for each text, (n,), in the dtype of `y`.

        It is the most probable one, unless `tune_thresholds` is among the settings. Of several
        columns, the shape is (n, m).
        """
        check_is_fitted(self, "run_")
        if isinstance(self.classes_, list):
            # Rounded probabilities can be equal. The order of the labels is not rounded.
            count = sum(map(len, self.classes_))
            table = self._predict(X, top_k=count)
            ranked = [] if table is None else table.filter(regex=r"^label_\d+$").to_numpy()
            columns = []
            for i, classes in enumerate(self.classes_):
                places = {f"y{i}={each}": place for place, each in enumerate(classes)}
                best = [next(places[name] for name in row if name in places) for row in ranked]
                columns.append(classes[np.array(best, dtype=np.int64)].astype(self._dtype))
            return np.stack(columns, axis=1)
        table = self._predict(X)
        if table is None:
            return self.classes_[:0]
        places = {str(label): place for place, label in enumerate(self.classes_)}
        return self.classes_[[places[name] for name in table["prediction"]]]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of texts whose label is right, of several columns all labels."""
        if not isinstance(getattr(self, "classes_", None), list):
            return float(super().score(X, y, sample_weight))
        right = (self.predict(X) == np.asarray(y)).all(axis=1)
        return float(np.average(right, weights=sample_weight))


def _classes(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sorted labels of a column.

    Raises:
        ValueError: They have different types, or are not classes.
    """
    try:
        classes = np.unique(labels)
    except TypeError as error:
        raise ValueError("y: the labels have different types.") from error
    check_classification_targets(labels)
    return classes


class Regressor(RegressorMixin, TextEstimator):
    """Fine-tunes a model to predict a number for each text; it has the parameters of `Classifier`.

    Attributes:
        run_: The `FinishedRun`.

    Examples:
        >>> cross_val_score(ampft.Regressor(), texts, numbers, scoring="r2")  # doctest: +SKIP
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Fine-tune on texts.

        Args:
            X: (n,) texts: a list, an array, a Series, or a DataFrame with one column.
            y: (n,) finite numbers.
            sample_weight: (n,) weights of the texts in the loss; None for 1.

        Raises:
            ValueError: The data or a setting must be corrected; it is an `InputError` too if a
                training would refuse it.
            TypeError: `X`, `sample_weight` or `settings` have a type that is not supported.
        """
        values = _numbers("y", self._labels(X, y))
        self._train(X, values.tolist(), sample_weight, task="regression")
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the predicted number of each text, (n,), in the unit of `y`."""
        table = self._predict(X)
        return np.zeros(0) if table is None else table["prediction"].to_numpy(dtype=np.float64)


def _is_missing(value: Any) -> bool:
    """Return whether a label, or one of a row of them, is None, NaN, NA or NaT."""
    if isinstance(value, np.ndarray):
        return any(map(_is_missing, value))
    is_empty = value is None or type(value).__name__ in MISSING
    return is_empty or (isinstance(value, float | np.floating | np.datetime64) and value != value)


def _numbers(name: str, values: Any) -> npt.NDArray[np.float64]:
    """Return values, an argument called `name`, as float64.

    Raises:
        ValueError: One of them is not a finite number that float64 holds.
        TypeError: They are not numbers.
    """
    array = np.asarray(values)
    if array.dtype.kind in "cmM":
        raise TypeError(f"{name}: received {array.dtype}. Pass real numbers.")
    try:
        array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: received {quoted(values)}. Pass finite numbers.") from None
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinity. Pass finite numbers.")
    return array


def _weights(values: Any, count: int) -> npt.NDArray[np.float64]:
    """Return the weights of `count` texts.

    Raises:
        ValueError: They have another shape, one is negative or not finite, or all are 0.
        TypeError: They are not numbers.
    """
    weights = _numbers("sample_weight", values)
    if weights.shape != (count,):
        raise ValueError(f"sample_weight has the shape {weights.shape}, and X has {count} texts.")
    if weights.min() < 0 or not weights.any():
        raise ValueError("sample_weight: weights are at least 0, and one of them above 0.")
    return weights


class _RefusedValue(InputError, ValueError):
    """What a training refuses, as tools of scikit-learn expect it."""


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    """Raise an `InputError` as one that is a `ValueError` too."""
    try:
        yield
    except InputError as error:
        raise _RefusedValue(*error.args[:1]) from None


def _probabilities(table: Any) -> npt.NDArray[np.float64]:
    """Return rows of float32 probabilities as rows that sum to 1 in float64."""
    values = table.to_numpy(dtype=np.float64)
    return values / values.sum(axis=1, keepdims=True)


def texts_of(X: Any) -> list[str]:
    """Return the texts in a list, an array, a Series, or the only column of a table.

    Raises:
        ValueError: There are several columns, or something else than texts.
    """
    if hasattr(X, "tocsr"):
        raise TypeError("X: sparse data were passed, and texts are needed.")
    values = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"X: texts have one dimension, but received the shape {values.shape}.")
    others: Sequence[Any] = [value for value in values if not isinstance(value, str)]
    if others:
        raise ValueError(f"X: received {others[0]!r}, which is not a text.")
    return list(map(str, values))


def _claimed_folder(wanted: Path) -> Path:
    """Return a new folder: `wanted`, or with a number at its end if that holds something.

    Fits in several processes, as in a search, get different ones.
    """
    for number in itertools.count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        refuse_link(folder, "output_dir")
        with contextlib.suppress(OSError):
            folder.rmdir()  # an empty one; made again, it belongs to one process
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ValueError(
                f"output_dir {wanted}: the folder cannot be made ({error.strerror}). Choose another"
                " folder."
            ) from None
        return folder
    raise AssertionError("numbers do not end")


@contextlib.contextmanager
def _silence() -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
