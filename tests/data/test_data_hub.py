"""Data sets of the hub, with folders in their place."""

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as PILImage

from ampft.data.load import OtherTaskDeclared, load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError

NO_SPLITS = {"validation_fraction": 0.0, "test_fraction": 0.0}
CLASSES = Features({"text": Value("string"), "label": ClassLabel(names=["pos", "neg"])})


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def saved(folder, columns, features=None, **splits):
    data = {"train": Dataset.from_dict(columns, features=features)}
    for name, rows in splits.items():
        data[name] = Dataset.from_dict(rows, features=features)
    DatasetDict(data).save_to_disk(folder / "saved")
    return str(folder / "saved")


def load(name, **options):
    return load_data(DataRequest(dataset_name=name, **{**NO_SPLITS, **options}))


def labels_of(data, split="train"):
    return [data.label_names[code] for code in data.splits[split]["label"]]


def test_declared_classes_keep_their_order(tmp_path):
    name = saved(tmp_path, {"text": ["a", "b", "c"], "label": [1, 0, 1]}, CLASSES)
    data = load(name)
    assert data.label_names == ("pos", "neg")
    assert labels_of(data) == ["neg", "pos", "neg"]
    assert data.kind == "text"


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 10], ("9", "10")),
        (["b", "a", "b"], ("a", "b")),
        ([True, False, True], ("False", "True")),
    ],
)
def test_integers_strings_and_booleans_are_labels(tmp_path, labels, names):
    data = load(saved(tmp_path, {"text": ["x", "y", "z"], "label": labels}))
    assert data.label_names == names
    assert labels_of(data) == [str(label) for label in labels]


def test_a_folder_of_parquet_files_stands_for_a_dataset(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=CLASSES)
    for split in ("train", "test"):
        rows.to_parquet(folder / f"{split}.parquet")
    data = load(str(folder))
    assert data.label_names == ("pos", "neg")
    assert any("2 of 2 test rows have inputs that train has too" in note for note in data.notes)


def test_a_test_split_without_labels_is_left_out(tmp_path):
    test = {"text": ["d", "e"], "label": [-1, -1]}
    name = saved(tmp_path, {"text": ["a", "b"], "label": [0, 1]}, CLASSES, test=test)
    data = load(name)
    assert set(data.splits) == {"train"}
    assert any("test split has no labels" in note for note in data.notes)


def test_some_missing_labels_are_refused(tmp_path):
    name = saved(tmp_path, {"text": ["a", "b", "c"], "label": [0, -1, 1]}, CLASSES)
    with pytest.raises(InputError, match=r"split train, position 1 \(from 0\): .*--ignore_label"):
        load(name)
    assert labels_of(load(name, ignore_label="-1")) == ["pos", "neg"]


def test_missing_texts_are_refused_or_dropped(tmp_path):
    name = saved(tmp_path, {"text": ["a", None, "c"], "label": [0, 1, 1]}, CLASSES)
    with pytest.raises(InputError, match=r"position 1 \(from 0\): nothing in column 'text'"):
        load(name)
    data = load(name, drop_missing_text=True)
    assert data.splits["train"]["text"][:] == ["a", "c"]


def test_other_names_of_splits_and_unused_ones(tmp_path):
    rows = {"text": ["d", "e"], "label": [0, 1]}
    name = saved(tmp_path, {"text": ["a", "b"], "label": [0, 1]}, CLASSES, dev=rows, extra=rows)
    data = load(name)
    assert set(data.splits) == {"train", "validation"}
    assert any("not used: extra" in note for note in data.notes)


def test_columns_are_listed_with_their_types(tmp_path):
    name = saved(tmp_path, {"words": ["a", "b"], "more": ["a", "b"], "stars": [1, 2]})
    with pytest.raises(
        InputError, match=r"'words' \(string\), 'more' \(string\), 'stars' \(int64\)"
    ):
        load(name)
    data = load(name, label_column_name="stars", text_column_names="words,more")
    assert data.input_columns == ("words", "more")


