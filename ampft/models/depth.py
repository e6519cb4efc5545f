"""The depth of each parameter of an encoder, from its embeddings to its head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ampft.models.freezing import base_of, has_table, head_names, is_in, layers_of


@dataclass(frozen=True)
class Depths:
    """The depths of the parameters of a model with L layers.

    Attributes:
        of_parameter: Depth by name of the parameter: 1 to L in the layers; L + 1 in the head, the
            pooler and what else follows the layers; 0 in embeddings and the rest.
        head: L + 1.
    """

    of_parameter: dict[str, int]
    head: int

    def is_in_layers(self, name: str) -> bool:
        """Return whether a parameter belongs to one of the layers."""
        return 0 < self.of_parameter[name] < self.head


def depths_of(model: nn.Module) -> Depths | None:
    """Return the depths of the parameters; None if the layers of the model are not one list.

    Args:
        model: Model of transformers.
    """
    base, outside = base_of(model), head_names(model)
    path, layers = layers_of(base)
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if layers is None or not path or is_encoder_decoder:
        return None
    depth_of = {
        id(parameter): depth
        for depth, layer in enumerate(layers, start=1)
        for parameter in layer.parameters()
    }
    head = len(layers) + 1
    children = list(base.named_children())
    place = [name for name, _ in children].index(path.partition(".")[0])
    following = [child for _, child in children[place + 1 :] if not has_table(child)]
    depth_of |= {id(p): head for module in following for p in module.parameters()}
    return Depths(
        {
            name: head if is_in(name, outside) else depth_of.get(id(parameter), 0)
            for name, parameter in model.named_parameters()
        },
        head,
    )
