"""Models with unusual files or families: train, ampft predict and a pipeline give equal answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from media_files import image_folder, sound_table
from running import BIN, CLASSIFY, call_here, succeeded
from safetensors.torch import save_file
from tiny_text import tiny_task
from tiny_words import write_sentences
from transformers import AutoTokenizer

from ampft.kinds.impossible_rows import refuse_impossible_rows
from ampft.models.adapters import save_model_or_adapters
from ampft.runs.record import read_record

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
OWN_CODE = """
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class OwnConfig(PreTrainedConfig):
    model_type = "own-code"

    def __init__(self, vocab_size=100, **others):
        self.vocab_size = vocab_size
        super().__init__(**others)


class OwnForSequenceClassification(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "body"

    def __init__(self, config):
        super().__init__(config)
        self.body = nn.Embedding(config.vocab_size, 16)
        self.classifier = nn.Linear(16, config.num_labels)
        self.post_init()

    def get_input_embeddings(self):
        return self.body

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.1)

    def forward(self, input_ids=None, attention_mask=None, **others):
        mask = attention_mask[..., None].float()
        mean = (self.body(input_ids) * mask).sum(1) / mask.sum(1)
        return SequenceClassifierOutput(logits=self.classifier(mean))
"""


def of_family(name: str, **config: object) -> Callable[[Path, Path], None]:
    """Return a function that saves an encoder of a family, with the tokenizer of a tiny model."""

    def save(folder: Path, tiny: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tiny)
        kind = getattr(transformers, f"{name}Config")
        padding = {"pad_token_id": tokenizer.pad_token_id}
        values = {**SIZES, "vocab_size": len(tokenizer), **padding, **config}
        getattr(transformers, f"{name}Model")(kind(**values)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return save


def sharded(folder: Path, tiny: Path) -> None:
    model = transformers.AutoModel.from_pretrained(tiny)
    model.save_pretrained(folder, max_shard_size="20KB")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    assert len(list(folder.glob("model-*.safetensors"))) > 1


def old_names(folder: Path, tiny: Path) -> None:
    """Save the parameters of layer norms as gamma and beta, as TensorFlow's BERT has them."""
    of_family("Bert")(folder, tiny)
    model = transformers.BertModel.from_pretrained(folder)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if "LayerNorm" in name:
            tensor = tensor + 0.3 * torch.randn_like(tensor)
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def canine(folder: Path, tiny: Path) -> None:
    del tiny
    small = {"num_hash_buckets": 64, "max_position_embeddings": 256, "downsampling_rate": 4}
    config = transformers.CanineConfig(**SIZES, **small, local_transformer_stride=16)
    transformers.CanineModel(config).save_pretrained(folder)
    transformers.CanineTokenizer(model_max_length=128).save_pretrained(folder)


def own_code(folder: Path, tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.save_pretrained(folder)
    (folder / "modeling_own.py").write_text(OWN_CODE)
    sys.path.insert(0, str(folder))
    try:
        module = import_module("modeling_own")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("modeling_own", None)
    config = module.OwnConfig(len(tokenizer), num_labels=3)  # it has no pad_token_id
    module.OwnForSequenceClassification(config).save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    head = "AutoModelForSequenceClassification"
    values["auto_map"] = {
        "AutoConfig": "modeling_own.OwnConfig",
        head: "modeling_own.OwnForSequenceClassification",
    }
    (folder / "config.json").write_text(json.dumps(values))


def fnet_of_another_tokenizer(folder: Path, tiny: Path) -> None:
    """Save a model that takes no mask, and whose padding token is in each text."""
    sizes = {name: size for name, size in SIZES.items() if name != "num_attention_heads"}
    tokenizer = AutoTokenizer.from_pretrained(tiny, model_input_names=["input_ids"])
    padding = tokenizer.convert_tokens_to_ids("[SEP]")
    config = transformers.FNetConfig(**sizes, vocab_size=len(tokenizer), pad_token_id=padding)
    transformers.FNetModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


TEXT = {
    "sharded": sharded,
    "gamma and beta": old_names,
    "canine": canine,
    "fnet of another tokenizer": fnet_of_another_tokenizer,
    "longformer": of_family("Longformer", attention_window=[8, 8], max_position_embeddings=140),
    "bigbird": of_family("BigBird", block_size=8, num_random_blocks=1, max_position_embeddings=256),
}
QUICK = ("sharded", "gamma and beta", "fnet of another tokenizer")


def trained(folder: Path, *words: object) -> Path:
    steps = ("--max_train_steps", 4, "--output_dir", folder, "--use_cpu")
    succeeded(call_here(CLASSIFY, *words, *steps))
    return folder


def check_served(run: Path) -> None:
    part = read_record(run).served_back
    for client in part.clients:
        assert client.agrees, part
        assert client.asked > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in TEXT]
)
def test_models_of_texts(name, files, tiny_model, tmp_path):
    torch.manual_seed(0)
    TEXT[name](tmp_path / "model", tiny_model)
    data = ("--train_file", files / "train.csv", "--test_file", files / "test.csv")
    check_served(trained(tmp_path / "run", *data, "--model_name_or_path", tmp_path / "model"))


