"""One table of decisions, which the module, its twin in JavaScript and PyTorch agree on."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import ampft.decision
from ampft.decision import (
    Contract,
    Decisions,
    Rule,
    Sentence,
    Tokenization,
    Tokens,
    bio_tags,
    combined_logits,
)
from ampft.kinds.windows import WINDOW_COUNTS, logits_per_text_or_word
from ampft.text.units import TextUnits

LOGITS = np.random.default_rng(0).normal(0, 3, (40, 3)).astype(np.float32)
FITTED = [
    {},
    {"logit_temperature": 2.5},
    {"logit_temperature": 0.4, "abstention": {"error": 0.1, "least_confidence": 0.7}},
    {"abstention": {"error": 0.1, "least_confidence": None}},
]
OF_TWO = {"threshold_label": "bee", "threshold_of_label": 0.2, "logit_temperature": 1.5}
SEVERAL = [*FITTED, {"label_thresholds": [0.2, 0.5, 0.9]}]
NAMES = {"plain": ["ant", "bee", "cow"], "with commas": ["ant, black", "bee", "cow"]}


def contracts() -> list[dict]:
    rules = [
        {"label_names": names, "several": several, "threshold": 0.3, "separator": ","}
        | {"decisions": decisions}
        for names in NAMES.values()
        for several, every in ((False, FITTED), (True, SEVERAL))
        for decisions in every
    ]
    of_two = {**rules[0], "label_names": ["ant", "bee"], "decisions": OF_TWO}
    return [
        {"schema": 1, "task": "text", "input_columns": ["text"], "units": None,
         "tokenization": None, "rule": rule}
        for rule in [*rules, of_two]
    ]  # fmt: skip


def answers(values: dict) -> list[dict]:
    rule = Contract.from_values(values).rule
    shares = rule.probabilities(LOGITS[:, : len(rule.label_names)])
    columns = rule.answers(shares).columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_a_contract_survives_its_file():
    for values in contracts():
        contract = Contract.from_values(values)
        assert Contract.from_values(json.loads(contract.text())) == contract


@pytest.mark.parametrize("change", [{"schema": 2}, {"other": 1}, {"rule": {}}, {"rule": None}])
def test_a_contract_of_another_form_is_refused(change):
    with pytest.raises(ValueError, match=r"schema|Error"):
        Contract.from_values({**contracts()[0], **change})


@pytest.mark.slow
def test_javascript_gives_the_same_answers(tmp_path):
    body = (
        "const [contracts, logits] = cases;\n"
        "const rows = contracts.map(({ rule }) => logits.map((row) =>\n"
        "  twin.answer(rule, twin.probabilities(rule, row.slice(0, rule.label_names.length)))));\n"
        "console.log(JSON.stringify(rows));"
    )
    found = in_javascript(tmp_path, body, [contracts(), LOGITS.tolist()])
    seen = set()
    for values, rows in zip(contracts(), found, strict=True):
        for one, other in zip(rows, answers(values), strict=True):
            assert one.keys() == other.keys()
            assert one["prediction"] == other["prediction"]
            assert one.get("answered") == other.get("answered")
            assert one["confidence"] == pytest.approx(other["confidence"], abs=1.1e-6)
            seen.add(one["prediction"])
    assert {"", "ant", "bee,cow", "ant, black;cow"} <= seen


@pytest.mark.slow
def test_javascript_gives_the_same_numbers(tmp_path):
    rule = Rule(("stars",), numbers=True)
    logits = np.float32([[3.7], [-0.1], [1e-7], [16777217.0]])
    expected = rule.answers(rule.probabilities(logits)).columns()
    assert list(expected) == ["prediction"]
    values = [Contract("regression", ("text",), rule).values()["rule"], logits.tolist()]
    body = (
        "const [rule, logits] = cases;\nconsole.log(JSON.stringify(logits.map((row) =>\n"
        "  twin.answer(rule, twin.probabilities(rule, row)))));"
    )
    found = in_javascript(tmp_path, body, values)
    assert found == [{"prediction": number} for number in expected["prediction"]]


def in_javascript(folder, body: str, cases: object) -> list:
    """Return what the twin of the module gives for cases."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    shutil.copy(Path(ampft.decision.__file__).with_suffix(".js"), folder / "decision.mjs")
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "run.mjs").write_text(
        'import { readFileSync } from "node:fs";\nimport * as twin from "./decision.mjs";\n'
        f'const cases = JSON.parse(readFileSync("cases.json"));\n{body}\n'
    )
    command = ["node", "run.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("tags", [bio_tags(["ORG", "PER"]), ("NOUN", "VERB", "O", "X", "Y")])
def test_javascript_finds_the_same_tags_and_entities(tmp_path, tags):
    rule = Rule(tags, decisions=Decisions(0.7))
    logits = np.random.default_rng(1).normal(0, 2, (30, 8, 5)).astype(np.float32)
    sentences = [
        Sentence(" ".join("abcdefgh"), tuple(TextUnits("blanks").split("a b c d e f g h")))
    ]
    expected = rule.word_columns(sentences * 30, [rule.probabilities(each) for each in logits])
    names = [Contract("tokens", ("tokens",), rule).values()["rule"], logits.tolist()]
    body = (
        "const [rule, sentences] = cases;\nconsole.log(JSON.stringify(sentences.map((rows) =>\n"
        "  twin.wordAnswer(rule, rows.map((row) => twin.probabilities(rule, row))))));"
    )
    found = in_javascript(tmp_path, body, names)
    assert [each["prediction"] for each in found] == expected["prediction"]
    for each, confidence in zip(found, expected["confidence"], strict=True):
        assert each["confidence"] == pytest.approx(confidence, abs=1.1e-6)
    if "entities" not in expected:
        assert all("entities" not in each for each in found)
        return
    places = [[(e["label"], e["start"] // 2, e["end"] // 2 + 1) for e in row]
              for row in expected["entities"]]  # fmt: skip
    assert [[tuple(e) for e in each["entities"]] for each in found] == places
    assert sum(map(len, places)) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("stride", "side"), [(None, "right"), (None, "left"), (2, "right")])
def test_javascript_divides_texts_as_the_tokenizer(tmp_path, tiny_bert, stride, side):
    tokenizer = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
    tokenization = Tokenization(8, stride, truncation_side=side)
    texts = [" ".join(f"w{k}" for k in range(count)) for count in range(1, 25)]
    before, *_, after = tokenizer.encode("w1").ids
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    expected: dict[int, list] = {}
    tokens = tokenization.encode(tokenizer, texts)
    for owner, row in zip(tokens.owners, tokens.columns["input_ids"], strict=True):
        expected.setdefault(owner, []).append(row)
    cases = [Contract("text", ("text",), Rule(("a",)), tokenization).values(), plain]
    body = (
        "const [contract, texts] = cases;\nconsole.log(JSON.stringify(texts.map((ids) =>\n"
        f"  twin.windows(contract.tokenization, ids, [{before}], [{after}]))));"
    )
    assert in_javascript(tmp_path, body, cases) == list(expected.values())
    assert max(map(len, expected.values())) == (1 if stride is None else 6)


def test_pytorch_gives_the_same_probabilities_and_windows():
    logits = torch.from_numpy(LOGITS)
    for temperature in (None, 2.5):
        scaled = logits.double() / (temperature or 1)
        decisions = Decisions(temperature)
        for several, expected in ((False, scaled.softmax(1)), (True, scaled.sigmoid())):
            rule = Rule(("ant", "bee", "cow"), several, decisions=decisions)
            np.testing.assert_allclose(rule.probabilities(LOGITS), expected, rtol=0, atol=1e-7)
    counts = [1, 3, 2, 34]
    owners = np.repeat(np.arange(4), counts).tolist()
    ours = combined_logits(LOGITS, Tokens({}, owners))
    theirs = logits_per_text_or_word(logits, {WINDOW_COUNTS: torch.tensor(counts)})
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_words_are_chosen_in_their_windows():
    logits = np.arange(2 * 4 * 2, dtype=np.float32).reshape(2, 4, 2)
    found = combined_logits(logits, Tokens({}, [0, 0], [[1, 2], [3]]))
    assert found.tolist() == [[2, 3], [4, 5], [14, 15]]
