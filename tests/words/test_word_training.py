"""Words with labels: the labelled tokens, windows, logits without padding, and exact gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, Training, flat_gradient, relative_error, text_problem
from tiny_text import tiny_task
from tiny_words import tiny_sentences, tiny_word_task
from torch import nn
from transformers import AutoTokenizer

from ampft.decision import word_positions
from ampft.errors import InputError
from ampft.evaluation.evaluate import evaluate
from ampft.kinds.windows import row_columns
from ampft.models.tokenizer import load_tokenizer, tokenization_of
from ampft.precision.accelerator import make_accelerator, numerics
from ampft.precision.resolve import resolve

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

SENTENCES, EFFECTIVE = 23, 16
CPU = torch.device("cpu")


def encode_texts(tokenizer, texts, *, max_length, stride, words=False):
    read = tokenization_of(tokenizer, max_length, stride=stride, words=words)
    tokens = read.encode(tokenizer.backend_tokenizer, texts)
    return row_columns(tokens)


def encode_words(tokenizer, sentences, **settings):
    return encode_texts(tokenizer, sentences, words=True, **settings)


def loaded(task):
    """The model of a task, whose new head is the same each time."""
    torch.manual_seed(0)
    return task.load_model()


def problem(task):
    torch.manual_seed(0)
    return text_problem(task)


def aligned(task, ids):
    """The batch that transformers' run_ner.py makes: -100 for all but first tokens of words."""
    part = task.data.splits["train"][ids]
    tokenizer = task.inputs.tokenizer
    batch = tokenizer(part["tokens"], is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full_like(batch["input_ids"], -100)
    for row, tags in enumerate(part["label"]):
        previous = None
        for position, word in enumerate(batch.word_ids(row)):
            if word is not None and word != previous:
                labels[row, position] = tags[word]
            previous = word
    return {**batch, "labels": labels}


@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
def test_the_loss_is_that_of_transformers_over_first_tokens(tiny_bert, remove_padding):
    task = tiny_word_task(tiny_bert, train=6, remove_padding=remove_padding)
    model = loaded(task)
    assert model.padding_free == remove_padding
    ids = np.arange(6)
    inputs = task.examples("train").collate(ids)
    ours = task.problem.loss(task.logits(model.model, inputs), inputs["labels"])
    theirs = loaded(task).model(**aligned(task, ids))
    words = task.labels["train"].counts.sum()
    assert ours.item() / words == pytest.approx(theirs.loss.item(), rel=1e-6)
    assert task.examples("train").weights.sum() == words < (inputs["attention_mask"]).sum() - 12


def brute_force(lengths_of_words, size, stride):
    """Window and position in it of the first token of each word: most context, then the first."""
    tokens = [word for word, length in enumerate(lengths_of_words) for _ in range(length)]
    starts = list(range(0, max(len(tokens) - stride, 1), size - stride))
    windows = [(start, min(start + size, len(tokens))) for start in starts]
    result = []
    for word in range(len(lengths_of_words)):
        first = tokens.index(word)
        contexts = []
        for number, (start, end) in enumerate(windows):
            if start <= first < end:
                left = np.inf if start == 0 else first - start
                right = np.inf if end == len(tokens) else end - 1 - first
                contexts.append((min(left, right), -number, first - start))
        _, number, position = max(contexts)
        result.append((-number, position))
    return windows, tokens, result


@pytest.mark.parametrize("seed", range(20))
def test_each_word_is_predicted_once_where_it_has_the_most_context(seed):
    generator = np.random.default_rng(seed)
    size = int(generator.integers(2, 12))
    stride = int(generator.integers(0, size))
    lengths = generator.integers(1, 4, int(generator.integers(1, 40))).tolist()
    windows, tokens, expected = brute_force(lengths, size, stride)
    padded = [np.array([-1, *tokens[start:end], -1]) for start, end in windows]
    found = word_positions(padded, stride)
    pairs = [(number, place - 1) for number, part in enumerate(found) for place in part]
    assert pairs == expected  # in the order of the words, none missing, none twice


def test_windows_hold_every_token_of_a_long_sentence(tiny_bert):
    tokenizer = load_tokenizer(str(tiny_bert), reads_words=True)
    (words,) = tiny_sentences(1, seed=3, longest=200)["tokens"]
    (whole,) = tokenizer([words], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    for columns in (
        encode_words(tokenizer, [words], max_length=16, stride=5),
        encode_texts(tokenizer, [" ".join(words)], max_length=16, stride=5),
    ):
        rows = [ids[1:-1] for ids in columns["input_ids"]]
        assert len(rows) > 5
        census = rows[0] + [token for row in rows[1:] for token in row[5:]]
        assert census == whole
        assert all(len(row) == 14 for row in rows[:-1])


def test_windows_do_not_depend_on_the_side_at_which_the_tokenizer_truncates(tiny_bert, tmp_path):
    AutoTokenizer.from_pretrained(tiny_bert, truncation_side="left").save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).truncation_side == "left"
    (words,) = tiny_sentences(1, seed=3, longest=200)["tokens"]
    left, right = (
        encode_words(
            load_tokenizer(str(folder), reads_words=True), [words], max_length=16, stride=5
        )
        for folder in (tmp_path, tiny_bert)
    )
    assert len(right["positions"]) > 5
    assert left == right


def test_a_word_without_a_token_is_read_as_unknown(tiny_bert):
    tokenizer = load_tokenizer(str(tiny_bert), reads_words=True)
    columns = encode_words(tokenizer, [["w1", "\u200d", "w2"]], max_length=9, stride=0)
    assert sum(ids.count(tokenizer.unk_token_id) for ids in columns["input_ids"]) == 1
    assert columns["positions"] == [[1, 2, 3]]
    assert columns["input_ids"][0][2] == tokenizer.unk_token_id


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": 14, "max_seq_length": 16}, "--stride: received 14; .* must be at most 13"),
        ({"max_seq_length": 2}, "--max_seq_length: received 2, .* at least 3"),
    ],
)
def test_windows_must_advance(tiny_bert, settings, message):
    with pytest.raises(InputError, match=message):
        tiny_word_task(tiny_bert, train=2, **settings)


