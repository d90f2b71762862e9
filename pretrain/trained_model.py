"""A trained model by the name that a user gives it: a run, an export, a folder of transformers, or a name on a hub.

In: a path or a Hub name. Out: its shape, its weights, and the model that they make. Kept: the weights, in memory: once
a source is open, nothing is read by its name, so that a run that trains may remove its checkpoint.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.model.build import build_initialized, build_meta
from pretrain.model.encoder import Encoder
from pretrain.model.initialization import FirstWeight
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.settings import ModelSettings
from pretrain.model.weights.finite import require_finite
from zymogen.settings.extension import is_external
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.digests.digest import identity_of
from zymogen.trainer.checkpoint.load import Check, VerifiedCheckpoint, find, newest_valid, removed, verify
from zymogen.trainer.checkpoint.reader import read_tensors
from zymogen.trainer.run.directory import RunDirectory

ENCODER = "encoder."
"""Begin of the names of an encoder's parameters, in a pretrained model and in a fine-tuned one."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained model, or its encoder alone."""

    shape: EsmShape
    weights: Mapping[str, FirstWeight]
    """Names of parameters -> what gives the whole weight, float32 on the host."""
    origin: str
    """Where the weights were found, for the console."""
    name: str = ""
    """Short, for columns and files: the last part of the path or of the Hub name."""

    def content_hash(self) -> str:
        """Hash of all weights (`zymogen.trainer.checkpoint.digests.digest.identity_of`); makes each of them once."""
        return identity_of((name, weight()) for name, weight in self.weights.items())


def open_trained_model(source: str | Path, part: str = "") -> TrainedModel:
    """The trained model at `source`.

    Args:
        source: the directory of a pretraining run, whose newest whole checkpoint is read, or its export where it has
            no checkpoint; one of its checkpoints; a directory or Hub name of an `EsmForMaskedLM` or `EsmcForMaskedLM`.
        part: weights whose names begin so are given, and must be there: `ENCODER`, or "" for all.

    Raises:
        ValueError: there is nothing of the kind, or it lacks weights.
    """
    folder = Path(source)
    if (folder / "run.json").is_file():
        return _of_run(RunDirectory(folder), part)
    run = RunDirectory(folder.absolute().parent.parent)
    if folder.absolute() in find(run.checkpoints):
        return _of_run(run, part, folder)
    from pretrain.model.weights import io as transformers_io  # transformers takes seconds to import

    shape, weights, _ = transformers_io.published(source)
    kept = {name: weight for name, weight in weights.items() if name.startswith(part)}
    return TrainedModel(shape, kept, str(source), _name(source))


def random_encoder(settings: ModelSettings, seed: int) -> TrainedModel:
    """The encoder of random weights with which a run begins that is given no model."""
    shape, weights = build_initialized(settings, seed)
    encoder = {name: weight for name, weight in weights.items() if name.startswith(ENCODER)}
    return TrainedModel(shape, encoder, f"random weights of {settings.preset}")


def _name(source: str | Path) -> str:
    """The last part of a path or of a Hub name; that of a run where it is the run's export."""
    path = Path(source)
    if path.exists():
        path = path.resolve()
        if path.name == "export" and (path.parent / "run.json").is_file():
            path = path.parent
    return path.name


def _of_run(run: RunDirectory, part: str, chosen: Path | None = None) -> TrainedModel:
    """The newest checkpoint of a run, or the one that was `chosen`."""

    def read(checkpoint: VerifiedCheckpoint) -> dict[str, Tensor]:
        names = [name for name in checkpoint.index["model"].names if name.startswith(part)]
        return read_tensors(checkpoint, "model", names)

    checkpoint = read_checkpoint(run, read, chosen)
    if checkpoint is None:
        if (run.export / "config.json").is_file():
            return open_trained_model(run.export, part)
        raise ValueError(f"{run.root} has no checkpoint and no export yet; train until the first one is written")
    if part != ENCODER:
        require_own_head(run)
    described: dict[str, Any] = run.model()
    try:
        shape = EsmShape(**described)
    except TypeError as error:
        raise ValueError(
            f"{run.root} is no pretraining run: its run.json describes the model by {sorted(described)}; name the run "
            "or the published model that it started from"
        ) from error
    names = [name for name, _ in build_meta(shape).named_parameters() if name.startswith(part)]
    if missing := [name for name in names if name not in checkpoint.tensors]:
        of = "encoder" if part == ENCODER else "model"
        raise ValueError(
            f"{checkpoint.path} lacks {len(missing)} of the {of}'s {len(names)} weights, such as {missing[0]!r}, "
            "because its run did not train them; start from the run's export"
        )
    step = checkpoint.trainer.step
    name = _name(run.root) if chosen is None else f"{_name(run.root)}-step-{step}"
    weights = {name: partial(Tensor.detach, checkpoint.tensors[name]) for name in names}
    return TrainedModel(shape, weights, f"{run.root}, step {step}", name)


def read_checkpoint(run: RunDirectory, read: Check, chosen: Path | None = None) -> VerifiedCheckpoint | None:
    """The newest whole checkpoint of a run, or the one that was `chosen`, with what `read` reads; None without any.

    Where a run that trains removes the newest meanwhile, a newer one is read.

    Raises:
        ValueError: the chosen one is damaged.
        InvalidCheckpointError: it was removed meanwhile.
    """
    if chosen is None:
        return newest_valid(run.checkpoints, writer=False, check=read)
    try:
        return verify(chosen, read)
    except InvalidCheckpointError as error:
        if not os.path.lexists(chosen):
            raise removed(chosen) from error
        raise ValueError(f"{chosen} is not whole: {error}; name another checkpoint, or the run") from error


def require_own_head(run: RunDirectory) -> None:
    """Refuse a run whose model has the head of an objective of the user's.

    Raises:
        ValueError: so.
    """
    name = run.read().recipe.get("objective", {}).get("name")
    if is_external(name):
        raise ValueError(
            f"{run.root} was trained by {name}, whose head fills in no residues: only its encoder can be read, as "
            "python -m finetune.embed and model.init of python -m finetune do"
        )


def masked_language_model(source: TrainedModel, device: torch.device | str = "cpu") -> MaskedLanguageModel:
    """The whole model, float32, in evaluation mode; its parameters take no gradient.

    Raises:
        ValueError: weights are NaN or infinite.
    """
    model: MaskedLanguageModel = build_meta(source.shape)
    _fill(model, source, "", device)
    return model


def encoder_of(source: TrainedModel, device: torch.device | str = "cpu") -> Encoder:
    """The encoder, float32, in evaluation mode; its parameters take no gradient.

    Raises:
        ValueError: weights are NaN or infinite.
    """
    with torch.device("meta"):
        encoder = Encoder(source.shape)
    _fill(encoder, source, ENCODER, device)
    return encoder


@torch.no_grad()
def _fill(module: nn.Module, source: TrainedModel, prefix: str, device: torch.device | str) -> None:
    """Give a module on the meta device its weights; on the host, those of the source themselves."""
    state = {}
    for name, _ in module.named_parameters():
        weight = source.weights[prefix + name]()
        require_finite({prefix + name: weight}, source.origin, "the training diverged there: give another model")
        state[name] = weight.to(device)
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False).train(False)