def test_columns_are_found_whatever_their_case_and_blanks(tmp_path):
    rows = {"Text ": ["a", "b"], "Label": [0, 1]}
    data = load(saved(tmp_path, rows, test={"Text ": ["c", "d"], "Label": [0, 1]}))
    assert data.input_columns == ("text",)
    assert labels_of(data, "test") == ["0", "1"]
    assert any("'Text ' as 'text', 'Label' as 'label'" in note for note in data.notes)


def picture(value):
    return PILImage.new("L", (4, 4), value)


@pytest.mark.add_ons
def test_image_columns_make_image_data(tmp_path):
    features = Features({"img": Image(), "label": ClassLabel(names=["dark", "light"])})
    pictures = {"img": [picture(0), picture(255)], "label": [0, 1]}
    name = saved(tmp_path, pictures, features, test=pictures)
    data = load(name)
    assert (data.kind, data.input_columns) == ("image", ("img",))
    assert any("2 of 2 test rows" in note for note in data.notes)
    with pytest.raises(InputError, match=r"--image_column_name: .*has no column 'label'"):
        load(name, image_column_name="label")


@pytest.mark.add_ons
def test_a_corrupt_image_is_named_before_training(tmp_path):
    features = Features({"img": Image(), "label": ClassLabel(names=["dark", "light"])})
    broken = {"bytes": b"\x89PNG\r\n\x1a\n and no more", "path": None}
    name = saved(tmp_path, {"img": [picture(0), broken], "label": [0, 1]}, features)
    with pytest.raises(
        InputError, match=r"split train: 1 of 2 images .*: position 1 .*not an image file"
    ):
        load(name)


@pytest.mark.add_ons
def test_an_image_that_would_fill_the_memory_is_named(tmp_path, monkeypatch):
    features = Features({"img": Image(), "label": ClassLabel(names=["dark", "light"])})
    large = PILImage.new("L", (40, 40))
    name = saved(tmp_path, {"img": [picture(0), large], "label": [0, 1]}, features)
    monkeypatch.setattr(PILImage, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r": position 1 .*\(Image size .* exceeds limit"):
        load(name)


@pytest.mark.parametrize("configuration", [None, "sst2"])
def test_a_dataset_out_of_reach_says_what_to_do(configuration):
    with pytest.raises(InputError, match=r"cannot load 'nobody/nothing'.*--dataset_name stdlib"):
        load("nobody/nothing", dataset_config_name=configuration)


def odd_splits(folder):
    """A data set whose splits have unusual names."""
    parts = {
        split: Dataset.from_dict({"text": [f"{split} {n}" for n in "ab"], "label": [0, 1]}, CLASSES)
        for split in ("fit", "dev", "check", "unused")
    }
    DatasetDict(parts).save_to_disk(folder / "odd")
    return str(folder / "odd")


