"""`ampft compare OLD NEW --on FILE`: finished models on rows that neither was trained on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from test_predict_refusals import trained_on
from tiny_text import LABELS
from transformers import BertForSequenceClassification

import ampft.cli
import ampft.runs.predict
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import markdown_text
from ampft.decision import CONTRACT_NAME, Abstention, Contract, Decisions
from ampft.errors import InputError
from ampft.files import describe_file
from ampft.integrations.compare_on_file import compare_on
from ampft.integrations.foreign_predictions import compare_rows, compare_tables
from ampft.integrations.foreign_tables import ForeignRun
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import predict_file

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture
def models(tiny_bert, tmp_path, monkeypatch):
    """Return two runs, whose second has a head for the classes in another order, and a record."""
    old = trained_on(("text",), tiny_bert, tmp_path, monkeypatch)
    record = vars(ampft.runs.predict.read_record(old))
    new = shutil.copytree(old, tmp_path / "new")
    model = BertForSequenceClassification.from_pretrained(new)
    model.classifier.weight.data = model.classifier.weight.data.roll(1, 0)
    model.classifier.bias.data = model.classifier.bias.data.roll(1, 0)
    model.save_pretrained(new)
    records = {old: SimpleNamespace(**record), new: SimpleNamespace(**record)}
    monkeypatch.setattr(ampft.runs.predict, "read_record", records.__getitem__)
    return records


@pytest.fixture
def today(tmp_path):
    path = tmp_path / "today.csv"
    rng = np.random.default_rng(0)
    rows = [
        {"text": " ".join(f"w{word}" for word in rng.integers(0, 40, 4)), "label": LABELS[i % 3]}
        for i in range(90)
    ]
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_it_is_the_comparison_of_what_predict_writes(models, today, tmp_path):
    sources = []
    for folder in models:
        path = tmp_path / f"{folder.name}.csv"
        request = PredictRequest(files=(str(today),), output_file=str(path), all_probabilities=True)
        predict_file(str(folder), request)
        table = pd.read_csv(path).rename_axis("id").reset_index()
        table.drop(columns="confidence").to_csv(path, index=False)
        sources.append(f"{folder.name}={path}")
    expected, received = compare_tables(sources), compare_on(str(today), list(models))
    one, other = expected.arms[1], received.arms[1]
    assert other.flips.mean > 0
    assert (other.difference, other.confusion, other.flips.per_seed) == (
        one.difference,
        one.confusion,
        one.flips.per_seed,
    )
    assert other.metrics["log_loss"].mean == pytest.approx(one.metrics["log_loss"].mean, abs=1e-4)
    assert received.title == "run and new on today.csv"
    assert "no run record" not in " ".join(remark_texts(received.stamps))
    assert "today.csv" in html_text(received)
    assert "| execution |" not in markdown_text(received), "no execution of these is known"


def test_a_class_that_only_one_model_knows_is_wrong_in_the_other(models, today):
    old, new = models
    models[new].label_names = (*LABELS[:2], "brand new")
    rows = pd.read_csv(today).replace({"label": {LABELS[2]: "brand new"}})
    rows.to_csv(today, index=False)
    comparison = compare_on(str(today), [old, new])
    assert set(comparison.label_names) == {*LABELS, "brand new"}
    recall = {each.name: each.recall for each in comparison.arms[0].classes}
    assert recall["brand new"] == 0
    stamps = " ".join(remark_texts(comparison.stamps))
    assert "run was not trained on 'brand new', so it is wrong in all 30 rows of it" in stamps
    assert "new was not trained" not in stamps


def test_rows_of_the_training_are_pointed_out(models, today):
    old, new = models
    sha256 = describe_file(today).sha256
    models[new].data = replace(models[new].data, files={str(today): sha256})
    stamps = " ".join(remark_texts(compare_on(str(today), [old, new]).stamps))
    assert "rows of the training: new was trained on today.csv" in stamps


def test_what_cannot_be_compared_is_refused(models, today, tmp_path):
    old, new = models
    unlabelled = tmp_path / "unlabelled.csv"
    pd.read_csv(today)[["text"]].to_csv(unlabelled, index=False)
    with pytest.raises(InputError, match=r"unlabelled.csv: the label column .* is missing"):
        compare_on(str(unlabelled), [old, new])
    with pytest.raises(InputError, match="Pass another RUN"):
        compare_on(str(today), [old])
    with pytest.raises(InputError, match="received twice"):
        compare_on(str(today), [old, old])
    rows = pd.read_csv(today)
    rows.loc[3, "label"] = None
    rows.to_csv(today, index=False)
    with pytest.raises(InputError, match="line 5: no label"):
        compare_on(str(today), [old, new])
    models[new].task = "multi-label"
    with pytest.raises(InputError, match=r"one label per row, and .* is a model of --task multi"):
        compare_on(str(today), [new, old])


def test_the_command_writes_a_page_and_no_answer_where_nothing_was_learned(
    models, today, tmp_path, capsys
):
    old, new = models
    out = tmp_path / "weekly"
    arguments = ["compare", str(old), str(new), "--on", str(today), "--output_dir", str(out)]
    assert ampft.cli.main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "No answer: run and new did not train well." in printed
    assert "new is right in" not in printed
    assert "No answer: run and new did not train well" in (out / "comparison.html").read_text()


@pytest.mark.parametrize(("cells", "groups"), [((None, None), 90), (("a", "a"), 89)])
def test_rows_without_a_group_are_no_group(models, today, cells, groups):
    old, new = models
    for record in models.values():
        record.arguments = {**record.arguments, "group_column": "customer"}
    rows = pd.read_csv(today)
    rows["customer"] = [*cells, *(f"c{row}" for row in range(2, 90))]
    rows.to_csv(today, index=False)
    assert compare_on(str(today), [old, new]).groups == groups


def test_rows_without_a_label_are_left_out_and_counted(models, today):
    rows = pd.read_csv(today)
    rows.loc[[3, 7], "label"] = None
    rows.loc[9, "text"] = None
    rows.to_csv(today, index=False)
    found = compare_on(str(today), [*models], drop_missing_labels=True)
    assert found.setup["files"] == "today.csv"
    assert sum(each.support for each in found.arms[0].classes) == 87
    (text,) = (each for each in remark_texts(found.stamps) if each.startswith("rows left out"))
    assert text == "rows left out: 3 rows of today.csv without a label or an input"


def test_the_encoding_of_the_rows_is_a_flag(models, today, capsys):
    rows = pd.read_csv(today)
    rows.loc[0, "text"] += " café"
    rows.to_csv(today, index=False, encoding="cp1252")
    command = ["compare", *map(str, models), "--on", str(today)]
    assert ampft.cli.main(command) == 2
    assert "today.csv, line 2: byte 0xe9 is not utf-8. Pass the file's encoding" in (
        capsys.readouterr().err
    )
    assert ampft.cli.main([*command, "--encoding", "cp1252"]) == 0


def test_rows_that_a_model_would_not_answer_are_counted(models, today):
    """Recomputed from what `ampft predict` writes, where such rows have no prediction."""
    old, new = models
    request = PredictRequest(files=(str(today),), output_file=str(today.with_name("all.csv")))
    predict_file(str(new), request)
    every = pd.read_csv(request.output_file)
    contract = Contract.read(new)
    least = float(every["confidence"].median())
    promise = Decisions(abstention=Abstention(0.3, least))
    rule = replace(contract.rule, decisions=promise)
    (new / CONTRACT_NAME).write_text(replace(contract, rule=rule).text())
    comparison = compare_on(str(today), [old, new])
    answered = every[every["confidence"] >= least]
    wrong = (answered["prediction"] != answered["label"]).mean()
    (text,) = [
        text for text in remark_texts(comparison.stamps) if text.startswith("not every example")
    ]
    assert f"new was trained with --abstain and would answer {len(answered)} of 90" in text
    assert f"and {100 * wrong:.1f} % of these are wrong" in text
    assert "run was trained" not in " ".join(remark_texts(comparison.stamps))
    assert comparison.arms[1].metrics["accuracy"].mean == pytest.approx(
        (every["prediction"] == every["label"]).mean()
    )
    # A model that answers nothing has no share of wrong answers.
    promise = Decisions(abstention=Abstention(0.3, None))
    rule = replace(contract.rule, decisions=promise)
    (new / CONTRACT_NAME).write_text(replace(contract, rule=rule).text())
    texts = " ".join(remark_texts(compare_on(str(today), [old, new]).stamps))
    assert "would answer 0 of 90; here all are scored" in texts


def test_a_threshold_may_give_all_rows_one_class():
    """A table that a person wrote is refused, because its columns may be in another order."""

    def runs(*, is_of_model):
        one = ForeignRun("a.csv", has_probabilities=True, is_of_model=is_of_model)
        for row in map(str, range(20)):
            one.ids[row] = None
            one.labels[row], one.predictions[row] = "ab"[int(row) % 2], "a"
            one.probabilities[row] = {"a": 0.4, "b": 0.6}
        other = replace(one, origin="b.csv", predictions=dict.fromkeys(one.ids, "b"))
        return {"old": {0: one}, "new": {0: other}}

    found = compare_rows(runs(is_of_model=True))
    assert [arm.metrics["accuracy"].mean for arm in found.arms] == [0.5, 0.5]
    assert found.arms[1].flips.mean == 20
    with pytest.raises(InputError, match="contradict each other in 20 examples"):
        compare_rows(runs(is_of_model=False))
