"""Models small enough for tests, one per family and head."""

from collections.abc import Callable, Sequence

import torch
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    Data2VecTextConfig,
    Data2VecTextForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ErnieConfig,
    ErnieForSequenceClassification,
    EuroBertConfig,
    EuroBertForSequenceClassification,
    GemmaConfig,
    GemmaForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPTNeoXConfig,
    GPTNeoXForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    MT5Config,
    MT5ForSequenceClassification,
    PhiConfig,
    PhiForSequenceClassification,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
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
    "attention_dropout": 0.1,
    "mlp_dropout": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
DECODER_SHAPE = {
    **SHAPE,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "attention_dropout": 0.1,
}
T5_SHAPE = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    # Long texts need the buckets of distances that share an embedding.
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "initializer_factor": 0.3,  # because T5 does not scale its scores
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "num_labels": CLASSES,
}
DEBERTA_SHAPE = {
    **SHAPE,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "pooler_hidden_size": 32,
    "max_relative_positions": LONGEST,
    "pad_token_id": 0,
}


def _deberta(**options: object) -> PreTrainedModel:
    return DebertaV2ForSequenceClassification(DebertaV2Config(**DEBERTA_SHAPE, **options))


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
    "albert": lambda: AlbertForSequenceClassification(AlbertConfig(embedding_size=16, **SHAPE)),
    "mpnet": lambda: MPNetForSequenceClassification(MPNetConfig(**SHAPE)),
    "deberta-v2": _deberta,
    # As in DeBERTa-v3: shared projections, buckets of distances, no absolute positions.
    "deberta-v3": lambda: _deberta(
        share_att_key=True,
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
    ),
    "eurobert": lambda: EuroBertForSequenceClassification(EuroBertConfig(**DECODER_SHAPE)),
    "t5": lambda: T5ForSequenceClassification(T5Config(**T5_SHAPE)),
    "mt5": lambda: MT5ForSequenceClassification(MT5Config(**T5_SHAPE)),
    "gpt2": lambda: GPT2ForSequenceClassification(GPT2Config(**SHAPE, pad_token_id=0)),
    "gpt_neox": lambda: GPTNeoXForSequenceClassification(
        GPTNeoXConfig(**SHAPE, attention_dropout=0.1, hidden_dropout=0.1, pad_token_id=0)
    ),
    "llama": lambda: LlamaForSequenceClassification(LlamaConfig(**DECODER_SHAPE)),
    "mistral": lambda: MistralForSequenceClassification(
        MistralConfig(sliding_window=8, **DECODER_SHAPE)
    ),
    "qwen2": lambda: Qwen2ForSequenceClassification(
        Qwen2Config(use_sliding_window=True, sliding_window=8, max_window_layers=1, **DECODER_SHAPE)
    ),
    "qwen3": lambda: Qwen3ForSequenceClassification(Qwen3Config(**DECODER_SHAPE)),
    "gemma": lambda: GemmaForSequenceClassification(GemmaConfig(**DECODER_SHAPE)),
    "phi": lambda: PhiForSequenceClassification(
        PhiConfig(**SHAPE, attention_dropout=0.1, resid_pdrop=0.1, pad_token_id=0)
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
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
        if isinstance(getattr(module, "dropout", None), float):  # T5's attention
            module.dropout = 0.0
    return model


def right_padded(
    model: PreTrainedModel, lengths: Sequence[int], *, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Return a batch of random tokens, with token types if the model takes them."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(4, VOCABULARY, mask.shape, generator=generator)
    if model.config.is_encoder_decoder:  # its head reads the end of the text
        ids[torch.arange(len(ids)), mask.sum(1) - 1] = model.config.eos_token_id
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


class PackedAs:
    """A model that always receives a layout."""

    def __init__(self, model, packing):
        self.model, self.packing = model, packing

    def __call__(self, **batch):
        return self.model(**batch, packing=self.packing)

    def __getattr__(self, name):
        return getattr(self.model, name)
