"""Runs that differ in settings other than the precision: their arms, notes and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_folders import SEEDS, predicted, record_of, write_run

from ampft import cli
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.report_files import terminal_text
from ampft.errors import InputError

FEW = SEEDS[:3]
LIKE = record_of("fp32", 42)


def write_arm(parent, name, wrong=5, seeds=FEW, *, mode="fp32", changes=None, **settings):
    """Write a run per seed in `mode` with these settings; return the folders."""
    folders = []
    for seed in seeds:
        arguments = {**record_of(mode, seed).arguments, **settings}
        more = changes(record_of(mode, seed)) if changes else {}
        run = write_run(
            parent, mode, seed, predicted(range(wrong)), name=f"{name}-{seed}",
            arguments=arguments, **more,
        )  # fmt: skip
        folders.append(run)
    return folders


def names(comparison):
    return [arm.name for arm in comparison.arms]


@pytest.mark.slow
def test_arms_are_formed_by_the_setting_that_differs(tmp_path):
    runs = [
        *write_arm(tmp_path, "mid", learning_rate=5e-5),
        *write_arm(tmp_path, "high", 9, learning_rate=1e-3),
        *write_arm(tmp_path, "low", 3, learning_rate=1e-5),
    ]
    comparison = compare_folders(runs)
    assert comparison.varied == ("learning_rate",)
    assert names(comparison) == [
        "learning_rate=5e-05",
        "learning_rate=1e-05",
        "learning_rate=0.001",
    ]
    assert [dict(arm.settings) for arm in comparison.arms] == [
        {"learning_rate": "5e-05"}, {"learning_rate": "1e-05"}, {"learning_rate": "0.001"},
    ]  # fmt: skip
    assert comparison.arms[1].difference.estimate == pytest.approx(2 / 200)
    assert "learning rate" not in comparison.setup
    assert not [stamp for stamp in remark_texts(comparison.stamps) if "like for like" in stamp]
    assert compare_folders(runs, baseline="0.001").baseline.name == "learning_rate=0.001"
    with pytest.raises(InputError, match=r"--baseline fp32: .* only runs of learning_rate=1e-05"):
        compare_folders(runs, baseline="fp32")


@pytest.mark.slow
def test_optimizers_are_arms_that_differ_in_nothing_else(tmp_path):
    runs = [
        *write_arm(tmp_path, "adamw", optim="adamw_torch", layer_decay=None),
        *write_arm(tmp_path, "muon", 3, optim="muon", layer_decay=None),
    ]
    comparison = compare_folders(runs)
    assert names(comparison) == ["optim=adamw_torch", "optim=muon"]
    assert "optimizer" not in comparison.setup
    assert not [stamp for stamp in remark_texts(comparison.stamps) if "like for like" in stamp]
    same = [*runs[:3], *write_arm(tmp_path, "half", 4, mode="bf16", optim="adamw_torch")]
    assert compare_folders(same).setup["optimizer"] == "adamw_torch"


@pytest.mark.slow
def test_several_settings_name_the_arms(tmp_path):
    runs = [
        *write_arm(tmp_path, "a", num_train_epochs=3),
        *write_arm(tmp_path, "b", num_train_epochs=5, learning_rate=1e-5),
        *write_arm(tmp_path, "c", num_train_epochs=5, mode="bf16"),
    ]
    assert names(compare_folders(runs, by=["mixed_precision", "num_train_epochs"])) == [
        "first", "bf16, num_train_epochs=5", "num_train_epochs=5",
    ]  # fmt: skip
    comparison = compare_folders(runs[:6])
    assert names(comparison) == ["first", "learning_rate=1e-05, num_train_epochs=5"]
    text = terminal_text(comparison)
    assert "--learning_rate" in text
    assert "--weight_decay" not in text


@pytest.mark.slow
def test_modes_are_arms_unless_settings_are_named(tmp_path):
    runs = [*write_arm(tmp_path, "a"), *write_arm(tmp_path, "b", mode="bf16", num_train_epochs=5)]
    comparison = compare_folders(runs)
    assert names(comparison) == ["fp32", "bf16"]
    assert comparison.varied == ("mixed_precision",)
    assert any(
        "not like for like: --num_train_epochs" in stamp
        for stamp in remark_texts(comparison.stamps)
    )
    comparison = compare_folders(runs, by=["num_train_epochs"])
    assert names(comparison) == ["num_train_epochs=3", "num_train_epochs=5"]


def test_an_unnamed_difference_is_stamped(tmp_path):
    runs = [
        *write_arm(tmp_path, "a", weight_decay=0.0),
        *write_arm(tmp_path, "b", weight_decay=0.1, learning_rate=1e-5),
    ]
    comparison = compare_folders(runs, by=["learning_rate"])
    assert names(comparison) == ["learning_rate=5e-05", "learning_rate=1e-05"]
    (stamp,) = [stamp for stamp in remark_texts(comparison.stamps) if "like for like" in stamp]
    assert stamp.startswith("not like for like: --weight_decay (0.0 in a-42, 0.1 in b-42")


def test_other_examples_per_step_are_noted_where_the_batch_differs(tmp_path):
    def larger(record):
        steps = replace(record.steps, effective_batch_size=32, total=30)
        return {"steps": steps, "example_ids_sha256": "f" * 64}

    batch = "per_device_train_batch_size"
    runs = [
        *write_arm(tmp_path, "a", **{batch: 16}),
        *write_arm(tmp_path, "b", changes=larger, **{batch: 32}),
    ]
    comparison = compare_folders(runs)
    (note,) = [stamp for stamp in remark_texts(comparison.stamps) if "examples per step" in stamp]
    assert f"because of their settings, {batch}=32 saw other examples than {batch}=16" in note
    assert not [stamp for stamp in remark_texts(comparison.stamps) if "like for like" in stamp]
    # The same time per step, with twice the examples.
    assert comparison.arms[1].speed.speed_up.ratio == pytest.approx(2.0)


def test_other_examples_per_step_without_a_cause_are_not_like_for_like(tmp_path):
    runs = [
        *write_arm(tmp_path, "a"),
        *write_arm(
            tmp_path, "b", learning_rate=1e-5, changes=lambda _: {"example_ids_sha256": "f" * 64}
        ),
    ]
    (stamp,) = [
        s
        for s in remark_texts(compare_folders(runs).stamps)
        if "examples per step" in s or "ids" in s
    ]
    assert stamp.startswith("not like for like: example ids per step")


def test_models_are_compared_under_the_names_of_their_folders(tmp_path):
    def other(record):
        model = replace(
            record.model, name="models/large", parameters=5000, initial_weights_sha256="9" * 64
        )
        return {"model": model, "random_state_sha256": "8" * 64}

    runs = [*write_arm(tmp_path, "a"), *write_arm(tmp_path, "b", changes=other)]
    comparison = compare_folders(runs)
    assert names(comparison) == ["model_name_or_path=tiny", "model_name_or_path=large"]
    assert comparison.arms[1].settings == {"model_name_or_path": "models/large"}
    assert comparison.title == "2 models on reviews.csv"
    assert not [stamp for stamp in remark_texts(comparison.stamps) if "like for like" in stamp]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"lora_r": 8}, {"freeze": "embeddings"}])
def test_a_part_of_the_model_is_compared_with_the_whole(tmp_path, settings):
    """Adapters are more parameters, and other initial weights; frozen modules drop nothing."""
    (name,) = settings

    def part(record):
        model = replace(record.model, parameters=1080, trainable_parameters=80)
        return {"model": replace(model, initial_weights_sha256=f"{record.arguments['seed']:0>64}"),
                "random_state_sha256": "8" * 64}  # fmt: skip

    runs = [
        *write_arm(tmp_path, "a", **dict.fromkeys(settings)),
        *write_arm(tmp_path, "b", 9, changes=part, **settings),
    ]
    comparison = compare_folders(runs)
    assert comparison.varied == (name,)
    assert comparison.arms[1].difference is not None
    assert not [stamp for stamp in remark_texts(comparison.stamps) if "like for like" in stamp]


@pytest.mark.slow
def test_other_training_data_are_compared_but_not_other_test_data(tmp_path):
    def changed(**contents):
        prints = {**LIKE.data.fingerprints, **contents}
        return lambda record: {"data": replace(record.data, fingerprints=prints)}

    base = write_arm(tmp_path, "a", train_file="reviews.csv")
    other = {"train_file": "data/clean.csv"}
    clean = write_arm(tmp_path, "b", changes=changed(train="00" * 32), **other)
    assert names(compare_folders([*base, *clean])) == [
        "train_file=reviews.csv", "train_file=clean.csv",
    ]  # fmt: skip
    moved = write_arm(tmp_path, "c", learning_rate=1e-5, **other)
    assert names(compare_folders([*base, *moved])) == [
        "learning_rate=5e-05", "learning_rate=1e-05",
    ]  # fmt: skip
    tested = write_arm(tmp_path, "d", changes=changed(train="00" * 32, test="11" * 32), **other)
    with pytest.raises(InputError, match="differ in examples of the reported split: cdcd"):
        compare_folders([*base, *tested])
    clean_low = write_arm(
        tmp_path, "e", changes=changed(train="00" * 32), learning_rate=1e-5, **other
    )
    with pytest.raises(InputError, match="differ in data fingerprints: train abab"):
        compare_folders([*base, *clean_low], by=["learning_rate"])


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("seed", "--by seed: this setting cannot distinguish arms. The runs differ in learning_r"),
        (
            "num_train_epochs",
            "--by num_train_epochs: all runs have the same value. The runs differ",
        ),
        (
            "learning_rat",
            "--by learning_rat: the runs have no such setting. Did you mean 'learning",
        ),
    ],
)
def test_settings_that_form_no_arms_are_refused(tmp_path, capsys, by, message):
    runs = [*write_arm(tmp_path, "a"), *write_arm(tmp_path, "b", learning_rate=1e-5)]
    assert cli.main(["compare", *map(str, runs), "--by", by]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_forms_arms(tmp_path, capsys):
    runs = [*write_arm(tmp_path, "a"), *write_arm(tmp_path, "b", 4, learning_rate=1e-5)]
    assert cli.main(["compare", *map(str, runs), "--by", "learning_rate"]) == 0
    printed = capsys.readouterr().out
    for words in ("--learning_rate", "learning_rate=1e-05", "arm", "stay with learning_rate=5e-05"):
        assert words in printed
    for word in ("mode", "--num_train_epochs"):
        assert word not in printed
