"""What of a fine-tuned model is trained, and where its first weights come from.

In: a model on the meta device with our encoder as its attribute `encoder`, and heads beside it. Out: the model with
adapters if they are asked for, and with `requires_grad` set on every parameter; its first weights. Nothing is kept.
"""

from collections.abc import Mapping

from torch import nn

from finetune.adaptation.adapter import AdapterPlan
from finetune.adaptation.lora import first_of_adapters, inject, is_adapters, plain_name
from finetune.adaptation.settings import AdaptationSettings
from pretrain.model.initialization import FirstWeight, initial_weights
from pretrain.trained_model import ENCODER


def adapt(model: nn.Module, settings: AdaptationSettings, plan: AdapterPlan | None) -> None:
    """Set what is trained: heads always; of the encoder nothing, the adapters of `plan`, or all.

    Args:
        model: on the meta device, before an engine prepares it; it is changed in place.
        settings: what the recipe asks for.
        plan: the adapters, for kind "lora" alone.
    """
    assert (plan is not None) == (settings.kind == "lora"), settings.kind
    if plan is not None:
        inject(model, plan)
    for name, parameter in model.named_parameters():
        inside = name.startswith(ENCODER)
        parameter.requires_grad_(not inside or settings.kind == "full" or is_adapters(name))


def initializers(
    model: nn.Module,
    weights: Mapping[str, FirstWeight],
    seed: int,
    plan: AdapterPlan | None = None,
) -> dict[str, FirstWeight]:
    """First value of every parameter of an adapted model, by name: what `ModelBundle.initializers` holds.

    Args:
        model: as `adapt` left it.
        weights: those that are given, by their names without adapters: `TrainedModel.weights`, and those of a head that
            draws its own. A parameter in neither is drawn as `pretrain.model.initialization` says.
        seed: seed of what is drawn.
        plan: the one that `adapt` was given.

    Raises:
        ValueError: `weights` lacks weights of the encoder, so that it is of another shape.
    """
    adapters = first_of_adapters(model, plan, weights, seed) if plan is not None else {}
    given = {name: weights[plain] for name, _ in model.named_parameters() if (plain := plain_name(name)) in weights}
    first = {**initial_weights(model, seed), **given, **adapters}
    missing = [plain_name(name) for name in first if name.startswith(ENCODER) and name not in {**given, **adapters}]
    if missing:
        raise ValueError(
            f"the weights to start from lack {len(missing)} of the encoder's, such as {missing[0]!r}: they are of "
            "another architecture or size; build the model with the shape that came with them"
        )
    return first
