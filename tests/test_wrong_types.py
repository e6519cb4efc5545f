"""Wrong types of arguments: each public function answers in one sentence, not with a traceback."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import ampft
from ampft.errors import InputError

WRONG = [None, 5, "nonsense", [], [1.5], {"a": 1}, object]
# Plain records, which functions return or which settings are parsed into; and exceptions.
RECORDS = {
    *("ClassificationReport", "CompareCommand", "Float32Modules", "Judgement", "MicroBatch"),
    *("Precision", "Prepared", "Run", "StepBatch", "StepBatches", "StepOutcome"),
    *("TensorExamples", "ProductRecorder", "Losses", "MODES", "doctor"),
    *("InputError", "PartsFailed", "Preempted", "TrainingStopped"),
}
# For which some of these values are right.
RIGHT = {"print_line": ["nonsense"], "restore_cpu_threads": [None, 5]}
ENDS_THE_PROCESS = {"run_main"}


def required(function) -> list[inspect.Parameter]:
    return [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def functions() -> list[str]:
    names = [name for name in ampft.__all__ if name not in RECORDS | ENDS_THE_PROCESS]
    found = [name for name in names if required(getattr(ampft, name))]
    assert len(found) > 30, "the public names were not found"
    return found


@pytest.mark.slow
def test_every_public_function_refuses_other_types_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = []
    for name in functions():
        function = getattr(ampft, name)
        for value in WRONG:
            if any(value is each or value == each for each in RIGHT.get(name, ())):
                continue
            positional = [each for each in required(function) if each.kind != each.KEYWORD_ONLY]
            named = {each.name: value for each in required(function) if each not in positional}
            try:
                found = function(*[value] * len(positional), **named)
                if hasattr(found, "gen"):  # a context manager checks when it is entered
                    with found:
                        pass
            except InputError:
                continue
            except ValueError as error:
                if "must be" in str(error):
                    continue
                broken.append((name, value, repr(error)))
            except Exception as error:
                broken.append((name, value, repr(error)))
            else:
                broken.append((name, value, "accepted"))
    assert broken == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ampft.make_optimizer("adam", None),
            "make_optimizer: model must be of the type torch.nn.modules.module.Module; received "
            "'adam' of the type str.",
        ),
        (
            lambda: ampft.classification_report([0, 1]),
            "classification_report: predictions must be of the type "
            "ampft.tasks.single_label.Predictions; received a value of the type list.",
        ),
        (
            lambda: ampft.judge("ledger", candidate=[1, 2, 3]),
            "judge: each of candidate must be of the type str or pathlib.Path; received 1 of the "
            "type int.",
        ),
        (
            lambda: ampft.judge("ledger", best=["a.csv"], settings="open"),
            "judge: settings must be of the type ampft.lab.referee.ledger.LedgerSettings; "
            "received 'open' of the type str.",
        ),
        (lambda: ampft.compare_folders([]), "RUN: no run was given."),
        (lambda: ampft.compare_folders("missing"), "RUN missing: the folder does not exist."),
    ],
)
def test_the_sentence_names_function_argument_and_type(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tries": 2.5},
        {"tries": True},
        {"tries": "5"},
        {"max_seeds": 5.5},
        {"margin": "1"},
        {"error": None},
        {"metric": 3},
        {"label_names": "abc"},
    ],
)
def test_settings_of_a_ledger_that_it_could_not_read_again_are_refused(wrong):
    """2.5 tries started a ledger that was then called damaged or edited."""
    (name,) = wrong
    with pytest.raises(InputError, match=f"LedgerSettings: {name} must be of the type "):
        ampft.LedgerSettings(**wrong)


def test_arrays_are_required_where_predictions_are_made():
    with pytest.raises(InputError, match="example_ids must be of the type"):
        ampft.CaseLossPredictions([0, 1], np.zeros(2), "test")
