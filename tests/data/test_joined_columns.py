"""Columns joined by + are one text, from every source."""

import json

import pytest
from datasets import Dataset, DatasetDict
from tiny_files import load, rows_of

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.decision import Contract, Rule
from ampft.errors import InputError

HEADER = "title,Body,tags,label"
CONTENT = f"{HEADER}\nA,b,c,x\nD,,f,y\nG,h,,x\n"
JOINED = [("A b c", "x"), ("D f", "y"), ("G h", "x")]
NAME = "title+body+tags"


def test_cells_are_joined_by_blanks_and_empty_ones_left_out(tmp_path):
    data = load(tmp_path, CONTENT, text_column_names=NAME)
    assert data.input_columns == (NAME,)
    assert rows_of(data) == JOINED


def test_a_text_of_a_pair_can_be_joined(tmp_path):
    data = load(tmp_path, CONTENT, text_column_names="title,body + tags")
    assert rows_of(data) == [("A", "b c", "x"), ("D", "f", "y"), ("G", "h", "x")]


def test_a_row_without_any_of_the_cells_has_no_text(tmp_path):
    with pytest.raises(InputError, match=r"line 3: nothing in column 'title\+body\+tags'"):
        load(tmp_path, f"{HEADER}\nA,b,c,x\n,,,y\n", text_column_names=NAME)


def test_a_column_with_a_plus_in_its_name_is_not_split(tmp_path):
    data = load(tmp_path, "a+b,a,b,label\n1,2,3,x\n4,5,6,y\n", text_column_names="a+b")
    assert rows_of(data) == [("1", "x"), ("4", "y")]


def test_data_in_memory_are_joined_alike(tmp_path):
    columns = {"title": ["A", "D", "G"], "Body": ["b", None, "h"], "tags": ["c", "f", " "]}
    memory = DatasetDict({"train": Dataset.from_dict({**columns, "label": ["x", "y", "x"]})})
    request = DataRequest(
        text_column_names=NAME, validation_fraction=0, test_fraction=0, dataset_name="memory"
    )
    data = load_data(request, memory)
    assert rows_of(data) == JOINED
    assert data.fingerprints == load(tmp_path, CONTENT, text_column_names=NAME).fingerprints


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("title,body,tags", r"received title,body,tags\..*: title\+body\+tags\."),
        ("title+nothing", r"no column 'nothing'"),
        ("title+label", r"None may be a label column"),
    ],
)
def test_wrong_names_are_refused(tmp_path, names, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, CONTENT, text_column_names=names)


@pytest.mark.parametrize("delimiter", [",", "[SEP]", "\\n", ""])
def test_cells_are_joined_by_the_text_that_the_user_chose(tmp_path, delimiter):
    data = load(tmp_path, CONTENT, text_column_names=NAME, text_column_delimiter=delimiter)
    expected = [delimiter.join(text.split()) for text, _ in JOINED]
    assert [text for text, _ in rows_of(data)] == expected
    contract = Contract("text", (NAME,), Rule(("x", "y")), text_column_delimiter=delimiter)
    again = Contract.from_values(json.loads(contract.text()))
    assert again == contract
    assert again.texts({"title": "D", "body": None, "tags": "f"}) == f"D{delimiter}f"


def test_a_contract_with_blanks_says_nothing_of_them():
    assert "delimiter" not in Contract("text", (NAME,), Rule(("x", "y"))).text()


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("sentence_A,sentence_B", ("sentence_A", "sentence_B")),
        ("Question 1,Question 2", ("Question 1", "Question 2")),
        ("query_a,query_b", ("query_a", "query_b")),
        ("question1,question2", ("question1", "question2")),
    ],
)
def test_two_texts_of_one_kind_are_a_pair(tmp_path, header, columns):
    data = load(tmp_path, f"{header},label\na,b,x\nc,d,y\n")
    assert data.input_columns == columns


@pytest.mark.parametrize("header", ["sentence_A,query_B", "x1,x2", "sentence_B,sentence_C", "id,a"])
def test_two_other_columns_are_not_a_pair(tmp_path, header):
    with pytest.raises(InputError, match="no text column with a usual name"):
        load(tmp_path, f"{header},label\na,b,x\nc,d,y\n")


def test_the_label_of_quora_needs_no_flag(tmp_path):
    data = load(tmp_path, "question1,question2,is_duplicate\na,b,0\nc,d,1\n")
    assert (data.input_columns, data.label_names) == (("question1", "question2"), ("0", "1"))


@pytest.mark.parametrize("flag", ["group_column", "id_column"])
def test_a_text_that_another_flag_names_is_said_and_can_be_both(tmp_path, flag):
    rows = "".join(f"a{i},{'xy'[i % 2]}\n" for i in range(40))
    said = rf"'text' was not taken because --{flag} names it; --text_column_names text makes it"
    with pytest.raises(InputError, match=said):
        load(tmp_path, f"text,label\n{rows}", **{flag: "text"})
    data = load(tmp_path, f"text,label\n{rows}", **{flag: "text", "text_column_names": "text"})
    assert data.input_columns == ("text",)


def test_a_text_that_another_flag_names_is_not_said_if_others_may_be_meant(tmp_path):
    rows = "".join(f"a{i},b{i},c{i},{'xy'[i % 2]}\n" for i in range(40))
    with pytest.raises(InputError, match="several possible text columns") as error:
        load(tmp_path, f"text,sentence,review,label\n{rows}", group_column="text")
    assert "was not taken" not in str(error.value)
    rows = "".join(f"a{i},b{i},c{i},d{i},{'xy'[i % 2]}\n" for i in range(40))
    pair = "A pair seems to be --text_column_names query_a,query_b"
    with pytest.raises(InputError, match=pair) as error:
        load(tmp_path, f"text,query_a,query_b,other,label\n{rows}", group_column="text")
    assert "was not taken" not in str(error.value)
