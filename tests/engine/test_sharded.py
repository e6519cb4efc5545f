"""Two processes that shard by FSDP2 train like one, and save a whole model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, flat_weights, relative_error
from running import REPOSITORY
from safetensors.torch import load_file
from tiny_text import tiny_texts
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from two_processes import EFFECTIVE, problem_named, trained

from ampft.models.weights import perturb_weights

HERE = Path(__file__).parent
CONFIGURATION = {  # as accelerate launch sets it from accelerate_configs/fsdp2.yaml
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}
pytestmark = [pytest.mark.full, pytest.mark.usefixtures("fresh_accelerate")]


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory) -> Path:
    """The folder of the results of two processes; they are launched once for all tests."""
    folder = tmp_path_factory.mktemp("sharded")
    for split, count in {"train": 24, "validation": 9, "test": 9}.items():
        texts = tiny_texts(count, seed=count)
        rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        *(f"--{split}_file={folder / split}.jsonl" for split in ("train", "validation", "test")),
        f"--model_name_or_path={tiny_bert}",
        *("--mixed_precision=fp16", "--perturb_initial_weights", "--evaluate_fp32"),
        *("--per_device_train_batch_size=4", "--num_train_epochs=2", "--learning_rate=1e-3"),
        *("--use_cpu", "--cpu_threads=1"),
    ]  # fmt: skip
    paths = [HERE, HERE.parent, HERE.parent.parent]
    settings = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    settings["PYTHONHASHSEED"] = "0"
    settings["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_"))}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
               "2", HERE / "sharded_processes.py", tiny_bert, folder,
               REPOSITORY / "recipes" / "classify.py", *arguments]  # fmt: skip
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            list(map(str, command)), env=inherited | CONFIGURATION | settings, stderr=log,
            stdout=log,
        ) as launcher,
    ):  # fmt: skip
        try:
            launcher.wait(timeout=400)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # ends its processes too, which `kill` would not
            raise
    assert launcher.returncode == 0, (folder / "log").read_text()[-6000:]
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    """The results of each process."""
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize(
    "key",
    [
        "fp32 padded",
        "fp32 padding-free",
        "bf16 padding-free",
        "fp16 padded",
        "bf16 float32 modules",
        "fp32 lora",
        "bf16 frozen",
    ],
)
def test_sharded_gradients_are_those_of_replicated_weights(ranks, key):
    for rank in ranks:
        sharded, replicated = rank[key]["sharded"], rank[key]["replicated"]
        assert sharded["effective_ids"] == replicated["effective_ids"]
        for actual, expected in zip(sharded["gradients"], replicated["gradients"], strict=True):
            assert relative_error(actual, expected) <= 1e-6
        assert relative_error(sharded["weights"], replicated["weights"]) <= 1e-6
        assert sharded["losses"] == pytest.approx(replicated["losses"], rel=1e-6)


def test_weights_gathered_in_bfloat16_change_the_gradient_by_their_rounding(ranks):
    for rank in ranks:
        rounded, exact = rank["gathered in bf16"], rank["bf16 padding-free"]["sharded"]
        assert rounded["effective_ids"] == exact["effective_ids"]
        first = relative_error(rounded["gradients"][0], exact["gradients"][0])
        assert 1e-4 < first < 0.1, "float32 gathers differ by at most 1e-6"
    one, other = (rank["gathered in bf16"]["weights"] for rank in ranks)
    assert torch.equal(one, other)


def test_sharded_modules_stay_in_float32(ranks):
    kept, plain = (
        ranks[0][f"bf16 {name}"]["sharded"] for name in ("float32 modules", "padding-free")
    )
    assert relative_error(kept["gradients"][0], plain["gradients"][0]) > 1e-4


@pytest.mark.parametrize("name", ["padded", "padding-free"])
def test_two_sharded_processes_train_like_one(ranks, tiny_bert, name):
    single = trained("fp32", problem_named(name, tiny_bert), batch_size=EFFECTIVE, micro_batches=1)
    for rank in ranks:
        sharded = rank[f"fp32 {name}"]["sharded"]
        for actual, expected in zip(sharded["gradients"], single["gradients"], strict=True):
            assert relative_error(actual, expected) <= GRADIENT_TOLERANCE["fp32"]


def test_an_overflow_on_one_process_skips_the_step_on_both(ranks):
    for rank in ranks:
        assert rank["overflow"] == [(False, 65536.0), (True, 32768.0), (False, 32768.0)]


def test_weights_are_gathered_perturbed_and_loaded_as_on_one_process(ranks, tiny_bert):
    model = problem_named("padded", tiny_bert).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    perturb_weights(model, seed=3)
    state = ranks[0]["state"]
    assert state["before"].keys() == before.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state["before"][name], before[name]), name
        assert torch.equal(state["perturbed"][name], tensor), name
    assert ranks[1]["state"]["before"] == {}
    model.load_state_dict(before)
    assert all(torch.equal(rank["state"]["after"], flat_weights(model)) for rank in ranks)


def test_gathered_weights_do_not_count_as_activations(ranks):
    for rank in ranks:
        assert rank["activations"]["sharded"] == rank["activations"]["replicated"]


def test_a_comparison_can_time_its_modes(ranks):
    assert all(rank["trial"].keys() == {"fp32", "bf16"} for rank in ranks)
    assert all(min(rank["trial"].values()) > 0 for rank in ranks)


def test_a_run_keeps_half_of_the_weights_per_process(folder):
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["topology"]["sharded"]
    assert record["model"]["architecture"] == "BertForSequenceClassification"
    assert record["best"]["epoch"] in (1, 2)
    assert record["metrics_fp32"]["accuracy"] is not None
    # Each of the two processes holds half of the float32 weights; small ones are padded.
    assert record["memory"]["weights"] < 0.6 * 4 * record["model"]["parameters"]


@pytest.mark.parametrize("name", ["run", "lora", "average"])
def test_the_saved_model_is_the_one_that_predicted(folder, name):
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(folder / name)
    model = AutoModelForSequenceClassification.from_pretrained(folder / name).eval()
    inputs = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**inputs).logits.softmax(1)
    file = "predictions.parquet" if name == "average" else "predictions_fp32.parquet"
    expected = pyarrow.parquet.read_table(folder / name / file)
    torch.testing.assert_close(
        probabilities, torch.tensor(expected["probabilities"].to_pylist()), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("name", ["run", "lora", "average"])
def test_a_resumed_run_ends_with_the_same_weights_and_predictions(folder, name):
    resumed = folder / f"{name}-resumed"
    record = json.loads((resumed / "run.json").read_text())
    assert [part["step"] for part in record["resumes"]] == [2]
    own = {"lora": ["adapter/adapter_model.safetensors"], "average": ["raw_weights.safetensors"]}
    for file in ("model.safetensors", "predictions.parquet", *own.get(name, [])):
        assert (resumed / file).read_bytes() == (folder / name / file).read_bytes()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_sharded_adapters_are_saved_and_merged(folder, tiny_bert):
    """PEFT merges the saved adapters into the base, and gets the saved model."""
    from peft import PeftModel

    base = AutoModelForSequenceClassification.from_pretrained(tiny_bert)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, folder / "lora" / "adapter").merge_and_unload()
    saved = AutoModelForSequenceClassification.from_pretrained(folder / "lora").state_dict()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(saved[name], tensor, rtol=0, atol=1e-6)
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert (saved[query] - before[query]).abs().max() > 1e-3


@pytest.mark.parametrize("file", ["model.safetensors", "raw_weights.safetensors"])
def test_sharded_averages_are_those_of_replicated_weights(folder, file):
    sharded, replicated = (
        load_file(folder / name / file) for name in ("average", "average-replicated")
    )
    assert sharded.keys() == replicated.keys()
    # The gradient of a key's bias is zero but for rounding, which AdamW divides by itself.
    for name in (name for name in sharded if not name.endswith("key.bias")):
        assert relative_error(sharded[name], replicated[name]) <= 2e-6, name
    raw = load_file(folder / "average" / "raw_weights.safetensors")
    average = load_file(folder / "average" / "model.safetensors")
    assert max(relative_error(average[name], raw[name]) for name in raw) > 1e-3


def test_the_best_epoch_of_sharded_adapters_is_restored(folder):
    best = json.loads((folder / "best" / "run.json").read_text())["best"]
    assert best["step"] in (3, 6), "the last epoch, so that nothing was restored"
    weights = {
        step: load_file(folder / "best" / "checkpoints" / f"step-{step}" / "model.safetensors")
        for step in (best["step"], 9)
    }
    saved = load_file(folder / "best" / "adapter" / "adapter_model.safetensors")
    assert len(saved) > 4
    for name, tensor in saved.items():
        own, last = (
            next(t for n, t in weights[step].items() if _plain(n).endswith(_plain(name)))
            for step in (best["step"], 9)
        )
        assert torch.equal(tensor, own), name
        assert not torch.equal(tensor, last), name


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".default", "")
