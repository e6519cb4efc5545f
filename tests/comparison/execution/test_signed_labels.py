"""`ampft compare` on the labels -1, 1 and -1, 0, 1: classes like any others."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from running import call, succeeded, write_csv
from sklearn.metrics import accuracy_score, f1_score, log_loss

pytestmark = pytest.mark.slow
FILES = {"train": 60, "validation": 24, "test": 48}


@pytest.mark.parametrize("labels", [(-1, 1), (-1, 0, 1)], ids=str)
def test_a_planned_comparison_has_the_numbers_of_scikit_learn(labels, tiny_model, tmp_path) -> None:
    flags = []
    for split, count in FILES.items():
        table = [
            (f"w{i % 7} w{i % 5} " + f"w{10 + i % len(labels)} " * 4, labels[i % len(labels)])
            for i in range(count)
        ]
        path = write_csv(tmp_path / f"{split}.csv", table, ("text", "label"))
        flags += [f"--{split}_file", str(path)]
    succeeded(
        call(
            *(sys.executable, "-m", "ampft", "compare", "--modes", "fp32,bf16", "--seeds", "3"),
            "--anyway",
            *("--no_placebo", "--output_dir", "compared", "--", *flags, "--no-baseline"),
            *("--model_name_or_path", str(tiny_model), "--max_train_steps", "15"),
            *("--per_device_train_batch_size", "16", "--learning_rate", "1e-2", "--use_cpu"),
            cwd=tmp_path,
        )
    )  # fmt: skip
    compared = json.loads((tmp_path / "compared/comparison.json").read_text())
    assert compared["label_names"] == sorted(map(str, labels), key=int)
    assert [arm["mode"] for arm in compared["arms"]] == ["fp32", "bf16"]
    losses = set()
    for arm in compared["arms"]:
        assert [run["seed"] for run in arm["runs"]] == [42, 43, 44]
        for number, run in enumerate(arm["runs"]):
            folder = tmp_path / "compared/runs" / run["folder"]
            rows = pd.read_parquet(folder / "predictions.parquet")
            assert rows["label"].astype(int).tolist() == [row[1] for row in table]
            right, said = rows["label"].astype(str), rows["prediction"].astype(str)
            accuracy = accuracy_score(right, said)
            macro = f1_score(right, said, average="macro", zero_division=0)
            assert arm["metrics"]["accuracy"]["per_seed"][number] == pytest.approx(accuracy)
            assert arm["metrics"]["macro_f1"]["per_seed"][number] == pytest.approx(macro)
            loss = log_loss(right, np.stack(rows["probabilities"]), labels=compared["label_names"])
            assert arm["metrics"]["log_loss"]["per_seed"][number] == pytest.approx(loss, rel=1e-5)
            losses.add(loss)
    assert len(losses) == 6, "two runs are equal, so an exchange would not be seen"
