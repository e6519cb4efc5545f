"""The command `ampft`, and the imports of the entry points."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from fuzzed_json import signed
from tiny_text import write_contract

from ampft import cli
from ampft.arguments.parsing import messages_for_python
from ampft.exit_codes import run_main
from ampft.files import hashed_text

REPOSITORY = Path(__file__).parents[1]
AMPFT = Path(sys.executable).parent / "ampft"
HEAVY = {"torch", "transformers", "datasets", "accelerate", "sklearn", "numpy", "evaluate"}
ENTRY_POINTS = {
    "ampft": "from ampft.cli import main; main(['--help'])",
    **{
        f"ampft {command}": f"from ampft.cli import main; main(['{command}', '--help'])"
        for command in cli.names()
    },
    "classify.py": "import runpy; sys.argv = ['recipes/classify.py', '--help']; "
    "runpy.run_path('recipes/classify.py', run_name='__main__')",
}


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def heavy_imports(statements: str) -> tuple[set[str], str]:
    """The heavy packages that `statements` import, and what they print."""
    script = f"import sys\ntry:\n    exec({statements!r})\nexcept SystemExit:\n    pass\n"
    done = python(script + "print('modules:', *sys.modules, file=sys.stderr)")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("modules:")]
    return HEAVY & set(line.split()), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ENTRY_POINTS)
def test_help_imports_nothing_heavy(command):
    imported, text = heavy_imports(ENTRY_POINTS[command])
    assert imported == set()
    assert text.startswith(f"usage: {command}")


def test_a_refused_flag_imports_nothing_heavy():
    script = "from ampft import parse_classify_arguments, run_main\nrun_main(lambda: "
    imported, _ = heavy_imports(f"{script}parse_classify_arguments(['--learning_rat', '1']))")
    assert imported == set()


def test_the_check_detects_a_heavy_import():
    assert heavy_imports("import numpy")[0] == {"numpy"}


def test_import_beside_a_checkout_named_ampft(tmp_path):
    """A folder `ampft` without `__init__.py` must not be taken for the package."""
    (tmp_path / "ampft").symlink_to(REPOSITORY)
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", "import ampft; print('resolve' in dir(ampft))"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_env_writes_json():
    done = subprocess.run(
        [AMPFT, "env", "--json", "--no_measure"], capture_output=True, text=True, check=False,
        timeout=120, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    environment = json.loads(done.stdout)
    assert {"versions", "modes"} <= set(environment)


def test_a_file_of_settings_as_a_command_has_its_flag_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.yaml").write_text("max_train_steps: 3\n")
    assert cli.main(["a b.yaml"]) == 2
    assert "ampft train --config 'a b.yaml'" in capsys.readouterr().err
    assert cli.main(["gone.yaml"]) == 2
    assert "unknown command gone.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((), "the command is missing, such as ampft train. See ampft --help"),
        (("helpme",), "unknown command helpme"),
        (("trian",), "unknown command trian. Did you mean 'train'?"),
        (("env", "--jsn"), "unknown flag --jsn. Did you mean '--json'?"),
        (("predict", "file.csv"), "--model DIR is missing. See ampft predict --help"),
        (("predict", "--model", "run"), "FILE or --text: received neither"),
        (("report", "no/such/run"), "no/such/run"),
        (("report", "no/such/run", "--output_file", "x.html"), "this is not a folder"),
    ],
)
def test_refused(words, match, capsys):
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert match in line


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--model", "no/such/run", "texts.csv"), "--model no/such/run"),
        (("--model", "{run}", "absent.csv"), "absent.csv"),
        (("--model", "{run}", "--mixed_precision", "fp15", "{file}"), "fp15"),
        (("--model", "{run}", "--mixed_precision", "fp8", "{file}"), "fp8"),
        (("--model", "{run}", "--text_column_names", "body", "{file}"), "body"),
        (("--model", "{run}", "--batch_size", "0", "{file}"), "--batch_size"),
        (("--model", "{run}", "--output_file", "no/such/folder/a.csv", "{file}"), "--output_file"),
        (("--model", "{unfinished}", "{file}"), "diverged"),
        (("--model", "{images}", "{file}"), "images"),
    ],
)
def test_predict_refuses(words, match, capsys, run_folders, fresh_accelerate):
    assert cli.main(["predict", *(word.format(**run_folders) for word in words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert match in line


@pytest.mark.add_ons
def test_a_variable_of_a_launcher_that_is_not_a_number(
    run_folders, capsys, monkeypatch, fresh_accelerate
):
    monkeypatch.setenv("WORLD_SIZE", "x")
    assert cli.main(["predict", "--model", run_folders["run"], run_folders["file"]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: WORLD_SIZE=x in the environment: must be a number")


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("entry-000001.json", "ampft judge {0} --page FILE.html. To check its entries"),
        ("artifact.json", "certificate.html. To repeat it: ampft audit {0} --run RUN"),
    ],
)
def test_a_report_of_what_another_command_wrote_names_that_command(name, remedy, tmp_path, capsys):
    (tmp_path / name).write_text("{}")
    assert cli.main(["report", str(tmp_path)]) == 2
    assert remedy.format(tmp_path) in capsys.readouterr().err


HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e"


def assert_inert(text: str) -> None:
    assert text
    assert not [character for character in text if character in HOSTILE[0] + "\x07\u202e"]


def string_fields(values, path=()):
    """The paths of all strings in JSON values, keys included by replacing their value's key."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        if isinstance(value, str):
            yield (*path, key)
        elif isinstance(value, dict | list):
            yield from string_fields(value, (*path, key))


