import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_files import GOOD, csv_of, load
from tiny_files import write as write_file

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.data.splits import missing_splits, split_off, stratified_choice
from ampft.errors import InputError


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    share=st.floats(0.05, 0.9),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_each_class_keeps_its_share_to_less_than_one_row(sizes, share, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    count = int(share * len(labels))
    chosen = stratified_choice(labels, count, seed=seed)
    assert len(chosen) == count == len(set(chosen.tolist()))
    counts = np.bincount(labels[chosen], minlength=len(sizes))
    assert np.all(np.abs(counts - np.array(sizes) * count / len(labels)) < 1)


def test_an_unstratified_choice_would_miss_shares():
    labels = np.repeat([0, 1], [90, 10])
    random = [np.random.default_rng(s).choice(100, 20, replace=False) for s in range(20)]
    assert {int(labels[rows].sum()) for rows in random} != {2}
    assert {int(labels[stratified_choice(labels, 20, seed=s)].sum()) for s in range(20)} == {2}


def test_equal_texts_stay_together_and_every_class_stays_in_training():
    generator = np.random.default_rng(0)
    groups = generator.integers(0, 60, 200).astype(np.uint64)
    labels = (groups % 7).astype(np.int64)
    first, second = split_off(labels, groups, 18, seed=1)
    assert not set(groups[first].tolist()) & set(groups[second].tolist())
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(200))
    assert set(labels[first].tolist()) == set(labels.tolist())


def test_a_class_that_occurs_only_in_the_groups_of_others_stays_in_training():
    """A group has the class of its first row, so that no class would be left behind by class."""
    labels = np.array([0, 0, 0, 0, 1, 2] * 10)
    groups = np.repeat(np.arange(10), 6).astype(np.uint64)
    labels[12 + 5 :: 6] = 0  # the class 2 is in the groups 0 and 1 only
    for seed in range(20):
        first, second = split_off(labels, groups, 5, seed=seed)
        assert {*labels[first].tolist()} == {0, 1, 2}
        assert not {*groups[first].tolist()} & {*groups[second].tolist()}
        assert len({*groups[second].tolist()}) in (4, 5)


def test_a_class_of_one_row_stays_in_training():
    labels, groups = np.array([0] * 9 + [1]), np.arange(10, dtype=np.uint64)
    for seed in range(10):
        first, _ = split_off(labels, groups, 5, seed=seed)
        assert labels[first][-1] == 1


@pytest.mark.parametrize("rows", range(20, 120))
def test_a_split_has_its_fraction_of_all_rows(rows):
    request = DataRequest(validation_fraction=0.25, test_fraction=0.3, data_seed=0)
    new, _ = missing_splits(
        np.arange(rows) % 2, np.arange(rows, dtype=np.uint64), frozenset({"train"}), request
    )
    sizes = {split: len(indices) for split, indices in new.items()}
    held_out = {"validation": round(0.25 * rows), "test": round(0.3 * rows)}
    assert sizes == {"train": rows - sum(held_out.values()), **held_out}


@pytest.mark.parametrize(
    ("existing", "sizes"),
    [
        ({"train"}, {"train": 70, "validation": 10, "test": 20}),
        ({"train", "test"}, {"train": 90, "validation": 10}),
        ({"train", "validation"}, {"train": 100}),
        ({"train", "validation", "test"}, {"train": 100}),
    ],
)
def test_which_splits_are_made(existing, sizes):
    new, notes = missing_splits(
        np.arange(100) % 2,
        np.arange(100, dtype=np.uint64),
        frozenset(existing),
        DataRequest(validation_fraction=0.1, test_fraction=0.2, data_seed=0),
    )
    assert {split: len(rows) for split, rows in new.items()} == sizes
    assert (not notes) == (len(existing) == 3)
    together = np.concatenate(list(new.values()))
    assert sorted(together.tolist()) == list(range(100))


def write(folder, count=100):
    path = folder / "sorted.csv"
    rows = (f"text {i},{'a' if i < count // 2 else 'b'}\n" for i in range(count))
    path.write_text("text,label\n" + "".join(rows))
    return path


def test_the_split_is_seeded_and_said(tmp_path):
    path = write(tmp_path)
    one, same, other = (load_data(DataRequest(train_file=path, data_seed=s)) for s in (0, 0, 1))
    assert one.fingerprints == same.fingerprints
    assert all(one.fingerprints[s] != other.fingerprints[s] for s in ("train", "test"))
    assert any("stratified, seed 0: validation 10, test 20; train keeps 70" in n for n in one.notes)


