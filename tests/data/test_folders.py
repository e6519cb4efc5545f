"""Folders of images and sounds: what is read, what is converted and said, what is refused."""

import json
import sys

import numpy as np
import pytest
import soundfile
from media_files import image_folder, picture, tone
from PIL import Image

from ampft.data.dataset import CONTENT_COLUMN
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.media.media_rows import media_as_table

NO_SPLITS = {"validation_fraction": 0.0, "test_fraction": 0.0}


def load(folder, **options):
    return load_data(DataRequest(dataset_name=str(folder), **options))


def sizes(data):
    return {split: len(part) for split, part in data.splits.items()}


@pytest.mark.add_ons
def test_class_folders_are_split_by_us(tmp_path):
    data = load(image_folder(tmp_path / "data", per_class=10))
    assert (data.kind, data.input_columns) == ("image", ("image",))
    assert data.label_names == ("blue", "green", "red")
    assert sizes(data) == {"train": 21, "validation": 3, "test": 6}
    assert np.bincount(data.labels("train")).tolist() == [7, 7, 7]
    image = data.splits["train"][0]["image"]
    assert (image.mode, image.size) == ("RGB", (16, 16))


@pytest.mark.add_ons
@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "dev", "test")])
def test_folders_of_splits(tmp_path, names):
    data = load(image_folder(tmp_path / "data", per_class=2, splits=names))
    assert sizes(data) == {"train": 6, "validation": 6, "test": 6}
    assert any("names of the folders" in note for note in data.notes)


def test_files_without_folders_of_classes_are_explained(tmp_path):
    for number in range(3):
        picture(number).save(tmp_path / f"{number}.png")
    with pytest.raises(InputError) as error:
        load(tmp_path)
    assert "files in this folder have no labels" in str(error.value)
    assert "/CLASS/FILE" in str(error.value)
    assert "header" not in str(error.value), "images have none"


@pytest.mark.add_ons
def test_a_class_can_be_called_train(tmp_path):
    for name in ("bus", "train"):
        (tmp_path / name).mkdir()
        picture(len(name)).save(tmp_path / name / "a.png")
    assert load(tmp_path, **NO_SPLITS).label_names == ("bus", "train")


@pytest.mark.add_ons
def test_files_in_deeper_folders_belong_to_the_class(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=2)
    (folder / "red" / "more" / "deep").mkdir(parents=True)
    picture(1).save(folder / "red" / "more" / "deep" / "x.JPG")
    assert np.bincount(load(folder, **NO_SPLITS).labels("train")).tolist() == [2, 2, 3]


@pytest.mark.add_ons
def test_what_is_left_out_is_said(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=2, splits=("train", "test"))
    (folder / "train" / "red" / "notes.txt").write_text("from the phone")
    (folder / "train" / "readme.md").write_text("about")
    (folder / "train" / "red" / ".DS_Store").write_text("hidden")
    (folder / "other").mkdir()
    notes = " ".join(load(folder).notes)
    assert "files that are not images are left out: " in notes
    assert "notes.txt" in notes
    assert "readme.md" in notes
    assert f"folders that are not a split are not used: {folder / 'other'}" in notes
    assert "DS_Store" not in notes


@pytest.mark.add_ons
def test_conversions_are_said(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=3)
    deep = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 900)
    exif = Image.Exif()
    exif[0x0112] = 6
    deep.save(folder / "red" / "deep.png")
    picture(1).convert("CMYK").save(folder / "red" / "print.jpg")
    picture(2).convert("RGBA").save(folder / "red" / "alpha.png")
    picture(3).convert("P").save(folder / "blue" / "palette.gif")
    picture(4).save(folder / "blue" / "turned.jpg", exif=exif)
    (note,) = [n for n in load(folder).notes if "converted" in n]
    assert note.startswith("Of 14 images, these are converted to 8-bit RGB: ")
    for words in (
        "1 with 16-bit grey values, scaled to 8 bits",
        "1 in CMYK",
        "1 with transparency, drawn on white",
        "1 with a palette",
        "1 rotated as its EXIF data says",
    ):
        assert words in note


def truncated(folder):
    path = folder / "red" / "broken.jpg"
    Image.effect_noise((64, 64), 50).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:-900])


def text_as_image(folder):
    (folder / "red" / "broken.jpg").write_text("not an image")