WINDOWS = {"max_seq_length": 16, "stride": 5}


def by_hand(task, ids, model):
    """Mean loss over the words of sentences, one window at a time, without padding."""
    tokenizer, losses = task.inputs.tokenizer, []
    for row in ids:
        words, tags = (task.data.splits["train"][int(row)][name] for name in ("tokens", "label"))
        columns = encode_words(tokenizer, [words], **{"max_length": 16, "stride": 5})
        logits = [
            model(input_ids=torch.tensor([window])).logits[0, places]
            for window, places in zip(columns["input_ids"], columns["positions"], strict=True)
        ]
        losses.append(
            nn.functional.cross_entropy(
                torch.cat(logits).float(), torch.tensor(tags), reduction="none"
            )
        )
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_micro_batches_have_the_gradient_of_all_words_together(tiny_bert, mode, remove_padding):
    settings = {**WINDOWS, "remove_padding": remove_padding}
    task = tiny_word_task(tiny_bert, train=SENTENCES, **settings)
    assert task.examples("train").inputs.windows.max() > 2

    def trained(k):
        training = Training(
            mode, problem(task), EFFECTIVE // k, k, rate=lambda step: 0.0, loss_scale=4096.0
        )
        return list(training.steps())

    steps = {k: trained(k) for k in (1, 2, 4)}
    with numerics(resolve(mode, CPU)):
        for number, step in enumerate(steps[1]):
            model = loaded(tiny_word_task(tiny_bert, train=2, remove_padding=False)).model
            with torch.autocast("cpu", torch.float16, enabled=mode == "fp16"):
                losses = by_hand(task, step.effective_ids, model)
            (4096 * torch.cat(losses).mean()).backward()
            expected = flat_gradient(model) / 4096
            for k in steps:
                error = relative_error(steps[k][number].gradient, expected)
                assert error <= GRADIENT_TOLERANCE[mode], k


@pytest.mark.slow
def test_the_mean_of_means_of_sentences_is_another_gradient(tiny_bert):
    # Negative control: this is the mean over micro-batches with unequal numbers of words.
    task = tiny_word_task(tiny_bert, train=SENTENCES, **WINDOWS, remove_padding=False)
    model = loaded(task).model
    losses = by_hand(task, range(8), model)
    torch.cat(losses).mean().backward()
    exact = flat_gradient(model)
    model.zero_grad()
    torch.stack([part.mean() for part in by_hand(task, range(8), model)]).mean().backward()
    assert relative_error(flat_gradient(model), exact) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_predictions_do_not_depend_on_the_batch(tiny_bert, mode):
    task = tiny_word_task(tiny_bert, train=4, validation=17, **WINDOWS)
    accelerator = make_accelerator(resolve(mode, CPU))
    model = accelerator.prepare(loaded(task).model)
    with numerics(resolve(mode, CPU)):
        one, many = (
            evaluate(accelerator, model, task, "validation", batch_size=size) for size in (1, 5)
        )
    assert np.array_equal(one.labels, task.labels["validation"].codes)
    tolerance = 1e-6 if mode == "fp32" else 0.02
    np.testing.assert_allclose(one.probabilities, many.probabilities, atol=tolerance)