def test_limits_keep_all_classes_of_a_sorted_file(tmp_path):
    request = DataRequest(
        train_file=write(tmp_path), max_train_samples=6, max_eval_samples=4, max_predict_samples=2
    )
    data = load_data(request)
    assert {s: len(p) for s, p in data.splits.items()} == {"train": 6, "validation": 4, "test": 2}
    assert sorted(data.splits["train"]["label"]) == [0, 0, 0, 1, 1, 1]
    assert any(note.startswith("--max_train_samples: 6 of 70") for note in data.notes)


def test_rows_that_are_shared_with_training_are_counted_among_those_that_are_kept(tmp_path):
    files = {}
    for split, first in (("train", 0), ("test", 20)):
        rows = [f"Row {i},{'ab'[i % 2]}" for i in range(first, first + 40)]
        files[f"{split}_file"] = str(tmp_path / f"{split}.csv")
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *rows]))
    limits = {"max_train_samples": 20, "max_predict_samples": 10}
    data = load_data(DataRequest(**files, validation_fraction=0, **limits))
    kept = {split: {*part["text"]} for split, part in data.splits.items()}
    shared = len(kept["train"] & kept["test"])
    assert 0 < shared < 10, "otherwise nothing is tested"
    assert data.shared_with_train == {"test": shared}


@pytest.mark.parametrize(
    ("own", "options", "flag"),
    [
        (("test",), {"test_fraction": 0.3}, "--test_fraction"),
        (("validation",), {"test_fraction": 0.3}, "--test_fraction"),
        ((), {"folds": 2, "test_fraction": 0.3}, "--test_fraction"),
        ((), {"fold": 2}, "--fold"),
    ],
)
def test_settings_of_splits_that_are_not_made_are_refused(own, options, flag, tmp_path):
    path = write(tmp_path)
    files = {f"{split}_file": path for split in ("train", *own)}
    with pytest.raises(InputError, match=rf"{flag} has no effect"):
        load_data(DataRequest(**files, **options))


