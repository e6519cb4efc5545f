"""The ports of docs/own_loop.md run as scripts, with small data in place of the reader's."""

from __future__ import annotations

import re

import pytest
from running import REPOSITORY, call_here, succeeded

from ampft.runs.record import read_record

PAGE = (REPOSITORY / "docs" / "own_loop.md").read_text(encoding="utf-8")
PORTS = re.findall(r"After:\n\n```python\n(.*?)```", PAGE, flags=re.DOTALL)
NAMES = ("yolo", "timm", "course")

IMAGES = """
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import ampft

torch.manual_seed(0)
x, y = torch.randn(96, 8), torch.arange(96) % 3
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def mixup(x, y):
    share, order = 0.3, torch.randperm(len(y))
    target = nn.functional.one_hot(y, 3).float()
    return share * x + (1 - share) * x[order], share * target + (1 - share) * target[order]

"""
TEXTS = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

import ampft

tokenizer = AutoTokenizer.from_pretrained({model!r})
model = AutoModelForSequenceClassification.from_pretrained({model!r})
rows = [{{**tokenizer("a word " * (row % 5 + 1)), "labels": row % 3}} for row in range(40)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)

"""


def test_the_ports_were_found():
    assert len(PORTS) == len(NAMES)
    assert all(f'"runs/{name}"' in port for name, port in zip(NAMES, PORTS, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "port"), list(zip(NAMES, PORTS, strict=False)), ids=NAMES)
def test_a_port_trains(name, port, tmp_path, request):
    before = IMAGES
    if name == "course":
        before = TEXTS.format(model=str(request.getfixturevalue("tiny_bert")))
    script = tmp_path / f"{name}.py"
    script.write_text(before + port, encoding="utf-8")
    succeeded(call_here(script, cwd=tmp_path))
    record = read_record(tmp_path / "runs" / name)
    assert record.status == "finished"
    assert record.steps.applied == record.steps.total > 2


@pytest.mark.slow
def test_a_mean_in_place_of_the_sum_is_refused(tmp_path):
    port = re.sub(r"ampft\.summed_cross_entropy\((.*), label_smoothing=0\.1\)",
                  r"nn.functional.cross_entropy(\1)", PORTS[0])  # fmt: skip
    assert port != PORTS[0]
    script = tmp_path / "mean.py"
    script.write_text(IMAGES + port, encoding="utf-8")
    with pytest.raises(Exception, match="mean"):
        call_here(script, cwd=tmp_path)
