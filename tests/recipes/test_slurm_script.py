"""The script of docs/checkpoints.md, with stand-ins for srun and scontrol."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# It passes signals to its task, as srun does.
SRUN = """#!/bin/bash
SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 "$@" &
task=$!
trap 'kill -USR1 "$task"' USR1
wait "$task"; code=$?
[ "$code" -eq 138 ] && { wait "$task"; code=$?; }
exit "$code"
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo node7; else echo "$@" >> "$LOG"; fi
"""
# It stands for the training, which ends with the code in CODE, after a signal if that is 75.
PYTHON = """#!/bin/bash
echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR: $*" >> "$LOG"
trap 'sleep 0.5; exit 75' USR1
touch "$LOG.ready"
[ "$CODE" -ne 75 ] && exit "$CODE"
while :; do sleep 0.05; done
"""


@pytest.fixture
def script(tmp_path):
    """The script, in a folder with the stand-ins."""
    text = (REPOSITORY / "docs" / "checkpoints.md").read_text()
    (block,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    for name, content in {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON}.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    path = tmp_path / "job.sh"
    path.write_text(block)
    return path


def start(script, code):
    environment = {
        "PATH": f"{script.parent}:{os.environ['PATH']}", "LOG": str(script.parent / "log"),
        "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[7-8]", "CODE": str(code),
    }  # fmt: skip
    return subprocess.Popen(["bash", str(script)], env=environment, cwd=script.parent)


def test_the_script_is_valid(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert "#SBATCH --signal=B:USR1@120" in script.read_text()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_reaches_python_and_the_job_is_queued_again(script, number):
    process = start(script, 75)
    for _ in range(200):
        if (script.parent / "log.ready").exists():
            break
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=20) == 75
    started, queued = (script.parent / "log").read_text().splitlines()
    assert started.startswith("rank 1 of 2 at node7: recipes/classify.py --mixed_precision bf16")
    assert started.endswith("--resume_from_checkpoint latest")
    assert queued == "requeue 4711"


@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_job_that_ended_by_itself_is_not_queued_again(script, code):
    assert start(script, code).wait(timeout=20) == code
    assert len((script.parent / "log").read_text().splitlines()) == 1
