"""The hub's evaluation results, and the interval in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from scipy.stats import binomtest

from ampft.runs.publishing import accuracy_interval, eval_results, model_card


@pytest.fixture
def on_hub(make_record):
    record = make_record()
    return replace(record, data=replace(record.data, hub_id="CogComp/trec"))


def test_the_file_has_the_metric_the_interval_and_the_data(on_hub, make_report):
    report = make_report()
    path, text = eval_results(on_hub, report)
    assert path == ".eval_results/CogComp--trec.yaml"
    (entry,) = parse_eval_result_entries(yaml.safe_load(text))
    assert (entry.dataset_id, entry.task_id) == ("CogComp/trec", "default")
    assert entry.value == pytest.approx(report.accuracy, abs=1e-6)
    low, high = accuracy_interval(on_hub, report)
    assert f"{low:.4f} to {high:.4f}" in entry.notes
    assert f"{report.examples} examples" in entry.notes
    assert f"{low:.4f} to {high:.4f}, for this model only" in model_card(
        on_hub, report, hub_model_id="a/b"
    )


def test_the_interval_is_that_of_scipy(on_hub, make_report):
    report = make_report()
    right = round(report.accuracy * report.examples)
    expected = binomtest(right, report.examples).proportion_ci(method="wilson")
    assert accuracy_interval(on_hub, report) == pytest.approx(tuple(expected), abs=1e-6)


def test_groups_have_no_interval_over_examples(on_hub, make_report):
    grouped = replace(on_hub, arguments={**on_hub.arguments, "group_column": "user"})
    assert accuracy_interval(grouped, make_report()) is None
    assert "interval" not in eval_results(grouped, make_report())[1]


def test_local_data_and_a_part_of_the_split_have_no_file(on_hub, make_record, make_report):
    assert eval_results(make_record(), make_report()) is None
    part = replace(on_hub, arguments={**on_hub.arguments, "max_predict_samples": 10})
    assert eval_results(part, make_report()) is None
