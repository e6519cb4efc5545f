"""Layer drop is off in several processes, which would wait for a layer that one of them skips."""

import csv
import sys

import pytest
from running import call, succeeded
from transformers import BartConfig, BartForSequenceClassification, FlaubertConfig, FlaubertModel

from ampft.models import training_mode
from ampft.models.training_mode import disable_layer_drop
from ampft.text.json_io import read_json_object


def tiny_bart(vocabulary=64, **settings):
    config = BartConfig(
        vocab_size=vocabulary, d_model=16, encoder_layers=2, decoder_layers=2, num_labels=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, max_position_embeddings=64, encoder_layerdrop=0.5,
        decoder_layerdrop=0.25, **settings,
    )  # fmt: skip
    return BartForSequenceClassification(config)


def tiny_flaubert():
    return FlaubertModel(FlaubertConfig(emb_dim=16, n_layers=2, n_heads=2, layerdrop=0.5))


@pytest.mark.parametrize("make", [tiny_bart, tiny_flaubert])
def test_what_the_model_reads_is_zero(make, monkeypatch):
    model = make()
    assert disable_layer_drop(model) is None  # in one process
    monkeypatch.setattr(training_mode, "world_size", lambda: 2)
    assert (
        disable_layer_drop(model) == "layer drop is off (layerdrop was 0.5): it needs one process"
    )
    kept = [m.layerdrop for m in model.modules() if hasattr(m, "layerdrop")]
    assert kept
    assert not any(kept)
    assert disable_layer_drop(model) is None


@pytest.mark.slow
@pytest.mark.full
def test_two_processes_train_it(tmp_path):
    from transformers import BertTokenizer

    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film")
    ids = {word: number for number, word in enumerate(words)}
    BertTokenizer(vocab=ids).save_pretrained(tmp_path / "model")
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    tiny_bart(len(words), **special, decoder_start_token_id=3).save_pretrained(tmp_path / "model")
    for name in ("train", "test"):
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = [(f"{word} film", word) for word in ("good", "bad")] * 20
            csv.writer(file).writerows([("text", "label"), *rows])
    files = [f"--{part}_file={tmp_path}/{part}.csv" for part in ("train", "test")]
    done = call(
        *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--standalone"),
        *("recipes/classify.py", "--model_name_or_path", tmp_path / "model", *files),
        *(f"--validation_file={tmp_path}/test.csv", "--max_train_steps", 10, "--cpu_threads", 1),
        *("--output_dir", tmp_path / "run", "--no-serve_back"),
        CUDA_VISIBLE_DEVICES="",
    )
    assert "layer drop is off (layerdrop was 0.5)" in succeeded(done).stdout
    assert read_json_object(tmp_path / "run" / "run.json")["topology"]["num_processes"] == 2
