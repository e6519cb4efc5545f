"""The configuration files for accelerate launch set the topology and nothing else."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

FOLDER = Path(__file__).resolve().parents[2] / "accelerate_configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
EXPECTED = {
    "one_cpu": "NO",
    "one_gpu": "NO",
    "multi_gpu": "MULTI_GPU",
    "fsdp2": "FSDP",
    "multi_node": "MULTI_GPU",
}

# Parts of key names that set precision or belong to a run, not to its machines.
FORBIDDEN = ("precision", "fp16", "bf16", "fp8", "tf32", "dtype", "accumulation", "clipping")


def keys(node):
    for key, value in node.items():
        yield key
        if isinstance(value, dict):
            yield from keys(value)


def test_every_configuration_exists():
    assert {path.stem for path in CONFIGS} == set(EXPECTED)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_loads_it_and_reads_the_topology(path):
    config = load_config_from_file(str(path))
    assert config.distributed_type.value == EXPECTED[path.stem]
    assert config.use_cpu == (path.stem == "one_cpu")
    assert config.mixed_precision is None
    assert config.num_processes >= config.num_machines >= 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_sets_only_the_topology_and_explains_itself(path):
    text = path.read_text()
    forbidden = [
        key for key in keys(yaml.safe_load(text)) if any(word in key for word in FORBIDDEN)
    ]
    assert forbidden == []
    assert text.startswith("# ")
    assert f"--config_file accelerate_configs/{path.name}" in text


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_launcher_accepts_it_and_chooses_no_precision(path):
    # A launch needs the GPUs; this part of it only reads the file.
    command = ["--config_file", str(path), "recipe.py"]
    args, _, from_file = _validate_launch_command(launch_command_parser().parse_args(command))
    assert args.mixed_precision == "no"
    assert not from_file
    assert args.use_fsdp == (path.stem == "fsdp2")
    if path.stem == "fsdp2":
        assert args.fsdp_version == 2


def test_a_precision_in_a_file_would_be_noticed(tmp_path):
    # Negative control.
    path = tmp_path / "chosen.yaml"
    path.write_text('distributed_type: "NO"\nmixed_precision: bf16\n')
    assert load_config_from_file(str(path)).mixed_precision == "bf16"
    assert any(word in key for key in keys(yaml.safe_load(path.read_text())) for word in FORBIDDEN)
