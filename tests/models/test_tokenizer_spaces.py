"""Tokenizers of bytes that ignore `add_prefix_space` read words in a list as in a text."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertTokenizerFast, PreTrainedTokenizerFast

from ampft.errors import InputError
from ampft.models import tokenizer as module
from ampft.models.pretrained import SAVED_MODEL_FLAG
from ampft.models.tokenizer import load_tokenizer
from ampft.text.units import TextUnits
from ampft.words.tokenizer_units import reading_units_of_texts

WORDS = ["Hello", "there", "world", "of", "stones"]
TEXT = " ".join(WORDS)
# As Llama 3 and Qwen split a text before its bytes are read.
SPLIT = pre_tokenizers.Split(Regex(r" ?\p{L}+|\s+(?!\S)|\s+|[^\s\p{L}]+"), "isolated")
PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False)
SHAPES = {
    "modernbert": PLAIN,
    "llama3": pre_tokenizers.Sequence(
        [SPLIT, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    ),
}


@pytest.fixture(params=SHAPES)
def folder(request, tmp_path):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = SHAPES[request.param], decoders.ByteLevel()
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator([f" {TEXT}"] * 20, trainer)
    pair = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=pair
    )
    names = dict(zip(("unk_token", "pad_token", "cls_token", "sep_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def read(tokenizer, words):
    encoded = tokenizer(words, is_split_into_words=isinstance(words, list))
    return tokenizer.convert_ids_to_tokens(encoded["input_ids"])


def test_words_are_read_as_in_a_text_and_so_by_a_plain_client(folder, tmp_path):
    asked = AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
    assert asked.init_kwargs["add_prefix_space"] is True
    assert read(asked, WORDS) != read(asked, TEXT)  # transformers takes the flag and ignores it
    tokenizer = load_tokenizer(str(folder), reads_words=True)
    expected = ["[CLS]", *(f"Ġ{word}" for word in WORDS), "[SEP]"]
    assert read(tokenizer, WORDS) == read(tokenizer, TEXT) == expected
    tokenizer.save_pretrained(tmp_path / "saved")
    plain = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert read(plain, WORDS) == read(plain, TEXT) == expected
    places = plain(TEXT, return_offsets_mapping=True)["offset_mapping"]
    assert [TEXT[start:end].strip() for start, end in places[1:-1]] == WORDS


def test_texts_and_saved_models_are_read_as_they_are(folder):
    plain = AutoTokenizer.from_pretrained(folder)
    for loaded in (
        load_tokenizer(str(folder)),
        load_tokenizer(str(folder), flag=SAVED_MODEL_FLAG, reads_words=True),
    ):
        assert read(loaded, WORDS) == read(plain, WORDS)
        assert read(loaded, TEXT) == read(plain, TEXT)


def test_tokenizers_that_read_words_as_texts_are_not_changed(tiny_bert):
    before = json.loads(AutoTokenizer.from_pretrained(tiny_bert).backend_tokenizer.to_str())
    loaded = load_tokenizer(str(tiny_bert), reads_words=True)
    assert json.loads(loaded.backend_tokenizer.to_str()) == before


def test_a_change_that_is_lost_when_saved_is_refused(folder, monkeypatch):
    original = AutoTokenizer.from_pretrained(folder)

    class Forgetful:
        @staticmethod
        def from_pretrained(path, **kwargs):
            if str(path) == str(folder):
                return AutoTokenizer.from_pretrained(path, **kwargs)
            return original

    monkeypatch.setattr(module, "AutoTokenizer", Forgetful)
    with pytest.raises(InputError, match="add_prefix_space=True has no effect on it"):
        load_tokenizer(str(folder), reads_words=True)


@pytest.mark.parametrize("units", [TextUnits("words", ("Hangul",)), TextUnits("graphemes")])
def test_a_plain_client_finds_the_units_of_texts(folder, tmp_path, units):
    tokenizer = load_tokenizer(str(folder), reads_words=True)
    texts = ["서울에서 Hello, there 北京ー", "👨‍👩‍👧 Mu\u0308nchen_5km", " मैं\n stones"]
    lists = [[unit.text for unit in units.split(text)] for text in texts]
    wanted = [read(tokenizer, words) for words in lists]
    assert [read(tokenizer, text) for text in texts] != wanted
    unchanged = tokenizer.backend_tokenizer.to_str()
    changed = reading_units_of_texts(tokenizer, units, texts)
    if changed is None:
        assert "Prepend" in unchanged  # its space is put before a text, not before each unit
        assert tokenizer.backend_tokenizer.to_str() == unchanged
        return
    changed.save_pretrained(tmp_path / "saved")
    plain = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for each in (changed, plain):
        assert [read(each, text) for text in texts] == wanted
        assert [read(each, words) for words in lists] == wanted


def test_a_tokenizer_that_forgets_the_units_stays_as_it_is(folder, monkeypatch):
    tokenizer, original = (load_tokenizer(str(folder), reads_words=True) for _ in range(2))
    forgetful = SimpleNamespace(from_pretrained=lambda path, **kwargs: original)
    monkeypatch.setattr("ampft.words.tokenizer_units.AutoTokenizer", forgetful)
    # Hindi's conjuncts are newer than the rules of this library, so the change is not kept.
    assert not reading_units_of_texts(tokenizer, TextUnits("graphemes"), ["दिल्ली"])
    before = tokenizer.backend_tokenizer.to_str()
    assert not reading_units_of_texts(tokenizer, TextUnits("graphemes"), ["Hello there"])
    assert tokenizer.backend_tokenizer.to_str() == before
    assert not reading_units_of_texts(tokenizer, TextUnits("spaces"), ["Hello, there"])


def test_a_class_that_builds_its_rules_anew_is_replaced(tmp_path):
    """BERT's tokenizer class ignores the pre-tokenizer in its file (transformers 5)."""
    texts = ["สมชายไปกรุงเทพ", "אתמול דוד נסע"]
    signs = sorted({sign for text in texts for sign in text if sign != " "})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *signs, *(f"##{s}" for s in signs)]
    numbered = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = BertTokenizerFast(vocab=numbered, model_max_length=99, strip_accents=False)
    units = TextUnits("words", ("Hebrew",))
    texts.append("👩\u200d⚕\ufe0f דוד 👨\u200d👩\u200d👧😀5")  # whose joiners the class removes
    words = [[unit.text for unit in units.split(text)] for text in texts]
    wanted = [dict(tokenizer(row, is_split_into_words=True)) for row in words]
    changed = reading_units_of_texts(tokenizer, units, texts)
    changed.save_pretrained(tmp_path)
    for each in (changed, AutoTokenizer.from_pretrained(tmp_path)):
        assert [dict(each(text)) for text in texts] == wanted
        assert [dict(each(row, is_split_into_words=True)) for row in words] == wanted
        for name in ("model_max_length", "padding_side", "truncation_side", "special_tokens_map"):
            assert getattr(each, name) == getattr(tokenizer, name)
