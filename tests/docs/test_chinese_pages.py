"""The Chinese pages say what the English ones say: same headings, commands, numbers and links."""

from __future__ import annotations

import re

import pytest
from running import REPOSITORY

PAGES = [("README.md", "README.zh-CN.md"), ("docs/tutorial.md", "docs/tutorial.zh-CN.md")]
HAN = r"[\u4e00-\u9fff\u3001\u3002\uff08\uff09\uff0c\uff1a\uff1b\uff1f]"


def read(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n.*?^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def levels(text: str) -> list[str]:
    return re.findall(r"^#+(?= )", prose(text), re.MULTILINE)


def code(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", prose(text)))


def links(text: str) -> set[str]:
    """Return what a page links to, a page that exists in both languages by its English name."""
    found = re.findall(r"\]\(([^)]+)\)", prose(text))
    return {each.replace(".zh-CN", "") for each in found}


def numbers(text: str) -> set[str]:
    """Return the numbers outside code and links."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose(text))
    return {each.replace(",", "") for each in re.findall(r"\d[\d,.]*\d|\d", plain)}


@pytest.mark.parametrize(("english", "chinese"), PAGES)
@pytest.mark.parametrize("part", [blocks, levels, code, links])
def test_both_languages_have_the_same(part, english, chinese):
    assert part(read(chinese)) == part(read(english))


@pytest.mark.parametrize(("english", "chinese"), PAGES)
def test_both_languages_have_the_same_numbers(english, chinese):
    assert numbers(read(chinese)) ^ numbers(read(english)) == set()


@pytest.mark.parametrize("chinese", [chinese for _, chinese in PAGES])
def test_there_is_no_space_between_chinese_characters(chinese):
    assert re.findall(rf".?{HAN} +{HAN}.?", prose(read(chinese))) == []


def test_a_missing_command_is_seen():
    text = read("README.md")
    shorter = text.replace("ampft predict", "ampft say", 1)
    assert blocks(shorter) != blocks(text)
    assert code(text.replace("`--help_all`", "all")) != code(text)
    assert numbers(text.replace("408", "four")) != numbers(text)
