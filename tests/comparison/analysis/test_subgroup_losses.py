"""The subgroups in which an arm loses most: classes, lengths and words."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from run_folders import NAMES, predicted, write_outcomes
from test_foreign_predictions import write_table

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.analysis.predictions import read_texts
from ampft.comparison.analysis.subgroup_losses import detectable_loss
from ampft.comparison.report.sections import subgroup_losses
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.data.splits import group_equal_keys
from ampft.integrations.foreign_predictions import compare_tables
from ampft.metrics.sums import ACCURACY, single_label_sums
from ampft.runs.record import DataPart
from ampft.tasks.single_label import Predictions

N = 400
SEEDS = range(1, 6)


def text_of(index: int) -> str:
    """Return a text; every tenth contains "rare", and the second half is longer."""
    return " ".join(
        ["rare"] * (index % 10 == 0) + ["word", f"x{index}"] + ["more"] * (index // 200)
    )


def compare(tmp_path, wrong, *, texts=True):
    """Compare an arm whose wrong examples are those of the baseline and others."""
    rows = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        noise = set(rng.choice(N, 40, replace=False).tolist())
        for arm, some in (("base", noise), ("arm", noise ^ wrong(rng, noise))):
            for i, guess in enumerate(predicted(sorted(some), N)):
                row = {"arm": arm, "seed": seed, "id": i, "label": NAMES[i % 3]}
                rows.append(
                    {**row, "prediction": NAMES[guess], **({"text": text_of(i)} if texts else {})}
                )
    return compare_tables([str(write_table(tmp_path / "all.parquet", rows))]).arm("arm").subgroups


def found(subgroups):
    return {(each.kind, each.name) for each in subgroups.losses if each.is_loss}


@pytest.mark.slow
def test_a_word_that_is_always_lost_is_found(tmp_path):
    subgroups = compare(tmp_path, lambda rng, noise: {i for i in range(0, N, 10) if i % 30})
    (worst, *_) = subgroups.losses
    assert (worst.kind, worst.name, worst.examples) == ("word", "rare", 40)
    assert worst.is_loss
    assert 0 < subgroups.detectable < abs(worst.estimate)
    assert 20 <= subgroups.usual_size < N
    assert worst.interval[0] < worst.estimate < worst.interval[1]


@pytest.mark.slow
def test_a_wide_interval_ends_where_differences_of_accuracy_do(tmp_path):
    """With three seeds and many subgroups, t reaches beyond what is possible."""

    is_lost = iter([True, False, True, False, False])

    def lost_at_some_seeds(rng, noise):
        return set(range(1, N, 3)) - noise if next(is_lost) else set()

    subgroups = compare(tmp_path, lost_at_some_seeds)
    ends = [end for each in subgroups.losses for end in each.interval]
    assert ends
    assert all(-1 <= end <= 1 for end in ends)


@pytest.mark.slow
def test_a_class_and_a_length_that_lose_are_found(tmp_path):
    of_class = compare(tmp_path, lambda rng, noise: {i for i in range(N) if i % 3 == 1 and i % 4})
    assert ("class", NAMES[1]) in found(of_class)
    of_length = compare(tmp_path, lambda rng, noise: {i for i in range(200, N) if i % 3})
    assert any(kind == "length" for kind, _ in found(of_length))


@pytest.mark.slow
def test_random_changes_are_no_loss_and_every_look_is_corrected_for(tmp_path):
    def flipped(rng, noise):
        gained, lost = sorted(noise), sorted(set(range(N)) - noise)
        return {*rng.choice(gained, 6).tolist(), *rng.choice(lost, 6).tolist()}

    subgroups = compare(tmp_path, flipped)
    assert found(subgroups) == set()
    assert subgroups.level == pytest.approx(1 - 0.05 / subgroups.examined)
    assert subgroups.examined >= 3 + 2
    assert compare(tmp_path, flipped, texts=False).examined == len(NAMES)


def test_equal_predictions_have_no_losses(tmp_path):
    assert compare(tmp_path, lambda rng, noise: set()).losses == ()


@pytest.mark.full
@pytest.mark.parametrize(
    ("seeds", "flips", "copies"), [(3, 0.01, 1), (5, 0.04, 1), (3, 0.01, 4), (5, 0.04, 4)]
)
def test_the_detectable_loss_is_found_as_often_as_said(seeds, flips, copies):
    """80 % for that loss, and much less for half of it: the negative control."""
    rng = np.random.default_rng(seeds)
    alpha, examples, n = 0.05 / 30, 40 * copies, 600 * copies
    groups = group_equal_keys((np.arange(n) // copies).tolist())
    base, arm = rng.random((2, seeds, n // copies)).repeat(copies, axis=2) >= flips
    gains = arm.astype(np.int8) - base
    loss = detectable_loss(gains, np.arange(examples), groups, alpha=alpha)
    assert 0.2 < loss < 1
    shares = []
    for planted in (loss, loss / 2):
        found = 0
        for _ in range(200):
            sides = (rng.random((2, seeds, 40)) < flips).astype(np.int64)
            sides[0][:, rng.random(40) < planted] = 1
            sides = sides.repeat(copies, axis=2)
            labels = np.zeros(examples, dtype=np.int64)
            arm_sums, base_sums = (
                [single_label_sums(labels, row, 2).grouped(groups.ids[:examples]) for row in side]
                for side in sides
            )
            found += estimate_of_sums(arm_sums, base_sums, ACCURACY).interval(1 - alpha)[1] < 0
        shares.append(found / 200)
    assert 0.6 < shares[0] < 0.97
    assert shares[1] < 0.4


def test_seeds_that_could_find_nothing_leave_the_section_out(tmp_path):
    rng = np.random.default_rng(0)
    gains = rng.integers(-1, 2, (3, 600)).astype(np.int8)
    assert detectable_loss(gains, np.arange(40), alpha=0.05 / 100) is None
    assert detectable_loss(gains[:1], np.arange(40), alpha=0.05) > 0.2  # one model, fixed
    assert detectable_loss(gains[:1], np.arange(5), alpha=0.05 / 100) is None
    assert detectable_loss(np.repeat(gains, 4, axis=0), np.arange(400), alpha=0.05) < 0.2


def test_examples_in_groups_show_a_loss_as_late_as_that_many_groups():
    gains = np.random.default_rng(0).choice([-1, 0, 0, 0, 0, 1], (5, 150)).astype(np.int8)
    alone = group_equal_keys(range(150))
    of_four = group_equal_keys((np.arange(600) // 4).tolist())
    expected = detectable_loss(gains, np.arange(40), alpha=0.05)
    assert 0 < expected < 1
    assert detectable_loss(gains, np.arange(40), alone, alpha=0.05) == expected
    copies = np.repeat(gains, 4, axis=1)
    assert detectable_loss(copies, np.arange(160), of_four, alpha=0.05) == expected
    assert detectable_loss(copies, np.arange(160), alpha=0.05) < expected / 1.5


def test_texts_are_read_whole_in_any_order(tmp_path):
    from run_folders import write_run

    run = write_run(tmp_path, "fp32", 42, predicted())
    texts = partial(read_texts, run / "predictions.parquet")([150, 7, 3])
    assert list(texts) == [150, 7, 3]
    assert texts[3].split()[:2] == ["text", "3"]
    assert len(texts[7]) > 250


@pytest.mark.slow
def test_the_names_of_files_are_no_words(tmp_path):
    n = 60
    labels = np.arange(n) % 3

    def outcome(shift):
        shares = np.full((n, 3), 0.1, dtype=np.float32)
        shares[np.arange(n), (labels + shift) % 3] = 0.8
        return Predictions(np.arange(n), labels, shares, NAMES, "test")

    data = DataPart(name="photos", kind="image", input_columns=("image",), fingerprints={},
                    examples={"train": 9, "test": n})  # fmt: skip
    folders = write_outcomes(
        tmp_path,
        {"fp32": [outcome(0)] * 5, "bf16": [outcome(1)] * 5},
        lambda rows: {"reference": [f"my photos/rose {row % 2}.png" for row in range(n)][rows]},
        task="images",
        data=data,
    )
    comparison = compare_folders(folders)
    subgroups = comparison.arm("bf16").subgroups
    assert (subgroups.examined, subgroups.noun) == (3, "images")
    assert {each.kind for each in subgroups.losses} == {"class"}
    (table,) = subgroup_losses(comparison)
    assert "among 3 classes (with at least 20 images each)" in table.note


@pytest.mark.parametrize("column", ["group", "fold"])
def test_a_class_in_one_group_or_one_fold_is_left_out(tmp_path, column):
    """Nothing follows from its only case or fold; the comparison has its other results."""
    labels = np.where(np.arange(120) < 40, "c", np.where(np.arange(120) % 2, "a", "b"))
    values = {"group": np.maximum(np.arange(120), 39), "fold": np.arange(120) // 40}[column]
    tables = []
    for arm in ("base", "arm"):
        for seed in (1, 2, 3):
            predictions = labels.copy()
            predictions[np.random.default_rng(seed).choice(120, 10, replace=False)] = "b"
            if arm == "arm":
                predictions[:30] = "a"
            rows = [
                {"id": i, "label": labels[i], "prediction": predictions[i], column: values[i]}
                for i in range(120)
            ]
            path = write_table(tmp_path / f"{arm}-seed{seed}.csv", rows)
            tables.append(f"{arm}:{seed}={path}")
    comparison = compare_tables(tables)
    assert comparison.arms[1].difference.estimate < -0.2
    assert "c" not in [each.name for each in comparison.arms[1].subgroups.losses]


def test_the_order_of_the_folds_of_a_class_does_not_matter(tmp_path):
    """Class c has its examples in two of five folds, which are the first or the last ones."""
    intervals = []
    for rows in (range(120), range(119, -1, -1)):
        tables = []
        for arm in ("base", "arm"):
            for seed in (1, 2, 3):
                changed = np.random.default_rng(seed).choice(120, 12, replace=False)
                found = [
                    {
                        "id": number,
                        "label": "c" if i < 40 else "ab"[i % 2],
                        "fold": i // 20 if i < 40 else i % 5,
                        "prediction": "a" if arm == "arm" and i < 24 else "b",
                    }
                    for number, i in enumerate(rows)
                ]
                for row, i in zip(found, rows, strict=True):
                    if i not in changed and row["prediction"] == "b":
                        row["prediction"] = row["label"]
                path = write_table(tmp_path / f"{arm}-{rows[0]}-seed{seed}.csv", found)
                tables.append(f"{arm}:{seed}={path}")
        losses = {each.name: each for each in compare_tables(tables).arm("arm").subgroups.losses}
        intervals.append(losses["c"].interval)
    assert intervals[0] == pytest.approx(intervals[1])