def test_no_field_of_a_record_reaches_the_terminal_raw(run_folders, tmp_path, capsys):
    record = json.loads((Path(run_folders["run"]) / "run.json").read_text())
    record |= {"reason": "r", "started": "s", "versions": {"torch": "v"}}
    record["data"] |= {"notes": ["n"], "examples": {"test": 3}}
    record["precision"] |= {"summary": "s"}
    record["precision"]["resolved"] |= {"execution": "native", "reason": "r"}
    record["best"] = {"metric": "accuracy", "epoch": 1, "value": 0.5}
    paths = [path for path in string_fields(record) if path != ("status",)]
    assert len(paths) > 15
    for path in paths:
        changed = json.loads(json.dumps(record))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] += HOSTILE
        (tmp_path / "run.json").write_text(signed(changed))
        cli.main(["report", str(tmp_path)])
        assert_inert("".join(capsys.readouterr()))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": HOSTILE},
        {
            "id2label": {"0": HOSTILE, "1": "b", "2": "c"},
            "architectures": [f"{HOSTILE}Classification"],
        },
        {"torch_dtype": HOSTILE},
    ],
)
def test_no_field_of_a_configuration_reaches_the_terminal_raw(
    run_folders, tmp_path, capsys, change, fresh_accelerate
):
    import shutil

    folder = shutil.copytree(run_folders["run"], tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    cli.main(["predict", "--model", str(folder), run_folders["file"]])
    assert_inert("".join(capsys.readouterr()))
    from transformers import AutoModelForSequenceClassification

    from ampft.models.pretrained import load_pretrained
    from ampft.text.terminal import print_line

    def load() -> None:
        labels = {"id2label": {0: "x", 1: "y", 2: "z"}, "label2id": {"x": 0, "y": 1, "z": 2}}
        auto_class = AutoModelForSequenceClassification
        _, notes = load_pretrained(auto_class, str(folder), labels, trust_remote_code=False)
        print_line(" ".join(("loaded", *notes)))

    run_main(load)
    assert_inert("".join(capsys.readouterr()))


@pytest.mark.parametrize(
    "words",
    [
        ("report", HOSTILE),
        ("compare", HOSTILE),
        (HOSTILE,),
        ("predict", "--model", HOSTILE, "x.csv"),
        ("predict", "--model", "{run}", f"{HOSTILE}.csv"),
        ("predict", "--model", "{run}", "{file}", "--output_file", f"no/{HOSTILE}"),
    ],
)
def test_no_name_reaches_the_terminal_raw(words, run_folders, capsys):
    assert cli.main([word.format(**run_folders) for word in words]) == 2
    assert_inert(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("report", "x" * 5000), "File name too long"),
        (("predict", "--model", "{run}", "y" * 5000 + ".csv"), "File name too long"),
        (("compare", "run", "--output_dir", "x" * 5000), "File name too long"),
    ],
)
def test_paths_that_cannot_exist(words, match, run_folders, capsys):
    assert cli.main([word.format(**run_folders) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert match in line


def test_the_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ampft {metadata.version('ampft')}\n"
    done = subprocess.run(
        [sys.executable, "-m", "ampft", "--version"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == f"ampft {metadata.version('ampft')}\n"


@pytest.mark.parametrize(
    ("words", "start"), [((), "usage: ampft COMMAND"), (("train",), "usage: ampft train")]
)
def test_help_is_a_command_too(words, start, capsys):
    with contextlib.suppress(SystemExit):
        cli.main(["help", *words])
    assert capsys.readouterr().out.startswith(start)


def test_the_help_of_predict_says_that_formulas_are_kept(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["predict", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "texts that begin with = are not changed, so import them as text" in text


@pytest.mark.full
@pytest.mark.slow
def test_a_full_temporary_folder(run_folders, tmp_path):
    file = tmp_path / "train.csv"
    file.write_text("text,label\n" + "w1,ant\nw2,bee\n" * 20)
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
        "from ampft.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "train", "--model_name_or_path",
         run_folders["run"], "--train_file", file],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "TMPDIR" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(redirect, run_folders):
    done = subprocess.run(
        ["bash", "-c", f'"$0" report "$1" {redirect}', AMPFT, run_folders["run"]],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def run_folders(tiny_bert, tmp_path_factory) -> dict[str, str]:
    """Folders with a model and a run record: `predict` accepts one and refuses two."""
    import shutil

    folder = tmp_path_factory.mktemp("runs")
    file = folder / "texts.csv"
    file.write_text("text\nw1 w2\nw3\n")
    paths = {"file": str(file)}
    for name, status, kind in (
        ("run", "finished", "text"),
        ("unfinished", "diverged", "text"),
        ("images", "finished", "image"),
    ):
        paths[name] = str(shutil.copytree(tiny_bert, folder / name))
        record = {
            "schema": 3, "status": status, "arguments": {"max_seq_length": 16}, "command": [],
            "task": "text" if kind == "text" else "images",
            "label_names": ["ant", "bee", "cow"],
            "data": {
                "name": "d", "kind": kind, "fingerprints": {}, "examples": {},
                "input_columns": ["text"],
            },
            "model": {
                "name": "m", "architecture": "a", "parameters": 1, "trainable_parameters": 1,
                "initial_weights_sha256": "",
            },
            "precision": {"requested": "fp32", "resolved": {"mode": "fp32"}},
            "topology": {"num_processes": 1, "cpu_threads": 1, "device": "cpu"},
            "steps": {"total": 1}, "memory": None, "best": None,
        }  # fmt: skip
        (folder / name / "run.json").write_text(hashed_text(record))
        write_contract(folder / name)
    return paths


def test_predict_writes_a_row_per_text(run_folders, capsys, fresh_accelerate):
    assert cli.main(["predict", "--model", run_folders["run"], run_folders["file"]]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "text,prediction,confidence"
    assert [row.split(",")[0] for row in rows] == ["w1 w2", "w3"]
    assert {row.split(",")[1] for row in rows} <= {"ant", "bee", "cow"}


def test_python_without_docstrings_is_refused():
    done = subprocess.run(
        [sys.executable, "-OO", "recipes/classify.py", "--mixed_precision", "fp32"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: python -OO or PYTHONOPTIMIZE=2 removes docstrings")


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["predict", "--model", "x", "Great value."], "To predict a text, pass --text"),
        (["predict", "--model", "x", "absent.csv"], "FILE: the file absent.csv does not exist."),
        (["predict", "--model", "x", "--device", "cpu"], "a GPU is used if there is one"),
        (["compare", "--train_file", "x.csv"], "Write: ampft compare -- --train_file x.csv"),
        (
            ["compare", "--modes", "fp32", "--train_file", "x"],
            "Write: ampft compare --modes fp32 -- --train_file x",
        ),
    ],
)
def test_mistakes_get_advice(words, advice, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert advice in line


@pytest.mark.parametrize("door", ["a command", "Python"])
def test_what_torchao_says_when_it_is_imported_does_not_reach_a_user(caplog, monkeypatch, door):
    for name in ("torchao", "torch.utils._pytree"):  # as before the first command
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
        monkeypatch.setattr(logging.getLogger(name), "filters", [])

    def log() -> None:
        logging.getLogger("torchao").warning("Failed to load /x/_C_mxfp8.so: no such library")
        pytree = logging.getLogger("torch.utils._pytree")
        pytree.warning("%s is an Enum subclass and is now natively supported", "<enum 'K'>")
        pytree.warning("another warning")

    if door == "Python":
        with messages_for_python():
            log()
    else:
        assert run_main(log) == 0
    assert caplog.messages == ["another warning"]


@pytest.mark.add_ons
@pytest.mark.parametrize(
    "words", ["MISSING --run {run}", "--steps 5 MISSING", "--use_cpu MISSING", "MISSING --json x"]
)
def test_an_audit_of_nothing_names_what_is_missing(words, run_folders, capsys):
    assert cli.main(["audit", *words.format(run=run_folders["run"]).split()]) == 2
    assert "audit MISSING: contains no run (run.json), ledger" in capsys.readouterr().err


@pytest.mark.add_ons
@pytest.mark.parametrize("command", ["estimate", "yardstick", "doctor", "ops", "curve"])
def test_an_unknown_setting_of_a_training_points_to_its_help(command, capsys):
    assert cli.main([command, "--", "--nope"]) == 2
    assert "unknown flag --nope. See ampft train --help" in capsys.readouterr().err


@pytest.mark.add_ons
def test_a_curve_refuses_its_folder_before_its_trial(tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "train.csv").write_text("text,label\n")
    files = [
        "--train_file",
        str(tmp_path / "train.csv"),
        "--test_file",
        str(tmp_path / "train.csv"),
    ]
    for name in ("full", "train.csv"):
        words = ["curve", "--output_dir", str(tmp_path / name), "--", *files]
        assert cli.main(words) == 2
        found = capsys.readouterr()
        assert f"--output_dir {tmp_path / name}: the folder" in found.err
        assert "trial" not in found.out


ROWS = "".join(f"row {i},{'ab'[i % 2]}\n" for i in range(40))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --train_file missing.csv", "missing.csv does not exist.\n"),
        ("train --train_file tain.csv", "does not exist. Did you mean 'train.csv'?"),
        ("train --train_file rows.docx", "It is a document. Write a row per example"),
        ("train --train_file train.csv --text_column_names text x", "by commas, without blanks"),
        ("train --train_file train.csv --metric_for_best_model f1_score", "Did you mean 'f1'?"),
        ("train --train_file ids.csv", "has another label, so no class can be learned"),
        ("train --train_file train.csv --class_weights '{}'", "order of the labels: 'a', 'b'."),
        ("predict --model compared train.csv", "such as compared/runs/fp32-seed42."),
        ("predict --model compared --input train.csv", "Give the file without a flag."),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("fresh_accelerate")
def test_a_message_names_what_is_meant(words, said, tiny_bert, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.csv").write_text(f"text,label\n{ROWS}")
    Path("ids.csv").write_text("text,label\n" + "".join(f"row {i},x{i}\n" for i in range(40)))
    Path("rows.docx").write_bytes(b"PK\3\4")
    Path("compared/runs/fp32-seed42").mkdir(parents=True)
    Path("compared/runs/fp32-seed42/run.json").write_text("{}")
    argv = shlex.split(words)
    if argv[0] == "train":
        argv += ["--model_name_or_path", str(tiny_bert), "--use_cpu", "--output_dir", "o"]
    assert cli.main(argv) == 2
    assert said in capsys.readouterr().err
    assert not Path("o").exists()
