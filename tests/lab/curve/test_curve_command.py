"""`ampft curve`: its arguments. `test_curve_and_folds.py` draws one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ampft import cli
from ampft.comparison.settings import ArmSettings
from ampft.lab.curve import curve
from ampft.lab.curve.curve import CURVE, label_counts_by_arm

RUN = ("--train_file", "train.csv", "--test_file", "test.csv")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--", "--train_file", "train.csv"], "--test_file: a learning curve needs test rows"),
        (
            ["--", *RUN, "--max_train_samples", "50"],
            "--max_train_samples 50 after ` -- `: --sizes before",
        ),
        (["--", *RUN, "--data_seed", "3"], "--data_seed 3 after ` -- `: a curve sets it"),
        (["--learning_rate", "1e-4", "--", *RUN], "--learning_rate is a setting of ampft train"),
        (["--sizes", "200,100", "--", *RUN], "--sizes: received '200,100'"),
        (["--", *RUN[:2], "--folds", "5"], "all subsets of a curve are tested on the same rows"),
        (["--seedz", "3", "--", *RUN], "seedz"),
        (["--", *RUN, "--output_dir", "x"], "--output_dir"),
    ],
)
def test_invalid_settings_exit_with_2(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["curve", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sizes_are_read_from_the_names_of_arms():
    arms = [ArmSettings(f"labels-{count}", (), "fp32") for count in (400, 50, 200)]
    assert list(label_counts_by_arm(arms).values()) == [50, 200, 400]


def test_settings_of_the_runs_are_kept():
    words = (*RUN, "--mixed_precision", "bf16")
    line = CURVE.parse(["--seeds", "4", "--", *words], "ampft curve")
    assert (line.flags.seeds, tuple(line.after)) == ("4", words)
    assert line.training.test_file == "test.csv"


def test_the_report_of_a_curve_writes_no_page_and_says_so(tmp_path, capsys):
    (tmp_path / "curve.json").write_text("{}")
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path), "--output_file", str(page)]) == 2
    assert "--output_file" in (message := capsys.readouterr().err)
    assert "is not a comparison. Remove the flag" in message
    assert not page.exists()


def test_the_settings_in_a_curve_have_no_token(monkeypatch, tmp_path):
    canary = "hf_QqCanaryQqCanaryQqCanaryQqCanary"
    monkeypatch.setattr(
        "ampft.lab.curve.learning_curve.learning_curve", lambda *_, settings, **__: settings
    )
    monkeypatch.setattr("ampft.lab.curve.curve_page.write_curve", lambda curve, folder: None)
    arm = SimpleNamespace(name="labels-40", flags=())
    command = SimpleNamespace(
        classify_argv=["--train_file", f"{canary}/a.csv", "--seed", "3"],
        classify=SimpleNamespace(dataset_name=None, train_file=f"{canary}/a.csv"),
    )
    plan = SimpleNamespace(
        design=SimpleNamespace(arm_settings=[arm]), arm_estimates={arm.name: None}
    )
    assert curve._written(command, plan, tmp_path) == "--train_file REDACTED/a.csv --seed 3"