def beside_the_classes(folder):
    picture(1).save(folder / "loose.png")


def empty_class(folder):
    (folder / "zebra").mkdir()


def one_class(folder):
    for name in ("green", "blue"):
        for file in (folder / name).iterdir():
            file.unlink()
        (folder / name).rmdir()


def with_sounds(folder):
    soundfile.write(folder / "red" / "bark.wav", tone(300, 1), 8000)


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, r"1 of 10 images cannot be used: .*red/broken\.jpg: not a readable .*trunc"),
        (text_as_image, r"red/broken\.jpg: not a readable image \(not an image file\)\. Fix"),
        (beside_the_classes, r"loose\.png lies beside the folders of the classes.*Move each image"),
        (empty_class, r"no images in zebra/\. .*remove the folder"),
        (one_class, r"the only class folder is red/\. A classifier needs at least two classes"),
        (with_sounds, r"the folder has images \(.*\) and sounds \(.*\)\. Say which .*--task"),
    ],
)
def test_bad_folders_are_refused(tmp_path, damage, message):
    folder = image_folder(tmp_path / "data", per_class=3)
    damage(folder)
    with pytest.raises(InputError, match=message):
        load(folder)


@pytest.mark.add_ons
def test_an_option_without_effect_is_refused(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=3)
    with pytest.raises(InputError, match="--image_column_name has no effect on a folder of class"):
        load(folder, image_column_name="photo")
    with pytest.raises(InputError, match="--drop_missing_text has no effect on a folder of class"):
        load(folder, drop_missing_text=True)
    with pytest.raises(InputError, match="--encoding has no effect on a folder of class"):
        load(folder, encoding="latin-1")


@pytest.mark.add_ons
def test_the_same_picture_in_two_splits_is_found_in_any_lossless_format(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=3, splits=("train", "test"))
    with Image.open(folder / "train" / "red" / "0.png") as image:
        image.save(folder / "test" / "red" / "copy.bmp")
    notes = load(folder).notes
    assert any("1 of 10 test rows have inputs that train has too" in note for note in notes)


@pytest.mark.add_ons
def test_hashes_depend_on_pixels_only(tmp_path):
    first = load(image_folder(tmp_path / "one", per_class=3), **NO_SPLITS)
    again = load(image_folder(tmp_path / "two", per_class=3), **NO_SPLITS)
    assert first.fingerprints == again.fingerprints
    picture(9, (16, 16)).save(tmp_path / "two" / "red" / "0.png")
    changed = load(tmp_path / "two", **NO_SPLITS)
    assert changed.fingerprints != first.fingerprints
    assert len(set(changed.splits["train"][CONTENT_COLUMN])) == 9


@pytest.mark.add_ons
def test_sound_folders(tmp_path):
    for label, frequency in {"low": 200, "high": 900}.items():
        (tmp_path / label).mkdir()
        for index in range(3):
            soundfile.write(tmp_path / label / f"{index}.flac", tone(frequency, index), 8000)
    data = load(tmp_path, **NO_SPLITS)
    assert (data.kind, data.input_columns, data.label_names) == (
        "sound",
        ("sound",),
        ("high", "low"),
    )
    assert data.splits["train"]["ampft_frames"][:] == [1600] * 6


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("training_set", "test_set"),
        ("Training", "Testing"),
        ("seg_train/seg_train", "seg_test/seg_test"),
        ("data/train", "data/test"),
        ("train_data", "test1"),
    ],
)
def test_folders_with_other_names_of_splits(tmp_path, train, test):
    for split in (train, test):
        image_folder(tmp_path / split, per_class=2)
    data = load(tmp_path, validation_fraction=0.0)
    assert (sizes(data), data.label_names) == ({"train": 6, "test": 6}, ("blue", "green", "red"))


