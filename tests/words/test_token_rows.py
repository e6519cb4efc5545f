"""Words with tags from every source: schemes, splits, and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.errors import InputError
from ampft.tasks.table import TASKS
from ampft.text.units import TextUnits
from ampft.words.reading import are_token_files
from ampft.words.tags import BIO, IOB1, IOBES, PLAIN, as_bio, find_scheme

WNUT = Path(__file__).parents[3] / "shared" / "data" / "wnut17"
SENTENCE = "the\tO\nRhine\tB-LOC\nFalls\tI-LOC\nnear\tO\nBern\tB-LOC\n"
OTHER = "Ann\tB-PER\nsleeps\tO\n"


def request(path: Path, text: str, **options) -> ClassifyArguments:
    path.write_text(text, encoding="utf-8")
    return ClassifyArguments(
        train_file=path, **{"validation_fraction": 0.0, "test_fraction": 0.0, **options}
    )


def conll(tmp_path, text, **options):
    return load_data(request(tmp_path / "train.conll", text, **options))


def words_and_tags(data, split="train"):
    part = data.splits[split]
    (column,) = data.input_columns
    return [
        list(zip(words, (data.label_names[code] for code in codes), strict=True))
        for words, codes in zip(part[column][:], part["label"][:], strict=True)
    ]


def test_a_conll_file(tmp_path):
    text = f"-DOCSTART- -X- O\n\n{SENTENCE}\t\n \n{OTHER}"
    data = conll(tmp_path, text)
    assert data.kind == "token"
    assert data.label_names == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert words_and_tags(data) == [
        [("the", "O"), ("Rhine", "B-LOC"), ("Falls", "I-LOC"), ("near", "O"), ("Bern", "B-LOC")],
        [("Ann", "B-PER"), ("sleeps", "O")],
    ]
    assert data.splits["train"]["ampft_line"][:] == [3, 10]
    assert any("Task tokens, found from the columns" in note for note in data.notes)
    labels = data.labels("train")
    assert labels[np.array([1, 0])].tolist() == [3, 0, 0, 1, 2, 0, 1]
    assert np.asarray(labels).tolist() == [[0, 1, 2, 0, 1], [3, 0, -1, -1, -1]]


def test_columns_between_word_and_tag_and_blanks(tmp_path):
    data = conll(tmp_path, "Ann NNP B-PER\nsleeps VBZ O\n\nBob NNP B-PER\n")
    assert words_and_tags(data)[0] == [("Ann", "B-PER"), ("sleeps", "O")]


@pytest.mark.parametrize(
    ("tags", "scheme", "expected"),
    [
        ("B-X I-X O B-X", BIO, "B-X I-X O B-X"),
        ("I-X I-X B-X I-Y O I-X", IOB1, "B-X I-X B-X B-Y O B-X"),
        ("B-X I-X E-X S-X O S-Y", IOBES, "B-X I-X I-X B-X O B-Y"),
        ("B-X L-X U-X U-Y", IOBES, "B-X I-X B-X B-Y"),
        ("B-X M-X E-X W-Y", IOBES, "B-X I-X I-X B-Y"),
        ("NOUN VERB O", PLAIN, "NOUN VERB O"),
        ("NOUN VERB S-BAR", PLAIN, "NOUN VERB S-BAR"),
    ],
)
def test_schemes_become_bio(tags, scheme, expected):
    assert find_scheme([tags.split()]) == scheme
    assert as_bio(tags.split(), scheme) == expected.split()


def test_a_converted_scheme_is_said(tmp_path):
    data = conll(tmp_path, "Ann\tI-PER\nLee\tI-PER\n\nBob\tI-PER\nEva\tB-PER\n")
    assert any("IOB1 (I- begins entities) and are converted to BIO" in n for n in data.notes)
    assert [tag for _, tag in words_and_tags(data)[1]] == ["B-PER", "B-PER"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SENTENCE + "Ann\n", r"train\.conll, line 6: the number of columns is 1, but the first"),
        (SENTENCE + "\tO\n", r"train\.conll, line 6: a cell is empty"),
        ("\n \n", r"train\.conll: the file has no words"),
        (
            SENTENCE + "\nAnn\tO\nLee\tI-PER\n",
            r"train\.conll, line 8: 'I-PER' begins an entity, .*BIO",
        ),
        ("a\tS-X\nb\tE-X\n", r"train\.conll, line 2: 'E-X' begins an entity.*IOBES"),
        (SENTENCE + "c\tX-LOC\n", r"line 6: 'X-LOC' is not a tag of the scheme, .*BIO"),
        ("a\tO\nb\tO\n", r"train\.conll: no word has a tag other than O"),
    ],
)
def test_bad_conll_names_file_and_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        conll(tmp_path, text)


def test_several_files_have_the_tags_of_all(tmp_path):
    (tmp_path / "a.conll").write_text(SENTENCE)
    (tmp_path / "b.conll").write_text(OTHER)
    files = Path(f"{tmp_path / 'a.conll'},{tmp_path / 'b.conll'}")
    data = load_data(
        ClassifyArguments(train_file=files, validation_fraction=0.0, test_fraction=0.0)
    )
    assert data.label_names == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert words_and_tags(data)[1] == [("Ann", "B-PER"), ("sleeps", "O")]


def test_another_split_must_follow_the_scheme_and_the_types(tmp_path):
    (tmp_path / "test.conll").write_text("a\tO\n\nb\tO\nc\tI-LOC\n")
    files = {"test_file": tmp_path / "test.conll"}
    with pytest.raises(InputError, match=r"test\.conll, line 4: 'I-LOC' begins an entity"):
        conll(tmp_path, SENTENCE + "\n" + OTHER, **files)
    (tmp_path / "test.conll").write_text("a\tO\n\nb\tO\nc\tB-NEW\n")
    with pytest.raises(
        InputError, match=r"test\.conll, line 3: .*training lacks: 'B-NEW', 'I-NEW'"
    ):
        conll(tmp_path, SENTENCE + "\n" + OTHER, **files)


def test_columns_with_the_names_of_tasks(tmp_path):
    row = json.dumps({"words": ["Ann", "sleeps"], "ner": ["B-PER", "O"]})
    data = load_data(request(tmp_path / "train.jsonl", row))
    assert words_and_tags(data) == [[("Ann", "B-PER"), ("sleeps", "O")]]


def test_lists_in_json_lines_and_parquet(tmp_path):
    rows = {"tokens": [["Ann", "sleeps"], ["Bern"]], "ner_tags": [["B-PER", "O"], ["B-LOC"]]}
    lines = [
        json.dumps(dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True)
    ]
    data = load_data(request(tmp_path / "train.jsonl", "\n".join(lines)))
    expected = [[("Ann", "B-PER"), ("sleeps", "O")], [("Bern", "B-LOC")]]
    assert words_and_tags(data) == expected
    names = ClassLabel(names=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    features = Features({"tokens": List(Value("string")), "ner_tags": List(names)})
    numbers = {**rows, "ner_tags": [[1, 0], [3]]}
    part = Dataset.from_dict(numbers, features=features)
    part.to_parquet(tmp_path / "train.parquet")
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    for data in (
        load_data(ClassifyArguments(train_file=tmp_path / "train.parquet", **none)),
        load_data(ClassifyArguments(**none), DatasetDict({"train": part})),
    ):
        assert data.label_names == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")  # as declared
        assert words_and_tags(data) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a"], "ner_tags": ["O", "O"]}, "line 2: 1 word but 2 tags"),
        ({"tokens": [], "ner_tags": []}, "line 2: no word in column 'tokens'"),
        ({"tokens": ["a", " "], "ner_tags": ["O", "O"]}, "line 2: word 2 is empty"),
        (
            {"tokens": ["a"], "ner_tags": [3]},
            "line 2: column 'ner_tags' holds numbers in some rows",
        ),
        ({"tokens": "a b", "ner_tags": ["O"]}, "line 2: 2 words but 1 tag"),
        ({"tokens": 5, "ner_tags": ["O"]}, "line 2: column 'tokens' must hold a list"),
        (
            {"tokens": ["a", "b"], "ner_tags": ["O", "I-X"]},
            "line 2, word 2: 'I-X' begins an entity",
        ),
    ],
)
def test_bad_lists_name_file_and_line(tmp_path, row, message):
    good = {"tokens": ["Ann", "b"], "ner_tags": ["B-PER", "O"]}
    with pytest.raises(InputError, match=rf"train\.jsonl, {message}"):
        load_data(request(tmp_path / "train.jsonl", f"{json.dumps(good)}\n{json.dumps(row)}\n"))


def test_a_word_without_a_tag_where_names_are_declared():
    names = ClassLabel(names=["O", "B-PER", "I-PER"])
    features = Features({"tokens": List(Value("string")), "ner_tags": List(names)})
    rows = {"tokens": [["Ann", "sleeps"], ["Bo", "rests"]], "ner_tags": [[1, -1], [1, 0]]}
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    parts = DatasetDict({"train": Dataset.from_dict(rows, features=features)})
    with pytest.raises(InputError, match="the tag -1 in column 'ner_tags' stands for no label"):
        load_data(ClassifyArguments(**none), parts)
    kept = load_data(ClassifyArguments(**none, ignore_label="-1"), parts)
    assert words_and_tags(kept) == [[("Bo", "B-PER"), ("rests", "O")]]


def test_spans_become_tags_of_words(tmp_path):
    rows = [
        {"text": "London-based Ann Lee.", "spans": [
            {"start": 0, "end": 6, "label": "LOC"}, {"start": 13, "end": 20, "label": "PER"}]},
        {"text": "Bernese", "spans": [[0, 4, "LOC"]]},
        {"text": "nothing here", "spans": []},
        *[{"text": "Ann", "spans": [[0, 3, "PER"]]}] * 20,
    ]  # fmt: skip
    data = load_data(request(tmp_path / "train.jsonl", "\n".join(map(json.dumps, rows))))
    assert words_and_tags(data)[:3] == [
        [
            ("London", "B-LOC"),
            ("-", "O"),
            ("based", "O"),
            ("Ann", "B-PER"),
            ("Lee", "I-PER"),
            (".", "O"),
        ],
        [("Bernese", "B-LOC")],
        [("nothing", "O"), ("here", "O")],
    ]
    assert any("1 span extended to whole words (" in n for n in data.notes)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[0, 3, "A"], [2, 5, "B"]], r"the spans 0 to 3 \('A'\) and 2 to 5 \('B'\) overlap"),
        ([[0, 9, "A"]], r"the span 0 to 9 \('A'\) is outside the text, which has 7 characters"),
        ([[2, 2, "A"]], r"the span 2 to 2 \('A'\) is empty"),
        ([[3, 4, "A"]], r"the span 3 to 4 \('A'\) contains no word"),
        ([[0, 2, "A"], [2, 3, "B"]], r"the span 2 to 3 \('B'\) begins within the word 'abc'"),
        ([[0, 3]], r"\[0, 3\] is not a span"),
        ([{"start": 0, "end": 3}], "is not a span, which needs start, end and label"),
    ],
)
def test_bad_spans_name_file_and_line(tmp_path, spans, message):
    row = json.dumps({"text": "abc def", "entities": spans})
    with pytest.raises(InputError, match=rf"train\.jsonl, line 1: .*{message}"):
        load_data(request(tmp_path / "train.jsonl", f"{row}\n{row}", text_units="words"))


def test_a_text_with_spans_and_a_label_is_text_unless_the_task_says_otherwise(tmp_path):
    rows = [{"text": f"Ann {i}", "spans": [[0, 3, "PER"]], "label": "ab"[i % 2]} for i in range(8)]
    path, lines = tmp_path / "train.jsonl", "\n".join(map(json.dumps, rows))
    assert load_data(request(path, lines)).kind == "text"
    assert load_data(request(path, lines, task="tokens")).kind == "token"


def test_splits_are_stratified_by_the_rarest_tag(tmp_path):
    common = "".join(f"a{i}\tB-X\nz\tO\n\n" for i in range(40))
    rare = "".join(f"a\tB-X\nb{i}\tB-Y\n\n" for i in range(10))
    data = conll(tmp_path, common + rare, test_fraction=0.2)
    has_rare = ["B-Y" in [tag for _, tag in row] for row in words_and_tags(data, "test")]
    assert has_rare.count(True) == 2
    assert has_rare.count(False) == 8


def test_words_of_a_text():
    def texts(words):
        return [word.text for word in words]

    text = 'He said: "U.K. (London-based) @user, don\'t!"'
    fine = texts(TextUnits("words").split(text))
    assert fine[3:9] == ['"', "U", ".", "K", ".", "("]
    expected = [
        "He",
        "said",
        ":",
        '"',
        "U.K",
        ".",
        "(",
        "London-based",
        ")",
        "@user",
        ",",
        "don't",
        "!",
        '"',
    ]
    assert texts(TextUnits().split(text)) == expected
    for words in (TextUnits("words").split(text), TextUnits().split(text)):
        assert all(text[word.start : word.end] == word.text for word in words)
        assert "".join(texts(words)) == text.replace(" ", "")


@pytest.mark.slow
@pytest.mark.skipif(not WNUT.is_dir(), reason="needs ../shared/data/wnut17")
def test_wnut_17_as_its_repository_holds_it():
    data = load_data(
        ClassifyArguments(
            train_file=WNUT / "wnut17train.conll",
            validation_file=WNUT / "emerging.dev.conll",
            test_file=WNUT / "emerging.test.annotated",
        )
    )
    assert {name: len(part) for name, part in data.splits.items()} == {
        "train": 3394, "validation": 1009, "test": 1287,
    }  # fmt: skip
    assert len(data.label_names) == 13
    assert [int(data.labels(split).counts.sum()) for split in data.splits] == [62730, 15733, 23394]


def numbered_tags(tmp_path, tags):
    rows = [{"tokens": ["Bob", "in", f"Rome{k}"], "ner_tags": tags} for k in range(20)]
    path = tmp_path / "rows.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_tags_that_are_numbers_without_names(tmp_path):
    request = ClassifyArguments(train_file=str(numbered_tags(tmp_path, [1, 0, 10])))
    assert load_data(request).label_names == ("0", "1", "10")


def test_tags_that_are_numbers_with_names_in_a_file(tmp_path):
    path, names = numbered_tags(tmp_path, [1, 0, 2]), tmp_path / "names.txt"
    names.write_text("O\nB-PER\nB-LOC\n", encoding="utf-8")
    request = ClassifyArguments(train_file=str(path), class_names_file=str(names))
    assert {"O", "B-PER", "B-LOC"} <= set(load_data(request).label_names)
    short = tmp_path / "short.txt"
    short.write_text("O\nB-PER\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds 2, .* 2 names, for 0 to 1"):
        load_data(replace(request, class_names_file=str(short)))
    text = tmp_path / "text.csv"
    text.write_text("text,label\na,b\nc,d\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no effect on data without masks or tagged words"):
        load_data(ClassifyArguments(train_file=str(text), class_names_file=str(names)))


@pytest.mark.parametrize("name", ["image_column_name", "audio_column_name"])
def test_columns_of_media_are_refused(tmp_path, name):
    (tmp_path / "train.conll").write_text(f"{SENTENCE}\n{OTHER}\n" * 10)
    request = ClassifyArguments(train_file=str(tmp_path / "train.conll"), **{name: "path"})
    with pytest.raises(InputError, match=f"--{name} has no effect on words with tags"):
        load_data(request)


GERMEVAL = """#\tn-tv.de vom 26.02.2005 [2005-02-26]
1\tSchartau\tB-PER\tO
2\tsagte\tO\tO
3\t"\tO\tO
4\tTagesspiegel\tB-ORG\tB-PER

