"""Runs the tests that need a GPU, and users' commands, on a CUDA device that is simulated.

The device has the host's memory and kernels (`device.cpp`), so that a whole program computes on
`cuda:0`: nothing of the device is set by hand. It shows that programs fit together, not how a GPU
rounds or how fast it is.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIBRARIES = Path(torch.__file__).parent / "lib"
# What the CPU has no kernel for, and how a GPU rounds inside its attention.
NOT_SIMULATED = (
    "test_cuda_runs_the_float16_list_in_float16[lstm_cell]",
    "test_cuda_runs_the_float16_list_in_float16[gru_cell]",
    "test_cuda_runs_the_float32_list_in_float32[trace]",
)
GPU_TESTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests").rglob("test_*.py")
    if "mark.gpu" in path.read_text(encoding="utf-8") and path.parent != HERE
)

SETTINGS = {
    **{mode: f"--mixed_precision {mode} --max_train_steps 5" for mode in ("fp32", "bf16", "fp16")},
    "tf32": "--mixed_precision tf32 --max_train_steps 3",
    "graphs": "--mixed_precision bf16 --max_train_steps 40 --cuda_graphs",
}
# The imports take several times as long as a training.
TRAIN_ALL = """
import json, sys
from running import BIN, call_here, succeeded
for words in json.loads(sys.argv[2]):
    succeeded(call_here(BIN / "ampft", *words, cwd=sys.argv[1]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="preloads a library by LD_PRELOAD"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(
        torch.backends.cuda.is_built(), reason="needs a CPU build of torch: others have a real CUDA"
    ),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables with which each Python has the simulated device."""
    library = tmp_path_factory.mktemp("device") / "device.so"
    command = ["g++", "-O1", "-shared", "-fPIC", "-std=c++20", "-o", library, HERE / "device.cpp"]
    command += [f"-I{path}" for path in include_paths()]
    subprocess.run([*command, f"-L{LIBRARIES}", "-lc10", "-ltorch_cpu"], check=True)
    paths = [str(HERE / "python"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "LD_LIBRARY_PATH": str(LIBRARIES),
        "LD_PRELOAD": f"{LIBRARIES / 'libtorch_cpu.so'} {library}",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # At the end, a thread of the backward pass would ask for Python's lock.
        "TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT": "0",
    }


def run(environment, *words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", *words], env=environment, cwd=cwd, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory, tiny_bert):
    """A folder with training and test data, in which commands run."""
    from tiny_text import LABELS, tiny_texts

    folder = tmp_path_factory.mktemp("simulated")
    for name, number, seed in (("train", 64, 0), ("test", 40, 1)):
        columns = tiny_texts(number, seed=seed)
        rows = zip(columns["text"], columns["label"], strict=True)
        lines = [f"{text},{LABELS[label]}\n" for text, label in rows]
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    (folder / "model").symlink_to(tiny_bert)
    return folder


@pytest.fixture(scope="module")
def records(environment, files):
    """The records of one training in each of several settings, all in one process."""
    shared = "--model_name_or_path model --train_file train.csv --validation_file test.csv "
    shared += "--test_file test.csv --per_device_train_batch_size 16 --output_dir"
    commands = {
        name: ["train", *shared.split(), name, *flags.split()] for name, flags in SETTINGS.items()
    }
    paths = os.pathsep.join([str(HERE.parent), environment["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_ALL, str(files), json.dumps(list(commands.values()))],
        env=environment | {"PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((files / name / "run.json").read_text()) for name in commands}


@pytest.mark.full
def test_the_gpu_tests_pass(environment):
    words = ["pytest", "-q", "-m", "gpu", "-n", "0", "-p", "no:cacheprovider", *GPU_TESTS]
    done = run(environment, *words, cwd=ROOT)
    failed = re.findall(r"^FAILED \S+::(.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    assert sorted(failed) == sorted(NOT_SIMULATED), done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 150


@pytest.mark.parametrize(
    ("mode", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_a_training_computes_on_the_device(records, mode, dtype):
    record = records[mode]
    assert record["topology"]["device"].startswith("cuda")
    assert record["precision"]["resolved"]["execution"] == "native"
    projections = [r for r in record["precision"]["executed"]["rows"] if r["kind"] == "projection"]
    assert projections
    assert all(set(row["inputs"]) == {dtype} for row in projections)


def test_tf32_is_seen_by_its_lost_bits(records):
    assert records["tf32"]["precision"]["executed"]["float32_products_lose_bits"] is True


def test_an_ordinary_run_replays_graphs(records):
    """The device is chosen by the run itself, so that a missing index would be seen."""
    graphs = records["graphs"]["timings"]["cuda_graphs"]
    assert graphs["reason"] is None
    assert graphs["replayed_micro_batches"] > 10


@pytest.mark.full
def test_the_machine_is_accepted(environment, tmp_path):
    """All that `ampft accept` starts finds the device by itself."""
    folder = tmp_path / "accepted"
    done = run(environment, "ampft", "accept", "--output_dir", str(folder), "--max_minutes", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "acceptance.json").read_text(encoding="utf-8"))
    assert found["device"] == "cuda"
    green = {
        (row["obligation"], row["command"]) for row in found["rows"] if row["colour"] == "green"
    }
    assert ("graphs are replayed", "fp32, graphs") in green
    assert ("graphs are replayed", "bf16, graphs") in green
    assert ("the precision that was asked for ran", "tf32, 24 steps") in green
