"""`--metric`: metrics of `evaluate`, of local modules, on the whole final split."""

from __future__ import annotations

import json

import numpy as np
import pytest
from running import CLASSIFY, call_here, succeeded, text_settings
from sklearn.metrics import f1_score

from ampft.cli import main
from ampft.features.chosen_metrics import compute
from ampft.labels.multi_label import MultiLabelPredictions
from ampft.tasks.single_label import Predictions
from ampft.words.token_labels import TokenPredictions

MODULE = """
import datasets
import evaluate

class Own(evaluate.Metric):
    def _info(self):
        kind = datasets.Value({dtype!r})
        kind = datasets.List(kind) if {listed} else kind
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="",
            features=datasets.Features({{"predictions": kind, "references": kind}}),
        )

    def _compute(self, predictions, references, average="binary"):
        {body}
"""
F1 = """
        from sklearn.metrics import f1_score
        return {"f1": float(f1_score(references, predictions, average=average))}
"""
HITS = """
        pairs = list(zip(predictions, references))
        return {"hits": sum(p == r for p, r in pairs), "rows": len(pairs)}
"""


def module(folder, name, body, *, dtype="int32", listed=False) -> str:
    path = folder / f"{name}.py"
    path.write_text(MODULE.format(dtype=dtype, listed=listed, body=body.strip()))
    return str(path)


def single(classes: int) -> Predictions:
    generator = np.random.default_rng(classes)
    scores = generator.random((40, classes))
    scores = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    names = tuple(map(str, range(classes)))
    return Predictions(np.arange(40), generator.integers(0, classes, 40), scores, names, "test")


def test_one_label_each(tmp_path):
    two, three, path = single(2), single(3), module(tmp_path, "own_f1", F1)
    assert compute(path, two) == {"own_f1": pytest.approx(f1_score(two.labels, two.predicted))}
    # The module is told to average the classes, which it refuses otherwise.
    expected = f1_score(three.labels, three.predicted, average="macro")
    assert compute(path, three) == {"own_f1_macro": pytest.approx(expected)}
    # Also where a split has only two of them: that is no F1 of the second class.
    kept = np.flatnonzero((three.labels < 2) & (three.predicted < 2))
    part = Predictions(
        np.arange(len(kept)), three.labels[kept], three.probabilities[kept], three.label_names, "t"
    )
    expected = f1_score(part.labels, part.predicted, average="macro")
    assert compute(path, part) == {"own_f1_macro": pytest.approx(expected)}
    hits = compute(module(tmp_path, "own_hits", HITS), three)
    assert hits == {"own_hits/hits": (three.labels == three.predicted).sum(), "own_hits/rows": 40}


def test_words_come_as_tags_of_sentences_and_labels_as_rows(tmp_path):
    scores = np.full((5, 2), 0.5, dtype=np.float32)
    words = TokenPredictions(np.array([0, 1, 0, 1, 1]), np.array([2, 3]), scores, ("O", "B-X"), "t")
    found = compute(module(tmp_path, "own_tags", HITS, dtype="string", listed=True), words)
    assert found == {"own_tags/hits": 0, "own_tags/rows": 2}
    has = np.array([[1, 0], [0, 1]], dtype=np.int64)
    several = MultiLabelPredictions(has.astype(bool), has.astype(np.float32), ("a", "b"), "t", 0.5)
    found = compute(module(tmp_path, "own_rows", HITS, listed=True), several)
    assert found == {"own_rows/hits": 2, "own_rows/rows": 2}


@pytest.mark.slow
def test_a_run_computes_several_and_records_them(files, tiny_model, tmp_path):
    paths = [module(tmp_path, "own_hits", HITS), module(tmp_path, "own_f1", F1)]
    words = [*text_settings(files, tiny_model, tmp_path / "run"), "--max_train_steps", "2"]
    done = succeeded(call_here(CLASSIFY, *words, "--metric", ",".join(paths)))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    rows = json.loads((tmp_path / "run" / "report.json").read_text())["examples"]
    chosen = record["metrics_chosen"]
    assert chosen["own_hits/rows"] == rows
    assert chosen["own_hits/hits"] / rows == pytest.approx(record["metrics"]["accuracy"])
    assert chosen["own_f1_macro"] == pytest.approx(record["metrics"]["macro_f1"])
    assert "metrics    test, by evaluate: own_hits/hits" in done.stdout
    assert "metrics    validation, by evaluate: own_hits/hits" in done.stdout
    assert json.loads((tmp_path / "run" / "report.json").read_text())["metrics_chosen"] == chosen
    assert main(["audit", str(tmp_path / "run"), "--steps", "1"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_metric_here", "evaluate cannot load it"),
        ("somebody/theirs", "it runs code of a user of the hub"),
        ("./no_such.py", "no such file"),
        ("broken.py", "it cannot be computed for the task text (KeyError: 'x')"),
    ],
)
def test_what_cannot_be_computed_is_refused_before_training(
    name, message, files, tiny_model, tmp_path
):
    module(tmp_path, "broken", "return {'x': {}['x']}")
    name = str(tmp_path / name) if name == "broken.py" else name
    done = call_here(CLASSIFY, *text_settings(files, tiny_model, tmp_path / "r"), "--metric", name)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_changed_file_is_loaded_again_in_the_same_process(tmp_path):
    outcome = single(2)
    assert compute(module(tmp_path, "own", HITS), outcome)["own/rows"] == 40
    changed = module(tmp_path, "own", HITS.replace("len(pairs)", "-1"))
    assert compute(changed, outcome)["own/rows"] == -1
