"""Units of texts in many scripts: places, grapheme clusters, and the choice from words or spans."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.decision import entities
from ampft.errors import InputError
from ampft.text.units import KINDS, TextUnits, graphemes
from ampft.words.tags import EntitySpan, tag_words
from ampft.words.unit_choice import script_of, units_of_spans, units_of_words

# Frames and what fills them: each text has its entities where a reader sees them.
SPANS = {
    "chinese": ([["我昨天到了", "LOC", "开会。"], ["PER", "到了", "LOC", "用iPhone 13"]],
                {"LOC": ["北京", "上海市"], "PER": ["王小明"]}),
    "japanese": ([["昨日", "LOC", "へ行きました"]], {"LOC": ["東京タワー", "ニューヨーク"]}),
    "katakana": ([["LOC", "マーケット"]], {"LOC": ["スーパー"]}),
    "korean": ([["나는 ", "LOC", "에서 산다."], ["PER", "은 ", "LOC", "에 2020년"]],
               {"LOC": ["서울", "LG", "부산"], "PER": ["김철수"]}),
    "thai": ([["เขาอยู่ที่", "LOC", "ครับ 12"]], {"LOC": ["กรุงเทพ", "เชียงใหม่"]}),
    "hindi": ([["मैं ", "LOC", " में रहता हूँ।"]], {"LOC": ["दिल्ली", "मुंबई", "नई दिल्ली"]}),
    "arabic": ([["ذهب ", "PER", " إلى ", "LOC", "، ثم"]],
               {"PER": ["أَحْمَد"], "LOC": ["القاهرة"]}),
    "hebrew": ([["הוא בא ל", "LOC", "."], ["הוא גר ב", "LOC", " היום"]],
               {"LOC": ["ירושלים", "תֵּל אָבִיב"]}),
    "compounds": ([["Die ", "LOC", "reise war schön"]], {"LOC": ["Berlin"]}),
    "combining": ([["Die Stadt ", "LOC", " ist schön"]],
                  {"LOC": ["Mu\u0308nchen", "Köln", "Baden-Baden"]}),
    "emoji": ([["I love ", "E", "E", " so"]], {"E": ["👨‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️"]}),
    "units": ([["ran 5", "U", " far"]], {"U": ["km", "mi"]}),
}  # fmt: skip


def rows_of(name):
    frames, fills = SPANS[name]
    rows = []
    for number in range(40):
        text, spans = "", []
        for part in frames[number % len(frames)]:
            if part in fills:
                word = fills[part][number % len(fills[part])]
                spans.append(EntitySpan(len(text), len(text) + len(word), part))
                text += word
            else:
                text += part
        rows.append((text, spans))
    return rows


@pytest.mark.parametrize("name", SPANS)
def test_spans_come_back_exactly(name):
    rows = rows_of(name)
    units, note = units_of_spans(rows)
    assert note.startswith("Units: words")
    for text, spans in rows:
        words = units.split(text)
        tags, extended = tag_words(words, spans, len(text))
        found = [
            EntitySpan(words[first].start, words[end - 1].end, label)
            for label, first, end in entities(tags)
        ]
        assert found == spans
        assert extended == 0


def test_words_stay_whole_where_spans_respect_them():
    units, _ = units_of_spans(rows_of("hindi"))
    assert [word.text for word in units.split("मैं दिल्ली में")] == ["मैं", "दिल्ली", "में"]
    assert units == TextUnits("words")
    mixed, note = units_of_spans(rows_of("korean"))
    assert mixed.by_grapheme == ("Hangul",)
    assert "'서울' in '서울에서'" in note
    words = [word.text for word in mixed.split("서울에서 Microsoft 2020년")]
    assert words == ["서", "울", "에", "서", "Microsoft", "2020", "년"]


def test_few_spans_within_words_are_slips():
    rows = [("Ann saw Bern", [EntitySpan(8, 12, "LOC")])] * 39
    units, note = units_of_spans([*rows, ("Bernese", [EntitySpan(0, 4, "LOC")])])
    assert units == TextUnits("words")
    assert "Latin" not in note
    units, note = units_of_spans([*rows, *[("Bernese", [EntitySpan(0, 4, "LOC")])] * 3])
    assert units.by_grapheme == ("Latin",)
    assert "3 of 42 spans begin or end within a word, such as 'Bern' in 'Bernese'" in note


SENTENCES = {
    "graphemes": ([*"王小明住在北京市。"], ""),
    "words": (["我", "用", "iPhone13", "在", "北", "京", "2020", "。"], ""),
    "characters": ([*"กรุงเทพอยู่ที่นี่"], ""),
    "spaces": (["Ann", ",", "don't", "see", "U.K", "."], " "),
    "blanks": (["Ann,", "don't", "see", "it!"], " "),
    "given": (["王小明", "住", "在", "北京市", "。"], " "),
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_the_words_of_files_show_their_units(kind):
    words, joiner = SENTENCES[kind]
    units, note = units_of_words([words] * 5)
    assert (units.kind, units.joiner) == (kind, joiner)
    assert note.startswith("Units: the words of the data")
    text, placed = units.joined(words)
    if joiner == "":
        assert units.split(text) == placed


def test_words_that_no_rule_finds_are_refused_in_a_text():
    units, _ = units_of_words([SENTENCES["given"][0]])
    assert [word.text for word in units.split("王小明 住 在")] == ["王小明", "住", "在"]
    with pytest.raises(ValueError, match="'王小明住在北京市。' is longer than its longest word"):
        units.split("王小明住在北京市。")


TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from(
            "北京กุทิพेूँ्हिд\u0301\u0308\u200d\u200c\ufe0f👨👩🏽🇩🇪가각ᄀ\u1160 \n.,'_5٣\u0600\u00ad"
        ),
    )
)


@given(TEXTS, st.sampled_from(sorted(KINDS)), st.sets(st.sampled_from(["Latin", "Hangul"])))
def test_units_cover_a_text_at_their_places(text, kind, scripts):
    units = TextUnits(kind, by_grapheme=tuple(sorted(scripts)), longest=1000).split(text)
    end = 0
    for unit in units:
        assert unit.start >= end
        assert text[end : unit.start].strip() == ""  # only blanks are left out
        assert text[unit.start : unit.end] == unit.text
        assert unit.text
        end = unit.end
    assert text[end:].strip() == ""
    if kind in ("words", "graphemes", "spaces"):
        borders = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
        assert {place for unit in units for place in (unit.start, unit.end)} <= borders


@given(TEXTS, st.sampled_from(["graphemes", "words"]), st.data())
def test_spans_of_units_round_trip(text, kind, data):
    units = TextUnits(kind).split(text)
    if not units:
        return
    first = data.draw(st.integers(0, len(units) - 1))
    last = data.draw(st.integers(first, len(units) - 1))
    span = EntitySpan(units[first].start, units[last].end, "X")
    tags, extended = tag_words(units, [span], len(text))
    assert extended == 0
    assert list(entities(tags)) == [("X", first, last + 1)]


def test_graphemes_of_unicode():
    # Cases of Unicode's GraphemeBreakTest.txt, one for each rule.
    cases = [
        "\r\n",
        "각",
        "각",
        "a\u0308",
        "a\u0903",
        "\u0600a",
        "🇩🇪",
        "👨\u200d👩",
        "👶🏿",
        "क्ष",
        "\u0e33",
    ]
    assert [graphemes(case) for case in cases] == [[case] for case in cases]
    assert graphemes("🇩🇪🇫🇷") == ["🇩🇪", "🇫🇷"]
    assert unicodedata.normalize("NFC", "Mu\u0308") == "Mü"
    names = {"가": "Hangul", "é": "Latin", "ע": "Hebrew", "٣": "Number", "北": "Han", "!": ""}
    assert {character: script_of(character) for character in names} == names


@pytest.mark.slow
def test_units_are_light_and_unknown_ones_are_refused():
    code = (
        "import sys; import ampft.text.units; assert not {'torch', 'transformers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ValueError, match="the units 'syllables' are not known to this version"):
        TextUnits("syllables")
    assert TextUnits("words", ["Hangul"]) == TextUnits("words", ("Hangul",))  # as JSON has it


def test_the_flag_decides(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"text": f"Bernese {i}", "spans": [[0, 4, "LOC"]]} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    data = load_data(ClassifyArguments(train_file=path, text_units="words", **none))
    assert data.text_units == TextUnits("words")
    assert data.splits["train"]["text"][0] == ["Bernese", "0"]
    assert any("8 spans extended to whole words" in note for note in data.notes)
    data = load_data(ClassifyArguments(train_file=path, **none))
    assert data.text_units == TextUnits("words", ("Latin",))
    path.write_text("text,label\na,x\nb,y\n" * 4, encoding="utf-8")
    with pytest.raises(InputError, match="--text_units"):
        load_data(
            ClassifyArguments(
                train_file=path.rename(tmp_path / "t.csv"), text_units="words", **none
            )
        )


def test_prepared_rows_keep_the_text_of_their_units(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"text": f"我在北京 {i}", "spans": [[2, 4, "LOC"]]} for i in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    data = load_data(ClassifyArguments(train_file=path, group_column="text", **none))
    part = data.splits["train"]
    assert part["ampft_text"][:] == [row["text"] for row in rows]
    assert part["text"][0] == ["我", "在", "北", "京", "0"]
    assert part["ampft_group"][0] == rows[0]["text"]
