"""The gate: planted faults fail, faithful artifacts pass, and too few rows decide nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made import FLOAT32, INT8, NAMES, certificate, drawn, invariance, outcome
from scipy.stats import beta

from ampft.data.splits import group_equal_keys
from ampft.decision import Rule
from ampft.errors import InputError
from ampft.export.certificate.certificate import EQUAL, PASSED, UNDECIDED, ProductCount, finding
from ampft.export.certificate.certificate_page import class_table
from ampft.export.certificate.equality import AnswerTally
from ampft.export.certificate.gate import (
    STORED,
    TOLERANCES,
    LogitTally,
    compare_outcomes,
    dtype_failures,
    with_verdict,
)
from ampft.integrations.foreign_predictions import compare_tables
from ampft.runs.client_answers import PIPELINE, PREDICT, SERVER, ServedClient, ServedPart


def kinds(made) -> list[str]:
    return [each.kind for each in made.failures]


def test_an_unchanged_artifact_passes():
    labels, logits = drawn()
    made = certificate(labels, logits, logits)
    assert (made.verdict, kinds(made)) == ("passed", [])
    assert made.logits is not None
    assert made.logits.largest == 0


@pytest.mark.parametrize(
    ("client", "problem", "precision", "found"),
    [
        (PREDICT, None, "fp32", ["served"]),
        (SERVER, None, "fp16", ["served"]),
        (SERVER, None, "int8", []),  # rounding changes rows, which statistics judge
        (SERVER, "KeyError: 'logits'", "int8", ["served"]),
        (PIPELINE, None, "fp32", []),
    ],
)
def test_a_client_that_answers_otherwise_fails_the_artifact(client, problem, precision, found):
    labels, logits = drawn()
    made = certificate(labels, logits, logits)
    answered = ServedClient(
        client=client, source="", asked=40, equal=39, difference=0.5, tolerance=1e-4,
        problem=problem,
    )  # fmt: skip
    served = ServedPart(split="test", clients=[answered], causes=["The labels are swapped."])
    artifact = {**made.artifact, "precision": precision}
    dtypes = INT8 if precision == "int8" else replace(FLOAT32, weights={"float16": 9})
    dtypes = FLOAT32 if precision == "fp32" else dtypes
    draft = replace(made, served=served, artifact=artifact, failures=(), notes=(), dtypes=dtypes)
    judged = with_verdict(draft)
    assert kinds(judged) == found
    notes = [each.text for each in judged.notes if each.kind == "pipeline"]
    assert len(notes) == (client == PIPELINE)
    assert all("39 of 40 rows equal" in text and "swapped" in text for text in notes)


def test_too_few_rows_pass_nothing():
    labels, logits = drawn(200)
    assert certificate(labels, logits, logits).verdict == "undecided"


def test_classes_with_too_few_rows_are_named():
    labels, logits = drawn()
    made = certificate(labels, logits, logits)
    few = {each.name for each in made.classes if each.status == "too few"}
    assert few == {name for i, name in enumerate(NAMES) if (labels == i).sum() < 59} == {"<script>"}
    (note,) = [each for each in made.notes if each.kind == "too_few"]
    assert note.text == (
        "not tested, because fewer than 59 examples cannot exclude a loss of 5 %: class '<script>'"
    )


@pytest.mark.parametrize("index", range(4))
def test_the_hidden_loss_of_an_unchanged_class_is_exact(index):
    labels, logits = drawn()
    each = certificate(labels, logits, logits).classes[index]
    # Clopper and Pearson: no loss among n cases.
    expected = beta.ppf(0.95, 1, each.rows)
    assert each.hidden_loss == pytest.approx(expected, rel=1e-3)


def test_a_group_of_examples_counts_once_and_its_examples_are_counted_too():
    labels, logits = drawn()
    of_rows = certificate(labels, logits, logits)
    assert "groups" not in class_table(of_rows).header
    groups = group_equal_keys((np.arange(len(labels)) // 2).tolist())  # two neighbours each
    sides = outcome(logits, labels), outcome(logits, labels)
    comparison, classes = compare_outcomes(*sides, name="onnx fp32", groups=groups)
    table = class_table(replace(of_rows, comparison=comparison, classes=classes))
    columns = [table.header.index(name) for name in ("examples", "groups")]
    for index, row in enumerate(table.rows):
        own = np.flatnonzero(labels == index)
        expected = [len(own), len({*(own // 2)})]
        assert [int(str(row[k]).replace(",", "")) for k in columns] == expected


def test_a_broken_class_is_found_though_it_is_rare():
    labels, logits = drawn()
    broken = logits.copy()
    broken[labels == 3, 0] += 10
    made = certificate(labels, logits, broken)
    assert made.verdict == "failed"
    assert "classes" in kinds(made)
    worst = made.classes[3]
    assert (worst.status, worst.gained) == ("worse", 0)
    assert worst.lost == ((logits.argmax(1) == 3) & (labels == 3)).sum() > 5


def test_labels_in_another_order_fail():
    labels, logits = drawn()
    made = certificate(labels, logits, logits[:, [1, 0, 2, 3]])
    assert made.verdict == "failed"
    assert kinds(made) == ["difference", "classes"]


def corrected(labels, logits, share):
    """Return logits with this share of the wrong rows corrected."""
    better = logits.copy()
    wrong = np.flatnonzero(logits.argmax(1) != labels)
    chosen = wrong[: round(share * len(wrong))]
    better[chosen, labels[chosen]] += 30
    return better


def test_a_much_better_artifact_is_another_model():
    labels, logits = drawn()
    made = certificate(labels, logits, corrected(labels, logits, 1))
    assert (made.verdict, kinds(made)) == ("failed", ["other_model"])
    assert made.failures[0].text == (
        "the artifact predicts otherwise than its model: its accuracy is better by more than "
        "1 point"
    )


def test_an_uncertain_gain_is_no_failure():
    labels, logits = drawn(600)
    made = certificate(labels, logits, corrected(labels, logits, 0.4))
    assert made.arm.difference.verdict == "better, size uncertain"
    assert (made.verdict, kinds(made)) == ("undecided", [])
    assert "gain" in [each.kind for each in made.notes]
    # The control: the same changes the other way round fail.
    made = certificate(labels, corrected(labels, logits, 0.4), logits)
    assert (made.verdict, kinds(made)[0]) == ("failed", "difference")


def test_a_few_rows_beyond_rounding_fail_a_float_artifact_but_not_int8():
    labels, logits = drawn()
    changed = logits.copy()
    changed[:3] += 0.2  # no prediction changes
    assert kinds(certificate(labels, logits, changed, precision="fp32", dtypes=FLOAT32)) == [
        "logits"
    ]
    assert certificate(labels, logits, changed).verdict == "passed"


def test_rounding_to_float16_is_within_its_tolerance_and_beyond_that_of_float32():
    labels, logits = drawn()
    rounded = logits.astype(np.float16).astype(np.float64)
    half = replace(FLOAT32, weights={"float16": 10})
    assert certificate(labels, logits, rounded, precision="fp16", dtypes=half).verdict == "passed"
    coarse = np.round(logits, 1)
    assert kinds(certificate(labels, logits, coarse, precision="fp32", dtypes=FLOAT32)) == [
        "logits"
    ]


def test_logits_that_are_not_finite_are_left_out_of_the_differences():
    tally = LogitTally()
    tally.add(np.array([[0.0, 2.0]]), np.array([[0.5, np.nan]]))
    found = tally.differences()
    assert (found.largest, found.range) == (0.5, 0.0)


def test_the_difference_of_a_row_is_its_largest():
    tally = LogitTally()
    other = np.array([[0.1, 0.9, 0.2], [0.3, 0.1, 0.0]])
    tally.add(np.zeros((2, 3)), other)
    assert tally.large == pytest.approx(np.quantile([0.9, 0.3], 0.9))


@pytest.mark.parametrize("mean", [0.0, 1990.0, -1990.0])
@pytest.mark.parametrize(("fault", "is_equal"), [(0.0, True), (0.001, False)])
def test_numbers_are_equal_up_to_what_float32_holds(mean, fault, is_equal):
    """Near 0, each number has its own digits; near 2,000, they are 0.00012 apart."""
    rng = np.random.default_rng(0)
    numbers = np.float32(mean + rng.normal(0, 0.05, (200, 1)))
    step = np.spacing(np.float32(max(abs(mean), 0.1)))
    other = numbers + np.float32(step * rng.integers(-1, 2, (200, 1)) + fault)
    rule = Rule(("year",), numbers=True)
    answers, tally = AnswerTally(rule, rule), LogitTally(TOLERANCES["fp32"])
    answers.add(numbers, other)
    tally.add(numbers, other)
    found = tally.differences()
    assert (answers.differences().labels == 0) is is_equal
    assert (found.unexplained <= EQUAL) is is_equal
    assert (found.rows_beyond == 0) is is_equal
    assert found.share > 0


def test_a_kernel_that_depends_on_the_batch_fails():
    labels, logits = drawn()
    rng = np.random.default_rng(1)
    noisy = logits + rng.normal(0, 1.5, logits.shape)
    made = certificate(labels, logits, logits, batches=invariance(noisy, logits, "int8"))
    assert kinds(made) == ["batch"]
    # In int8, a few predictions may change; in float32, no logit may.
    slightly = logits + rng.normal(0, 0.02, logits.shape)
    few = invariance(slightly, logits, "int8")
    assert certificate(labels, logits, logits, batches=few).verdict == "passed"
    none = invariance(slightly, logits, "fp32")
    made = certificate(labels, logits, logits, precision="fp32", dtypes=FLOAT32, batches=none)
    assert kinds(made) == ["batch"]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_a_file_that_is_not_what_it_is_called_fails(precision):
    (found,) = dtype_failures(precision, FLOAT32)
    assert found.kind == ("products" if precision == "int8" else "weights")
    assert f"the precision of the artifact is {precision}" in found.text
    assert "float32" in found.text


@pytest.mark.parametrize(("precision", "stored"), STORED.items())
def test_weights_in_the_stated_dtype_pass(precision, stored):
    dtypes = INT8 if precision == "int8" else replace(FLOAT32, weights={min(stored): 10})
    assert list(dtype_failures(precision, dtypes)) == []


def test_products_of_16_bit_weights_in_float32_are_a_note():
    labels, logits = drawn()
    half = replace(FLOAT32, weights={"float16": 10})
    made = certificate(labels, logits, logits, precision="fp16", dtypes=half)
    assert [each.text for each in made.notes if each.kind == "wider"] == [
        "weights are stored in fp16, and products ran as float32 x float32 (12) on this machine"
    ]


def test_what_is_known_without_statistics_fails():
    labels, logits = drawn()
    refused = [finding("labels", missing=["ant"], added=[])]
    made = certificate(labels, logits, logits, refused=refused)
    assert made.verdict == "failed"
    assert made.failures[0].text == ("the artifact's labels are not the model's: it lacks 'ant'")


def test_groups_are_the_cases_of_a_class():
    labels, logits = drawn()
    groups = group_equal_keys((str(i // 2) for i in range(len(labels))), column="group")
    sides = outcome(logits, labels), outcome(logits, labels)
    _, classes = compare_outcomes(*sides, groups=groups)
    pairs = len({i // 2 for i in np.flatnonzero(labels == 0)})
    assert classes[0].groups == pairs < classes[0].rows == (labels == 0).sum()


def test_a_margin_out_of_range_is_refused():
    labels, logits = drawn(20)
    sides = outcome(logits, labels), outcome(logits, labels)
    with pytest.raises(InputError, match="margin must be above 0"):
        compare_outcomes(*sides, margin=0.0)


@pytest.mark.slow
def test_the_interval_is_that_of_two_finished_models(tmp_path):
    labels, logits = drawn()
    other = logits + np.random.default_rng(2).normal(0, 0.5, logits.shape)
    names = []
    for name, each in (("model", logits), ("artifact", other)):
        rows = zip(labels, each.argmax(1), strict=True)
        lines = [f"{i},{NAMES[label]},{NAMES[guess]}" for i, (label, guess) in enumerate(rows)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["id,label,prediction", *lines]))
        names.append(f"{name}={path}")
    expected = compare_tables(names, label_names=NAMES).arm("artifact").difference
    made, _ = compare_outcomes(outcome(logits, labels), outcome(other, labels))
    assert made.arm("artifact").difference == expected


@pytest.mark.parametrize(("scales_rows", "ratio", "fails"), [
    (True, 2.9, False), (True, 3.1, True), (False, 14.0, False), (False, 16.0, True),
])  # fmt: skip
def test_int8_may_differ_by_a_multiple_of_rounding(scales_rows, ratio, fails):
    labels, logits = drawn()
    noise = np.random.default_rng(1).normal(0, 1e-4, logits.shape)
    rounding = LogitTally()
    rounding.add(logits, logits + noise)
    tally = LogitTally()
    tally.add(logits, logits + ratio * noise)
    made = certificate(
        labels, logits, logits, logits=tally.differences(rounding), scales_rows=scales_rows
    )
    assert kinds(made) == ["rounding"] * fails
    assert [f"{ratio} times as much" in each.text for each in made.failures] == [True] * fails


def test_an_artifact_of_a_model_that_learned_nothing_is_not_shown_by_its_metric():
    labels, logits = drawn(1200)
    useless = np.tile([5.0, 0, 0, 0], (len(logits), 1))
    noisy = useless + np.random.default_rng(0).normal(0, 0.05, logits.shape)
    found = certificate(labels, useless, noisy, dtypes=INT8)
    assert found.verdict == UNDECIDED
    assert "learned_nothing" in [each.kind for each in found.notes]
    noisy = logits + np.random.default_rng(0).normal(0, 0.05, logits.shape)
    assert certificate(labels, logits, noisy, dtypes=INT8).verdict == PASSED


def test_one_case_of_a_class_excludes_no_loss():
    labels, logits = drawn()
    labels[labels == 3] = 0
    labels[0] = 3
    made = certificate(labels, logits, logits)
    assert made.classes[3].rows == 1
    assert made.classes[3].hidden_loss == 1
    assert made.classes[3].status == "too few"


def test_a_difference_that_few_cases_carry_is_a_note():
    labels, logits = drawn()
    made = certificate(labels, logits, corrected(labels, logits, 0.01))
    assert made.arm.difference is not None
    difference = replace(made.arm.difference, carrying_cases=3)
    arms = [
        replace(arm, difference=difference) if arm is made.arm else arm
        for arm in made.comparison.arms
    ]
    draft = replace(made, comparison=replace(made.comparison, arms=tuple(arms)), notes=())
    (note,) = [each.text for each in with_verdict(draft).notes if each.kind == "carrying"]
    assert f"3 of {difference.cases:,} cases" in note


def test_the_products_with_weights_are_counted_by_dtype_and_the_most_frequent_come_first():
    rows = [
        ("MatMul", ("float32", "float32"), 2, True),
        ("Gemm", ("float16", "float16"), 1, True),
        ("MatMulInteger", ("uint8", "int8"), 1200, True),
        ("Conv", ("float16", "float16"), 2, True),
        ("Attention", ("float32", "float32"), 9, False),
    ]
    products = tuple(
        ProductCount(operator=name, inputs=inputs, count=count, with_weights=has)
        for name, inputs, count, has in rows
    )
    assert replace(FLOAT32, products=products).product_summary == (
        "uint8 x int8 (1,200), float16 x float16 (3), float32 x float32 (2)"
    )
