"""What is refused and said before PyTorch is imported."""

import subprocess
import sys

import pytest

from ampft.arguments import parse_classify_arguments
from ampft.errors import InputError
from ampft.runs.start import check_start

REFUSALS = {
    "--train_file absent.csv": "--train_file: the file absent.csv does not exist",
    "--train_file good.cvs": "Did you mean 'good.csv'?",
    "--train_file folder": "--train_file: folder is a folder. Pass it with --dataset_name",
    "--train_file good.csv --test_file absent.csv": "--test_file: the file absent.csv does not",
    "--train_file good.csv --output_dir folder": "--output_dir folder: the folder is not empty (x)",
    "--train_file good.csv --output_dir good.csv": "--output_dir good.csv: this is a file",
    "--train_fil good.csv": "unknown flag --train_fil",
    "--mixed_precision fp61": "--mixed_precision",
    "--task ranking": "--task",
    "--learning_rate fast": "--learning_rate",
}
SCRIPT = """
import sys
from ampft.cli import main
for words in sys.argv[1:]:
    print(main(["train", *words.split()]), "torch" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "good.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_refusals_do_not_wait_for_pytorch(folder):
    before = sorted(folder.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *REFUSALS], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["2 False"] * len(REFUSALS)
    messages = done.stderr.splitlines()
    assert len(messages) == len(REFUSALS)
    for message, expected in zip(messages, REFUSALS.values(), strict=True):
        assert expected in message
    assert sorted(folder.rglob("*")) == before


def test_what_can_be_used_is_not_refused(folder, monkeypatch, capsys):  # negative control
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (folder / "empty").mkdir()
    for words in ("--train_file good.csv --output_dir empty", "--train_file *.csv", ""):
        check_start(parse_classify_arguments(words.split()))
        assert capsys.readouterr().out == "start      importing PyTorch and transformers ...\n"


def test_a_process_that_is_not_the_first_leaves_the_folder_to_it(folder, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    args = parse_classify_arguments(["--train_file", "good.csv", "--output_dir", "folder"])
    check_start(args)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match="not empty"):
        check_start(args)
