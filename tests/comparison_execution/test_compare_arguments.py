"""The command line of a comparison: its own settings, and those of its runs behind `--`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ampft.arguments import parse_compare_arguments
from ampft.errors import InputError

REPOSITORY = Path(__file__).parents[2]


def test_nothing_given_compares_the_embedded_default():
    command = parse_compare_arguments([])
    assert command.modes is None
    assert command.looks == (5,)
    assert (command.metric, command.margin, command.placebo) == ("accuracy", 0.01, True)
    assert command.classify.dataset_name == "stdlib"
    assert command.classify.num_train_epochs == 5
    assert command.words == ()


def test_what_stands_behind_the_dashes_is_for_the_runs():
    own = ["--modes", "BF16, no", "--seeds", "5,10", "--margin", "0.5", "--no_placebo"]
    command = parse_compare_arguments([*own, "--", "--train_file", "a.csv", "--seed", "7"])
    assert command.modes == ("fp32", "bf16")
    assert command.looks == (5, 10)
    assert command.margin == pytest.approx(0.005)
    assert not command.placebo
    assert command.words == ("--train_file", "a.csv", "--seed", "7")
    assert (command.classify.train_file, command.classify.seed) == ("a.csv", 7)
    assert command.notes == ()


def test_a_baseline_that_is_not_named_is_added_and_that_is_said():
    command = parse_compare_arguments(["--modes", "fp16,bf16"])
    assert command.modes == ("fp32", "fp16", "bf16")
    assert command.notes == ("fp32 was added: it is what others differ from.",)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15min", 900), ("2h", 7200), ("1h30min", 5400), ("1H 1min 1s", 3661)],
)
def test_a_budget_has_units(text, seconds):
    assert parse_compare_arguments(["--budget", text]).budget == seconds


@pytest.mark.parametrize("text", ["15", "0s", "15 m", "1.5h", "-1h", "min", "30min1h", "٣s"])
def test_a_budget_without_a_unit_is_refused(text):
    with pytest.raises(InputError, match=r"--budget: received .*2h, 15min, 90s or 1h30min"):
        parse_compare_arguments([f"--budget={text}"])


REFUSED = {
    "two seeds": (["--seeds", "2"], "--seeds: received '2'; it has to be 3 or more"),
    "seeds that fall": (["--seeds", "10,5"], "--seeds: received '10,5'.*rising"),
    "seeds that are none": (["--seeds", "five"], "--seeds: received 'five'"),
    "too large a seed": (["--", "--seed", "4294967295"], "--seed 4294967295: 5 seeds"),
    "no such mode": (["--modes", "fp32,bf61"], "'bf61' is no precision. Did you mean 'bf16'"),
    "a mode twice": (["--modes", "bf16,bf16"], "bf16 stands there twice"),
    "the baseline alone": (["--modes", "fp32"], "name a precision to compare with fp32"),
    "no margin": (["--margin", "0"], "--margin: received 0.0; it must be above 0"),
    "a margin that is no number": (["--margin", "nan"], "--margin: received nan"),
    "another metric": (["--metric", "f1"], "--metric: received 'f1'"),
    "no config file": (["--config_file", "absent.yaml"], "--config_file absent.yaml: there is no"),
    "a setting before the dashes": (
        ["--learning_rate", "1"], "--learning_rate: is a setting of classify.py; write it behind",
    ),
    "a precision before the dashes": (
        ["--mixed_precision", "bf16"], "--mixed_precision: is a setting of classify.py; name the "
        "precisions before it: --modes",
    ),
    "a precision": (["--", "--mixed_precision", "bf16"], "--mixed_precision bf16.*--modes fp32"),
    "a folder": (["--", "--output_dir", "x"], "--output_dir x.*folder of the comparison before"),
    "overwriting": (["--", "--overwrite_output_dir"], "--overwrite_output_dir, behind"),
    "a perturbation": (["--", "--perturb_initial_weights"], "the placebo arm does it"),
    "an unknown setting of the runs": (["--", "--learning_rat", "1"], "--learning_rat.*learning_r"),
    "a bad setting of the runs": (["--", "--num_train_epochs", "0"], "--num_train_epochs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    words, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        parse_compare_arguments(words)


def test_a_file_of_settings_cannot_name_the_folder_either(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("output_dir: elsewhere\n")
    with pytest.raises(InputError, match="--output_dir elsewhere, behind"):
        parse_compare_arguments(["--", "--config", str(config)])


def test_comparing_imports_no_torch():
    modules = "estimate, folder, launch, plan, planning, progress, session"
    script = f"""
import sys
import ampft
from ampft.comparison.execution import {modules}
ampft.parse_compare_arguments, ampft.plan_comparison, ampft.open_comparison
print(sorted({{'torch', 'transformers', 'accelerate', 'datasets'}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
