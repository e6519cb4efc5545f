"""What FSDP2 cannot train is refused before data and model are loaded."""

import re

import pytest

from ampft.arguments.classify import ClassifyArguments
from ampft.errors import InputError
from ampft.runs import prepared_checks
from ampft.runs.prepare import prepare


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"lora_r": 4, "load_in_4bit": True}, "--load_in_4bit"),
        ({"optim": "adafactor"}, "--optim adafactor"),
    ],
)
@pytest.mark.usefixtures("fresh_accelerate")
def test_what_sharded_weights_exclude_is_refused_before_the_data_are_read(
    settings, flag, monkeypatch
):
    monkeypatch.setattr(prepared_checks, "is_sharded", lambda accelerator: True)
    args = ClassifyArguments(train_file="missing.csv", use_cpu=True, **settings)
    with pytest.raises(InputError, match=re.escape(flag)):
        prepare(args)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"missing\.csv"):
        prepare(args)