#\tein Satz
1\tBerlin\tB-LOC\tO
2\tliegt\tO\tO
"""


@pytest.mark.parametrize("name", ["train.tsv", "train.conll", "train.tab"])
def test_germeval_is_read_under_its_own_name(tmp_path, name):
    none = {"validation_fraction": 0, "test_fraction": 0}
    data = load_data(request(tmp_path / name, GERMEVAL, **none))
    assert data.splits["train"]["tokens"][:] == [
        ["Schartau", "sagte", '"', "Tagesspiegel"],
        ["Berlin", "liegt"],
    ]
    assert data.label_names == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert data.splits["train"]["label"][:] == [[5, 0, 0, 3], [1, 0]]


@pytest.mark.parametrize(
    "text", ["text\tlabel\n\nO\tB-x\n\na\tO\n", "text\tlabel\na\tO\n\nb\tB-x\n"]
)
def test_a_table_with_blank_lines_stays_a_table(tmp_path, text):
    none = {"validation_fraction": 0, "test_fraction": 0}
    data = load_data(request(tmp_path / "train.tsv", text, **none))
    assert data.label_names == ("B-x", "O")


@pytest.mark.parametrize("form", ["{}_{}", "{1}-{0}", "lower", "{1}_{0}"])
def test_tags_of_entities_in_another_spelling_are_refused(tmp_path, form):
    begin, inside = (
        f"{prefix.lower()}-loc" if form == "lower" else form.format(prefix, "LOC")
        for prefix in "BI"
    )
    outside = "o" if form == "lower" else "O"
    text = f"the {outside}\nRhine {begin}\nFalls {inside}\nnear {outside}\n\n" * 2
    with pytest.raises(InputError, match=r"another spelling. Write them as B-PER, I-PER and O"):
        conll(tmp_path, text)


def test_plain_tags_that_end_like_entities_are_plain(tmp_path):
    data = conll(tmp_path, "the DT\nRhine NN-B\nFalls NN-I\n\n" * 2)
    assert data.label_names == ("DT", "NN-B", "NN-I")


# A sentence of OntoNotes in the columns of CoNLL-2012; the last columns belong to predicates.
ONTONOTES = """\
#begin document (bc/a/00/a_0000); part 000
bc/a/00/a_0000 0 0 Ann NNP (TOP(S(NP* - - - S1 (PERSON* * (0
bc/a/00/a_0000 0 1 Lee NNP *) - - - S1 *) * 0)
bc/a/00/a_0000 0 2 saw VBD (VP* see 01 1 S1 * (V*) -
bc/a/00/a_0000 0 3 Bern NNP (NP*) - - - S1 (GPE) * (1)

bc/a/00/a_0000 0 0 She PRP (TOP(S(NP*) - - - S1 * * * (0)
bc/a/00/a_0000 0 1 left VBD (VP*)) leave 01 1 S1 * (V*) * -

#end document
"""
ANN_LEE = [("Ann", "B-PERSON"), ("Lee", "I-PERSON"), ("saw", "O"), ("Bern", "B-GPE")]


@pytest.mark.parametrize("name", ["train.conll", "train.gold_conll"])
def test_ontonotes_has_its_words_and_entities(tmp_path, name):
    args = request(tmp_path / name, ONTONOTES, task="tokens")
    data = TASKS["tokens"].kind.load(args, None)
    assert words_and_tags(data) == [ANN_LEE, [("She", "O"), ("left", "O")]]
    assert any("words are in column 4 of 11, tags in column 11" in note for note in data.notes)


@pytest.mark.parametrize("sign", ["*", "(", "(*", "x*)"])
@pytest.mark.parametrize("other", ["N", "*", "(", ")"])
def test_signs_among_parts_of_speech_are_no_brackets(tmp_path, sign, other):
    data = conll(tmp_path, f"Ann\tN\nsaw\tV\nit\t{sign}\n\nHi\t{other}\n")
    tags = [tag for sentence in words_and_tags(data) for _, tag in sentence]
    assert tags == ["N", "V", sign, other]


@pytest.mark.parametrize("first", [0, 1, 7])
def test_tags_that_are_numbers_are_their_own_names(tmp_path, first):
    lines = [{"tokens": ["a", "b"], "ner_tags": [first, first + 1]}] * 2
    data = load_data(request(tmp_path / "train.jsonl", "\n".join(map(json.dumps, lines))))
    assert words_and_tags(data) == [[("a", str(first)), ("b", str(first + 1))]] * 2


@pytest.mark.parametrize("one_word", ["(GPE)", "(GPE*)", "(GPE*GPE)"])
def test_tags_in_brackets_become_bio(tmp_path, one_word):
    data = conll(tmp_path, f"Ann (PERSON*\nLee *)\nsaw *\nBern {one_word}\n\nHi *\n")
    assert words_and_tags(data)[0] == ANN_LEE
    assert any("tags in brackets" in note for note in data.notes)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (("(A*", "(B)", "*)", "*"), r"sentence from line 1: the tag \(B\) does not fit"),
        (("(A)", "*", "*)", "*"), r"the tag \*\) does not fit"),
        (("(A*", "*", "*", "*"), "the bracket of A is not closed"),
    ],
)
def test_brackets_that_do_not_fit_are_refused(tmp_path, tags, message):
    words = zip("abcd", tags, strict=True)
    with pytest.raises(InputError, match=message):
        conll(tmp_path, "".join(f"{word} {tag}\n" for word, tag in words))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_named_columns_with_lists_are_words_and_tags(tmp_path, ending):
    """As in commands of run_ner, which have no task."""
    rows = [{"tokens": ["Ann", "sleeps"], "words2": ["Ann", "naps"], "ner_tags": ["B-PER", "O"],
             "slots": ["x", "y"], "topics": ["a", "b"], "text": "Ann sleeps"}] * 4  # fmt: skip
    path = tmp_path / f"train.{ending}"
    data = Dataset.from_list(rows)
    data.to_json(path) if ending == "jsonl" else data.to_parquet(path)

    def are_words(**columns: str) -> bool:
        arguments = ClassifyArguments(train_file=str(path), **columns)
        return are_token_files(arguments)

    assert are_words(text_column_names="tokens", label_column_name="ner_tags")
    assert are_words(text_column_names="words2", label_column_name="slots")
    assert are_words(text_column_names="tokens")
    assert are_words(label_column_name="slots")
    # Several labels of a text are none of its words.
    assert not are_words(text_column_names="text", label_column_name="topics")
    assert not are_words(text_column_names="text")


def in_memory(features, **columns):
    return DatasetDict({"train": Dataset.from_dict(columns, features=Features(features))})


def whole(**options):
    return ClassifyArguments(**{"validation_fraction": 0.0, "test_fraction": 0.0, **options})


def test_indices_of_classes_that_are_called_by_numbers():
    names = ClassLabel(names=["1", "2", "3"])
    features = {"tokens": List(Value("string")), "ner_tags": List(names)}
    data = in_memory(features, tokens=[["a", "b", "c"], ["d"]], ner_tags=[[0, 1, 2], [2]])
    loaded = load_data(whole(), data)
    assert words_and_tags(loaded) == [[("a", "1"), ("b", "2"), ("c", "3")], [("d", "3")]]


@pytest.mark.parametrize(("name", "text"), [
    ("train.csv", "tokens,ner_tags\nBob in Rome,1 0 2\nAnn sleeps,1 0\n"),
    ("train.conll", "Bob\t1\nin\t0\nRome\t2\n\nAnn\t1\nsleeps\t0\n"),
])  # fmt: skip
def test_numbers_in_texts_are_indices_too(tmp_path, name, text):
    names = tmp_path / "names.txt"
    names.write_text("O\nB-PER\nB-LOC\n", encoding="utf-8")
    asked = request(tmp_path / name, text, class_names_file=str(names), task="tokens")
    assert words_and_tags(load_data(asked)) == [
        [("Bob", "B-PER"), ("in", "O"), ("Rome", "B-LOC")], [("Ann", "B-PER"), ("sleeps", "O")],
    ]  # fmt: skip


def test_a_tag_that_the_file_of_names_lacks_is_refused(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("O\nB-PER\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 1: the tag 'B-LOC' is not among the names of tags"):
        conll(tmp_path, SENTENCE, class_names_file=str(names))


def test_a_sign_of_number_is_a_tag_of_the_penn_treebank(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("# tags\n\"\n''\n#\n$\nNN\n", encoding="utf-8")
    rows = [{"tokens": ["#", "$", "cat"], "pos_tags": [2, 3, 4]}]
    asked = request(
        tmp_path / "rows.jsonl", json.dumps(rows[0]) + "\n", class_names_file=str(names)
    )
    assert words_and_tags(load_data(asked)) == [[("#", "#"), ("$", "$"), ("cat", "NN")]]


def test_a_border_of_documents_ends_a_sentence(tmp_path):
    data = conll(tmp_path, "Ann\tB-PER\nsleeps\tO\n-DOCSTART-\tO\nBob\tB-PER\neats\tO\n")
    assert data.splits["train"]["tokens"][:] == [["Ann", "sleeps"], ["Bob", "eats"]]


def test_columns_of_spans_of_unequal_lengths_are_refused(tmp_path):
    spans = {"start": [0, 11], "end": [3, 15], "label": ["PER"]}
    text = json.dumps({"text": "Ann goes to Rome", "entities": spans}) + "\n"
    with pytest.raises(InputError, match=r"line 1: column 'entities' must hold a list of spans"):
        load_data(request(tmp_path / "rows.jsonl", text))


def test_strings_that_python_would_join_are_no_words(tmp_path):
    text = "tokens,ner_tags\n\"['a' 'b', 'c']\",\"['O', 'B-X']\"\n\"['d']\",\"['O']\"\n"
    with pytest.raises(InputError, match="line 2: column 'tokens' must hold a list"):
        load_data(request(tmp_path / "rows.csv", text, task="tokens"))


@pytest.mark.parametrize(
    ("good", "bad"), [([0, 1], [0, -100]), ([0, 1], [-1, 0]), (["O", "B-X"], ["-100", "O"])]
)
def test_a_tag_that_stands_for_no_label_is_refused_and_left_out_when_asked(tmp_path, good, bad):
    tokens = [{"tokens": [f"a{i}", "b"], "ner_tags": tags} for i, tags in enumerate([good, bad])]
    text = "".join(f"{json.dumps(row)}\n" for row in tokens)
    path, tag = tmp_path / "train.jsonl", str(min(bad))
    with pytest.raises(InputError, match=rf"line 2: the tag {tag} .* Pass --ignore_label {tag} "):
        load_data(request(path, text))
    data = load_data(request(path, text, ignore_label=tag))
    assert words_and_tags(data) == [[("a0", str(good[0])), ("b", str(good[1]))]]
    assert any(f"1 row with the tag '{tag}' left out" in note for note in data.notes)
