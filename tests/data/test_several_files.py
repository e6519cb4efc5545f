"""Several files of a split, by name or pattern, are read like one file with their rows."""

import hashlib
from pathlib import Path

import pytest
from tiny_files import NO_SPLITS, ROWS, csv_of, load, rows_of, write

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.data.sources.file_names import data_stem, named_files
from ampft.errors import InputError
from ampft.integrations.finetune import data_settings


@pytest.fixture
def parts(tmp_path):
    """Three files, of which the first in the alphabet has the last rows."""
    for name, rows in (("part-3", ROWS[:10]), ("part-2", ROWS[10:25]), ("part-1", ROWS[25:])):
        write(tmp_path, csv_of(rows), f"{name}.csv")
    return tmp_path


def load_several(names, **options):
    return load_data(DataRequest(train_file=Path(names), **{**NO_SPLITS, **options}))


def test_files_are_read_in_the_order_of_their_names(parts):
    named = load_several(f"{parts}/part-3.csv, {parts}/part-2.csv,{parts}/part-1.csv")
    assert rows_of(named) == ROWS
    assert named.fingerprints == load(parts, csv_of(ROWS)).fingerprints


def test_the_files_of_a_pattern_are_sorted(parts, monkeypatch):
    monkeypatch.chdir(parts)
    data = load_several("part-*.csv")
    assert rows_of(data) == ROWS[25:] + ROWS[10:25] + ROWS[:10]
    assert "part-*.csv: 3 files, from part-1.csv to part-3.csv." in data.notes
    assert data.splits["train"]["ampft_file"][0] == "part-1.csv"
    assert data.splits["train"]["ampft_line"][:2] == [2, 3]
    assert data.files == {
        f"part-{n}.csv": hashlib.sha256(Path(f"part-{n}.csv").read_bytes()).hexdigest()
        for n in (1, 2, 3)
    }


def test_a_file_without_rows_is_said(parts):
    write(parts, "text,label\n", "part-4.csv")
    data = load_several(f"{parts}/part-?.csv")
    assert len(data.splits["train"]) == len(ROWS)
    assert f"{parts}/part-4.csv: no rows of this file are used." in data.notes


def test_one_file_needs_no_column_for_its_name(parts):
    data = load_several(f"{parts}/part-1.csv")
    assert "ampft_file" not in data.splits["train"].column_names
    assert list(data.files) == [f"{parts}/part-1.csv"]


def test_labels_that_a_later_file_introduces_are_known(tmp_path):
    write(tmp_path, "text,label\na,x\nb,x\n", "1.csv")
    write(tmp_path, "label,text\nz,c\nx,d\n", "2.csv")
    data = load_several(f"{tmp_path}/?.csv")
    assert rows_of(data) == [("a", "x"), ("b", "x"), ("c", "z"), ("d", "x")]


def test_a_name_that_exists_is_not_split_or_expanded(tmp_path):
    path = write(tmp_path, csv_of(ROWS), "a,b[1].csv")
    write(tmp_path, "never read", "b1.csv")
    assert named_files(path, "--train_file") == (path,)


# content of 1.csv, content of 2.csv, the message
BAD = {
    "another column": ("text,label\na,x\n", "text,class\nb,y\n", r"2\.csv has no column 'label'"),
    "missing text": ("text,label\na,x\n", "text,label\nb,y\n,y\n", r"2\.csv, line 3: nothing in"),
    "one class": ("text,label\na,x\n", "text,label\nb,x\n", r"1\.csv,.*2\.csv: all 2 rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_problem_names_the_file_and_the_line(tmp_path, case):
    first, second, message = BAD[case]
    names = f"{write(tmp_path, first, '1.csv')},{write(tmp_path, second, '2.csv')}"
    with pytest.raises(InputError, match=message):
        load_several(names)


def test_rows_in_several_files_are_named_by_file(tmp_path):
    train = write(tmp_path, "text,label\na,x\nb,y\nc,x\nd,y\n", "train.csv")
    write(tmp_path, "text,label\nnew,x\na,x\n", "t1.csv")
    write(tmp_path, "text,label\nb,y\nother,y\nd,y\n", "t2.csv")
    request = DataRequest(
        train_file=train, test_file=tmp_path / "t?.csv", fail_on_leak=True, validation_fraction=0
    )
    with pytest.raises(InputError, match=r"t1\.csv, line 3; .*t2\.csv, lines 2, 4\. Remove"):
        load_data(request)


def test_files_of_different_formats_are_refused(tmp_path):
    first = write(tmp_path, "text,label\na,x\n", "1.csv")
    second = write(tmp_path, '[{"text":"b","label":"y"}]', "2.json")
    with pytest.raises(InputError, match=r"1\.csv and .*2\.json have different formats"):
        load_several(f"{first},{second}")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("{0}/nothing-*.csv", r"--train_file: no file fits .*nothing-\*\.csv"),
        ("{0}/part-1.csv,{0}/part-1.csv", r"part-1\.csv is named twice"),
        ("{0}/part-1.csv,{0}/part-*.csv", r"part-1\.csv is named twice"),
        ("{0}/part-1.csv,", r"a file name is empty"),
        (
            "{0}/part-1.csv,{0}/part-9.csv",
            r"part-9\.csv does not exist\. Did you mean 'part-3\.csv'",
        ),
    ],
)
def test_names_without_a_file_are_refused(parts, names, message):
    with pytest.raises(InputError, match=message):
        load_several(names.format(parts))


def test_a_folder_is_called_after_the_first_file():
    assert data_stem("data/part-*.csv") == "part"
    assert data_stem("data/a.csv,data/b.csv") == "a"
    assert data_stem("*.csv") == "data"


def test_paths_in_a_list_are_several_files(parts):
    named = data_settings({}, train=[parts / "part-1.csv", f"{parts}/part-2.csv"], test="t.csv")
    assert named == (
        None,
        {"train_file": f"{parts}/part-1.csv,{parts}/part-2.csv", "test_file": "t.csv"},
    )
