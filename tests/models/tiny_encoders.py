"""Encoders small enough for tests, one per family and head."""

from collections.abc import Callable, Sequence

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    Data2VecTextConfig,
    Data2VecTextForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ErnieConfig,
    ErnieForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

VOCABULARY, LONGEST, CLASSES = 99, 48, 3
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    # RoBERTa's positions start after its padding id.
    "max_position_embeddings": LONGEST + 2,
    "num_labels": CLASSES,
}
DISTILBERT_SHAPE = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": LONGEST,
    "num_labels": CLASSES,
}
MODERNBERT_SHAPE = {
    **SHAPE,
    # One local and one global layer; the window is shorter than most sequences.
    "layer_types": ["sliding_attention", "full_attention"],
    "local_attention": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}

ENCODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertForSequenceClassification(BertConfig(**SHAPE)),
    "bert, tokens": lambda: BertForTokenClassification(BertConfig(**SHAPE)),
    "electra": lambda: ElectraForSequenceClassification(ElectraConfig(embedding_size=16, **SHAPE)),
    "ernie": lambda: ErnieForSequenceClassification(ErnieConfig(**SHAPE)),
    "roberta": lambda: RobertaForSequenceClassification(RobertaConfig(**SHAPE)),
    "xlm-roberta": lambda: XLMRobertaForSequenceClassification(XLMRobertaConfig(**SHAPE)),
    "camembert": lambda: CamembertForSequenceClassification(CamembertConfig(**SHAPE)),
    "data2vec": lambda: Data2VecTextForSequenceClassification(Data2VecTextConfig(**SHAPE)),
    "distilbert": lambda: DistilBertForSequenceClassification(DistilBertConfig(**DISTILBERT_SHAPE)),
    "modernbert, first token": lambda: ModernBertForSequenceClassification(
        ModernBertConfig(classifier_pooling="cls", **MODERNBERT_SHAPE)
    ),
    "modernbert, mean": lambda: ModernBertForSequenceClassification(
        ModernBertConfig(classifier_pooling="mean", **MODERNBERT_SHAPE)
    ),
}


def tiny(name: str, *, seed: int = 0) -> PreTrainedModel:
    """Return the encoder `name` with active dropout and random weights, which are large enough to
    make attention uneven."""
    torch.manual_seed(seed)
    model = ENCODERS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.train()


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Set all dropout probabilities to zero, so that training mode is deterministic."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    return model


def right_padded(
    model: PreTrainedModel, lengths: Sequence[int], *, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Return a batch of random tokens, with token types if the model takes them."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(4, VOCABULARY, mask.shape, generator=generator)
    padding = model.config.pad_token_id or 0
    batch = {"input_ids": ids * mask + padding * (1 - mask), "attention_mask": mask}
    if model.config.model_type in ("bert", "electra"):
        batch["token_type_ids"] = torch.randint(0, 2, mask.shape, generator=generator) * mask
    return batch


def loss_and_gradient(
    model: PreTrainedModel, batch: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the logits (of real tokens), the loss over them and the whole gradient, flat."""
    model.zero_grad()
    logits = model(**batch).logits
    if logits.dim() == 3:
        logits = logits[batch["attention_mask"] != 0]
    labels = torch.arange(len(logits)) % CLASSES
    loss = torch.nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return logits.detach(), loss.detach(), torch.cat([g.flatten() for g in gradients])


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |actual - expected| / |expected| in the Euclidean norm."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())
