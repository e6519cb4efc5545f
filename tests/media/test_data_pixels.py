"""Images with masks: every layout is read alike, and bad data are named before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Image
from PIL import Image as Pillow
from tiny_masks import SIZE, image_of, mask_of, write_folders, write_pair

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.errors import InputError


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folders(tmp_path / "camera")


def load(folder: Path, **request):
    return load_data(ClassifyArguments(dataset_name=str(folder), **request))


def save(path: Path, array: np.ndarray, **options) -> None:
    Pillow.fromarray(array).save(path, **options)


def test_the_folders_of_camvid(folder):
    data = load(folder)  # the task follows from the masks
    assert (data.kind, data.label_names) == ("pixels", ("0", "1", "2"))
    assert {split: len(part) for split, part in data.splits.items()} == {
        "train": 13,
        "validation": 4,
    }
    (mask,) = data.labels("train").decoded(np.array([3]))
    assert np.array_equal(mask, mask_of(3))
    assert data.labels("train").counts[3].tolist() == [(mask_of(3) == k).sum() for k in range(3)]
    assert any("No test split" in note for note in data.notes)


@pytest.mark.parametrize("inside", ["", "train"])
def test_images_beside_masks(tmp_path, inside):
    images, masks = tmp_path / "images" / inside, tmp_path / "masks" / inside
    images.mkdir(parents=True)
    masks.mkdir(parents=True)
    for row in range(20):
        write_pair(images, masks, f"frame{row:02}", row)
    data = load(tmp_path, task="pixels")
    sizes = {split: len(part) for split, part in data.splits.items()}
    assert sizes == {"train": 14, "validation": 2, "test": 4}
    files = [name for part in data.splits.values() for name in part["file"]]
    assert len(set(files)) == 20


def columns(count: int, *, without_mask: int | None = None) -> Dataset:
    masks = [mask_of(row) for row in range(count)]
    return Dataset.from_dict(
        {
            "image": [Pillow.fromarray(image_of(mask, row)) for row, mask in enumerate(masks)],
            "mask": [
                None if row == without_mask else Pillow.fromarray(mask)
                for row, mask in enumerate(masks)
            ],
        },
        features=Features({"image": Image(), "mask": Image()}),
    )


@pytest.mark.slow
def test_columns_are_read_like_folders(tmp_path, folder):
    expected = load(folder).fingerprints["train"]
    data = DatasetDict({"train": columns(13), "validation": columns(4)})
    in_memory = load_data(ClassifyArguments(task="pixels"), data)
    assert in_memory.fingerprints["train"] == expected
    columns(13).to_parquet(tmp_path / "train.parquet")
    columns(4).to_parquet(tmp_path / "validation.parquet")
    request = ClassifyArguments(
        train_file=tmp_path / "train.parquet",
        validation_file=tmp_path / "validation.parquet",
        task="pixels",
    )
    assert load_data(request).fingerprints["train"] == expected
    data.save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved", task="pixels").fingerprints["train"] == expected


def test_a_row_without_a_mask_is_named():
    data = DatasetDict({"train": columns(4, without_mask=2)})
    with pytest.raises(InputError, match=r"split train, position 2 \(from 0\): no mask"):
        load_data(ClassifyArguments(task="pixels"), data)


def test_a_split_without_the_column_of_masks_is_named():
    data = DatasetDict({"train": columns(4), "test": columns(4).rename_column("mask", "other")})
    with pytest.raises(InputError, match=r"split test has no column 'mask'.*: 'image', 'other'\."):
        load_data(ClassifyArguments(task="pixels"), data)


def test_class_names_and_colours(folder, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("ground 10 20 30\ncar 40 50 60\ntree 70 80 90\n")
    colors = np.array([(10, 20, 30), (40, 50, 60), (70, 80, 90)], dtype=np.uint8)
    mask = np.where(mask_of(0) == 255, 0, mask_of(0))
    save(folder / "trainannot" / "train00.png", colors[mask])
    data = load(folder, class_names_file=names)
    assert data.label_names == ("ground", "car", "tree")
    assert np.array_equal(data.labels("train").decoded(np.array([0]))[0], mask)
    assert any("Colour masks are converted" in note for note in data.notes)
    assert not any(str(tmp_path) in note for note in data.notes if "names.txt" in note)


def test_the_name_of_the_ignored_value_is_no_class(folder, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("void\ncar\ntree\n")
    for path in (*folder.glob("*annot/*.png"),):
        save(path, np.where(np.asarray(Pillow.open(path)) == 255, 0, Pillow.open(path)))
    data = load(folder, class_names_file=names, ignore_index=0)
    assert data.label_names == ("car", "tree")
    assert data.labels("train").counts[3].tolist() == [(mask_of(3) == k).sum() for k in (1, 2)]


def test_one_class_beside_the_ignored_value_is_refused(folder, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("background\nforeground\n")
    with pytest.raises(InputError, match=r"--ignore_index 0: .* has 1 class, but at least two"):
        load(folder, class_names_file=names, ignore_index=0)


def other_size(folder: Path) -> None:
    save(folder / "valannot" / "val01.png", mask_of(1, size=(8, 12)))


def unknown_value(folder: Path) -> None:
    mask = mask_of(101)
    mask[5, 5:8] = 9
    save(folder / "valannot" / "val01.png", mask)


def sixteen_bits(folder: Path) -> None:
    save(folder / "valannot" / "val01.png", mask_of(101).astype(np.uint16) + 1000)


def colour_mask(folder: Path) -> None:
    save(folder / "trainannot" / "train02.png", image_of(mask_of(2), 2))


def no_mask(folder: Path) -> None:
    (folder / "trainannot" / "train02.png").unlink()


def no_image(folder: Path) -> None:
    (folder / "train" / "train02.png").unlink()


def stray_file(folder: Path) -> None:
    (folder / "train" / "notes.txt").write_text("hello")


def truncated(folder: Path) -> None:
    path = folder / "train" / "train02.png"
    path.write_bytes(path.read_bytes()[:200])


def truncated_mask(folder: Path) -> None:
    path = folder / "valannot" / "val02.png"
    path.write_bytes(path.read_bytes()[:60])


def two_names(folder: Path) -> None:
    save(folder / "train" / "train02.bmp", image_of(mask_of(2), 2))


def one_class(folder: Path) -> None:
    for path in folder.glob("trainannot/*.png"):
        save(path, np.zeros(SIZE, dtype=np.uint8))


def all_ignored(folder: Path) -> None:
    for path in folder.glob("valannot/*.png"):
        save(path, np.full(SIZE, 255, dtype=np.uint8))


def no_training(folder: Path) -> None:
    (folder / "trainannot").rename(folder / "elsewhere")


def only_masks(folder: Path) -> None:
    (folder / "val").rename(folder / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (other_size, r"valannot/val01\.png: the mask has 12 x 8 pixels, and the image 24 x 16"),
        (unknown_value, r"valannot/val01\.png: 3 pixels have the value 9.*classes 0 to 2"),
        (sixteen_bits, r"valannot/val01\.png: \d+ pixels have the value 1000"),
        (colour_mask, r"trainannot/train02\.png: it is a colour mask.*--class_names_file"),
        (no_mask, r"train/train02\.png: no mask with this name in .*trainannot"),
        (no_image, r"trainannot/train02\.png: no image with this name in .*train"),
        (stray_file, r"train/notes\.txt: not an image"),
        (truncated, r"train/train02\.png: not a readable image"),
        (truncated_mask, r"valannot/val02\.png: not a readable image"),
        (two_names, r"train02\.bmp and .*train02\.png: two files have the same name"),
        (one_class, r"the other values of the training masks are 0"),
        (all_ignored, r"all pixels of the validation split have the ignored value 255"),
        (no_training, r"masks for validation, but not for training"),
        (only_masks, r"valannot has masks, but the folder .*val of their images does not exist"),
    ],
)
def test_bad_data(folder, damage: Callable[[Path], None], message):
    damage(folder)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_training_images_without_a_labelled_pixel_are_left_out(folder):
    save(folder / "trainannot" / "train05.png", np.full(SIZE, 255, dtype=np.uint8))
    data = load(folder)
    assert len(data.splits["train"]) == len(data.labels("train")) == 12
    assert "train/train05.png" not in data.splits["train"]["file"]
    assert "1 training image without a labelled pixel left out." in data.notes


def test_all_masks_with_a_problem_are_listed(folder):
    for row in (0, 1, 2):
        save(folder / "valannot" / f"val{row:02}.png", mask_of(row, size=(8, 12)))
    with pytest.raises(InputError, match=r"val00\.png.*val01\.png.*val02\.png"):
        load(folder)


def test_hidden_files_and_those_of_file_managers_are_ignored(folder):
    (folder / "train" / ".DS_Store").write_text("x")
    (folder / "train" / "Thumbs.db").write_text("x")
    for hidden in ("train/.ipynb_checkpoints", "trainannot/__MACOSX"):
        (folder / hidden).mkdir()
        save(folder / hidden / "train00.png", mask_of(0))
    assert len(load(folder).splits["train"]) == 13


def test_an_image_is_turned_before_its_size_is_compared(folder):
    turned = Pillow.fromarray(image_of(mask_of(2), 2).transpose(1, 0, 2)[::-1].copy())
    exif = turned.getexif()
    exif[0x0112] = 6
    (folder / "train" / "train02.png").unlink()
    turned.save(folder / "train" / "train02.jpg", exif=exif)
    data = load(folder)
    assert data.splits["train"][2]["image"].size == SIZE[::-1]
    assert any("EXIF" in note for note in data.notes)


def test_shared_images_are_counted_and_can_be_refused(folder):
    for kind in ("", "annot"):
        content = (folder / f"train{kind}" / "train00.png").read_bytes()
        (folder / f"val{kind}" / "val00.png").write_bytes(content)
    assert any("1 of 4 validation images are in train too" in note for note in load(folder).notes)
    with pytest.raises(InputError, match="--fail_on_leak: 1 of 4"):
        load(folder, fail_on_leak=True)


def test_flags_of_texts_are_refused(folder):
    with pytest.raises(InputError, match="--drop_missing_text has no effect on folders of masks"):
        load(folder, drop_missing_text=True)
    with pytest.raises(InputError, match="--ignore_index has no effect on data without masks"):
        load_data(ClassifyArguments(dataset_name="digits", ignore_index=3))


def test_values_between_the_classes_that_no_mask_has_are_counted(folder):
    path = folder / "trainannot" / "train00.png"
    mask = np.array(Pillow.open(path))
    mask[8, 8] = 9
    Pillow.fromarray(mask).save(path)
    (note,) = [note for note in load(folder).notes if note.startswith("Classes")]
    assert note.startswith("Classes 0 to 9 from the values of the training masks, 6 classes")


def test_another_task_than_pixels_is_refused_for_masks(folder):
    with pytest.raises(InputError, match="images with masks, which need --task pixels"):
        load_data(ClassifyArguments(dataset_name=str(folder), task="images"))


def test_a_folder_without_masks_is_refused(tmp_path):
    with pytest.raises(InputError, match="train/ with trainannot/"):
        load_data(ClassifyArguments(task="pixels"))


def write_pairs(images: str, masks: str, *, count: int = 20, ending: str = "png"):
    """Return what writes pairs under names such as `a/{}.png`, with their numbers."""

    def write(root: Path, first: int = 0) -> None:
        for row in range(first, first + count):
            mask = mask_of(row)
            for name, array in ((images, image_of(mask, row)), (masks, mask)):
                path = root / f"{name.format(f'{row:03}')}.{ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                save(path, array)

    return write


@pytest.mark.parametrize(
    ("images", "masks", "note"),
    [
        ("{}", "{}_mask", "masks without '_mask' are"),
        ("images/{}", "masks/{}_mask", "masks without '_mask' are"),
        ("images/{}", "masks/{}_masks", "masks without '_masks' are"),
        ("images/{}", "labels/{}-label", "masks without '-label' are"),
        ("images/{}", "masks/mask_{}", "masks without 'mask_' are"),
        ("images/img_{}", "masks/mask_{}", "masks without 'mask_' and images without 'img_' are"),
        ("images/{}_sat", "masks/{}_mask", "masks without '_mask' and images without '_sat' are"),
        ("train/{}", "train_masks/{}_mask", "masks without '_mask' are"),
        ("train/{}", "train_labels/{}_L", "masks without '_L' are"),
        ("train/{}", "train/{}_mask", "masks without '_mask' are"),
        ("JPEGImages/{}", "SegmentationClass/{}", None),
        ("JPEGImages/{}", "SegmentationClassPNG/{}", None),
        (
            "leftImg8bit/train/ulm/{}_leftImg8bit", "gtFine/train/ulm/{}_gtFine_labelIds",
            "masks without '_gtFine_labelIds' and images without '_leftImg8bit' are",
        ),
    ],
)  # fmt: skip
def test_names_of_masks_as_programs_write_them(tmp_path, images, masks, note):
    write_pairs(images, masks)(tmp_path)
    data = load(tmp_path)
    assert sum(len(part) for part in data.splits.values()) == 20
    for split, part in data.splits.items():
        for position, row in enumerate(part["file"]):
            number = int("".join(filter(str.isdigit, Path(row).stem.replace("8bit", ""))))
            (mask,) = data.labels(split).decoded(np.array([position]))
            assert np.array_equal(mask, mask_of(number))
    assert (note is None) is not any(f"Names of {note} compared" in each for each in data.notes)


def test_other_files_of_cityscapes_are_not_masks(tmp_path):
    write_pairs("leftImg8bit/train/ulm/{}_leftImg8bit", "gtFine/train/ulm/{}_gtFine_labelIds")(
        tmp_path
    )
    for path in sorted((tmp_path / "gtFine").rglob("*_labelIds.png")):
        save(path.with_name(path.name.replace("labelIds", "color")), image_of(mask_of(1), 1))
        path.with_name(path.name.replace("labelIds.png", "polygons.json")).write_text("{}")
    assert len(load(tmp_path).splits["train"]) == 14


def test_the_lists_of_voc_are_the_splits(tmp_path):
    write_pairs("JPEGImages/{}", "SegmentationClass/{}", count=16)(tmp_path)
    save(tmp_path / "JPEGImages" / "without_mask.png", image_of(mask_of(1), 1))
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for name, rows in (("train", range(10)), ("val", range(10, 16)), ("trainval", range(16))):
        (lists / f"{name}.txt").write_text("".join(f"{row:03}\n" for row in rows))
    data = load(tmp_path)
    assert {s: len(part) for s, part in data.splits.items()} == {"train": 10, "validation": 6}
    assert any("ImageSets/Segmentation are the splits" in note for note in data.notes)
    (lists / "val.txt").write_text("010\nwithout_mask\n")
    with pytest.raises(InputError, match=r"val.txt: without_mask: no such image in .*JPEGImages"):
        load(tmp_path)


def test_names_that_fit_in_part_are_refused(tmp_path):
    write_pairs("images/{}", "masks/{}_mask", count=6)(tmp_path)
    (tmp_path / "masks" / "003_mask.png").rename(tmp_path / "masks" / "003_x.png")
    with pytest.raises(InputError, match=r"images/000.png.*: no mask with this name in .*masks"):
        load(tmp_path)


LABELME = '{"version": "5.0", "shapes": [], "imagePath": "0.png"}'


@pytest.mark.parametrize("task", [None, "pixels"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("0.json", LABELME, r"annotations of labelme \(.*0.json\).* labelme2voc.py .* OUT"),
        ("0.xml", "<annotation><object/></annotation>", r"has boxes \(.*0.xml\)"),
        ("_annotations.coco.json", "{}", r"has boxes \(.*_annotations.coco.json\)"),
    ],
)
def test_annotations_that_are_no_masks_are_named(tmp_path, task, name, content, message):
    folder = tmp_path / "train"
    folder.mkdir()
    for row in range(4):
        save(folder / f"{row}.png", image_of(mask_of(row), row))
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path, **({} if task is None else {"task": task}))


def test_boxes_of_yolo_are_no_masks(tmp_path):
    for row in range(4):
        for inner in ("images", "labels"):
            (tmp_path / "train" / inner).mkdir(parents=True, exist_ok=True)
        save(tmp_path / "train" / "images" / f"{row}.png", image_of(mask_of(row), row))
        (tmp_path / "train" / "labels" / f"{row}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    with pytest.raises(InputError, match=r"train/labels: has boxes \(.txt files of YOLO\)"):
        load(tmp_path)


def test_masks_in_the_folders_of_classes_are_no_images(tmp_path):
    for name in ("benign", "malign"):
        write_pairs(f"{name}/{name} ({{}})", f"{name}/{name} ({{}})_mask", count=4)(tmp_path)
    with pytest.raises(InputError, match=r"8 of 16 images are named as masks of others, such as"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("class_dict.csv", "name,r,g,b\nground,10,20,30\ncar,40,50,60\ntree,70,80,90\n"),
        ("labelmap.txt", "# label:color_rgb:parts:actions\nground:10,20,30::\ncar:40,50,60::\n"
         "tree:70,80,90::\n"),
    ],
)  # fmt: skip
def test_files_of_class_names_that_programs_write(tmp_path, name, content):
    colors = np.array([(10, 20, 30), (40, 50, 60), (70, 80, 90)], dtype=np.uint8)
    write_pairs("images/{}", "masks/{}", count=6)(tmp_path)
    for path in sorted((tmp_path / "masks").iterdir()):
        numbers = np.asarray(Pillow.open(path))
        save(path, colors[np.where(numbers == 255, 0, numbers)])
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=rf"have the names .*: --class_names_file .*{name}\."):
        load(tmp_path)
    data = load(tmp_path, class_names_file=tmp_path / name)
    assert data.label_names == ("ground", "car", "tree")


def test_the_classes_of_roboflow(tmp_path):
    write_pairs("train/{}", "train/{}_mask", count=6)(tmp_path)
    names = tmp_path / "train" / "_classes.csv"
    names.write_text("Pixel Value, Class\n0, background\n1, cat\n2, a dog\n")
    assert any(f"--class_names_file {names}" in note for note in load(tmp_path).notes)
    assert load(tmp_path, class_names_file=names).label_names == ("background", "cat", "a dog")
    names.write_text("Pixel Value, Class\n0, background\n2, cat\n")
    with pytest.raises(InputError, match=r"line 3: received '2, cat'.* so 1 is the next"):
        load(tmp_path, class_names_file=names)


def test_a_parquet_file_that_cannot_be_read_says_the_cause(tmp_path):
    path = tmp_path / "masks.parquet"
    path.write_bytes(b"PAR1 and no more")
    arguments = ClassifyArguments(train_file=str(path), task="pixels")
    with pytest.raises(InputError, match=r"cannot read the Parquet files \(.*Parquet magic bytes"):
        load_data(arguments)
