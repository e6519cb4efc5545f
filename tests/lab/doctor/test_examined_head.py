"""The doctor examines the head with which training begins."""

from __future__ import annotations

import torch
from accelerate.utils import set_seed

from ampft.arguments import parse_classify_arguments
from ampft.evaluation.probe import START, with_probed_head
from ampft.lab.doctor.case import recipe_case
from ampft.runs.prepare import load_task


def test_the_head_begins_at_the_probe_as_in_training(files, tiny_model):
    words = ["--model_name_or_path", tiny_model, "--train_file", files / "train.csv", "--use_cpu"]
    heads = {}
    for init in ("random", "probe"):
        args = parse_classify_arguments([*map(str, words), "--head_init", init])
        heads[init] = recipe_case(args, "bf16", steps=1, trial_steps=1).model.classifier.weight
    task = load_task(args)
    set_seed(args.seed)
    expected = with_probed_head(task, task.load_model(), torch.device("cpu"), size=START)
    assert torch.equal(heads["probe"], expected.model.classifier.weight)
    assert not torch.equal(heads["random"], heads["probe"])