def test_a_saved_bigbird_attends_as_the_trained_one(tiny_model, tmp_path):
    """A short text changes the attention of the model for good, and a server begins with any."""
    torch.manual_seed(0)
    TEXT["bigbird"](tmp_path / "model", tiny_model)
    load = transformers.BigBirdForSequenceClassification.from_pretrained
    model = load(tmp_path / "model").eval()
    short, long = torch.randint(4, 8, (1, 8)), torch.randint(4, 8, (1, 96))
    with torch.no_grad():
        sparse = model.bert(long)[0]
        model(short)
        expected = model.bert(long)[0]
        assert (sparse - expected).abs().max() > 1e-3
        save_model_or_adapters(model, tmp_path / "saved", None, None)
        found = load(tmp_path / "saved").eval().bert(long)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", ["longformer", "bigbird"])
def test_models_of_words(name, tiny_model, tmp_path):
    torch.manual_seed(0)
    TEXT[name](tmp_path / "model", tiny_model)
    write_sentences(tmp_path / "train.conll", 60)
    data = ("--train_file", tmp_path / "train.conll")
    check_served(trained(tmp_path / "run", *data, "--model_name_or_path", tmp_path / "model"))


@pytest.mark.full
@pytest.mark.slow
def test_swin(tmp_path):
    config = transformers.SwinConfig(
        image_size=32, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    transformers.SwinModel(config).save_pretrained(tmp_path / "model")
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(tmp_path / "model")
    data = image_folder(tmp_path / "images", 8)
    run = trained(
        tmp_path / "run", "--dataset_name", data, "--model_name_or_path", tmp_path / "model"
    )
    check_served(run)


@pytest.mark.full
@pytest.mark.slow
def test_whisper(tmp_path):
    layers = ("encoder_layers", "decoder_layers")
    heads = ("encoder_attention_heads", "decoder_attention_heads")
    widths = ("encoder_ffn_dim", "decoder_ffn_dim")
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(
        vocab_size=64, d_model=32, max_source_positions=100, suppress_tokens=[],
        begin_suppress_tokens=[], **dict.fromkeys(layers, 1), **dict.fromkeys(heads, 2),
        **dict.fromkeys(widths, 64), **tokens,
    )  # fmt: skip
    transformers.WhisperForAudioClassification(config).save_pretrained(tmp_path / "model")
    transformers.WhisperFeatureExtractor(chunk_length=2).save_pretrained(tmp_path / "model")
    data = sound_table(tmp_path / "sounds", 8, rate=16_000)
    run = trained(
        tmp_path / "run", "--train_file", data, "--model_name_or_path", tmp_path / "model"
    )
    check_served(run)


@pytest.mark.slow
def test_a_model_of_own_code(files, tiny_model, tmp_path, monkeypatch):
    def asked(*_: object) -> str:
        raise AssertionError("a question on the terminal")

    monkeypatch.setattr("builtins.input", asked)
    own_code(tmp_path / "model", tiny_model)
    data = ("--train_file", files / "train.csv", "--test_file", files / "test.csv")
    model = ("--model_name_or_path", tmp_path / "model", "--trust_remote_code")
    run = trained(tmp_path / "run", *data, *model)
    check_served(run)
    predict = (BIN / "ampft", "predict", "--model", run, "--text", "the iron apple")
    done = call_here(*predict)
    assert done.returncode == 2
    assert "add --trust_remote_code" in done.stderr
    assert succeeded(call_here(*predict, "--trust_remote_code")).stdout.startswith(
        "text,prediction"
    )
    code = run / "modeling_own.py"
    code.write_text(code.read_text() + "\n")
    done = call_here(*predict, "--trust_remote_code")
    assert done.returncode == 2
    assert "modeling_own.py" in done.stderr


@pytest.mark.slow
def test_a_tokenizer_of_sentencepiece_without_that_package(files, tiny_model, tmp_path):
    of_family("DebertaV2")(tmp_path / "model", tiny_model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).unlink()
    (tmp_path / "model" / "spm.model").write_bytes(
        b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02"
    )
    if find_spec("sentencepiece") is not None:
        pytest.skip("sentencepiece is installed")
    data = ("--train_file", files / "train.csv", "--output_dir", tmp_path / "run")
    done = call_here(CLASSIFY, *data, "--model_name_or_path", tmp_path / "model")
    assert done.returncode == 2
    assert "pip install sentencepiece protobuf" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_row_that_a_model_cannot_take_is_named_before_the_first_step(split, files, tmp_path):
    torch.manual_seed(0)
    canine(tmp_path / "model", tmp_path)
    text = (files / f"{split}.csv").read_text().splitlines()
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([*text[:8], "a,metal", *text[8:20], "b,river", *text[20:]]))
    named = {name: files / f"{name}.csv" for name in ("train", "validation", "test")} | {split: bad}
    data = [word for name, path in named.items() for word in (f"--{name}_file", path)]
    words = ("--model_name_or_path", tmp_path / "model", "--output_dir", tmp_path / "run")
    done = call_here(CLASSIFY, *data, *words, "--max_train_steps", 2, "--use_cpu")
    assert done.returncode == 2
    assert (
        f"error: {bad}, lines 9, 22: CanineForSequenceClassification cannot take it" in done.stderr
    )
    assert done.stderr.endswith("Remove or lengthen these rows.\n")
    assert not (tmp_path / "run").exists()


def test_a_model_that_takes_no_row_is_not_refused_by_row(tiny_bert):
    task = tiny_task(tiny_bert, train=6)
    model = task.load_model().model
    model.config.pad_token_id = 0
    refuse_impossible_rows(model, None, task.inputs.splits, task.data, task.settings)

    def fail(*_, **__):
        raise RuntimeError("never")

    model.forward = fail
    found = refuse_impossible_rows(model, None, task.inputs.splits, task.data, task.settings)
    assert found is None, "a model that fails anyway is not the fault of a row"
