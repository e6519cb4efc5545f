"""What `ampft predict` does with words: rows, windows and formats of the output."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tiny_text import LABELS
from tiny_words import TAGS, tiny_sentences
from transformers import AutoConfig, AutoTokenizer, BertForTokenClassification

import ampft.runs.predict
from ampft.data.dataset import TOKEN
from ampft.decision import CONTRACT_NAME, Contract, Rule
from ampft.errors import InputError
from ampft.kinds.prediction import PredictRequest, TrainingInfo
from ampft.models.by_length import CONFIG_FIELD
from ampft.runs.predict import predict_file
from ampft.runs.predictor import Predictor
from ampft.runs.record import DataPart
from ampft.text.units import TextUnits
from ampft.words import tensors as of_sentences

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture
def folder(tiny_bert, tmp_path, monkeypatch):
    """The folder of a run on words, with random weights."""
    run = tmp_path / "run"
    names = {"id2label": dict(enumerate(TAGS)), "label2id": {n: i for i, n in enumerate(TAGS)}}
    torch.manual_seed(0)
    BertForTokenClassification(AutoConfig.from_pretrained(tiny_bert, **names)).save_pretrained(run)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(run)
    write_contract(run, "tokens", TAGS)
    record = SimpleNamespace(
        status="finished", task="tokens", label_names=TAGS, files={},
        data=DataPart(name="x", kind=TOKEN, input_columns=("tokens",),
                      fingerprints={}, examples={}),
        model=SimpleNamespace(padding_free=None),
        arguments={"max_seq_length": 20, "stride": 6},
    )  # fmt: skip
    monkeypatch.setattr(ampft.runs.predict, "read_record", lambda folder: record)
    return run


def write_contract(run, task, names, units=None):
    contract = Contract(task, ("tokens",), Rule(names), units=units)
    (run / CONTRACT_NAME).write_text(contract.text(), encoding="utf-8")


def write_rows(path, sentences):
    lines = [json.dumps({"id": number, "tokens": words}) for number, words in enumerate(sentences)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def predict(folder, file, output):
    predict_file(str(folder), PredictRequest(files=[str(file)], output_file=str(output)))


@pytest.mark.parametrize("word", ["w1\tw2", "w1\n", "\rw1"])
def test_a_word_that_conll_cannot_hold_is_named_and_all_others_answered(
    folder, tmp_path, capsys, word
):
    file = write_rows(tmp_path / "rows.jsonl", [["w1"], ["w2", word], ["w3"]])
    predict(folder, file, tmp_path / "out.conll")
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 row without an answer" in printed
    assert "rows.jsonl, line 2: the word" in printed
    first, third = (tmp_path / "out.conll").read_text().split("\n\n\n")
    assert (first[:3], third[:3]) == ("w1\t", "w3\t")
    other = write_rows(tmp_path / "other.jsonl", [["w2", word]])
    with pytest.raises(InputError, match=r"line 1: the word .* has a tab or a line"):
        predict(folder, other, tmp_path / "other.conll")
    predict(folder, file, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[1]["words"] == ["w2", word]
    assert len(rows[1]["prediction"]) == 2


@pytest.mark.parametrize("word", [" ", "\n", "\u2003"])
def test_a_word_of_white_space_is_refused(folder, tmp_path, word):
    file = write_rows(tmp_path / "rows.jsonl", [["w2", word]])
    with pytest.raises(InputError, match=r"rows\.jsonl, line 1: no words, or an empty one"):
        predict(folder, file, tmp_path / "out.conll")
    assert not (tmp_path / "out.conll").exists()


@pytest.mark.parametrize("longest", [1, 3])
def test_entities_have_a_type_where_the_first_rows_have_none(
    folder, tmp_path, monkeypatch, longest
):
    monkeypatch.setattr(ampft.runs.predict, "ROWS_SORTED_AT_ONCE", 2)
    found = [("LOC", 0, 2)]
    monkeypatch.setattr("ampft.decision.entities", lambda tags: found if len(tags) > 1 else [])
    sentences = [["w1"], ["w2"], ["w1", "w2", "w3"][:longest], ["w4"]]
    predict(folder, write_rows(tmp_path / "rows.jsonl", sentences), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.field("entities").type == of_sentences.ENTITIES_TYPE
    found = [[entity["text"] for entity in row] for row in table["entities"].to_pylist()]
    assert found == [[], [], ["w1 w2"] if longest > 1 else [], []]
    assert table["id"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("kind", ["words", "texts"])
def test_a_forward_pass_has_at_most_a_batch_of_windows(
    folder, tiny_bert, tmp_path, monkeypatch, kind, by_length
):
    record = ampft.runs.predict.read_record(folder)
    rows = tiny_sentences(5, seed=1, longest=90)["tokens"]
    if kind == "texts":
        record.task, record.label_names = "text", LABELS
        folder = shutil.copytree(tiny_bert, tmp_path / "texts")
        write_contract(folder, "text", LABELS)
        record.data = DataPart(
            name="x", kind="text", input_columns=("text",), fingerprints={}, examples={}
        )
        record.arguments["long_text"] = "windows"
        rows = [" ".join(words) for words in rows]
    else:
        trained = TrainingInfo(("tokens",), TAGS, {}, several_labels=False)
        rows = [of_sentences.sentence_of(words, trained) for words in rows]
    several, few = (
        Predictor.of_run(folder, record, PredictRequest(batch_size=size)) for size in (1000, 3)
    )
    sizes = {}
    for predictor in (several, few):
        setattr(predictor.config, CONFIG_FIELD, by_length)
        sizes[predictor] = recorded_sizes(predictor.model)
    expected, found = (predictor([rows]).decoded["probabilities"] for predictor in (several, few))
    assert max(sizes[few]) == 3 < sum(sizes[few]) == sum(sizes[several])
    assert by_length or len(sizes[several]) == 1
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def recorded_sizes(model) -> list[int]:
    """Return a list to which every call of a model adds its number of rows."""
    sizes: list[int] = []

    def record_size(module, args, kwargs):
        del module, args
        sizes.append(len(kwargs["input_ids"]))

    model.register_forward_pre_hook(record_size, with_kwargs=True)
    return sizes


@pytest.mark.parametrize(("kind", "words"), [("graphemes", ["w", "1", "w", "2"]),
                                             ("blanks", ["w1", "w2"])])  # fmt: skip
def test_the_contract_is_the_only_source_of_units(folder, tmp_path, kind, words):
    write_contract(folder, "tokens", TAGS, {"kind": kind})
    output = tmp_path / "out.jsonl"
    predict_file(str(folder), PredictRequest(texts=["w1 w2"], output_file=str(output)))
    assert json.loads(output.read_text())["words"] == words


def test_a_text_has_the_units_of_the_training():
    def words(text, units):
        trained = TrainingInfo(("text",), TAGS, {}, several_labels=False, text_units=units)
        return [word.text for word in of_sentences.sentence_of(text, trained).words]

    text = "दिल्ली, 北京 Ber\u0301n"
    assert words(text, TextUnits("words")) == ["दिल्ली", ",", "北", "京", "Ber\u0301n"]
    assert words(text, TextUnits("graphemes"))[:3] == ["दि", "ल्ली", ","]
    assert words(text, None) == ["दिल्ली", ",", "北京", "Ber\u0301n"]
    assert words([*"北京"], TextUnits("graphemes", joiner="")) == ["北", "京"]
    trained = TrainingInfo(
        ("tokens",), TAGS, {}, several_labels=False, text_units=TextUnits("given", longest=3)
    )
    with pytest.raises(InputError, match=r"position 1 .*: the model was trained on words of a scr"):
        of_sentences.rows_in_memory(["北京 市", "王小明住在北京市"], trained)


def words_of(folder, file, tmp_path, **options):
    output = tmp_path / "out.jsonl"
    predict_file(
        str(folder),
        PredictRequest(files=[str(file)], output_file=str(output), overwrite=True, **options),
    )
    return [json.loads(line)["words"] for line in output.read_text().splitlines()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_with_a_text_and_tokens_are_read_as_in_training(folder, tmp_path):
    record = ampft.runs.predict.read_record(folder)
    record.data = DataPart(
        name="x", kind=TOKEN, input_columns=("text",), fingerprints={}, examples={}
    )
    write_contract(folder, "tokens", TAGS, {"kind": "words"})
    tokens = [{"text": "w1", "start": 0, "end": 2, "id": 0}]  # as Prodigy writes them
    spans = [{"start": 0, "end": 2, "label": "PER"}]
    rows = [{"text": "w1, w2", "tokens": tokens, "spans": spans, "answer": "accept"}]
    file = write_lines(tmp_path / "rows.jsonl", 2 * rows)
    assert words_of(folder, file, tmp_path) == 2 * [["w1", ",", "w2"]]
    with pytest.raises(
        InputError, match=r"lines 1, 2: received .* as a word; a word must be a text"
    ):
        words_of(folder, file, tmp_path, text_column_names="tokens")


@pytest.mark.parametrize("word", [None, float("nan")])
@pytest.mark.parametrize("ending", ["jsonl", "conll"])
def test_a_row_with_a_missing_word_is_named(folder, tmp_path, word, ending, capsys):
    file = write_rows(tmp_path / "rows.jsonl", [["w1"], ["w2", word], ["w3"]])
    predict(folder, file, tmp_path / f"out.{ending}")
    said = " ".join(capsys.readouterr().out.split())
    assert "rows.jsonl, line 2: no words, or an empty one" in said
    content = (tmp_path / f"out.{ending}").read_text()
    assert len(content.split("\n\n") if ending == "conll" else content.splitlines()) == 3
    write_rows(file, [["w2", word]])
    with pytest.raises(InputError, match=r"rows\.jsonl, line 1: no words, or an empty one"):
        words_of(folder, file, tmp_path)


def test_a_text_with_tags_has_their_words(folder, tmp_path, capsys):
    rows = [
        {"tokens": "w1 w2. (w3)", "tags": "B-PER I-PER O"},
        {"tokens": "w1 w2. (w3)", "tags": "sports"},  # no tags of these words
    ]
    file = write_lines(tmp_path / "rows.jsonl", rows[:1])
    assert words_of(folder, file, tmp_path) == [["w1", "w2.", "(w3)"]]
    assert "Words: 3 in 1 sentences" in capsys.readouterr().out
    file = write_lines(tmp_path / "rows.jsonl", rows)
    assert words_of(folder, file, tmp_path)[1] == ["w1", "w2", ".", "(", "w3", ")"]
    assert "not scored: " in capsys.readouterr().out


def test_how_a_file_is_read_is_said(folder, tmp_path, capsys):
    file = tmp_path / "lines.txt"
    file.write_text("w1 w2\nw3 w4\n", encoding="utf-8")
    assert words_of(folder, file, tmp_path) == [["w1", "w3"]]
    printed = " ".join(capsys.readouterr().out.split())
    assert f"note {file}: read as CoNLL, a word and its tag per line." in printed


@pytest.mark.parametrize("row", ["w1 \ud800", ["w1", "\udc00"]])
def test_half_of_a_surrogate_pair_among_words_in_memory_is_refused(folder, row):
    with pytest.raises(InputError, match=r"position 1 .*: .* is half of a surrogate pair"):
        ampft.runs.predict.predict_inputs(folder, [["w1"], row], PredictRequest(batch_size=2))