@pytest.mark.add_ons
@pytest.mark.parametrize("names", [("train", "test"), ("train", "test1"), ("Training", "Testing")])
def test_splits_without_class_folders_are_no_classes(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
        picture(len(name)).save(tmp_path / name / "cat.0.png")
    with pytest.raises(InputError, match="named as splits, and have no folders of classes"):
        load(tmp_path)


def metadata_folder(folder, kind, table, splits=("train",)):
    """Write files and a table of them for each split; a split called "" has no folder."""
    for number, split in enumerate(splits):
        (folder / split).mkdir(exist_ok=True)
        rows = []
        for index in range(8):
            if kind == "image":
                picture(10 * number + index).save(folder / split / f"{index}.png")
                name = f"{index}.png"
            else:
                name = f"{index}.wav"
                sound = tone(500 + 500 * (index % 2), 10 * number + index)
                soundfile.write(folder / split / name, sound, 8000)
            rows.append({"file_name": name, "text": "said", "label": ["007", "NA"][index % 2]})
        if table.endswith("csv"):
            lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
            (folder / split / table).write_text("\n".join(lines))
        else:
            (folder / split / table).write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.add_ons
@pytest.mark.parametrize("splits", [("train",), ("",), ("train", "validation", "test")])
@pytest.mark.parametrize(
    ("kind", "table"), [("image", "metadata.csv"), ("sound", "metadata.csv"),
                        ("sound", "metadata.jsonl")],
)  # fmt: skip
def test_files_with_a_table_of_metadata(tmp_path, kind, table, splits):
    folder = metadata_folder(tmp_path, kind, table, splits)
    fractions = NO_SPLITS if len(splits) == 1 else {}
    data = load(folder, **fractions)
    column = {"image": "image", "sound": "audio"}[kind]
    assert (data.kind, data.input_columns) == (kind, (column,))
    assert data.label_names == ("007", "NA")
    assert sizes(data) == {split or "train": 8 for split in splits}
    assert data.labels("train").tolist() == [0, 1] * 4
    named = load(folder, **{f"{column}_column_name": column}, **fractions)
    assert named.fingerprints == data.fingerprints


@pytest.mark.add_ons
@pytest.mark.parametrize(
    "start", ["images\\", "C:\\photos\\images\\", "\\\\server\\photos\\images\\"]
)
def test_paths_of_windows_are_read_where_the_files_are(tmp_path, start):
    (tmp_path / "images").mkdir()
    for number in range(8):
        picture(number).save(tmp_path / "images" / f"{number}.png")
    lines = [f"{start}{number}.png,{'ab'[number % 2]}" for number in range(8)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["image,label", *lines]))
    if not start.startswith("images"):
        with pytest.raises(InputError, match="on a Windows machine: write them relative"):
            load_data(DataRequest(train_file=str(table), **NO_SPLITS))
        return
    data = load_data(DataRequest(train_file=str(table), **NO_SPLITS))
    assert (data.kind, sizes(data)) == ("image", {"train": 8})


@pytest.mark.add_ons
def test_a_missing_package_for_sounds_is_said_once_before_files_are_read(tmp_path, monkeypatch):
    folder = metadata_folder(tmp_path, "sound", "metadata.csv")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InputError, match=r"^sounds need the packages soundfile and soxr") as error:
        load(folder, **NO_SPLITS)
    assert str(error.value).count("soundfile and soxr") == 1


@pytest.mark.add_ons
def test_files_that_metadata_do_not_list_are_said(tmp_path):
    folder = metadata_folder(tmp_path, "image", "metadata.csv")
    picture(9).save(folder / "train" / "more.png")
    notes = load(folder, **NO_SPLITS).notes
    assert any("images without a row are not used" in n and "more.png" in n for n in notes)


@pytest.mark.add_ons
@pytest.mark.parametrize(("labels", "others"), [("ab", 0), ("ba", 8), ("xy", 0)])
def test_a_table_that_contradicts_the_folders_is_said(tmp_path, labels, others):
    rows = ["file_name,label"]
    for number in range(8):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        picture(number).save(folder / f"{number}.png")
        rows.append(f"{folder.name}/{number}.png,{labels[number % 2]}")
    (tmp_path / "metadata.csv").write_text("\n".join(rows))
    data = load(tmp_path, **NO_SPLITS)
    assert data.label_names == tuple(sorted(labels))
    said = [note for note in data.notes if "contradicts the folders" in note]
    assert len(said) == (others > 0)
    assert all(f"{others} of 8 files, such as a/0.png. The column counts" in n for n in said)


@pytest.mark.add_ons
def test_one_table_of_several_splits_is_refused(tmp_path):
    folder = metadata_folder(tmp_path, "image", "unread.csv", ("train", "test"))
    (folder / "metadata.csv").write_text("file_name,label\ntrain/0.png,a\ntest/1.png,b\n")
    with pytest.raises(InputError, match="the files of 'test', 'train', which seem to be splits"):
        load(folder)


