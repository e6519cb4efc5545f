"""The model card's metadata parse, and labels and names in it are inert."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from ampft.runs.publishing import model_card
from ampft.text.escaping import code, prose
from ampft.text.numbers import duration

ALLOWED_ELEMENTS = {
    *("h1", "h2", "p", "pre", "code", "strong", "ul", "li", "hr"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


def test_metadata_in_the_format_of_the_hub(tmp_path: Path, make_record, make_report):
    report = make_report()
    record = make_record()
    record = replace(
        record,
        model=replace(record.model, hub_id="sentence-transformers/all-MiniLM-L6-v2"),
        data=replace(record.data, hub_id="CogComp/trec"),
    )
    path = tmp_path / "README.md"
    path.write_text(model_card(record, report), encoding="utf-8")
    data = ModelCard.load(path).data
    assert data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert data.datasets == "CogComp/trec"
    assert data.license is None
    assert data.pipeline_tag == "text-classification"
    values = {result.metric_type: result.metric_value for result in data.eval_results}
    assert values == pytest.approx({"accuracy": report.accuracy, "f1": report.macro_f1}, abs=1e-6)
    assert {result.dataset_split for result in data.eval_results} == {"test"}


def test_local_models_and_data_have_no_hub_ids(make_record, make_report):
    front = model_card(make_record(), make_report()).split("---")[1]
    metadata = yaml.safe_load(front)
    assert "base_model" not in metadata
    assert "datasets" not in metadata
    assert metadata["model-index"][0]["results"][0]["dataset"]["type"] == "local"


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def hostile_card(make_record, make_report, hostile: tuple[str, ...]) -> str:
    record = make_record()
    everything = " ".join(hostile)
    record = replace(
        record,
        label_names=hostile,
        data=replace(record.data, name=everything, notes=hostile),
        model=replace(record.model, name=everything),
    )
    return model_card(record, make_report(hostile, n=100))


def test_hostile_labels_and_names_are_inert(make_record, make_report, hostile):
    card = hostile_card(make_record, make_report, hostile)
    assert yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))["model-index"]
    body = card.split("\n---\n", 1)[1]
    # html=True passes raw HTML through, as GitHub does.
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(body)
    elements = Elements()
    elements.feed(html)
    assert elements.names <= ALLOWED_ELEMENTS
    # Some renderers link addresses even if Markdown does not.
    assert elements.attributes <= {"class", "style"}
    outside_code = re.sub(r"`[^`\n]*`", "", body)
    assert not re.search(r"[^\\]:/|[^\s\\]@\w|<", outside_code)
    assert "\u202e" not in card
    rows = re.findall(r"<tr>.*?</tr>", html, flags=re.DOTALL)
    widths = [len(re.findall(r"<t[hd]", row)) for row in rows]
    assert widths == [5] * (len(hostile) + 3) + [3] * 3


def test_the_check_detects_active_elements(make_record, make_report):
    """Negative control: without escaping, elements appear."""
    html = MarkdownIt("commonmark", {"html": True}).render("[a](http://b)\n\n<script>x</script>")
    elements = Elements()
    elements.feed(html)
    assert not elements.names <= ALLOWED_ELEMENTS
    assert not elements.attributes <= {"class", "style"}


def test_ordinary_names_stay_readable():
    assert code("tkinter") == "`tkinter`"
    assert code("<5 | >7") == r"`\u003c5 \u007c \u003e7`"
    assert code(" ") == "(blank)"
    assert prose("2,227 texts (a tenth): 0.5 -> 1") == "2,227 texts (a tenth): 0.5 -&gt; 1"
    assert prose("- a_b") == r"\- a\_b"
    assert prose("1. www.example http://example") == r"1\. www\.example http\://example"


@pytest.mark.add_ons
def test_images_have_the_image_pipeline(make_record, make_report):
    record = make_record()
    data = replace(record.data, kind="image")
    card = model_card(replace(record, task="images", data=data), make_report())
    assert 'pipeline("image-classification"' in card


def test_the_card_says_that_pipelines_do_not_split_long_texts(make_record, make_report):
    record = make_record()
    assert "windows" not in model_card(record, make_report())
    windows = replace(record, arguments={**record.arguments, "long_text": "windows"})
    card = model_card(windows, make_report())
    assert "not split into windows by a pipeline. `ampft predict --model path/to/" in card
    assert "ampft predict" not in model_card(windows, make_report(), hub_model_id="me/mine")


def test_the_card_of_adapters_loads_the_base_without_options_unless_it_has_4_bits(
    make_record, make_report
):
    record = make_record()
    record = replace(record, arguments={**record.arguments, "lora_r": 8})
    head = "id2label=dict(enumerate(names)), ignore_mismatched_sizes=True"
    base = f'from_pretrained("path/to/the/base/model", {head})\n'
    assert f"base = AutoModelForSequenceClassification.{base}" in model_card(record, make_report())
    four_bits = replace(record, arguments={**record.arguments, "load_in_4bit": True})
    card = model_card(four_bits, make_report())
    assert f'    "path/to/the/base/model", {head}, quantization' in card


def test_pairs_have_an_example_of_a_pair(make_record, make_report):
    record = make_record()
    data = replace(record.data, input_columns=("sentence1", "sentence2"))
    card = model_card(replace(record, data=data), make_report())
    assert 'classify({"text": "one text", "text_pair": "another"}, truncation=True)' in card


def test_the_card_contains_no_local_path(make_record, make_report):
    record = make_record()
    data = replace(record.data, name="/home/someone/a.csv, /home/someone/b.csv")
    model = replace(record.model, name="/home/someone/models/tiny")
    card = model_card(replace(record, data=data, model=model), make_report())
    assert "someone" not in card
    assert "`tiny` on `a.csv, b.csv`" in card


def test_paths_of_local_files_stay_out_of_the_card(make_record, make_report):
    record = make_record()
    path = "/home/ann/secret/train.csv"
    data = replace(
        record.data,
        name=f"{path},../private/more.csv",
        files={path: "ab" * 32, "../private/more.csv": "cd" * 32},
        notes=(f"{path}, line 3: 1 row without text left out (--drop_missing_text).",),
        input_columns=("title+body",),
    )
    model = replace(record.model, name="../private/minilm")
    card = model_card(replace(record, data=data, model=model), make_report())
    assert "on train.csv, more.csv" in card
    assert "- train.csv, line 3" in card
    assert "Texts consist of `title` and `body`, joined by a space." in card
    for folder in ("/home", "secret", "private"):
        assert folder not in card


def test_the_card_of_several_labels_says_from_which_probability_one_is_predicted(
    make_record, make_report
):
    report, record = make_report(), make_record()
    said = "A label is predicted if its probability is at least 0.3."
    several = replace(record, arguments={**record.arguments, "threshold": 0.3})
    assert said not in model_card(several, report)
    assert said in model_card(replace(several, task="multi-label"), report)


@pytest.mark.parametrize(
    ("timings", "text"),
    [
        ({"training_seconds": 61.0, "total_seconds": 125.2}, duration(61.0)),
        ({"total_seconds": 125.2}, duration(125.2)),
        ({}, None),
    ],
)
def test_the_card_says_how_long_the_training_took(make_record, make_report, timings, text):
    card = model_card(make_record(timings=timings), make_report())
    (line,) = [line for line in card.splitlines() if line.startswith("Optimizer steps: ")]
    elapsed = "" if text is None else f", {text}"
    assert line.startswith(f"Optimizer steps: 558 of 560 applied, 2 skipped{elapsed} on ")


def test_the_card_says_what_the_run_warned_of(make_record, make_report):
    said = "the model predicts one class for every example."
    card = model_card(make_record(warnings={"one_prediction": said}), make_report())
    assert said in card
    assert said not in model_card(make_record(), make_report())
