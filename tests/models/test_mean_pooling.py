import re

import numpy as np
import pytest
import torch
from tiny_encoders import ENCODERS
from tiny_text import save_sentence_encoder, tiny_task, tiny_texts
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertTokenizer,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
)

import ampft
from ampft.arguments import parse_classify_arguments
from ampft.checks.baseline import frozen_encoder_baseline
from ampft.errors import InputError
from ampft.evaluation.probe import probe_decoded, with_probed_head
from ampft.evaluation.simple_methods import FROZEN
from ampft.integrations.finetune import command_line_words, data_settings
from ampft.models.mean_pooling import SCALE, SHIFT, SLOPE, SMALL, is_trained_through_mean, read_mean
from ampft.runs.prepare import prepare


def test_the_head_reads_the_mean_and_the_plain_class_serves_it(tiny_bert, tmp_path):
    """A twin by hand: mean of the last hidden states, one text at a time, and two norms."""
    task = tiny_task(tiny_bert, train=12, pooling="mean")
    loaded = task.load_model()
    assert loaded.padding_free
    assert any("reads the mean of the tokens" in note for note in loaded.notes)
    model = loaded.model.eval()
    plain = tiny_task(tiny_bert, train=12).load_model().model.eval()
    examples = task.examples("train")
    norm = torch.nn.LayerNorm(model.config.hidden_size, eps=model.config.layer_norm_eps)
    with torch.no_grad():
        for index in range(12):
            batch = examples.collate(np.array([index]))
            states = plain.bert(batch["input_ids"], batch["attention_mask"])[0][0]
            state = norm(norm(SCALE * states.mean(0) + states[0]))
            expected = model.classifier(torch.tanh(SLOPE * state))
            torch.testing.assert_close(task.logits(model, batch)[0], expected, atol=1e-5, rtol=1e-4)
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(again).__name__ == "BertForSequenceClassification"
    batch = examples.collate(np.arange(12))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        torch.testing.assert_close(
            again(**inputs).logits, task.logits(model, batch), atol=1e-5, rtol=1e-4
        )
    layers = again.config.num_hidden_layers
    read_mean(again)
    assert again.config.num_hidden_layers == layers, "the layer is added once"


def test_the_whole_layer_is_trained(tiny_bert):
    task = tiny_task(tiny_bert, train=12, pooling="mean")
    model = task.load_model().model
    batch = task.examples("train").collate(np.arange(12))
    task.logits(model, batch).square().sum().backward()
    without = [n for n, p in model.bert.encoder.layer[-1].named_parameters() if p.grad is None]
    assert without == []


@pytest.fixture(scope="module", params=["distilbert", "modernbert"])
def other_encoder(request, tiny_bert, tmp_path_factory):
    """A sentence encoder of another family, and the type of its model."""
    folder = tmp_path_factory.mktemp("models") / request.param
    words = BertTokenizer.from_pretrained(tiny_bert)
    words.model_input_names = ["input_ids", "attention_mask"]
    shared = {"vocab_size": len(words), "pad_token_id": words.pad_token_id}
    torch.manual_seed(0)
    if request.param == "distilbert":
        shape = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
        model = DistilBertModel(DistilBertConfig(**shared, **shape))
    else:
        ids = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
        shape = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
        model = ModernBertModel(ModernBertConfig(**shared, **shape, **ids, num_hidden_layers=2))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder, request.param


