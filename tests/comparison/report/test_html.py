import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from example_comparison import broken, hostile, realistic
from example_texts import HOSTILE_LABELS
from large_comparison import large, two_classes

import ampft
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.html import html_text
from ampft.text.page import isolated

EXAMPLES = (realistic, hostile, broken, large, two_classes)
VOID = {"meta", "br"}
ALLOWED = set(
    re.findall(
        r"\w+",
        """
        html head meta title style body header main aside nav article section p h1 h2 h3 ul li
        div span small strong i bdi br figure figcaption table caption thead tbody tr th td
        details summary a code svg line path rect text tspan
        """,
    )
)


class Reader(HTMLParser):
    """Checks the nesting of elements, and records the content of a document."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.ids: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda make: make.__name__)
def page(request):
    return html_text(request.param())


@pytest.mark.slow
def test_elements_nest_and_are_allowed(page):
    document = read(page)
    assert len(document.elements) > 300
    assert {tag for tag, _, _ in document.elements} <= ALLOWED
    assert len(set(document.ids)) == len(document.ids)


def test_the_check_finds_wrong_nesting():
    with pytest.raises(AssertionError):
        read("<p><b></p></b>")


def test_no_attribute_runs_code_or_links(page):
    for tag, attributes, _ in read(page).elements:
        assert not {name for name in attributes if name.startswith("on")}, tag
        assert attributes.get("href", "#").startswith("#"), tag  # within the document
        assert not set(attributes) & {"src", "style", "action", "srcset", "data"}, tag
        for name in ("id", "class"):
            assert re.fullmatch(r"[a-z0-9 -]*", attributes.get(name) or ""), attributes


def test_every_chart_is_in_a_figure_with_a_text_alternative(page):
    charts = [(a, inside) for tag, a, inside in read(page).elements if tag == "svg"]
    charts = [(a, inside) for a, inside in charts if "svg" not in inside]
    described = [a for a, _ in charts if a.get("role") == "img"]
    assert described
    assert all(attributes["aria-label"].strip() for attributes in described)
    assert all("aria-hidden" in a for a, _ in charts if a.get("role") != "img")
    assert all("figure" in inside for _, inside in charts if _.get("role") == "img")
    for figure in re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL):
        assert figure.count("<figcaption>") == 1 or 'role="img"' not in figure


def test_every_table_has_a_caption_and_scoped_heads(page):
    document = read(page).elements
    assert sum(tag == "table" for tag, _, _ in document) == page.count("<caption>")
    assert all(attributes.get("scope") for tag, attributes, _ in document if tag == "th")


def test_the_same_comparison_gives_the_same_bytes(page, request):
    make = request.node.callspec.params["page"]
    assert html_text(make()).encode() == page.encode()


def test_nothing_is_fetched(page):
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    addresses = re.findall(r"https?://[^\s<\"]*", page)
    assert set(addresses) <= {"https://example.com"}  # a label, shown as text


def test_labels_are_shown_as_text():
    page = html_text(hostile())
    words = "".join(read(page).words)
    assert "中文标签\uff1a自然语言处理" in words
    assert "مرحبا بالعالم" in words
    assert "<script>alert(1)</script>" in words
    assert "<script" not in page
    assert "\u202e" not in page
    assert "\\u202ereversed" in words
    assert "w" * 300 in words


def test_control_characters_and_surrogates_survive_as_escapes():
    assert isolated("a\x00b\ud800c") == "<bdi>a\\x00b\\ud800c</bdi>"
    assert isolated(" \n") == '<i class="none">blank</i>'
    assert all(isolated(label).isprintable() for label in HOSTILE_LABELS)


def test_verdicts_come_first_and_stamps_before_the_table():
    page = html_text(broken())
    comparison = broken()
    places = [page.index(remark_texts(comparison.stamps)[0]), page.index('id="modes"')]
    assert page.index("diverged (seed 2)") < places[0] < places[1]


def test_an_incomplete_arm_gets_no_mean():
    page = html_text(broken())
    row = re.search(r'<tr><th scope="row">[^\n]*<bdi>fp16</bdi></th>.*?</tr>', page)
    assert row is not None
    assert "unstable, 1 of 2" in row[0]
    assert 'class="mark' not in row[0].split("</th>")[1]


@pytest.mark.slow
def test_a_matrix_that_is_too_large_is_omitted():
    assert 'class="matrix"' not in html_text(large())
    assert "Most frequent confusions" in html_text(large())
    assert html_text(two_classes()).count('class="matrix"') == 2


@pytest.mark.slow
def test_all_classes_are_listed_and_some_are_folded():
    words = "".join(read(html_text(large())).words)
    assert "170 further rows" in words
    assert all(f"class {index} of many 类别" in words for index in range(199))


def test_template_and_style_are_packaged():
    package = Path(ampft.__file__).parent
    listed = (package.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert [each.name for each in package.rglob("*.j2")] == ["page.html.j2"]
    assert '"text/*.j2", "text/style.css"' in listed


def test_the_answer_comes_first_and_every_verdict_has_a_chip():
    page = html_text(realistic())
    body = page[page.index("<body ") :]
    assert "<h1><bdi>On this machine, stay with fp32</bdi></h1>" in body
    chips = re.findall(r'<span class="chip (\w+)"><bdi>(.*?)</bdi>', body)
    assert chips == [
        ("open", "undecided"), ("good", "equivalent"), ("none", "placebo"), ("none", "baseline"),
    ]  # fmt: skip
    assert body.index("<h1>") < body.index('class="answer"') < body.index('class="cards"')
    assert body.index('class="cards"') < body.index("<table")
    sections = set(re.findall(r'<section id="([\w-]+)"', body))
    assert set(re.findall(r'href="#([\w-]+)"', body)) == sections


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({"bf16": "equivalent"}, "Use bf16: it is equivalent to fp32 in accuracy, and it is 2"),
        ({"bf16": "better, size uncertain"}, "Use bf16: it is better than fp32 in accuracy"),
        ({"bf16": "worse, size uncertain"}, "On this machine, stay with fp32</"),
    ],
)
def test_the_headline_says_what_to_do(changes, headline):
    arms = tuple(
        replace(arm, difference=replace(arm.difference, verdict=changes[arm.name]))
        if arm.name in changes
        else arm
        for arm in realistic().arms
    )
    page = html_text(replace(realistic(), arms=arms))
    page = page.replace("\N{NO-BREAK SPACE}", " ")
    assert f"<h1><bdi>{headline}" in page
    assert page.count(headline.split(":")[0]) == 1, "it is said once"
    assert ("bf16 is worse than fp32 in accuracy" in page) is ("stay" in headline)


def test_only_differences_of_confusions_are_shown_beside_the_baseline():
    base, *others = realistic().arms
    same = replace(
        realistic(), arms=(base, *(replace(a, confusion=base.confusion) for a in others))
    )
    matrices = re.findall(r'(?s)<table class="matrix">(.*?)</table>', html_text(same))
    counts = [len(re.findall(r"<td[^>]*>[+\u2212]?\d+</td>", matrix)) for matrix in matrices]
    assert counts[0] > 0
    assert counts[1:] == [0] * len(others)


@pytest.mark.slow
def test_a_page_about_a_million_examples_stays_small():
    assert len(html_text(replace(large(), examples=1_000_000)).encode()) < 2 * 2**20


def test_a_class_with_the_name_of_an_arm_gets_no_line_style():
    classes = [replace(realistic().arms[0].classes[0], name="bf16")]
    arms = tuple(replace(arm, classes=tuple(classes)) for arm in realistic().arms)
    page = html_text(replace(realistic(), arms=arms))
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>', page)
    of_class = [row for row in rows if row == '<bdi translate="no">bf16</bdi>']
    of_arm = [row for row in rows if 'class="key"' in row and "<bdi>bf16</bdi>" in row]
    assert len(of_class) >= 1
    assert len(of_arm) > 3
