"""Builds a CUDA device without memory and runs the tests in `preloaded` on it."""

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
LIBRARIES = Path(torch.__file__).parent / "lib"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="preloads a library by LD_PRELOAD"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(
        torch.backends.cuda.is_built(), reason="needs a CPU build of torch: others have a real CUDA"
    ),
]


def build_guard(folder):
    """Return a library that, preloaded, gives a CPU build of torch a CUDA device."""
    library = folder / "fake_cuda.so"
    command = ["g++", "-shared", "-fPIC", "-std=c++20", "-o", library, HERE / "guard.cpp"]
    command += [f"-I{path}" for path in include_paths()]
    subprocess.run([*command, f"-L{LIBRARIES}", "-lc10", "-ltorch_cpu"], check=True)
    return library


def fake_environment(guard):
    """Return the environment of a process with the fake device."""
    paths = [str(HERE.parent / folder) for folder in (".", "emulation")]
    return os.environ | {
        "AMPFT_FAKE_CUDA": "1",
        "LD_LIBRARY_PATH": str(LIBRARIES),
        "LD_PRELOAD": f"{LIBRARIES / 'libtorch_cpu.so'} {guard}",
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
    }


def test_everything_passes_on_a_fake_cuda_device(tmp_path, request):
    environment = fake_environment(build_guard(tmp_path))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "preloaded"]
    command += ["--full"] * request.config.getoption("--full")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 20, "the tests were moved, so that nothing would be checked"
