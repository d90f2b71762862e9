"""Where a fine-tuned encoder starts: a pretraining run of ours, or a published ESM-2 or ESM C.

In: a run's directory, a model's directory or a Hub name. Out: shape and weights of the encoder. Nothing is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pretrain.checkpoint.frozen import ContentHash
from pretrain.checkpoint.load import Verified, newest_valid
from pretrain.checkpoint.tensors import TensorReader
from pretrain.model.build import without_memory
from pretrain.model.initial import FirstWeight
from pretrain.model.presets import EsmShape
from pretrain.run.directory import RunDirectory

ENCODER = "encoder."
"""Begin of the names of an encoder's parameters, in a pretrained model and in a fine-tuned one."""


@dataclass(frozen=True, slots=True)
class Start:
    """A pretrained encoder."""

    shape: EsmShape
    weights: Mapping[str, FirstWeight]
    """Names that begin with `ENCODER` -> what reads the whole weight, float32 on the host."""
    origin: str
    """Where the weights were found, for the console."""

    def content_hash(self) -> str:
        """Hash of all weights, as `pretrain.checkpoint.frozen` defines it; reads them once."""
        content = ContentHash()
        for name in sorted(self.weights):
            content.add(name, self.weights[name]())
        return content.hexdigest()


def starting_encoder(source: str | Path) -> Start:
    """The encoder at `source`.

    Args:
        source: the directory of a pretraining run, whose newest whole checkpoint is read, or its export where it has
            no checkpoint; a directory or Hub name of an `EsmForMaskedLM` or `EsmcForMaskedLM`.

    Raises:
        ValueError: there is nothing of the kind, or it lacks weights of the encoder.
    """
    folder = Path(source)
    if (folder / "run.json").is_file():
        return _of_run(RunDirectory(folder))
    from pretrain.model.weights import io as transformers_io  # transformers takes seconds to import

    shape, weights = transformers_io.read(source)
    return Start(shape, _of_encoder(weights), str(source))


def _of_run(run: RunDirectory) -> Start:
    checkpoint = newest_valid(run.checkpoints, writer=False)
    if checkpoint is None:
        if (run.export / "config.json").is_file():
            return starting_encoder(run.export)
        raise ValueError(f"{run.root} has no checkpoint and no export yet; train until the first one is written")
    described: dict[str, Any] = run.model()
    try:
        shape = EsmShape(**described)
    except TypeError as error:
        raise ValueError(
            f"{run.root} is no pretraining run: its run.json describes the model by {sorted(described)}; name the run "
            "or the published model that it started from"
        ) from error
    return Start(shape, _of_checkpoint(checkpoint, shape), f"{run.root}, step {checkpoint.trainer.step}")


def _of_checkpoint(checkpoint: Verified, shape: EsmShape) -> dict[str, FirstWeight]:
    reader = TensorReader(checkpoint.path, "model", frozenset(entry.path for entry in checkpoint.manifest.files))
    names = [name for name, _ in without_memory(shape).named_parameters() if name.startswith(ENCODER)]
    missing = [name for name in names if name not in reader.shapes]
    if missing:
        raise ValueError(
            f"{checkpoint.path} lacks {len(missing)} of the encoder's {len(names)} weights, such as {missing[0]!r}, "
            "because its run did not train them; start from the run's export"
        )
    return {name: partial(reader.read, name) for name in names}


def _of_encoder(weights: Mapping[str, FirstWeight]) -> dict[str, FirstWeight]:
    return {name: weight for name, weight in weights.items() if name.startswith(ENCODER)}
