"""Environment of all tests, and fixtures that tests of the training and of the evaluation share."""

import gc
import os
import re
import signal
import sys
import zlib
from pathlib import Path

import pytest

# Before anything imports huggingface_hub or torch, which read these once. Tests run in several
# processes at the same time: with more threads than cores, each of them is many times slower.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


pytest_plugins = ("record_fixtures", "run_fixtures")

TABLES = ("ENCODERS", "TEXT", "VISION", "FAMILIES", "SOUND_FAMILIES", "IMAGE_FAMILIES")
# One family for each mechanism: absolute positions, sliding windows without biases, disentangled
# attention, a relative bias in the encoder of an encoder-decoder, and causal attention with rotary
# positions; of images, attention and convolutions with batch norm; of sounds, waves and spectra.
REPRESENTATIVES = {
    *("bert", "modernbert, mean", "deberta-v2", "t5", "llama", "xlnet"),
    *("vit", "resnet", "wav2vec2 group norm", "ast"),
}
# Files whose slow tests run with every push: those about the exact gradient in two processes,
# resumed runs, thresholds and secrets, and one run through each task and each part.
OF_EACH_PUSH = {
    *("tests/test_decision.py", "tests/test_gpu_half_hour.py", "tests/test_layers.py"),
    *("tests/comparison/statistics/test_jackknife.py", "tests/comparison/statistics/test_power.py"),
    *("tests/comparison/statistics/test_rare_losses.py",),
    *("tests/comparison/statistics/test_verdict.py",),
    *("tests/data/test_fuzzed_files.py", "tests/data/test_workbooks.py"),
    *("tests/integrations/test_secrets.py",),
    *("tests/engine/test_diverged_run.py", "tests/engine/test_exact_trained_part.py"),
    *("tests/engine/test_two_processes.py",),
    *("tests/export/certificate/test_verify.py",),
    *("tests/faults/test_checkpoint_faults.py",),
    *("tests/features/test_chosen_metrics.py", "tests/features/test_decisions.py"),
    *("tests/labels/test_multi_label_run.py", "tests/labels/test_ordinal_run.py"),
    *("tests/labels/test_regression_run.py",),
    *("tests/metrics/test_report_metrics.py",),
    *("tests/recipes/test_checked_precision.py", "tests/recipes/test_compared_runs.py"),
    *("tests/recipes/test_decisions_run.py",),
    *("tests/recipes/test_groups_run.py", "tests/recipes/test_resume.py"),
    *("tests/recipes/test_run.py", "tests/recipes/test_weighted_run.py"),
    *("tests/runs/test_light_imports.py", "tests/runs/test_manifest.py"),
    *("tests/runs/test_predict.py", "tests/runs/test_predict_refusals.py"),
    *("tests/runs/test_redaction.py",),
    *("tests/words/test_words_run.py",),
}


def pytest_addoption(parser):
    parser.addoption(
        "--full", action="store_true", help="also run what is marked `full`, and every family"
    )
    parser.addoption(
        "--push", action="store_true", help="of the slow tests, run only those of `OF_EACH_PUSH`"
    )
    parser.addoption(
        "--part", metavar="K/N", help="run part K of N of the slow tests, by hash of the file"
    )
    oracle = parser.getgroup("oracle", "generated cases of tests/oracle")
    oracle.addoption("--minutes", type=float, help="run generated cases for some minutes")
    oracle.addoption("--cases", type=int, help="run this many generated cases")
    oracle.addoption("--oracle_seed", type=int, default=0, help="seed of the generated cases")
    oracle.addoption("--oracle_log", help="file to log cases to; a second run continues it")


def pytest_runtest_setup(item):
    """Let neither the shell nor an earlier test decide what a signal does.

    A shell ignores SIGINT in background jobs, and nohup ignores SIGHUP; a command that ran in this
    process leaves SIGINT to the system, which would end it in the next test that sends one.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config, items):
    """Without --full, leave out what is marked `full`, and all families but the representatives.

    A test of families has a parameter `name` or `family` with a key of its module's tables. With
    --part K/N, the slow tests of all files outside part K are left out too; with --push, those of
    all files that are not in `OF_EACH_PUSH`.
    """
    for item in items:
        if _other_family(item):
            item.add_marker("full")
    part, push = config.getoption("--part"), config.getoption("--push")
    left_out = {
        item
        for item in items
        if (item.get_closest_marker("full") and not config.getoption("--full"))
        or (part and item.get_closest_marker("slow") and not _in_part(item, part))
        or (push and item.get_closest_marker("slow") and _file_of(item) not in OF_EACH_PUSH)
    }
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _in_part(item, part: str) -> bool:
    """Whether the file of a test belongs to a part such as "2/3"; a file shares its fixtures."""
    number, parts = map(int, part.split("/"))
    return zlib.crc32(_file_of(item).encode()) % parts == number - 1


def _file_of(item) -> str:
    return item.nodeid.partition("::")[0]


def _other_family(item) -> bool:
    tables = [value for key, value in vars(getattr(item, "module", None)).items() if key in TABLES]
    families = {name for table in tables for name in table if isinstance(name, str)}
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    named = {value for value in values if isinstance(value, str)} & families
    return bool(named) and not named & REPRESENTATIVES


@pytest.fixture(autouse=True, scope="module")
def few_rows_served_back():
    """Serve back a few rows of each run, whose other rows take longer than a tiny training."""
    module = sys.modules.get("ampft.integrations.serving_back")
    if module is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", 3)
        yield


# What a message has in it if a part of it is missing, or an object was printed as it is.
INTERNALS = re.compile(
    r"(?<![\w'\"=])(?<!received )None(?![\w'\"]| (?:of|may|is|has|in sys)\b)|<\w+ object at 0x|"
    r"\bPosixPath\(|\bdtype\(|\barray\(\["
)


@pytest.fixture(autouse=True, scope="session")
def messages_are_whole():
    """Refuse a message to a user in which a part is `None`, or an object is shown as it is."""
    from ampft.errors import InputError

    def checked(kind, *values, **named):
        if values and (found := INTERNALS.search(str(values[0]))):
            raise AssertionError(f"{found[0]!r} in the message: {values[0]}")
        return Exception.__new__(kind, *values, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InputError, "__new__", checked)
        yield


@pytest.fixture
def quick_garbage_collection():
    """Exempt all that was imported from garbage collection, which follows every lack of memory."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fresh_accelerate(monkeypatch, request):
    """No Accelerator yet in this process; everything is restored afterwards.

    It runs on the CPU with one thread, except in a test that needs a GPU.
    """
    from global_state import fresh_global_state

    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with fresh_global_state():
        yield


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """Folder of a BERT with two layers, random weights, no dropout and three labels."""
    from tiny_text import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))
