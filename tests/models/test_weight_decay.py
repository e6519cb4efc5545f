"""Which parameters decay: those of the Trainer of transformers, in every family of tests."""

import pytest
import transformers
from tiny_encoders import ENCODERS
from tiny_masks import tiny_erfnet
from tiny_media import IMAGE_FAMILIES, SOUND_FAMILIES
from torch import nn

from ampft.engine.optimizer import OptimizerSettings, make_optimizer

MODELS = {
    **ENCODERS,
    **{n: lambda c=c: transformers.AutoModelForImageClassification.from_config(c())
       for n, (c, _) in IMAGE_FAMILIES.items()},
    **{n: lambda c=c: transformers.AutoModelForAudioClassification.from_config(c())
       for n, (c, _) in SOUND_FAMILIES.items()},
    "erfnet": tiny_erfnet,
    "erfnet, batch norm": lambda: tiny_erfnet(batch_norm=True),
}  # fmt: skip


def decayed_by(model: nn.Module, optim: str) -> set[str]:
    """Return the names of the parameters with weight decay."""
    settings = OptimizerSettings(learning_rate=1.0, weight_decay=0.1, name=optim)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = make_optimizer(model, settings).param_groups
    return {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}


@pytest.mark.parametrize("name", MODELS)
def test_the_parameters_that_decay_are_those_of_the_trainer(name):
    model = MODELS[name]()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    expected = {*transformers.Trainer.get_decay_parameter_names(None, model)} & trained
    assert decayed_by(model, "adamw_torch") == decayed_by(model, "adafactor") == expected
    assert expected < trained


@pytest.mark.parametrize("name", ["t5", "mpnet", "swin"])
def test_the_number_of_dimensions_would_not_say_it(name):
    model = MODELS[name]()
    matrices = {name for name, p in model.named_parameters() if p.requires_grad and p.ndim > 1}
    assert decayed_by(model, "adamw_torch") < matrices


def test_muon_decays_the_same_matrices():
    model = MODELS["deberta-v2"]()
    assert decayed_by(model, "muon") == decayed_by(model, "adamw_torch")