@pytest.mark.slow
def test_logits_of_windows_of_a_text_are_averaged(tiny_bert):
    settings = {"long_text": "windows", "max_seq_length": 12, "stride": 3}
    task = tiny_task(tiny_bert, train=SENTENCES, **settings)
    model = loaded(task)
    assert model.padding_free
    ids = np.arange(8)
    inputs = task.examples("train").collate(ids)
    assert len(inputs["input_ids"]) > 8 == len(inputs["labels"])
    logits = task.logits(model.model.eval(), inputs)
    plain = tiny_task(tiny_bert, train=2, remove_padding=False).load_model().model.eval()
    for row in ids:
        text = task.data.splits["train"][int(row)]["text"]
        columns = encode_texts(task.inputs.tokenizer, [text], max_length=12, stride=3)
        windows = [plain(input_ids=torch.tensor([ids])).logits[0] for ids in columns["input_ids"]]
        torch.testing.assert_close(logits[row], torch.stack(windows).mean(0), rtol=0, atol=1e-5)
    assert any("the logits of a text are the mean" in note for note in task.notes)
    whole = task.examples("train").lengths.sum()
    assert (
        whole
        > tiny_task(tiny_bert, train=SENTENCES, max_seq_length=12).examples("train").lengths.sum()
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_windows_of_texts_have_the_exact_gradient(tiny_bert, mode):
    settings = {"long_text": "windows", "max_seq_length": 12, "stride": 3}
    task = tiny_task(tiny_bert, train=SENTENCES, **settings)

    def gradients(k):
        training = Training(
            mode, problem(task), EFFECTIVE // k, k, rate=lambda step: 0.0, loss_scale=4096.0
        )
        return [step.gradient for step in training.steps()]

    whole = gradients(1)
    for k in (2, 4):
        for actual, expected in zip(gradients(k), whole, strict=True):
            assert relative_error(actual, expected) <= GRADIENT_TOLERANCE[mode]
    truncated = text_problem(tiny_task(tiny_bert, train=SENTENCES, max_seq_length=12))
    other = next(Training(mode, truncated, EFFECTIVE, rate=lambda step: 0.0).steps()).gradient
    assert relative_error(other, whole[0]) > 0.05


def test_flags_of_windows_that_make_no_sense(tiny_bert):
    with pytest.raises(InputError, match="--stride 3 has no effect on texts that are truncated"):
        tiny_task(tiny_bert, train=2, stride=3)


def test_class_weights_are_counted_over_words(tiny_bert):
    task = tiny_word_task(tiny_bert, train=60, class_weights="balanced", label_smoothing_factor=0.1)
    codes = task.labels["train"].codes
    counts = np.bincount(codes, minlength=5)
    weights = task.problem.words.class_weights
    np.testing.assert_allclose(weights, len(codes) / (5 * counts), rtol=1e-6)
    examples = task.examples("train")
    inputs = examples.collate(np.arange(60))
    logits = task.logits(loaded(task).model, inputs)
    expected = nn.CrossEntropyLoss(weight=torch.from_numpy(weights), label_smoothing=0.1)(
        logits, inputs["labels"]
    )
    actual = task.problem.loss(logits, inputs["labels"]) / examples.weights.sum()
    assert actual.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_tokenizer_of_bytes_puts_a_blank_before_each_word(tmp_path):
    from transformers import RobertaConfig, RobertaTokenizer

    words = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "Ġ", "Ġa")
    vocabulary = {word: index for index, word in enumerate(words)}
    RobertaTokenizer(vocab=vocabulary, merges=[("Ġ", "a")]).save_pretrained(tmp_path)
    RobertaConfig().save_pretrained(tmp_path)
    columns = encode_words(
        load_tokenizer(str(tmp_path), reads_words=True), [["a", "b", "a"]], max_length=16, stride=0
    )
    assert [words[i] for i in columns["input_ids"][0]] == ["<s>", "Ġa", "Ġ", "b", "Ġa", "</s>"]
    assert columns["positions"] == [[1, 2, 4]]
    plain = load_tokenizer(str(tmp_path))(["a", "b"], add_special_tokens=False)["input_ids"]
    assert [words[i] for row in plain for i in row] == ["a", "b"]
