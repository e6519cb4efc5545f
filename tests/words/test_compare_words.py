"""Runs with a label per word, compared with intervals over sentences."""

from __future__ import annotations

import numpy as np
import pytest
from run_folders import SEEDS, assert_has_interval, write_outcomes

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.report.report_files import read_comparison, terminal_text, write_comparison
from ampft.comparison.report.sections import subgroup_losses
from ampft.decision import bio_tags
from ampft.errors import InputError
from ampft.runs.record import DataPart
from ampft.words.token_labels import METRICS, TokenPredictions

TYPES = ("place", "person")
TAGS = bio_tags(TYPES)
N = 120
COUNTS = np.random.default_rng(0).integers(3, 12, N)
TEXTS = [" ".join(f"<b>{row}.{word}" for word in range(n)) for row, n in enumerate(COUNTS)]
DATA = DataPart(name="x.conll", kind="token", input_columns=("tokens",), fingerprints={},
                examples={"train": 9, "test": N})  # fmt: skip


def outcome(seed: int) -> TokenPredictions:
    """Return predictions that are wrong for a tenth of the words."""
    generator = np.random.default_rng(0)
    counts = generator.integers(3, 12, N)
    labels = generator.choice(len(TAGS), counts.sum(), p=[0.6, 0.15, 0.05, 0.15, 0.05])
    errors = np.random.default_rng(seed)
    is_wrong = errors.random(len(labels)) < 0.1
    predicted = np.where(is_wrong, errors.integers(0, len(TAGS), len(labels)), labels)
    shares = np.full((len(labels), len(TAGS)), 0.05, dtype=np.float32)
    shares[np.arange(len(labels)), predicted] = 0.8
    return TokenPredictions(labels, counts, shares, TAGS, "test")


@pytest.fixture
def outcomes():
    return {
        "fp32": [outcome(seed) for seed in SEEDS],
        "bf16": [outcome(-seed % 99) for seed in SEEDS],
    }


@pytest.fixture
def folders(outcomes, tmp_path):
    def references(rows):
        return {"text": TEXTS[rows]}

    return write_outcomes(tmp_path, outcomes, references, task="tokens", data=DATA)


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_an_interval(folders, outcomes, metric):
    assert_has_interval(folders, outcomes, metric)


@pytest.mark.slow
def test_types_are_compared_and_flips_name_entities(folders, outcomes):
    comparison = compare_folders(folders)
    assert comparison.metric == "micro_f1"
    assert comparison.examples == N
    arm = comparison.arm("bf16")
    assert [row.name for row in arm.classes] == list(TYPES)
    for index, figures in enumerate(arm.classes):
        own, base = (
            np.mean([each.scores()[index].f1 for each in outcomes[name]])
            for name in ("bf16", "fp32")
        )
        assert figures.difference.estimate == pytest.approx(own - base)
    matrix = np.array(arm.confusion)
    assert matrix.shape == (2, 2)
    assert matrix.trace() > 0.8 * matrix.sum()
    flipped = [example.arm for example in arm.flips.examples]
    assert any("place " in text or "person " in text for text in flipped)
    assert "micro F1" in terminal_text(comparison)


@pytest.mark.slow
def test_subgroups_are_of_sentences(folders):
    comparison = compare_folders(folders)
    assert comparison.arm("bf16").subgroups.noun == "sentences"
    (table,) = subgroup_losses(comparison)
    assert "in sentences with all tags correct" in table.title
    assert "classes, words and lengths of sentences (with at least 20 sentences" in table.note


@pytest.mark.add_ons
def test_inference_names_the_task_that_it_does_not_support(folders):
    from ampft.export.inference.compare_inference import compare_inference

    with pytest.raises(InputError, match=r"is finished, and its task is tokens\. Pass finished"):
        compare_inference([path for path in folders if "fp32" in path.name], ("fp32", "bf16"))


def names_of(spans):
    return [(span.name, span.first, span.end) for span in spans]


@pytest.mark.slow
def test_flips_are_shown_as_marked_sentences(folders, outcomes, tmp_path):
    comparison = compare_folders(folders)
    examples = comparison.arm("bf16").flips.examples
    assert all(each.shown.words == tuple(TEXTS[each.example_id].split()) for each in examples)
    example = examples[0]
    titles = [tagging.title for tagging in example.shown.taggings]
    assert titles == ["label", "fp32", "bf16"]
    words = {
        tagging.title: [
            (f"{span.name} {span.first + 1}" + f" to {span.end}" * (span.end > span.first + 1))
            for span in tagging.spans
            if not span.name.startswith("I-")  # the tag of a word that continues no entity
        ]
        for tagging in example.shown.taggings
    }
    for title, text in zip(titles, (example.label, example.baseline, example.arm), strict=True):
        assert (", ".join(words[title]) or "(no entity)") == text
    for each in examples:
        spans = {tagging.title: tagging.spans for tagging in each.shown.taggings}
        assert names_of(spans["fp32"]) != names_of(spans["bf16"])  # what is shown differs
    write_comparison(comparison, tmp_path / "report")
    page = (tmp_path / "report" / "comparison.html").read_text(encoding="utf-8")
    assert page.count('<p class="tagged">') == 3 * len(examples)
    assert f"<bdi>&lt;b&gt;{example.example_id}.0</bdi>" in page
    assert "<b>" not in page
    assert read_comparison(tmp_path / "report") == comparison
