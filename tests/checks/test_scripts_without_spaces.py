"""Texts in scripts without spaces between words: simple methods, equal texts and tokens."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from tiny_text import tiny_task
from transformers import BertTokenizerFast, GPT2TokenizerFast

from ampft.checks.baseline import bag_of_words_model, baselines, term_weights
from ampft.data.splits import normalized_text
from ampft.evaluation.simple_methods import BAG_OF_CHARACTERS, BAG_OF_WORDS
from ampft.kinds.unfit_tokens import is_in_pieces, unfit_token_notes
from ampft.text.scripts import is_unspaced, need_characters, words_or_characters

UNSPACED = {
    "Chinese": "我的订单还没有到货,请帮我查询",
    "Japanese": "注文した商品がまだ届きません",
    "Thai": "สินค้ายังไม่มาถึง กรุณาตรวจสอบ",
    "Lao": "ສິນຄ້າຍັງບໍ່ມາຮອດ",
    "Khmer": "ខ្ញុំមិនទាន់បានទទួលទំនិញទេ",
    "Chinese with a name": "我的iPhone屏幕碎了需要维修",
}
SPACED = (
    "주문한 상품이 아직 도착하지 않았습니다",
    "Где мой заказ",
    "Straße",
    "",
    "!?",
    "Tokyo (東京) is big",
)


@pytest.mark.parametrize("text", UNSPACED.values(), ids=UNSPACED)
def test_scripts_without_spaces_are_recognised(text):
    assert is_unspaced(text)
    assert need_characters(["a text in English"] * 9 + [text])
    assert not need_characters(["a text in English"] * 10 + [text])


@pytest.mark.parametrize("text", SPACED)
def test_other_scripts_keep_their_words(text):
    assert not need_characters([text] * 3)
    assert words_or_characters("we sell cars") == ["we", "sell", "cars"]


def test_characters_are_scikit_learns():
    """Tickets whose words differ only inside of sentences without a space."""
    rng = np.random.default_rng(0)
    subjects, words = ("退款", "登录"), "我你他的请问订单手机今天昨天怎么办理一下帮忙谢谢"
    labels = rng.permutation(np.arange(60) % 2)
    texts = [
        "".join(rng.choice(list(words), 8)) + subjects[label] + "".join(rng.choice(list(words), 8))
        for label in labels
    ]
    train, test = slice(0, 40), slice(40, 60)
    found = bag_of_words_model(texts[train], labels[train], 2, "--baseline")(texts[test])
    twin = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    expected = LogisticRegression(C=10.0, solver="newton-cg").fit(
        twin.fit_transform(texts[train]), labels[train]
    )
    np.testing.assert_allclose(
        found, expected.predict_proba(twin.transform(texts[test])), atol=1e-6
    )
    assert (found.argmax(1) == labels[test]).mean() >= 0.9
    at_spaces = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    by_words = LogisticRegression(C=10.0).fit(at_spaces.fit_transform(texts[train]), labels[train])
    assert by_words.score(at_spaces.transform(texts[test]), labels[test]) < 0.8
    assert term_weights(["two words"]).analyzer == "word"


def test_the_method_says_that_it_reads_characters(tiny_bert, monkeypatch):
    task = tiny_task(tiny_bert, train=20)
    outcome = task.outcome(
        "validation", {"probabilities": np.full((4, 3), 1 / 3, dtype=np.float32)}
    )
    assert BAG_OF_WORDS in baselines(task, outcome, None, 0, None)
    monkeypatch.setattr("ampft.checks.baseline.joined_texts", lambda *_: list(UNSPACED.values()))
    assert BAG_OF_CHARACTERS in baselines(task, outcome, None, 0, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("我的订单,还没到。", "我的订单 还没到"),
        ("我的订单还没到", "我的订单,还没到!"),
        ("买 iPhone 手机", "买iPhone手机"),
        ("สินค้า ยังไม่มา", "สินค้ายังไม่มา"),
        ("ខ្ញុំ\u200bមិន", "ខ្ញុំមិន"),
    ],
)
def test_punctuation_and_spaces_make_no_difference(one, other):
    assert normalized_text(one) == normalized_text(other)


def test_spaces_between_words_make_a_difference():
    assert normalized_text("an other") != normalized_text("another")
    assert normalized_text("주문한 상품") != normalized_text("주문한상품")
    assert normalized_text("我 the rapist") != normalized_text("我therapist")


def _note(tokenizer, texts, pair=()):
    columns = [texts, pair] if pair else [texts]
    tokens = tokenizer(*columns)["input_ids"]
    notes = unfit_token_notes(columns, tokens, np.array([*map(len, tokens)]), tokenizer)
    return "".join(notes)


def test_unknown_tokens_are_said(tiny_bert):
    tokenizer = BertTokenizerFast.from_pretrained(tiny_bert)
    known = ["w1 w2 w3", "w4", "w5 w6 unknown", "w7"] * 2
    assert not _note(tokenizer, known)
    said = _note(tokenizer, [*known, UNSPACED["Chinese"]])
    assert said.startswith("More than half of the tokens are unknown ([UNK]) in 1 of 9 training")
    assert _note(tokenizer, ["w1"] * 3, ["unknown unknown"] * 3)


def test_bytes_and_single_letters_are_said(monkeypatch):
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    english = [f"the order {i} has not arrived, please check what happened" for i in range(2000)]
    trained.train_from_iterator(english, vocab_size=1200, show_progress=False)
    tokenizer = GPT2TokenizerFast(tokenizer_object=trained._tokenizer)
    assert not _note(tokenizer, [*english[:8], UNSPACED["Thai"]])  # so small on purpose
    monkeypatch.setattr("ampft.kinds.unfit_tokens.LEAST_VOCABULARY", 300)
    assert not _note(tokenizer, english[:20])
    for text in [*UNSPACED.values(), "Где мой заказ, я жду две недели"]:
        said = _note(tokenizer, [*english[:8], text])
        assert said.startswith("The tokenizer splits 1 of 9 training texts into single")


def test_one_token_per_character_is_usual_only_without_spaces():
    chinese, russian = "我的订单还没有到", "где мой заказ"
    assert not is_in_pieces(chinese, len(chinese))
    assert is_in_pieces(chinese, 2 * len(chinese))
    assert is_in_pieces(russian, 11)
    assert not is_in_pieces(russian, 5)