def test_splits_are_chosen_by_name(tmp_path):
    data = load(
        odd_splits(tmp_path), train_split_name="fit", validation_split_name="check",
        test_split_name="unused", remove_splits="dev",
    )  # fmt: skip
    texts = {split: part["text"][0] for split, part in data.splits.items()}
    assert texts == {"train": "fit a", "validation": "check a", "test": "unused a"}
    assert not any("not used: unused" in note for note in data.notes)
    data = load(odd_splits(tmp_path), train_split_name="check")
    assert {split: part["text"][0] for split, part in data.splits.items()} == {
        "train": "check a", "validation": "dev a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no split called train; its splits: 'fit'.*--train_split_name"),
        ({"train_split_name": "chek"}, "no split 'chek'. Did you mean 'check'"),
        ({"train_split_name": "fit", "remove_splits": "a,dev"}, "--remove_splits: .* no split 'a'"),
        ({"train_split_name": "fit", "test_split_name": "fit"}, "'fit' would have two uses"),
        ({"train_split_name": "fit", "remove_splits": "fit"}, "'fit' would have two uses"),
        ({"train_split_name": "fit", "dataset_revision": "v1"}, "is a folder, which has no rev"),
    ],
)
def test_splits_that_cannot_be_chosen(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        load(odd_splits(tmp_path), **options)


def test_another_configuration_for_evaluation(tmp_path):
    folder = tmp_path / "languages"
    lines = ["---", "configs:"]
    for language in ("en", "de"):
        lines += [f"- config_name: {language}", "  data_files:"]
        for split in ("train", "validation", "test"):
            rows = {"text": [f"{language} {split} {n}" for n in "ab"], "label": [0, 1]}
            (folder / language).mkdir(parents=True, exist_ok=True)
            Dataset.from_dict(rows, CLASSES).to_parquet(folder / language / f"{split}.parquet")
            lines += [f"  - split: {split}", f"    path: {language}/{split}.parquet"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    data = load(str(folder), dataset_config_name="en", eval_dataset_config_name="de")
    texts = {split: part["text"][0] for split, part in data.splits.items()}
    assert texts == {"train": "en train a", "validation": "de validation a", "test": "de test a"}


@pytest.mark.add_ons
def test_types_of_columns_show_the_task(tmp_path):
    from ampft.labels.declared_task import declared_task

    several = Features({"text": Value("string"), "topics": List(Value("string"))})
    name = saved(tmp_path, {"text": ["a", "b"], "topics": [["x"], ["x", "y"]]}, several)
    with pytest.raises(OtherTaskDeclared, match="multi-label"):
        load(name, label_column_name="topics")
    masks = Features({"pixel_values": Image(), "label": Image()})
    assert declared_task(masks, DataRequest(dataset_name="d")) == "pixels"
    # A named column of images and one of classes is a classification.
    named = DataRequest(
        dataset_name="d", image_column_name="pixel_values", label_column_name="kind"
    )
    assert declared_task(masks | {"kind": Value("string")}, named) is None
    assert declared_task(Features({"image": Image(), "other": Image()}), DataRequest()) is None


@pytest.mark.parametrize(("described", "wins"), [(("pos", "neg"), True), (("neg", "pos"), False)])
def test_a_file_that_contradicts_the_description_of_its_data_set_is_said(tmp_path, described, wins):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    part = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    part.to_parquet(tmp_path / "train.parquet")
    classes = "".join(f"          '{code}': {name}\n" for code, name in enumerate(described))
    (tmp_path / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: label\n"
        f"    dtype:\n      class_label:\n        names:\n{classes}---\n"
    )
    data = load(str(tmp_path))
    assert data.label_names == described
    notes = [note for note in data.notes if "which count" in note]
    assert len(notes) == wins
    assert all("declares the classes 'neg', 'pos' for 'label'" in note for note in notes)


def test_the_reason_of_datasets_is_said_without_a_guess(tmp_path):
    (tmp_path / "train-1.csv").write_text("text,label\na,x\n")
    (tmp_path / "train-2.csv").write_text("text,kind\na,x\n")
    with pytest.raises(
        InputError, match=r"has the columns 'text', 'label', and .*2\.csv has 'text', 'kind'"
    ) as error:
        load(str(tmp_path))
    assert "Give all files of a split the same columns." in str(error.value)
    assert "Convert images" not in str(error.value)


def test_a_joined_column_may_hold_numbers(tmp_path):
    columns = {"text": ["a", "b"], "year": [1, 2], "label": [0, 1]}
    name = saved(tmp_path, columns)
    data = load(name, text_column_names="text+year")
    (column,) = data.input_columns
    assert data.splits["train"][column][:] == ["a 1", "b 2"]


def test_addresses_beside_the_texts_are_no_input(tmp_path):
    lines = [f"text {i},https://x.org/{i}.jpg,{'ab'[i % 2]}" for i in range(8)]
    (tmp_path / "train.csv").write_text("\n".join(["text,url,label", *lines]) + "\n")
    data = load_data(DataRequest(train_file=str(tmp_path / "train.csv"), **NO_SPLITS))
    assert data.input_columns == ("text",)
