import ast
import itertools
from collections import Counter

import numpy as np
import pytest

from ampft.data.dataset import row_labels
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.data.sources.built_in import (
    CLASSES,
    MIN_TEXTS,
    docstrings,
    first_paragraph,
    load_digits,
    load_stdlib,
)
from ampft.errors import InputError


@pytest.fixture(scope="module", params=["summary", "full"])
def stdlib(request):
    return load_data(DataRequest(dataset_config_name=request.param))


@pytest.mark.slow
def test_stdlib_has_twelve_classes_of_ninety_texts(stdlib):
    labels = itertools.chain.from_iterable(part["label"] for part in stdlib.splits.values())
    counts = Counter(stdlib.label_names[label] for label in labels)
    assert set(counts) == set(CLASSES)
    assert len(CLASSES) == 12
    assert min(counts.values()) >= MIN_TEXTS == 90


def test_no_text_of_stdlib_stands_twice(stdlib):
    texts = list(itertools.chain.from_iterable(p["text"] for p in stdlib.splits.values()))
    assert len(texts) == len(set(texts)) > 2000
    assert all(text.strip() == text != "" for text in texts)


def test_every_class_is_in_every_split(stdlib):
    for part in stdlib.splits.values():
        assert set(part["label"]) == set(range(12))


@pytest.mark.slow
def test_summaries_are_first_paragraphs_on_one_line():
    assert first_paragraph("A  first\nparagraph.\n   \nA second.") == "A first paragraph."
    summaries = load_stdlib("summary")
    assert not any("\n" in text for part in summaries.values() for text in part["text"])


def test_docstrings_are_those_of_ast(tmp_path):
    source = tmp_path / "m.py"
    source.write_text(
        '"""Module.\n\n    Indented.\n"""\nasync def f():\n    "F \\d"\nclass C:\n  ""\n'
    )
    assert sorted(docstrings(source)) == ["F \\d", "Module.\n\nIndented."]
    assert ast.get_docstring(ast.parse(source.read_text()[:34])) == "Module.\n\nIndented."


def library(folder, texts):
    for name in CLASSES:
        package = folder / name
        (package / "tests").mkdir(parents=True)
        (package / "tests" / "t.py").write_text('"Not read: a test."')
        body = [f'def f{i}():\n    "{text}"\n' for i, text in enumerate(texts(name))]
        (package / "__init__.py").write_text("".join(body))


def test_shared_texts_are_removed_and_repeated_ones_kept_once(tmp_path):
    library(tmp_path, lambda name: ["shared", *[f"{name} {i % 95}" for i in range(190)]])
    splits = load_stdlib(root=tmp_path)
    texts = list(itertools.chain.from_iterable(part["text"] for part in splits.values()))
    assert sorted(texts) == sorted(f"{name} {i}" for name in CLASSES for i in range(95))


def test_the_split_of_a_text_does_not_depend_on_the_others(tmp_path):
    library(tmp_path / "one", lambda name: [f"{name} {i}" for i in range(95)])
    library(tmp_path / "two", lambda name: [f"{name} {i}" for i in range(20, 120)])
    one, two = (load_stdlib(root=tmp_path / folder) for folder in ("one", "two"))
    shared = 0
    for split, other in itertools.permutations(one, 2):
        assert not set(one[split]["text"]) & set(two[other]["text"])
        shared += len(set(one[split]["text"]) & set(two[split]["text"]))
    assert shared == 2 * 75 * 12


@pytest.mark.filterwarnings("error")
def test_a_library_without_sources_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"fewer than 90 for: .*tarfile 0.*libpython3-stdlib"):
        load_stdlib(root=tmp_path)


def test_unknown_configuration_is_refused():
    with pytest.raises(InputError, match=r"received 'sumary'; .*Did you mean 'summary'"):
        load_data(DataRequest(dataset_config_name="sumary"))


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"text_column_names": "text"}, "--text_column_names"),
        ({"dataset_name": "digits", "dataset_config_name": "x"}, "--dataset_config_name"),
        ({"validation_fraction": 0.2}, "--validation_fraction"),
        ({"dataset_name": "digits", "test_fraction": 0.0}, "--test_fraction"),
        ({"dataset_name": "digits", "folds": 5, "fold": 2}, "--folds"),
        ({"folds": 5}, "--folds"),
        ({"ignore_label": "email"}, "--ignore_label"),
        ({"fail_on_leak": True}, "--fail_on_leak"),
    ],
)
def test_options_without_effect_are_refused(options, flag):
    with pytest.raises(InputError, match=rf"{flag} has no effect"):
        load_data(DataRequest(**options))


def test_digits_are_grey_images_in_three_stratified_splits():
    data = load_data(DataRequest(dataset_name="digits"))
    assert (data.kind, data.input_columns) == ("image", ("image",))
    assert sum(len(part) for part in data.splits.values()) == 1797
    for part in data.splits.values():
        share = np.bincount(row_labels(part).codes, minlength=10) / len(part)
        assert np.all(np.abs(share - 0.1) < 0.01)
    image = data.splits["train"][0]["image"]
    assert (image.mode, image.size) == ("L", (8, 8))
    brightest = max(np.asarray(row["image"]).max() for row in data.splits["test"])
    assert brightest == 255


@pytest.mark.slow
def test_digits_follow_the_seed():
    one, same, other = (load_digits(split_seed=seed)["test"]["label"][:] for seed in (0, 0, 1))
    assert one == same != other