@pytest.mark.add_ons
def test_two_tables_of_one_folder_are_refused(tmp_path):
    folder = metadata_folder(tmp_path, "image", "metadata.csv")
    (folder / "train" / "metadata.jsonl").write_text('{"file_name": "0.png", "label": "c"}')
    with pytest.raises(InputError, match=r"metadata\.csv, metadata\.jsonl, .*Remove all but one"):
        load(folder, **NO_SPLITS)


def texts(folder, suffix=".txt", encoding="utf-8"):
    for split in ("train", "test"):
        for name in ("neg", "pos"):
            (folder / split / name).mkdir(parents=True)
            for number in range(3):
                path = folder / split / name / f"{number}{suffix}"
                path.write_text(f"{split} {name}\ncafé {number}", encoding=encoding)
    return folder


@pytest.mark.parametrize("suffix", [".txt", ""])
def test_folders_of_texts(tmp_path, suffix):
    folder = texts(tmp_path, suffix)
    (folder / "README").write_text("about the data")
    data = load(folder, validation_fraction=0.0)
    assert (data.kind, data.label_names) == ("text", ("neg", "pos"))
    assert [(row["text"], row["label"]) for row in data.splits["test"]] == [
        (f"test {name}\ncafé {number}", code)
        for code, name in enumerate(("neg", "pos"))
        for number in range(3)
    ]


def test_encoding_of_texts_in_folders(tmp_path):
    folder = texts(tmp_path, encoding="latin-1")
    with pytest.raises(InputError, match=r"0.txt, line 2: byte 0xe9 is not utf-8. .*--encoding"):
        load(folder)
    assert "café" in load(folder, encoding="latin-1", **NO_SPLITS).splits["train"][0]["text"]


def test_texts_without_labels_are_left_out_only_if_asked(tmp_path):
    folder = texts(tmp_path)
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0.txt").write_text("neither")
    with pytest.raises(InputError, match=r"have no labels. .* --ignore_label unsup"):
        load(folder)
    assert load(folder, ignore_label="unsup", **NO_SPLITS).label_names == ("neg", "pos")


def test_files_that_cannot_be_read_are_named(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.heic").write_bytes(b"\0")
    with pytest.raises(InputError, match=r"Its files: \.heic \(2\)\. Convert images to \.png"):
        load(tmp_path)
    archive = tmp_path / "pets.zip"
    archive.write_bytes(b"PK")
    with pytest.raises(InputError, match=r"pets.zip: is a file. Unpack an archive"):
        load(archive)


@pytest.mark.add_ons
def test_columns_may_be_called_as_datasets_calls_them(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=2)
    named = load(folder, label_column_name="label", image_column_name="image", **NO_SPLITS)
    assert named.label_names == ("blue", "green", "red")
    with pytest.raises(InputError, match="--label_column_name has no effect on a folder"):
        load(folder, label_column_name="class", **NO_SPLITS)


@pytest.mark.add_ons
def test_links_to_folders_are_followed_but_not_in_a_circle(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=2)
    more = tmp_path / "more"
    more.mkdir()
    for number in range(3):
        picture(number).save(more / f"{number}.png")
    (folder / "red" / "more").symlink_to(more)
    (folder / "red" / "circle").symlink_to(folder)
    (more / "red").symlink_to(folder / "red")
    data = load(folder, **NO_SPLITS)
    assert np.bincount(data.labels("train")).tolist() == [2, 2, 5]
    (folder / "grey").symlink_to(more)
    table = media_as_table([str(folder)], "image", ("blue", "green", "red", "grey"))
    labels = [label for _, (label,) in table.read(("label",))]
    assert {label: labels.count(label) for label in labels} == {
        "blue": 2, "green": 2, "grey": 5, "red": 5
    }  # fmt: skip


@pytest.mark.add_ons
def test_files_that_are_not_predicted_are_said(tmp_path):
    folder = image_folder(tmp_path / "data", per_class=2)
    (folder / "red" / "one.heic").write_bytes(b"x")
    table = media_as_table([str(folder)], "image")
    assert table.notes == (f"Files that are not images are left out: {folder / 'red/one.heic'}.",)
