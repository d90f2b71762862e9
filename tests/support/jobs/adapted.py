"""Models with adapters, on the host: what an engine would make of `adapt` and `initializers`."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data.batches.batch import PackedSequences
from finetune.adaptation.adapt import adapt, initializers
from finetune.adaptation.adapter import AdapterPlan
from finetune.adaptation.lora import is_adapters, plan_of
from finetune.adaptation.settings import AdaptationSettings
from pretrain.model.encoder import Encoder
from pretrain.model.initialization import FirstWeight
from pretrain.model.linear import Linear
from pretrain.model.presets import EsmShape


class WithHead(nn.Module):
    """An encoder and a head of one number for each slot."""

    def __init__(self, shape: EsmShape) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.head = Linear(shape.dim, 1)

    def forward(self, batch: PackedSequences) -> Tensor:
        out: Tensor = self.head(self.encoder(batch))
        return out


@dataclass(frozen=True)
class Adapted:
    """A model on the host, filled, with what it was made from."""

    model: WithHead
    plan: AdapterPlan | None
    first: Mapping[str, FirstWeight]

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def train_adapters(self, seed: int = 3) -> None:
        """Give B, A and magnitudes values as after training: none of them 0, none as it began."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in sorted(self.model.named_parameters()):
            if is_adapters(name):
                parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)


def adapted(
    shape: EsmShape,
    settings: AdaptationSettings,
    weights: Mapping[str, FirstWeight],
    seed: int = 0,
) -> Adapted:
    """A model of this shape that starts from `weights`."""
    plan = plan_of(settings, shape) if settings.kind == "lora" else None
    with torch.device("meta"):
        model = WithHead(shape)
    adapt(model, settings, plan)
    first = initializers(model, weights, seed, plan)
    model.to_empty(device="cpu")
    model.load_state_dict({name: weight() for name, weight in first.items()})
    return Adapted(model, plan, first)