def test_heads_of_other_families_read_the_mean_and_plain_classes_serve_it(other_encoder, tmp_path):
    """A twin by hand from the plain encoder's last hidden states, one text at a time."""
    folder, family = other_encoder
    task = tiny_task(folder, train=12)
    loaded = task.load_model()
    assert loaded.begins_at_probe
    assert any("reads the mean of the tokens" in note for note in loaded.notes)
    model, plain = loaded.model.eval(), AutoModel.from_pretrained(folder).eval()
    examples = task.examples("train")
    width = model.config.hidden_size

    def expected_logits(batch):
        states = plain(batch["input_ids"], batch["attention_mask"])[0][0]
        if family == "modernbert":
            gelu = functional.gelu(SMALL * states.mean(0))
            return model.classifier(functional.layer_norm(gelu, (width,)))
        norm = torch.nn.LayerNorm(width, eps=1e-12)
        state = norm(norm(SCALE * states.mean(0) + states[0]))
        return model.classifier(torch.relu(state + SHIFT))

    with torch.no_grad():
        for index in range(12):
            batch = examples.collate(np.array([index]))
            found = task.logits(model, batch)[0]
            torch.testing.assert_close(found, expected_logits(batch), atol=1e-5, rtol=1e-4)
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(again).__module__.startswith("transformers.models")
    batch = examples.collate(np.arange(12))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        torch.testing.assert_close(
            again(**inputs).logits, task.logits(model, batch), atol=1e-5, rtol=1e-4
        )
    before = again.config.to_dict()
    read_mean(again)
    assert again.config.to_dict() == before, "it is done once"


def test_other_models_are_refused():
    model = ENCODERS["mpnet"]()
    with pytest.raises(InputError, match=r"--pooling mean: MPNetForSequenceClassification"):
        read_mean(model)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ('{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}', True),
        ('{"pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true}', False),
        ('{"pooling_mode": "mean"}', True),
        ("{", False),
        (None, False),
    ],
)
def test_the_files_of_sentence_transformers_say_how_tokens_are_pooled(tmp_path, values, expected):
    if values is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(values)
    assert is_trained_through_mean(str(tmp_path)) is expected


@pytest.fixture(scope="module")
def sentence_encoder(tiny_bert, tmp_path_factory):
    return save_sentence_encoder(tiny_bert, tmp_path_factory.mktemp("models") / "encoder")


@pytest.mark.parametrize(
    ("settings", "layers"),
    [({}, 3), ({"pooling": "first"}, 2), ({"lora_r": 2}, 2), ({"pooling": "mean"}, 3)],
)
def test_a_sentence_encoder_is_read_by_its_mean_by_default(sentence_encoder, settings, layers):
    loaded = tiny_task(sentence_encoder, train=12, **settings).load_model()
    assert loaded.model.config.num_hidden_layers == layers
    assert loaded.begins_at_probe == (settings == {})


def test_a_head_that_is_trained_already_keeps_its_pooling(tiny_bert):
    loaded = tiny_task(tiny_bert, train=12).load_model()
    assert loaded.model.config.num_hidden_layers == 2
    assert not loaded.begins_at_probe


def test_the_frozen_encoder_is_the_regression_that_the_head_began_at(sentence_encoder, monkeypatch):
    task = tiny_task(sentence_encoder, train=40, validation=30)
    probed = with_probed_head(task, task.load_model(), torch.device("cpu"))
    expected = probe_decoded(task, probed.model.eval(), "validation")["probabilities"]
    quarter = with_probed_head(task, task.load_model(), torch.device("cpu"), size=0.25)
    monkeypatch.setattr("ampft.evaluation.probe.fit_regression", None)  # it is not fitted again
    monkeypatch.setattr("ampft.checks.baseline.LogisticRegression", None)
    arguments = task, "validation", torch.device("cpu"), 0, lambda seconds: None
    outcome = frozen_encoder_baseline(*arguments, quarter.probe)
    np.testing.assert_allclose(outcome.probabilities, expected, atol=1e-6)
    with pytest.raises(TypeError):
        frozen_encoder_baseline(*arguments)


