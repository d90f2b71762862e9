"""The base of a bundle: the weights that it shares with the encoder that it was trained on.

In: a manifest, and where the user says that the base is. Out: its weights, with the content hash that the bundle was
trained on; all weights of the bundle's model. Kept: nothing.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from finetune.adaptation.lora import merged, plain_name
from finetune.bundle.folder import Bundle
from finetune.bundle.manifest import BaseModel
from pretrain.model.build import build_meta
from pretrain.model.settings import ModelSettings
from pretrain.trained_model import ENCODER, TrainedModel, open_trained_model, random_encoder
from zymogen.trainer.checkpoint.digests.digest import identity_of


def find_base(settings: ModelSettings, seed: int, start: TrainedModel) -> BaseModel:
    """The record of the encoder that a run starts from."""
    init = settings.init
    if init is not None and Path(init).exists():
        init = str(Path(init).resolve())
    return BaseModel(
        init=init, preset=settings.preset, seed=seed, dropout=settings.dropout, content_hash=start.content_hash()
    )


def base_weights(bundle: Bundle, given: str | None = None) -> dict[str, Tensor]:
    """The base's weights, float32 on the host, by their names without adapters.

    Args:
        bundle: that needs them.
        given: where the base is; None for where it was when the bundle was made.

    Raises:
        ValueError: there is nothing, or its shape or content is another than that of the base of the bundle.
    """
    base = bundle.manifest.base
    source = given or base.init
    if source is not None:
        if given is None and source.startswith("/") and not Path(source).exists():
            raise ValueError(
                f"{bundle.folder} needs the weights that it was trained on: {source}, which does not exist; say where "
                f"they are with --base (content hash {base.content_hash})"
            )
        start = open_trained_model(source, ENCODER)
    else:
        start = random_encoder(ModelSettings(preset=base.preset, dropout=base.dropout), base.seed)
    found = {name: weight() for name, weight in start.weights.items()}
    if (content_hash := identity_of(found.items())) != base.content_hash:
        raise ValueError(
            f"{start.origin} is not what {bundle.folder} was trained on: its content hash is {content_hash}, that of "
            f"the base was {base.content_hash}; say with --base where the right one is"
        )
    return found


def all_parameters(bundle: Bundle, names: Iterable[str], base: str | None = None) -> Mapping[str, Tensor]:
    """What was trained, and from the base the weights of the encoder that were not; float32 on the host.

    Args:
        bundle: opened.
        names: of the model's parameters, with or without adapters.
        base: as for `base_weights`, which is not called where everything was trained.

    Raises:
        ValueError: as for `base_weights`.
    """
    own = {plain_name(name) for name in bundle.tensors}
    absent = [name for name in names if name.startswith(ENCODER) and plain_name(name) not in own]
    if not absent:
        return bundle.tensors
    of_base = base_weights(bundle, base)
    return {**{name: of_base[plain] for name in absent if (plain := plain_name(name)) in of_base}, **bundle.tensors}


def merged_parameters(bundle: Bundle, base: str | None = None) -> Mapping[str, Tensor]:
    """The same of the model without adapters: their products are in the weights."""
    names = [name for name, _ in build_meta(bundle.manifest.encoder).named_parameters()]
    parameters, adapters = all_parameters(bundle, names, base), bundle.manifest.adapters
    return parameters if adapters is None else merged(parameters, adapters)
