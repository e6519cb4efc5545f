"""The page and the text of a comparison in Chinese: translated as a whole, except for names."""

import re
from pathlib import Path

import pytest
import yaml
from example_comparison import broken, hostile, realistic

from ampft.comparison.report.html import html_text
from ampft.comparison.report.terminal import WIDTH, terminal_text
from ampft.text import language
from ampft.text.escaping import display_width
from ampft.text.language import LANGUAGES, translated, translated_html

TAGS = re.compile(r"<[^>]*>")
FOUR_WORDS = re.compile(r"[a-z]{2,} [a-z]{2,} [a-z]{2,} [a-z]{2,}", re.IGNORECASE)
# Facts, sources and tooltips of charts are not translated.
ENGLISH_PARTS = (
    r'<section id="(?:sources|setup)".*?</section>', r"<title>.*?</title>", r"<style>.*?</style>",
    r'<(\w+)[^>]* translate="no">.*?</\1>',
)  # fmt: skip


def test_the_page_is_translated():
    page = html_text(realistic(), "zh")
    for part in ENGLISH_PARTS:
        page = re.sub(part, "", page, flags=re.DOTALL)
    texts = [text for text in TAGS.split(page) if len(text) > 20]
    english = [text for text in texts if FOUR_WORDS.search(text)]
    assert len(english) <= len(texts) / 20, "add these to ampft/text/zh.yaml"
    assert "fp16 未发现损失；bf16 无法判定" in page
    assert "在本机上，请继续使用 fp32。" in page


@pytest.mark.parametrize("comparison", [realistic, hostile, broken])
def test_only_texts_change_and_names_do_not(comparison):
    english, chinese = html_text(comparison()), html_text(comparison(), "zh")
    tags = [TAGS.findall(page) for page in (english, chinese)]
    assert [tag for tag in tags[1] if "lang=" not in tag] == [
        tag for tag in tags[0] if "lang=" not in tag
    ]
    assert '<html lang="zh-CN">' in chinese
    names = [re.findall(r'<bdi translate="no">(.*?)</bdi>', page) for page in (english, chinese)]
    assert names[0] == names[1]
    assert len(names[0]) > 20


def test_a_class_that_is_called_like_a_heading_keeps_its_name():
    page = html_text(realistic(), "zh")
    assert '<bdi translate="no">text</bdi>' in page
    assert ">输入</th>" in page


def test_the_text_on_a_terminal_is_as_wide_as_in_english():
    text = terminal_text(realistic(), "zh")
    assert "在本机上，请继续使用 fp32。" in text
    assert max(display_width(line) for line in text.splitlines()) <= WIDTH


def test_what_is_not_in_the_catalogue_stays_english():
    assert translated("An unknown sentence.", "zh") == "An unknown sentence."
    assert (
        translated("bf16 is undecided. An unknown one.", "zh") == "bf16 无法判定。 An unknown one."
    )
    assert translated("bf16 is undecided.", "en") == "bf16 is undecided."
    assert translated_html("<p>mode</p>", "en") == "<p>mode</p>"
    assert translated_html("<p> mode <i>x</i></p><code>mode</code>", "zh") == (
        "<p> 精度 <i>x</i></p><code>mode</code>"
    )


@pytest.mark.parametrize("name", LANGUAGES[1:])
def test_translations_have_the_placeholders_of_their_texts(name):
    text = Path(language.__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    keys = [node.value for node, _ in yaml.compose(text).value]
    assert len(keys) == len(set(keys)) > 200
    for english, other in yaml.safe_load(text).items():
        used = set(re.findall(r"\{(\w+)\}", other))
        assert used == set(re.findall(r"\{(\w+)\}", english)), english
