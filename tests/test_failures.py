"""Errors of other libraries that a user can mend end in one message, and bugs in a traceback."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ampft import ownership
from ampft.errors import InputError
from ampft.exit_codes import run_main
from ampft.models.tokenizer import load_tokenizer


class Killed(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def killed_worker():
    list(DataLoader(Killed(), num_workers=1))


def one_example():
    nn.BatchNorm1d(2).train()(torch.zeros(1, 2))


def one_character():
    nn.Conv1d(2, 2, kernel_size=4)(torch.zeros(1, 2, 3))


def unknown_language():
    from transformers import XmodConfig, XmodForSequenceClassification

    config = XmodConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, languages=("en_XX", "de_DE"),
    )  # fmt: skip
    XmodForSequenceClassification(config)(torch.ones(1, 3, dtype=torch.long))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fail", "remedy"),
    [
        (killed_worker, "ended early (DataLoader worker (pid"),
        (one_example, "Raise --per_device_train_batch_size"),
        (one_character, "such as a text of one character for CANINE"),
        (unknown_language, "Call model.set_default_language"),
    ],
)
def test_errors_of_other_libraries_are_one_message(capsys, fail, remedy):
    assert run_main(fail) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert remedy in error


def test_a_full_disk_is_named_when_closing_the_file_fails_as_well(capsys):
    def fail():
        try:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        except OSError:
            raise ValueError("I/O operation on closed file")  # noqa: B904 - as datasets does

    assert run_main(fail) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: [Errno 27] File too large. Free disk space")


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_the_folder_of_temporary_files_is_advised_only_if_it_is_full(capsys, monkeypatch, free):
    def fail():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr("ampft.exit_codes.shutil.disk_usage", lambda _: usage)
    assert run_main(fail) == 2
    assert ("TMPDIR" in capsys.readouterr().err) == (free == 0)


def test_a_temporary_folder_that_cannot_be_marked_is_removed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ownership, "write", full)
    with pytest.raises(OSError, match="No space left"):
        ownership.temporary_folder("data")
    assert not list(tmp_path.iterdir())


def test_other_errors_are_not_hidden():
    """Negative control."""

    def bug():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        run_main(bug)


@pytest.mark.parametrize("words", [["[UNK]"], []])
def test_a_vocabulary_without_an_unknown_token_is_refused(tmp_path, words):
    lines = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *words, "a", "good", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    if words:
        assert load_tokenizer(str(tmp_path)).unk_token == "[UNK]"
        return
    with pytest.raises(InputError, match=r"cannot encode a character that is not in its vocab"):
        load_tokenizer(str(tmp_path))