@pytest.mark.slow
def test_the_scale_of_the_probe_is_the_users(sentence_encoder, tmp_path):
    rows = [
        {"text": text, "label": "abc"[label]}
        for text, label in zip(*tiny_texts(60).values(), strict=True)
    ]

    def notes(folder, **settings):
        data, named = data_settings({}, train=rows, validation=None, test=None)
        words = command_line_words(
            {
                **named, **settings, "model_name_or_path": str(sentence_encoder),
                "output_dir": str(tmp_path / folder), "max_train_steps": 1,
            }
        )  # fmt: skip
        args = parse_classify_arguments(words, program="x", in_memory=data is not None)
        prepared = prepare(args, data)
        return prepared.loaded.notes[-1], prepared.loaded.model.classifier.weight.detach()

    quarter, whole = notes("a"), notes("b", probe_scale=1)
    assert quarter[0].endswith("; its logits are multiplied by 0.25")
    assert "its logits" not in whole[0]
    torch.testing.assert_close(4 * quarter[1], whole[1])
    with pytest.raises(InputError, match=r"--probe_scale 0.5 has no effect, because the head of"):
        notes("c", probe_scale=0.5, head_init="random")


@pytest.mark.slow
def test_runs_of_other_families_serve_the_mean(other_encoder, tmp_path):
    rows = [
        {"text": text, "label": "abc"[label]}
        for text, label in zip(*tiny_texts(60).values(), strict=True)
    ]
    run = ampft.finetune(
        rows,
        output_dir=str(tmp_path / "run"),
        model_name_or_path=str(other_encoder[0]),
        max_seq_length=40,
        num_train_epochs=2,
        use_cpu=True,
    )
    assert any("begins as logistic regression" in note for note in run.record.model.notes)
    assert any(each.name == FROZEN and each.metrics for each in run.record.simple_methods)
    assert run.record.served_back is not None
    served = run.record.served_back.text()
    assert re.match(r"(\d+) of \1 rows equal in transformers.pipeline", served)


@pytest.mark.slow
def test_a_run_serves_the_mean_and_another_one_continues_it(sentence_encoder, tmp_path):
    settings = {
        "model_name_or_path": str(sentence_encoder),
        "max_seq_length": 40,
        "num_train_epochs": 2,
        "use_cpu": True,
    }
    rows = [
        {"text": text, "label": "abc"[label]}
        for text, label in zip(*tiny_texts(80).values(), strict=True)
    ]
    run = ampft.finetune(rows, output_dir=str(tmp_path / "run"), **settings)
    notes = " ".join(run.record.model.notes)
    assert "new head, which the file does not have: classifier.bias, classifier.weight" in notes
    assert "begins as logistic regression" in notes
    assert run.record.arguments["learning_rate"] == 5e-5, "half of the rate of a random head"
    assert "random" not in notes, "nothing says that a head that begins at a probe is random"
    assert any(each.name == FROZEN and each.metrics for each in run.record.simple_methods)
    assert run.record.served_back is not None
    served = run.record.served_back.text()
    assert re.match(r"(\d+) of \1 rows equal in transformers.pipeline", served)
    settings["model_name_or_path"] = str(run.folder)
    again = ampft.finetune(rows, output_dir=str(tmp_path / "again"), **settings)
    assert again.model.config.num_hidden_layers == 3
    assert not any("logistic" in note for note in again.record.model.notes), "the head is kept"
    assert again.record.arguments["learning_rate"] == 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "settings", "epochs"),
    [("abb", {}, 8), ("abc", {}, 16), ("abb", {"head_init": "random"}, 16)],
)
def test_two_classes_from_a_probe_train_half_as_long(
    sentence_encoder, tmp_path, names, settings, epochs
):
    """The limit of epochs, which 54 training rows in batches of 8 reach."""
    texts = zip(*tiny_texts(60).values(), strict=True)
    run = ampft.finetune(
        [{"text": text, "label": names[label]} for text, label in texts],
        model_name_or_path=str(sentence_encoder), output_dir=str(tmp_path / "run"),
        max_seq_length=40, max_train_steps=1, baseline=False, serve_back=False, use_cpu=True,
        **settings,
    )  # fmt: skip
    assert run.record.arguments["num_train_epochs"] == epochs