@pytest.mark.parametrize("own", [("validation",), ("validation", "test"), ("test",)])
def test_a_validation_split_of_the_data_wins(own, tmp_path):
    path = write(tmp_path)
    files = {f"{split}_file": path for split in ("train", *own)}
    data = load_data(DataRequest(**files, validation_fraction=0.3))
    held_out = 30 if own == ("test",) else 0
    assert len(data.splits["train"]) == 100 - held_out
    said = [note for note in data.notes if note.startswith("--validation_fraction 0.3 holds not")]
    assert len(said) == (not held_out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_train_samples": 0}, r"--max_train_samples: received 0"),
        ({"max_train_samples": 1}, r"received 1, but .* have 2 classes.* at least 2"),
        ({"validation_fraction": 1.0}, r"--validation_fraction: received 1\.0"),
        ({"test_fraction": -0.1}, r"--test_fraction: received -0\.1"),
        ({"validation_fraction": 0.5, "test_fraction": 0.5}, r"leaves nothing for training"),
        ({"validation_fraction": 0.001}, r"--validation_fraction: 100 training rows are too few"),
    ],
)
def test_splits_that_cannot_be_made(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        load_data(DataRequest(train_file=write(tmp_path), **options))


@given(
    sizes=st.lists(st.integers(1, 300), min_size=2, max_size=6),
    more=st.integers(0, 20),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_training_keeps_a_row_of_each_class(sizes, more, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    count = min(len(sizes) + more, len(labels))
    chosen = stratified_choice(labels, count, seed=seed, take_one=True)
    assert len(chosen) == count == len(set(chosen.tolist()))
    assert set(labels[chosen].tolist()) == set(range(len(sizes)))


def test_rare_classes_would_be_lost_otherwise():
    labels = np.repeat([0, 1, 2], [98, 1, 1])
    assert set(labels[stratified_choice(labels, 3, seed=0)].tolist()) != {0, 1, 2}


def test_rows_that_are_all_equal_are_not_called_too_few(tmp_path):
    path = tmp_path / "equal.csv"
    path.write_text("text,label\n" + "same,a\nsame,b\n" * 50)
    with pytest.raises(InputError, match=r"100 training rows \(1 different\) are too"):
        load_data(DataRequest(train_file=path))


PRINT_FINGERPRINTS = """
import sys
from pathlib import Path
from ampft.data.load import load_data
from ampft.data.request import DataRequest
print(sorted(load_data(DataRequest(train_file=Path(sys.argv[1]))).fingerprints.items()))
print([m for m in ("torch", "transformers") if m in sys.modules])
"""


@pytest.mark.slow
def test_fingerprints_are_stable_across_processes_and_loading_imports_no_torch(tmp_path):
    path = write(tmp_path)
    command = [sys.executable, "-c", PRINT_FINGERPRINTS, str(path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    here = sorted(load_data(DataRequest(train_file=path)).fingerprints.items())
    assert out.splitlines() == [str(here), "[]"]


def test_a_fingerprint_tells_texts_labels_and_order_apart(tmp_path):
    contents = [
        "text,label\nab,x\nc,y\n",
        "text,label\na,x\nbc,y\n",
        "text,label\nab,y\nc,x\n",
        "text,label\nc,y\nab,x\n",
    ]
    found = set()
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.csv"
        path.write_text(content)
        data = load_data(DataRequest(train_file=path, validation_fraction=0, test_fraction=0))
        found.add(data.fingerprints["train"])
    assert len(found) == len(contents)


def test_a_seed_without_anything_to_draw_is_said(tmp_path):
    names = ("train", "validation", "test")
    files = {f"{n}_file": str(write_file(tmp_path, GOOD, f"{n}.csv")) for n in names}
    note = "--data_seed 1 has no effect"
    assert note in " ".join(load_data(DataRequest(**files, data_seed=1)).notes)
    drawn = load_data(DataRequest(**files, data_seed=1, max_train_samples=4))
    assert note not in " ".join([*drawn.notes, *load_data(DataRequest(**files)).notes])


def test_splits_that_are_held_out_are_limited_and_say_what_they_show():
    labels, groups = np.repeat([0, 1], [900, 100]), np.arange(1000, dtype=np.uint64)
    new, notes = missing_splits(labels, groups, frozenset(), DataRequest(max_drawn_samples=50))
    assert [len(new[split]) for split in ("train", "validation", "test")] == [900, 50, 50]
    assert not {*new["test"]} & {*new["train"], *new["validation"]}
    assert np.bincount(labels[new["test"]]).tolist() == [45, 5]
    # 1.96 standard errors of a share of one half: 0.98 / sqrt(50).
    assert notes[1] == (
        "--max_drawn_samples 50 limits validation and test, and the other rows are trained on. 50 "
        "rows give a share such as the accuracy with an interval of at most ±13.9 points (95 %), "
        "and the rarest class has 5 rows."
    )
    new, _ = missing_splits(labels, groups, frozenset(), DataRequest(max_drawn_samples=150))
    assert [len(new[split]) for split in ("train", "validation", "test")] == [750, 100, 150]
    for most in (200, 0):  # the negative control
        new, notes = missing_splits(
            labels, groups, frozenset(), DataRequest(max_drawn_samples=most)
        )
        assert [len(new[split]) for split in ("train", "validation", "test")] == [700, 100, 200]
        assert len(notes) == 1
    new, _ = missing_splits(labels, groups, frozenset({"test"}), DataRequest(max_drawn_samples=50))
    assert [len(new[split]) for split in ("train", "validation")] == [950, 50]


@pytest.mark.parametrize(
    ("labels", "groups", "message"),
    [
        (range(20), range(20), "each of the 20 training rows has another label, so no class"),
        ([0] * 20, [7] * 20, r"test_fraction: 20 training rows \(1 different\) are too few"),
        ([*range(10), *range(10)], [7] * 20, r"20 training rows \(1 different\) are too few"),
        ([0, 1], [0, 1], "test_fraction: 2 training rows are too few for a test split"),
    ],
)
def test_what_cannot_be_split_off_has_its_own_reason(labels, groups, message):
    request = DataRequest(validation_fraction=0.1, test_fraction=0.1, data_seed=0)
    with pytest.raises(InputError, match=message):
        missing_splits(
            np.array(labels), np.array(groups, dtype=np.uint64), frozenset({"train"}), request
        )


@pytest.mark.parametrize(("rows", "is_said"), [(7, True), (8, False), (9, False)])
def test_fewer_than_two_rows_of_a_class_on_average_are_said(rows, is_said, tmp_path):
    content = csv_of([(f"text {i}", "abcd"[i % 4]) for i in range(rows)])
    note = f"4 classes in {rows} training rows. Is the label column right?"
    assert (note in load(tmp_path, content).notes) == is_said


@pytest.mark.parametrize(("rows", "is_refused"), [(7, True), (8, False)])
def test_fewer_than_two_rows_of_a_fraction_are_no_classes(rows, is_refused, tmp_path):
    content = csv_of([(f"text {i}", f"{i % 4}.5") for i in range(rows)])
    if not is_refused:
        assert load(tmp_path, content).label_names == ("0.5", "1.5", "2.5", "3.5")
        return
    with pytest.raises(InputError, match="the labels are 4 different numbers such as"):
        load(tmp_path, content)
